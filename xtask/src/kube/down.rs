//! `./x kube down`: ends what `up` started and removes every trace. It works from the recorded processes and from
//! names, so it also works after a crash, and can run twice.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::layout::Run;
use super::process::Process;
use super::{net, root};

/// Where a node's containerd keeps a folder for each container.
const STATE: &str = "containerd/io.containerd.grpc.v1.cri";

pub(crate) fn run(run: &Run) -> Result<()> {
    if run.folder.exists() && !root::is_root() {
        bail!("this needs root");
    }
    for name in Process::recorded(run) {
        if let Some(process) = Process::find(run, &name) {
            process.end().with_context(|| format!("cannot end {name}"))?;
        }
    }
    net::remove(run)?;
    remove_cgroups(&containers(run));
    if run.folder.exists() {
        fs::remove_dir_all(&run.folder).with_context(|| format!("cannot remove {}", run.folder.display()))?;
    }
    Ok(())
}

/// The IDs of every container and sandbox that the nodes' containerds know.
fn containers(run: &Run) -> Vec<OsString> {
    let nodes = fs::read_dir(&run.folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let kinds = nodes.flat_map(|node| ["containers", "sandboxes"].map(|kind| node.join(STATE).join(kind)));
    kinds
        .flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten())
        .map(|entry| entry.file_name())
        .collect()
}

/// Removes the containers' control groups, which a container that ended with its whole node could not remove: under
/// each controller of cgroup v1, or under the root of v2. The kernel refuses to remove a group that is in use.
fn remove_cgroups(containers: &[OsString]) {
    let root = Path::new("/sys/fs/cgroup");
    let controllers = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    for parent in controllers.chain([root.to_owned()]).map(|folder| folder.join("k8s.io")) {
        for id in containers {
            let _ = fs::remove_dir(parent.join(id));
        }
        let _ = fs::remove_dir(&parent); // unless it also contains other containers
    }
}
