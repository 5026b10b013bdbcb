//! Moving this process into a network of its own, before it has threads; and doing things in the machine's network
//! afterwards.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, ToSocketAddrs};
use std::sync::OnceLock;
use std::sync::mpsc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use tokio::net::{TcpSocket, TcpStream};

use super::netlink::{LOOPBACK, Netlink};
use super::users;

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
    users::enter().map_err(|errno| match errno {
        Errno::EINVAL => EnterError::Threads,
        errno => refused("user", errno),
    })
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
     `--security-opt seccomp=unconfined --security-opt systempaths=unconfined`, or run this outside of it"
        .to_owned()
}

/// A thread in the machine's network. What it opens stays there, whoever uses it.
#[derive(Clone, Debug)]
pub(crate) struct Outside(mpsc::Sender<Job>);

type Job = Box<dyn FnOnce() + Send>;

impl Outside {
    /// In the network that the calling thread is in.
    pub(crate) fn start() -> io::Result<Self> {
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

    /// Connects to somebody there.
    pub(crate) async fn connect(&self, address: SocketAddrV4, limit: Duration) -> io::Result<TcpStream> {
        // A socket stays in the network where it was opened, whoever connects it.
        let socket = self.run(TcpSocket::new_v4)?;
        tokio::time::timeout(limit, socket.connect(address.into())).await?
    }

    /// What a name means there; empty where it means nothing.
    pub(crate) async fn resolve(&self, name: &str) -> io::Result<Vec<Ipv4Addr>> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let name = name.to_owned();
        let lookup = move || {
            let found = (name.as_str(), 0).to_socket_addrs();
            let found = found.map(|all| all.map(|address| address.ip()).collect::<Vec<_>>());
            drop(answer.send(found));
        };
        // It may take seconds, so it has a thread of its own.
        let builder = std::thread::Builder::new().name("lookup".to_owned());
        self.run(move || builder.spawn(lookup).map(drop))?;
        let found = match answered.await.map_err(io::Error::other)? {
            Ok(found) => found,
            // The C library's words for a name that does not exist; the standard library has no kind for it.
            Err(error) if error.to_string().contains("not known") || error.to_string().contains("No address") => {
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        let mut found: Vec<Ipv4Addr> = found
            .into_iter()
            .filter_map(|address| match address {
                IpAddr::V4(address) => Some(address),
                IpAddr::V6(_) => None,
            })
            .collect();
        found.dedup();
        Ok(found)
    }

    /// Which networks `10.N.0.0/16` the machine has routes to, apart from routes to everything in `10.0.0.0/8`.
    pub(crate) fn taken(&self) -> io::Result<Vec<u8>> {
        self.run(|| Ok(taken(&fs::read_to_string("/proc/thread-self/net/route")?)))
    }
}

/// From the kernel's table of routes, whose addresses are hexadecimal and in the machine's byte order.
fn taken(routes: &str) -> Vec<u8> {
    let network = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let word = |index: usize| u32::from_str_radix(fields.get(index)?, 16).ok();
        let [ten, number, _, _] = word(1)?.to_ne_bytes();
        (ten == 10 && word(7)?.count_ones() > 8).then_some(number)
    };
    routes.lines().skip(1).filter_map(network).collect()
}

#[cfg(test)]
mod tests {
    use super::{advice, taken};

    #[test]
    fn networks_of_the_machine_are_known() {
        // Given a default route, a network, a whole company's, and a neighbor
        let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            eth0\t00000000\t0102000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
            eth0\t0002000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
            vpn0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n\
            eth1\t0900070A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0\n";
        // Then only the small ones are avoided
        assert_eq!(taken(routes), [0, 7]);
    }

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
