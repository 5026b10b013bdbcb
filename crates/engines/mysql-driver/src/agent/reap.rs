//! The first process of a container inherits those whose parents ended (of `kubectl exec`, for example), and must collect them.

use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;

/// Collects ended processes that are not `own`, which its owner collects.
pub(super) fn orphans(own: Option<u32>) {
    let own = own.and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    while let Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..)) = waitid(Id::All, look) {
        if Some(pid) == own || waitpid(pid, Some(WaitPidFlag::WNOHANG)).is_err() {
            return;
        }
    }
}
