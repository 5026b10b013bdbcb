//! The objects that every cluster has from the start: the storage class, and the RBAC objects of DNS and of the volume
//! provisioner.

use anyhow::{Context, Result, bail};
use std::io::Write;
use std::process::{Command, Stdio};

use super::build::Parts;
use super::layout::Run;
use crate::shell::cmd;

/// The provisioner's name in the storage class.
pub(crate) const PROVISIONER: &str = "stateward.local/folders";

pub(crate) const OBJECTS: &str = include_str!("objects.yaml");

/// Applies manifests as admin.
pub(crate) fn apply(parts: &Parts, run: &Run, manifests: &str) -> Result<()> {
    let mut child = kubectl(parts, run)
        .args(["apply", "--server-side", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start kubectl")?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(manifests.as_bytes())?;
    }
    if !child.wait()?.success() {
        bail!("kubectl apply failed");
    }
    Ok(())
}

/// kubectl of the cluster's own version, as admin.
pub(crate) fn kubectl(parts: &Parts, run: &Run) -> Command {
    let mut command = cmd(parts.program("kubectl"), ["--kubeconfig"]);
    command.arg(run.kubeconfig());
    command
}
