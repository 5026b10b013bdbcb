//! The addresses that the API server gives to services.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use rand::Rng;

use crate::network::Range;

/// The port of the service `kubernetes`.
pub(crate) const API_PORT: u16 = 443;

/// The service addresses of one instance.
#[derive(Debug)]
pub(crate) struct Network {
    range: Range,
    next: AtomicU16,
    api: OnceLock<SocketAddr>,
}

impl Network {
    pub(crate) fn new(range: Range) -> Self {
        Self {
            range,
            next: AtomicU16::new(rand::rng().random_range(0..0x4000)),
            api: OnceLock::new(),
        }
    }

    pub(crate) fn range(&self) -> Range {
        self.range
    }

    pub(crate) fn set_api(&self, listening: SocketAddr) {
        let _ = self.api.set(listening);
    }

    pub(crate) fn api(&self) -> Option<SocketAddr> {
        self.api.get().copied()
    }

    pub(crate) fn api_address(&self) -> String {
        self.api().map(|a| a.to_string()).unwrap_or_default()
    }

    /// A service address for which `used` says no.
    pub(crate) fn allocate(&self, used: impl Fn(Ipv4Addr) -> bool) -> Option<Ipv4Addr> {
        (0..0x7fffu16).find_map(|_| {
            let at = self.next.fetch_add(1, Ordering::Relaxed) % 0x7fff;
            let ip = self.range.service(at);
            let reserved = at < 2;
            (!reserved && self.range.is_service(ip) && !used(ip)).then_some(ip)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_is_given_twice() {
        let network = Network::new(Range::new(77).unwrap());
        let ip = network.allocate(|_| false).unwrap();
        assert!(network.range().is_service(ip) && ip != network.range().api_service());
        assert_ne!(network.allocate(|used| used == ip), Some(ip));
        assert_eq!(network.allocate(|_| true), None);
    }
}
