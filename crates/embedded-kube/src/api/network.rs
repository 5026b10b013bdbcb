//! The addresses of one instance: a /16 of the loopback network, so that several instances live side by side.
//!
//! `127.N.0.10` is the DNS server, pods have addresses in `127.N.64.0/18`, services in `127.N.128.0/17`, and
//! `127.N.128.1` is the API server as pods reach it.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use rand::Rng;

/// Whoever holds this UDP port on `127.N.0.1` owns `127.N.0.0/16`. Held for the life of the process.
const CLAIM_PORT: u16 = 48127;
/// `127.0` is everyone's, `127.1` holds Debian's name of the machine.
const CHOICES: std::ops::RangeInclusive<u8> = 2..=254;

/// The network of one instance.
#[derive(Debug)]
pub(crate) struct Network {
    n: u8,
    _claim: UdpSocket,
    next: AtomicU16,
    api: OnceLock<SocketAddr>,
    /// The port of the service `kubernetes`.
    service_port: OnceLock<u16>,
}

impl Network {
    /// Claims a free network, `wanted` if it is free.
    pub(crate) fn claim(wanted: Option<u8>) -> std::io::Result<Self> {
        let mut rng = rand::rng();
        let start = rng.random_range(CHOICES);
        let all = wanted
            .into_iter()
            .chain(start..=*CHOICES.end())
            .chain(*CHOICES.start()..start);
        let mut last = std::io::Error::other("no loopback network is free");
        for n in all.filter(|n| CHOICES.contains(n)) {
            match UdpSocket::bind((Ipv4Addr::new(127, n, 0, 1), CLAIM_PORT)) {
                Ok(claim) => {
                    let next = AtomicU16::new(rng.random_range(0..0x4000));
                    return Ok(Self {
                        n,
                        _claim: claim,
                        next,
                        api: OnceLock::new(),
                        service_port: OnceLock::new(),
                    });
                }
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    pub(crate) fn n(&self) -> u8 {
        self.n
    }

    /// The address of the service `kubernetes`.
    pub(crate) fn api_service(&self) -> Ipv4Addr {
        Ipv4Addr::new(127, self.n, 128, 1)
    }

    pub(crate) fn set_api(&self, listening: SocketAddr, service_port: u16) {
        let _ = self.api.set(listening);
        let _ = self.service_port.set(service_port);
    }

    pub(crate) fn api(&self) -> Option<SocketAddr> {
        self.api.get().copied()
    }

    pub(crate) fn api_address(&self) -> String {
        self.api().map(|a| a.to_string()).unwrap_or_default()
    }

    pub(crate) fn service_port(&self) -> u16 {
        self.service_port.get().copied().unwrap_or(443)
    }

    pub(crate) fn is_service_address(&self, ip: Ipv4Addr) -> bool {
        let [a, n, c, d] = ip.octets();
        a == 127 && n == self.n && c >= 128 && (c, d) != (128, 0) && (c, d) != (255, 255)
    }

    /// A service address for which `used` says no.
    pub(crate) fn allocate(&self, used: impl Fn(Ipv4Addr) -> bool) -> Option<Ipv4Addr> {
        (0..0x7fffu16).find_map(|_| {
            let at = self.next.fetch_add(1, Ordering::Relaxed) % 0x7fff;
            let ip = Ipv4Addr::new(127, self.n, 128 + (at >> 8) as u8, (at & 0xff) as u8);
            let reserved = at < 2;
            (!reserved && self.is_service_address(ip) && !used(ip)).then_some(ip)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_instances_never_share_a_network() {
        let one = Network::claim(Some(77)).unwrap();
        let two = Network::claim(Some(one.n())).unwrap();
        assert_ne!(one.n(), two.n());
        let ip = one.allocate(|_| false).unwrap();
        assert!(one.is_service_address(ip) && ip != one.api_service());
        assert_ne!(one.allocate(|used| used == ip), Some(ip));
        assert_eq!(one.allocate(|_| true), None);
    }
}
