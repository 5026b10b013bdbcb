//! `./x kube fault`: injects faults from outside, without asking Kubernetes.
//!
//! Processes fail by signals, volumes by changes in their folders, nodes by power-off, and the network by nftables
//! rules inside the namespaces. Every verb returns when the fault has happened.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::build::Parts;
use super::layout::{Guest, Run};
use super::objects::kubectl;
use super::process::Process;
use super::{guest, net, up};
use crate::paths::Paths;
use crate::shell::{cmd, output};

/// Faults and their reversals. Pods and claims are written NAMESPACE/NAME.
#[derive(Subcommand)]
pub(crate) enum Fault {
    /// Kill all processes of a pod's containers, like a crash
    Kill(PodProcesses),
    /// Stop all processes of a pod's containers without ending them
    Freeze(PodProcesses),
    /// Resume frozen processes
    Thaw(PodProcesses),
    /// Empty a claim's volume and kill the processes that use it
    LoseVolume {
        /// The claim
        claim: Name,
    },
    /// Overwrite parts of a claim's volume and kill the processes that use it
    CorruptVolume {
        /// The claim
        claim: Name,
        /// The file, as a path in the volume; by default the largest one
        #[arg(long)]
        file: Option<PathBuf>,
    },
    /// Cut the largest file of a claim's volume to half its size and kill the processes that use it
    TruncateVolume {
        /// The claim
        claim: Name,
    },
    /// Power a node off: kubelet, containerd and all pods' processes end at once
    StopNode {
        /// node-1, node-2, …
        node: Guest,
    },
    /// Power a node on, and wait until it is ready
    StartNode {
        /// node-1, node-2, …
        node: Guest,
    },
    /// Drop all packets between two ends: pods (by their current address), nodes with all their pods, or addresses
    Cut {
        /// NAMESPACE/POD, node-1, control, or an address
        a: String,
        /// The other end
        b: String,
        /// Only from the first to the second
        #[arg(long)]
        one_way: bool,
    },
    /// Undo all cuts
    Heal,
    /// Stop the API server and keep it stopped
    StopApi,
    /// Start the API server and wait until it responds
    StartApi,
}

#[derive(clap::Args)]
pub(crate) struct PodProcesses {
    /// The pod
    pub(crate) pod: Name,
    /// Only this container
    #[arg(long)]
    pub(crate) container: Option<String>,
}

/// NAMESPACE/NAME; the default namespace is `default`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Name {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl std::str::FromStr for Name {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }
}

pub(crate) fn run(paths: &Paths, run: &Run, fault: &Fault) -> Result<()> {
    let facts = run.facts()?;
    let parts = Parts::new(paths, &facts.version);
    let environment = Environment {
        run,
        parts: &parts,
        nodes: facts.nodes,
    };
    match fault {
        Fault::Kill(which) => environment.signal_pod(which, Signal::SIGKILL),
        Fault::Freeze(which) => environment.signal_pod(which, Signal::SIGSTOP),
        Fault::Thaw(which) => environment.signal_pod(which, Signal::SIGCONT),
        Fault::LoseVolume { claim } => environment.damage(claim, empty),
        Fault::CorruptVolume { claim, file } => environment.damage(claim, |folder| corrupt(folder, file.as_deref())),
        Fault::TruncateVolume { claim } => environment.damage(claim, truncate),
        Fault::StopNode { node } => environment.stop_node(node),
        Fault::StartNode { node } => environment.start_node(node),
        Fault::Cut { a, b, one_way } => environment.cut(a, b, *one_way),
        Fault::Heal => environment.each_namespace("add table inet stateward_cut\ndelete table inet stateward_cut\n"),
        Fault::StopApi => environment.stop_api(),
        Fault::StartApi => {
            fs::write(guest::api_wanted(run), "")?;
            up::wait_for_api(&parts, run)
        }
    }
}

struct Environment<'a> {
    run: &'a Run,
    parts: &'a Parts,
    nodes: usize,
}

