//! The network of one cluster: a namespace with a bridge for the control plane, and one namespace for each node,
//! connected to the bridge. Nothing connects them to the machine's own network. Between nodes, pods are routed without
//! masquerading.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

use super::build::Parts;
use super::layout::{CONTROL, Guest, PREFIX, Run};
use crate::paths::Paths;
use crate::shell::{cmd, output};

/// Creates the namespaces, the bridge, the links and the routes.
pub(crate) fn make(run: &Run, nodes: usize) -> Result<()> {
    let control = run.netns(&Guest::Control);
    ip(&format!("netns add {control}"))?;
    ip(&format!("-n {control} link set lo up"))?;
    ip(&format!("-n {control} link add bridge type bridge"))?;
    ip(&format!("-n {control} addr add {CONTROL}/{PREFIX} dev bridge"))?;
    ip(&format!("-n {control} link set bridge up"))?;
    // A local process needs a route to a service address before kube-proxy's rules redirect it.
    ip(&format!("-n {control} route add default dev bridge"))?;
    route_pods(run, &Guest::Control, nodes)?;
    Guest::all(nodes)
        .skip(1)
        .try_for_each(|node| make_node(run, &node, nodes))
}

/// Creates a node's namespace and its link to the bridge.
pub(crate) fn make_node(run: &Run, node: &Guest, nodes: usize) -> Result<()> {
    let (control, ns) = (run.netns(&Guest::Control), run.netns(node));
    let Guest::Node(number) = node else {
        bail!("{node} is not a node")
    };
    ip(&format!("netns add {ns}"))?;
    ip(&format!("-n {ns} link set lo up"))?;
    // The hardware address never changes, so that neighbors still know a node that comes back.
    let hardware = format!("02:00:00:00:00:{number:02x}");
    ip(&format!(
        "-n {ns} link add eth0 address {hardware} type veth peer name {node} netns {control}"
    ))?;
    ip(&format!("-n {control} link set {node} master bridge up"))?;
    ip(&format!("-n {ns} addr add {}/{PREFIX} dev eth0", node.address()))?;
    ip(&format!("-n {ns} link set eth0 up"))?;
    ip(&format!("-n {ns} route add default via {CONTROL}"))?;
    route_pods(run, node, nodes)
}

/// Disconnects a node from the network and deletes its namespace. What the kernel still holds of it (connections
/// without a peer outlive their process for a minute) is then cut off from everything.
pub(crate) fn remove_node(run: &Run, node: &Guest) -> Result<()> {
    ip(&format!("-n {} link delete {node}", run.netns(&Guest::Control)))?;
    ip(&format!("netns delete {}", run.netns(node))).map(drop)
}

fn route_pods(run: &Run, from: &Guest, nodes: usize) -> Result<()> {
    for to in Guest::all(nodes).filter(|to| to != from) {
        if let Some(pods) = to.pods() {
            ip(&format!("-n {} route add {pods} via {}", run.netns(from), to.address()))?;
        }
    }
    Ok(())
}

/// Deletes the namespaces and everything in them.
pub(crate) fn remove(run: &Run) -> Result<()> {
    let prefix = run.netns(&Guest::Control);
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let number = name.strip_prefix(&prefix).and_then(|rest| rest.strip_prefix('-'));
        if name == prefix || number.is_some_and(|number| number.parse::<usize>().is_ok()) {
            ip(&format!("netns delete {name}"))?;
        }
    }
    Ok(())
}

fn ip(arguments: &str) -> Result<String> {
    output(&mut cmd("ip", arguments.split(' ')))
}

/// Moves this process (and what it starts) into a guest's network namespace.
pub(crate) fn enter(run: &Run, guest: &Guest) -> Result<()> {
    let file = run.netns_file(guest);
    let namespace = File::open(&file).with_context(|| format!("there is no {}", file.display()))?;
    setns(namespace, CloneFlags::CLONE_NEWNET).context("cannot enter the network namespace (root is needed)")
}

/// `./x kube exec`: becomes `command` inside the control plane's network, with the cluster's DNS.
pub(crate) fn exec(run: &Run, command: &[String]) -> Result<()> {
    let parts = Parts::new(&Paths::find()?, &run.facts()?.version);
    enter(run, &Guest::Control)?;
    unshare(CloneFlags::CLONE_NEWNS).context("cannot get a mount namespace")?;
    // Only what has to differ is private: a network namespace that a fault creates in here must appear outside, too.
    let resolver = Path::new("/etc/resolv.conf");
    for mount_point in [Path::new("/"), Path::new("/etc"), resolver] {
        match bind(None, mount_point, MsFlags::MS_PRIVATE) {
            Err(error) if error.downcast_ref() != Some(&Errno::EINVAL) => return Err(error), // EINVAL: not a mount point
            _ => {}
        }
    }
    bind(Some(&run.folder.join("resolv.conf")), resolver, MsFlags::MS_BIND)?;
    let (program, arguments) = command.split_first().context("no command given")?;
    let path = format!("{}:{}", parts.tools(), std::env::var("PATH").unwrap_or_default());
    let failure = Command::new(program)
        .args(arguments)
        .env("KUBECONFIG", run.kubeconfig())
        .env("PATH", path)
        .exec();
    Err(failure).with_context(|| format!("cannot run {program}"))
}

fn bind(source: Option<&Path>, target: &Path, flags: MsFlags) -> Result<()> {
    mount(source, target, None::<&Path>, flags, None::<&Path>)
        .with_context(|| format!("cannot mount over {}", target.display()))
}
