//! The first process of the control plane or of a node, inside its own namespaces. It prepares the file system, starts
//! and restarts the daemons, and reaps orphans, like any init. Killing it ends the whole guest.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

use super::build::Parts;
use super::layout::{Guest, Run};
use super::process::Process;
use super::{control, node, relay};
use crate::paths::Paths;
use crate::shell::cmd;

#[derive(clap::Args)]
pub(crate) struct Args {
    guest: Guest,
}

/// A program that is kept running.
pub(crate) struct Daemon {
    pub(crate) name: String,
    pub(crate) command: Command,
    /// It is started once these files exist.
    pub(crate) after: Vec<PathBuf>,
}

impl Daemon {
    pub(crate) fn new(name: impl Into<String>, program: impl AsRef<Path>, arguments: &[String]) -> Self {
        Self {
            name: name.into(),
            command: cmd(program.as_ref(), arguments),
            after: Vec::new(),
        }
    }

    pub(crate) fn after(mut self, file: PathBuf) -> Self {
        self.after.push(file);
        self
    }
}

/// Starts a guest. Its network namespace already exists; it gets its own mount and process namespaces.
pub(crate) fn start(run: &Run, guest: &Guest) -> Result<Process> {
    // nsenter, because `ip netns exec` would hide the cgroup mounts. With --kill-child, the guest ends together with
    // `unshare`, whose process is the recorded one.
    let mut command = cmd("nsenter", [format!("--net={}", run.netns_file(guest).display())]);
    command.args([
        "--",
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--",
    ]);
    command
        .arg(run.program())
        .args(["kube", "--name", &run.name, "guest", &guest.to_string()]);
    Process::start(run, &guest.to_string(), &command)
}

/// Written when the API server responds. What depends on it starts then.
pub(crate) fn api_ready(run: &Run) -> PathBuf {
    run.folder.join("api-ready")
}

/// Exists while the API server is to run.
pub(crate) fn api_wanted(run: &Run) -> PathBuf {
    run.folder.join("api-wanted")
}

pub(crate) fn run(paths: &Paths, run: &Run, args: &Args) -> Result<()> {
    let facts = run.facts()?;
    let parts = Parts::new(paths, &facts.version);
    for folder in ["/run", "/var/lib", "/var/log"] {
        let none = None::<&Path>;
        mount(
            none,
            Path::new(folder),
            Some(Path::new("tmpfs")),
            MsFlags::empty(),
            Some(Path::new("mode=755")),
        )
        .with_context(|| format!("cannot mount over {folder}"))?;
    }
    fs::create_dir("/run/lock")?;
    shield_machine()?;
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("cannot turn on forwarding")?;
    relay::serve_inside(facts.port)?;
    fs::create_dir_all(run.guest(&args.guest))?;
    let daemons = match &args.guest {
        Guest::Control => control::daemons(run, &parts)?,
        Guest::Node(_) => node::daemons(paths, run, &parts, &args.guest)?,
    };
    supervise(run, daemons)
}

/// Machine-wide settings that a kubelet changes at start-up (its `setupKernelTunables`). It gets files to write to
/// instead.
const SETTINGS: [&str; 6] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

fn shield_machine() -> Result<()> {
    for setting in SETTINGS {
        let (real, stand_in) = (
            Path::new("/proc/sys").join(setting),
            Path::new("/run/settings").join(setting),
        );
        let Ok(value) = fs::read(&real) else { continue }; // not in this kernel
        fs::create_dir_all(stand_in.parent().unwrap_or(&stand_in))?;
        fs::write(&stand_in, value)?;
        mount(Some(&stand_in), &real, None::<&Path>, MsFlags::MS_BIND, None::<&Path>)
            .with_context(|| format!("cannot shield {}", real.display()))?;
    }
    Ok(())
}

/// Returns only with an error: when this process ends, so does the guest.
fn supervise(run: &Run, daemons: Vec<Daemon>) -> Result<()> {
    let mut waiting: Vec<(Instant, Daemon)> = daemons.into_iter().map(|daemon| (Instant::now(), daemon)).collect();
    let mut running: HashMap<i32, Daemon> = HashMap::new();
    loop {
        let mut later = Vec::new();
        for (when, mut daemon) in waiting {
            if when > Instant::now() || daemon.after.iter().any(|file| !file.exists()) {
                later.push((when, daemon));
                continue;
            }
            let log = fs::File::options()
                .create(true)
                .append(true)
                .open(run.log(&daemon.name))?;
            let child = daemon
                .command
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn();
            match child {
                Ok(child) => drop(running.insert(i32::try_from(child.id())?, daemon)),
                Err(error) => {
                    eprintln!("cannot start {}: {error}", daemon.name);
                    later.push((Instant::now() + Duration::from_secs(1), daemon));
                }
            }
        }
        waiting = later;
        loop {
            let ended = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid.as_raw(), format!("ended with status {code}")),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid.as_raw(), format!("ended by {signal}")),
                Ok(_) | Err(Errno::ECHILD) => break,
                Err(error) => return Err(error.into()),
            };
            if let Some(daemon) = running.remove(&ended.0) {
                eprintln!("{} {}, starting it again", daemon.name, ended.1);
                waiting.push((Instant::now() + Duration::from_secs(1), daemon));
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