impl Environment<'_> {
    fn get(&self, kind: &str, name: &Name) -> Result<Value> {
        let words = ["get", kind, &name.name, "--namespace", &name.namespace, "-o", "json"];
        Ok(serde_json::from_str(&output(
            kubectl(self.parts, self.run).args(words),
        )?)?)
    }

    fn signal_pod(&self, which: &PodProcesses, signal: Signal) -> Result<()> {
        let pod = self.get("pod", &which.pod)?;
        let count = signal_containers(&container_ids(&pod, which.container.as_deref()), signal)?;
        if count == 0 {
            bail!("no process of {}/{} runs", which.pod.namespace, which.pod.name);
        }
        println!("{signal} to {count} processes");
        Ok(())
    }

    /// Freezes the processes that use the volume, so that nothing is written back, damages it, and kills them.
    fn damage(&self, claim: &Name, damage: impl Fn(&Path) -> Result<()>) -> Result<()> {
        let volume = self.get("persistentvolumeclaim", claim)?["spec"]["volumeName"].clone();
        let volume = volume.as_str().context("the claim has no volume yet")?.to_owned();
        let volume = self.get(
            "persistentvolume",
            &Name {
                namespace: "default".into(),
                name: volume,
            },
        )?;
        let folder = PathBuf::from(
            volume["spec"]["local"]["path"]
                .as_str()
                .context("not a volume of this environment")?,
        );
        if !folder.starts_with(&self.run.folder) {
            bail!("{} does not belong to this cluster", folder.display());
        }
        let words = ["get", "pods", "--namespace", &claim.namespace, "-o", "json"];
        let pods: Value = serde_json::from_str(&output(kubectl(self.parts, self.run).args(words))?)?;
        let users = pods["items"].as_array().into_iter().flatten().filter(|pod| {
            let mut volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
            volumes.any(|volume| volume["persistentVolumeClaim"]["claimName"] == claim.name.as_str())
        });
        let containers: Vec<_> = users.flat_map(|pod| container_ids(pod, None)).collect();
        signal_containers(&containers, Signal::SIGSTOP)?;
        let result = damage(&folder);
        signal_containers(&containers, Signal::SIGKILL)?;
        result
    }

    fn stop_node(&self, node: &Guest) -> Result<()> {
        self.check_node(node)?;
        let process = Process::find(self.run, &node.to_string());
        process.with_context(|| format!("{node} is not running"))?.end()?;
        net::remove_node(self.run, node)
    }

    fn start_node(&self, node: &Guest) -> Result<()> {
        self.check_node(node)?;
        if Process::find(self.run, &node.to_string()).is_some() {
            bail!("{node} is already running");
        }
        let before = up::heartbeat(self.parts, self.run, node)?;
        net::make_node(self.run, node, self.nodes)?;
        guest::start(self.run, node)?;
        up::wait_until_ready(self.parts, self.run, node, &before)
    }

    fn check_node(&self, node: &Guest) -> Result<()> {
        match node {
            Guest::Node(number) if (1..=self.nodes).contains(number) => Ok(()),
            _ => bail!("there is no {node}; nodes are node-1 to node-{}", self.nodes),
        }
    }

    /// The guest's first process restarts it only while this file exists.
    fn stop_api(&self) -> Result<()> {
        fs::remove_file(guest::api_wanted(self.run)).context("the API server is already stopped")?;
        let (program, folder) = (
            self.parts.program("kube-apiserver"),
            self.run.folder.display().to_string(),
        );
        let ours = |pid: i32| {
            let process = PathBuf::from(format!("/proc/{pid}"));
            fs::read_link(process.join("exe")).is_ok_and(|exe| exe == program)
                && fs::read(process.join("cmdline"))
                    .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&format!("{folder}/")))
        };
        for pid in processes()?.filter(|pid| ours(*pid)) {
            kill(Pid::from_raw(pid), Signal::SIGKILL)?;
        }
        Ok(())
    }

    /// Adds the same rules in every namespace and at every hook, so that they apply wherever the packet passes.
    fn cut(&self, a: &str, b: &str, one_way: bool) -> Result<()> {
        let (a, b) = (self.addresses(a)?, self.addresses(b)?);
        let mut rules = String::from("add table inet stateward_cut\n");
        for hook in ["input", "output", "forward"] {
            rules += &format!("add chain inet stateward_cut {hook} {{ type filter hook {hook} priority -300; }}\n");
            rules += &format!("add rule inet stateward_cut {hook} ip saddr {{ {a} }} ip daddr {{ {b} }} drop\n");
            if !one_way {
                rules += &format!("add rule inet stateward_cut {hook} ip saddr {{ {b} }} ip daddr {{ {a} }} drop\n");
            }
        }
        self.each_namespace(&rules)
    }

    fn addresses(&self, end: &str) -> Result<String> {
        if let Ok(guest) = end.parse::<Guest>() {
            return Ok(std::iter::once(guest.address())
                .chain(guest.pods())
                .collect::<Vec<_>>()
                .join(", "));
        }
        if end.parse::<std::net::Ipv4Addr>().is_ok() {
            return Ok(end.to_owned());
        }
        let Ok(name) = end.parse::<Name>();
        let pod = self.get("pod", &name)?;
        Ok(pod["status"]["podIP"]
            .as_str()
            .with_context(|| format!("{end} has no address yet"))?
            .to_owned())
    }

    fn each_namespace(&self, rules: &str) -> Result<()> {
        for guest in Guest::all(self.nodes) {
            let file = self.run.netns_file(&guest);
            if !file.exists() {
                continue; // the node is stopped
            }
            let mut nft = cmd("nsenter", [format!("--net={}", file.display())])
                .args(["--", "nft", "-f", "-"])
                .stdin(Stdio::piped())
                .spawn()?;
            nft.stdin
                .take()
                .context("nft takes no input")?
                .write_all(rules.as_bytes())?;
            if !nft.wait()?.success() {
                bail!("nft rejected the rules in {guest}");
            }
        }
        Ok(())
    }
}

