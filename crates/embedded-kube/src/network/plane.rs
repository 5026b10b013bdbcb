//! The network of one instance inside this process's network namespace: a range of addresses, and a link to each pod.
//!
//! Pods are joined by routed point-to-point links, as on the real Kubernetes of `./x kube`, and not by a bridge: every
//! packet between two pods passes the rules of this namespace.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::Rng;

use super::enter::outside;
use super::filter;
use super::kernel::{self, MissingError};
use super::namespace::Namespace;
use super::netlink::{LOOPBACK, Netlink, Route};
use super::range::Range;

/// Why there is no network for pods.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaneError {
    #[error(
        "pods need a network of their own: a program calls `embedded_kube::enter_network()` first thing in `main`, and test \
         programs are started by the runner in .cargo/config.toml. {0}"
    )]
    NotInside(&'static str),
    #[error("pods need the program `nft`: install the package nftables")]
    NoNft,
    #[error(transparent)]
    Kernel(#[from] MissingError),
    #[error("cannot set up the network of the pods ({0}): {1}")]
    SetUp(&'static str, io::Error),
    #[error(
        "pods need net.ipv4.ip_forward, and /proc/sys is read-only here, as in most containers: start the container with \
         `--security-opt systempaths=unconfined`, or run this outside of it"
    )]
    ReadOnly,
    #[error("no network is free")]
    Full,
}

/// The network of one instance.
pub(crate) struct Plane {
    range: Range,
    netlink: Mutex<Netlink>,
    links: AtomicU32,
}

impl std::fmt::Debug for Plane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Plane").field(&self.range).finish()
    }
}

/// One pod's place in the network.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) namespace: Namespace,
    link: String,
}

const POD_LINK: &str = "eth0";

impl Plane {
    /// Claims a network that is free in this namespace, `wanted` if it is.
    pub(crate) fn claim(wanted: Option<u8>) -> Result<Self, PlaneError> {
        if is_the_machines() {
            return Err(PlaneError::NotInside("This process is in the machine's own network."));
        }
        if crate::node::find_program("nft").is_none() {
            return Err(PlaneError::NoNft);
        }
        let failed = |what| move |error| PlaneError::SetUp(what, error);
        let mut netlink = Netlink::open().map_err(failed("netlink"))?;
        netlink.set_up(LOOPBACK).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                PlaneError::NotInside("This process may not change the network it is in.")
            }
            _ => PlaneError::SetUp("lo", error),
        })?;
        kernel::check()?;
        // In a container that somebody else set up it may be so already, and not to be changed.
        const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
        if fs::read_to_string(FORWARD).is_ok_and(|text| text.trim() != "1") {
            fs::write(FORWARD, "1").map_err(|error| match error.kind() {
                io::ErrorKind::ReadOnlyFilesystem => PlaneError::ReadOnly,
                _ => PlaneError::SetUp("net.ipv4.ip_forward", error),
            })?;
        }
        let start = rand::rng().random_range(Range::CHOICES);
        // What the machine reaches there, pods could not reach.
        let taken = outside().and_then(|outside| outside.taken().ok()).unwrap_or_default();
        let choices = wanted
            .into_iter()
            .chain(start..=*Range::CHOICES.end())
            .chain(*Range::CHOICES.start()..start);
        for range in choices.filter(|number| !taken.contains(number)).filter_map(Range::new) {
            // Whoever adds this address has the range.
            match netlink.add_address(LOOPBACK, range.gateway()) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(PlaneError::SetUp("address", error)),
            }
            let plane = Self {
                range,
                netlink: Mutex::new(netlink),
                links: AtomicU32::new(0),
            };
            plane.prepare().map_err(failed("addresses"))?;
            return Ok(plane);
        }
        Err(PlaneError::Full)
    }

    fn prepare(&self) -> io::Result<()> {
        let mut netlink = self.netlink();
        for address in self.own_addresses() {
            netlink.add_address(LOOPBACK, address)?;
        }
        // The rules lead what goes to services elsewhere, or refuse it.
        netlink.add_route(self.service_route())
    }

    /// Takes what this process sends to foreign addresses for the rules to lead out; pods send it here anyway.
    pub(crate) fn lead_out(&self) -> io::Result<()> {
        match self.netlink().add_route(self.way_out()) {
            // Another instance of this process did it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            result => result,
        }
    }

    fn way_out(&self) -> Route {
        Route::link(Ipv4Addr::UNSPECIFIED, 0, LOOPBACK).from(self.range.gateway())
    }

    fn service_route(&self) -> Route {
        let (services, prefix) = self.range.services();
        Route::link(services, prefix, LOOPBACK).from(self.range.gateway())
    }

    fn own_addresses(&self) -> impl Iterator<Item = Ipv4Addr> + use<> {
        let range = self.range;
        [range.dns(), range.api_service()]
            .into_iter()
            .chain((0..Range::NODES).map(move |number| range.node(number)))
    }

    fn netlink(&self) -> MutexGuard<'_, Netlink> {
        self.netlink.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn range(&self) -> Range {
        self.range
    }

    /// Makes a namespace with this address. It goes when nothing is left in it.
    pub(crate) fn connect(&self, address: Ipv4Addr) -> io::Result<Place> {
        let (namespace, mut inside) = Namespace::create()?;
        let number = self.links.fetch_add(1, Ordering::Relaxed);
        let link = format!("p{}-{number}", self.range.number());
        // The kernel is up to a second late to take a link into use whose two ends happen to have the same index.
        let index = (u32::from(self.range.number()) << 20) | ((0x100 + number) & 0xf_ffff);
        {
            use std::os::fd::AsFd;
            let mut netlink = self.netlink();
            netlink.add_pair((&link, index), POD_LINK, namespace.as_fd())?;
            // A former pod with this address may not be cleared away yet.
            netlink.replace_route(Route::link(address, 32, index).from(self.range.gateway()))?;
        }
        let index = inside.index(POD_LINK)?;
        inside.set_up(index)?;
        inside.add_address(index, address)?;
        inside.add_route(Route::link(self.range.gateway(), 32, index))?;
        inside.add_route(Route::default_by(self.range.gateway(), index))?;
        for _ in 0..200 {
            if self.netlink().carries(&link)? {
                break;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        Ok(Place { namespace, link })
    }

    /// Pulls the plug: what is in the namespace is heard no more.
    pub(crate) fn disconnect(&self, place: &Place) {
        // It is gone where everything in it has ended.
        let _ = self.netlink().remove(&place.link);
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        filter::remove(self.range);
        let route = self.service_route();
        let addresses = self.own_addresses();
        let mut netlink = self.netlink();
        // What is not there any more needs no removing. The claim goes last.
        let _ = netlink.remove_route(route);
        let _ = netlink.remove_route(self.way_out());
        for address in addresses {
            let _ = netlink.remove_address(LOOPBACK, address);
        }
        let _ = netlink.remove_address(LOOPBACK, self.range.gateway());
    }
}

/// Whether this process is in a network with links that are not ours: somebody else's, then.
fn is_the_machines() -> bool {
    // The kernel makes these in every namespace, where it has their modules.
    const EVERYWHERE: [&str; 10] = [
        "lo", "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0",
    ];
    let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let names = text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
    let ours = |name: &str| {
        name.strip_prefix('p')
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    names.into_iter().any(|name| !EVERYWHERE.contains(&name) && !ours(name))
}
