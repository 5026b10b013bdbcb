//! etcd's own programs, run as they are.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use stateward_etcd::api::agent::{Failure, FailureReason};
use tokio::process::Command;

use crate::agent::failure::{failure, of_io};

/// A program that is looked for in `PATH`.
pub(crate) fn find(name: &str, path: Option<&OsString>) -> Option<PathBuf> {
    let path = path.cloned().or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

/// What to make a data directory of.
pub(crate) struct Restoring<'a> {
    pub(crate) snapshot: &'a Path,
    pub(crate) data_dir: &'a Path,
    pub(crate) member: &'a str,
    pub(crate) peer_url: &'a str,
    pub(crate) token: &'a str,
    pub(crate) revision_bump: i64,
}

/// `etcdutl snapshot restore`, or `etcdctl` before 3.5, which cannot raise the revision.
pub(crate) async fn restore(what: &Restoring<'_>, path: Option<&OsString>) -> Result<(), Failure> {
    let program = find("etcdutl", path).or_else(|| find("etcdctl", path));
    let program = program.ok_or_else(|| {
        failure(
            FailureReason::ToolMissing,
            "neither etcdutl nor etcdctl is in this image: use an image of etcd",
            false,
        )
    })?;
    let mut command = Command::new(&program);
    command
        .env("ETCDCTL_API", "3")
        .args(["snapshot", "restore"])
        .arg(what.snapshot)
        .arg("--data-dir")
        .arg(what.data_dir)
        .args(["--name", what.member])
        .args(["--initial-cluster", &format!("{}={}", what.member, what.peer_url)])
        .args(["--initial-advertise-peer-urls", what.peer_url])
        .args(["--initial-cluster-token", what.token])
        // The file was read through and compared a moment ago.
        .arg("--skip-hash-check");
    if what.revision_bump > 0 {
        command.args(["--bump-revision", &what.revision_bump.to_string(), "--mark-compacted"]);
    }
    let name = program.display();
    let done = command
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| of_io(&error, &format!("running {name}")))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    if said.contains("unknown flag") {
        let message = format!("{name} cannot raise the revision: use an image of etcd 3.5.10 or later for the restore");
        return Err(failure(FailureReason::ToolTooOld, message, false));
    }
    let last: Vec<&str> = said.lines().rev().take(3).collect();
    let last = last.into_iter().rev().collect::<Vec<_>>().join(" | ");
    let retry = !said.contains("already exists");
    Err(failure(
        FailureReason::RestoreFailed,
        format!("{name} ended with {}: {last}", done.status),
        retry,
    ))
}