/// The IDs of a pod's containers, without the runtime prefix.
fn container_ids(pod: &Value, only: Option<&str>) -> Vec<String> {
    let statuses = [
        "containerStatuses",
        "initContainerStatuses",
        "ephemeralContainerStatuses",
    ];
    let containers = statuses
        .iter()
        .flat_map(|kind| pod["status"][*kind].as_array().into_iter().flatten());
    containers
        .filter(|container| only.is_none_or(|name| container["name"] == name))
        .filter_map(|container| {
            container["containerID"]
                .as_str()?
                .rsplit_once("://")
                .map(|(_, id)| id.to_owned())
        })
        .collect()
}

/// Sends a signal to every process of these containers, found by the control group that carries the container's ID.
fn signal_containers(ids: &[String], signal: Signal) -> Result<usize> {
    let mut count = 0;
    for pid in processes()? {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        if ids.iter().any(|id| groups.contains(id.as_str())) && kill(Pid::from_raw(pid), signal).is_ok() {
            count += 1;
        }
    }
    Ok(count)
}

/// All processes of the machine.
fn processes() -> Result<impl Iterator<Item = i32>> {
    let entries = fs::read_dir("/proc")?.flatten();
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()))
}

/// Empties a folder but keeps the folder itself, because it is mounted.
fn empty(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let remove = if entry.file_type()?.is_dir() {
            fs::remove_dir_all
        } else {
            fs::remove_file
        };
        remove(entry.path())?;
    }
    Ok(())
}

/// Overwrites a block in each eighth of a file, including the first.
fn corrupt(folder: &Path, file: Option<&Path>) -> Result<()> {
    let victim = match file {
        Some(file) => folder.join(file),
        None => the_largest(folder)?,
    };
    let mut file = writable(&victim)?;
    let size = file.metadata()?.len();
    for part in 0..8 {
        file.seek(SeekFrom::Start(size * part / 8))?;
        file.write_all(&[0xA5; 4096])?;
    }
    file.set_len(size)?;
    println!("overwrote parts of {}", victim.display());
    Ok(file.sync_all()?)
}

/// Truncates the largest file to half its size.
fn truncate(folder: &Path) -> Result<()> {
    let victim = the_largest(folder)?;
    let file = writable(&victim)?;
    file.set_len(file.metadata()?.len() / 2)?;
    println!("cut {} to half", victim.display());
    Ok(file.sync_all()?)
}

fn writable(file: &Path) -> Result<fs::File> {
    let opened = fs::File::options().write(true).open(file);
    opened.with_context(|| format!("cannot open {}", file.display()))
}

fn the_largest(folder: &Path) -> Result<PathBuf> {
    let found = largest(folder)?.with_context(|| format!("there is no file in {}", folder.display()))?;
    Ok(found.1)
}

fn largest(folder: &Path) -> Result<Option<(u64, PathBuf)>> {
    let mut best = None;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let found = match entry.file_type()? {
            kind if kind.is_dir() => largest(&entry.path())?,
            kind if kind.is_file() => Some((entry.metadata()?.len(), entry.path())),
            _ => None,
        };
        best = best.max(found);
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corrupting_changes_the_largest_file_and_not_its_size() {
        // given two files in a volume
        let volume = tempfile::tempdir().unwrap();
        fs::create_dir(volume.path().join("member")).unwrap();
        fs::write(volume.path().join("member/db"), vec![0; 100_000]).unwrap();
        fs::write(volume.path().join("small"), [0; 10]).unwrap();
        // when it is corrupted
        corrupt(volume.path(), None).unwrap();
        // then the larger one differs, and only in content
        let db = fs::read(volume.path().join("member/db")).unwrap();
        assert_eq!(db.len(), 100_000);
        assert!(db.contains(&0xA5));
        assert_eq!(fs::read(volume.path().join("small")).unwrap(), [0; 10]);
        // and when it is truncated, half of it is left
        truncate(volume.path()).unwrap();
        assert_eq!(fs::read(volume.path().join("member/db")).unwrap().len(), 50_000);
        // and when it is lost, the folder itself stays
        empty(volume.path()).unwrap();
        assert_eq!(fs::read_dir(volume.path()).unwrap().count(), 0);
    }
}
