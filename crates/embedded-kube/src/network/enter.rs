//! Moving this process into a network of its own, before it has threads; and doing things in the machine's network
//! afterwards.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::sync::mpsc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

use super::netlink::{LOOPBACK, Netlink};

/// Why the process could not get a network of its own.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnterError {
    /// The kernel refuses a namespace; the text says why and what to do.
    #[error("pods need a {what} namespace, and the kernel refuses one ({errno}): {advice}")]
    Refused {
        /// Which kind.
        what: &'static str,
        /// The kernel's answer.
        errno: Errno,
        /// What to change.
        advice: String,
    },
    /// The process has threads already.
    #[error("a process with threads cannot enter a user namespace: enter the network first thing in `main`")]
    Threads,
    /// The namespace could not be set up.
    #[error("cannot set up the network: {0}")]
    SetUp(#[from] io::Error),
}

/// The machine's network, after this process left it.
static OUTSIDE: OnceLock<Outside> = OnceLock::new();

/// Moves this process into a network of its own, where pods can be connected, and into a user namespace where it needs one
/// for that. It must have no threads yet: call it first thing in `main`, before any async runtime.
///
/// The process keeps its files and its process ID. As an ordinary user it is root from then on by its own view, and still
/// that user to everybody else. Its connections go to pods and services only. A second call does nothing.
///
/// Test programs have threads before their tests run: they are started by a runner that does the same, see the README.
pub fn enter() -> Result<(), EnterError> {
    if OUTSIDE.get().is_some() {
        return Ok(());
    }
    if !may_administer() {
        enter_user_namespace()?;
    }
    // This thread stays behind.
    let outside = Outside::start()?;
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| refused("network", errno))?;
    Netlink::open()?.set_up(LOOPBACK)?;
    let _set_once = OUTSIDE.set(outside);
    Ok(())
}

/// The machine's network, where [`enter`] was called.
pub(crate) fn outside() -> Option<&'static Outside> {
    OUTSIDE.get()
}

/// Whether this process may make namespaces as it is.
fn may_administer() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    effective.is_some_and(|bits| bits >> CAP_SYS_ADMIN & 1 == 1)
}

fn enter_user_namespace() -> Result<(), EnterError> {
    let (uid, gid) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER).map_err(|errno| match errno {
        Errno::EINVAL => EnterError::Threads,
        errno => refused("user", errno),
    })?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1\n"))?;
    // The kernel's condition for an ordinary user's group map.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1\n"))?;
    Ok(())
}

fn refused(what: &'static str, errno: Errno) -> EnterError {
    let setting = |path: &str| {
        fs::read_to_string(format!("/proc/sys/{path}"))
            .ok()
            .map(|text| text.trim().to_owned())
    };
    EnterError::Refused {
        what,
        errno,
        advice: advice(setting),
    }
}

/// What forbids namespaces on this machine, by the kernel's settings.
fn advice(setting: impl Fn(&str) -> Option<String>) -> String {
    let is = |path: &str, value: &str| setting(path).as_deref() == Some(value);
    if is("kernel/unprivileged_userns_clone", "0") {
        return "user namespaces are switched off; type `sudo sysctl kernel.unprivileged_userns_clone=1`".to_owned();
    }
    for path in ["user/max_user_namespaces", "user/max_net_namespaces"] {
        if is(path, "0") {
            let name = path.replace('/', ".");
            return format!("{name} is 0; type `sudo sysctl {name}=10000`");
        }
    }
    if is("kernel/apparmor_restrict_unprivileged_userns", "1") {
        return "AppArmor restricts user namespaces; type `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`, \
                or give this program an AppArmor profile with `userns`"
            .to_owned();
    }
    "in a container, its seccomp profile or its missing capabilities are the usual reason; start it with \
     `--security-opt seccomp=unconfined`, or run this outside of it"
        .to_owned()
}

/// A thread in the machine's network. What it opens stays there, whoever uses it.
#[derive(Debug)]
pub(crate) struct Outside(mpsc::Sender<Job>);

type Job = Box<dyn FnOnce() + Send>;

impl Outside {
    fn start() -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        std::thread::Builder::new()
            .name("outside".to_owned())
            .spawn(move || queue.into_iter().for_each(|job| job()))?;
        Ok(Self(jobs))
    }

    fn run<T: Send + 'static>(&self, work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
        let (answer, answered) = mpsc::sync_channel(1);
        let gone = |_| io::Error::other("the thread in the machine's network has ended");
        let job = Box::new(move || drop(answer.send(work())));
        self.0.send(job).map_err(|error| gone(error.to_string()))?;
        answered.recv().map_err(|error| gone(error.to_string()))?
    }

    /// Listens there.
    pub(crate) fn listen(&self, address: SocketAddr) -> io::Result<TcpListener> {
        self.run(move || TcpListener::bind(address))
    }

    /// Connects to somebody there, without keeping others waiting.
    #[expect(dead_code, reason = "for the relay to what the machine reaches")]
    pub(crate) fn connect(&self, address: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
        let connecting = self.run(move || {
            std::thread::Builder::new()
                .name("outside".to_owned())
                .spawn(move || TcpStream::connect_timeout(&address, limit))
        })?;
        connecting
            .join()
            .map_err(|_| io::Error::other("the thread that connects panicked"))?
    }
}

#[cfg(test)]
mod tests {
    use super::advice;

    #[test]
    fn the_setting_that_forbids_namespaces_is_named() {
        let with = |path: &str, value: &str| {
            let (path, value) = (path.to_owned(), value.to_owned());
            advice(move |asked| (asked == path).then(|| value.clone()))
        };
        for (path, value, expected) in [
            (
                "kernel/unprivileged_userns_clone",
                "0",
                "sysctl kernel.unprivileged_userns_clone=1",
            ),
            ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
            ("kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor"),
            ("kernel/unprivileged_userns_clone", "1", "seccomp"),
        ] {
            assert!(with(path, value).contains(expected), "{path}");
        }
    }
}
