//! `./x kube down`: ends what `up` started and removes every trace. It works from what is recorded and named after the
//! cluster, so that it does the same after a crash, or twice.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::layout::Run;
use super::net;
use super::process::Process;

pub(crate) fn run(run: &Run) -> Result<()> {
    for name in Process::recorded(run) {
        if let Some(process) = Process::find(run, &name) {
            process.end().with_context(|| format!("cannot end {name}"))?;
        }
    }
    net::remove(run)?;
    remove_cgroups(&format!("stateward-{}", run.name));
    if run.folder.exists() {
        fs::remove_dir_all(&run.folder).with_context(|| format!("cannot remove {}", run.folder.display()))?;
    }
    Ok(())
}

/// The pods' control groups: under each controller of the old kind, or under the one root of the new.
fn remove_cgroups(name: &str) {
    let root = Path::new("/sys/fs/cgroup");
    let controllers = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join(name));
    for folder in controllers.chain([root.join(name)]).filter(|folder| folder.is_dir()) {
        remove_empty(&folder);
    }
}

/// Deepest first; the kernel refuses one that still has processes, which is then not ours to remove.
fn remove_empty(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}
