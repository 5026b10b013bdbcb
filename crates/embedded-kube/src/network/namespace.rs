//! Network namespaces. A thread is in one, what it starts begins there, and a socket stays where it was opened.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::sched::{CloneFlags, setns, unshare};

use super::netlink::Netlink;

/// A namespace. The kernel removes it, and the links in it, when nothing of this kind, no process and no socket is left.
#[derive(Clone, Debug)]
pub(crate) struct Namespace(Arc<File>);

impl Namespace {
    /// The one this thread is in.
    pub(crate) fn current() -> io::Result<Self> {
        Ok(Self(Arc::new(File::open("/proc/thread-self/ns/net")?)))
    }

    /// A new one, with `lo` up and nothing else, and a socket to set it up.
    pub(super) fn create() -> io::Result<(Self, Netlink)> {
        on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            let mut netlink = Netlink::open()?;
            netlink.set_up(super::netlink::LOOPBACK)?;
            // As container runtimes do: who is root matters to nobody in a network of one's own. Where /proc/sys cannot be
            // written the kernel's own defaults stay.
            let _kept = fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
            let _kept = fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0");
            Ok((Self::current()?, netlink))
        })
    }

    /// Moves this thread into it.
    pub(crate) fn enter(&self) -> io::Result<()> {
        Ok(setns(&*self.0, CloneFlags::CLONE_NEWNET)?)
    }

    /// Does something inside, on a thread of its own.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let this = self.clone();
        on_thread(move || {
            this.enter()?;
            work()
        })
    }

    /// Does something inside on this thread, which then goes back to `home`.
    pub(crate) fn visit<T>(&self, home: &Self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.enter()?;
        let result = work();
        home.enter()?;
        result
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn on_thread<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let thread = std::thread::Builder::new().name("network".to_owned()).spawn(work)?;
    thread
        .join()
        .map_err(|_| io::Error::other("the thread for a network namespace panicked"))?
}
