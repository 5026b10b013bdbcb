//! Everything here except building needs root. An ordinary user compiles and builds as themselves; then only this
//! program is restarted through sudo, so that root owns no files but the cluster's own.

use std::os::unix::process::CommandExt;

use anyhow::{Context, Result};

use crate::paths::Paths;
use crate::shell::{cmd, output};

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Restarts this command as root if sudo needs no password. Otherwise the verb continues and says what to do.
pub(crate) fn become_root(paths: &Paths) -> Result<()> {
    if is_root() || !can_become_root() {
        return Ok(());
    }
    let failure = cmd("sudo", ["-n"]).args(as_root(paths)?).exec();
    Err(failure).context("cannot start sudo")
}

/// Whether sudo works without a password.
pub(crate) fn can_become_root() -> bool {
    output(&mut cmd("sudo", ["-n", "true"])).is_ok()
}

/// This command for sudo, with the environment variables that it needs, because sudo drops most of them.
pub(crate) fn as_root(paths: &Paths) -> Result<Vec<String>> {
    let path = std::env::var("PATH").unwrap_or_default();
    let this = std::env::current_exe()?.display().to_string();
    let start = [
        "env".into(),
        format!("STATEWARD_CACHE={}", paths.cache.display()),
        format!("PATH={path}"),
        this,
    ];
    Ok(start.into_iter().chain(std::env::args().skip(1)).collect())
}
