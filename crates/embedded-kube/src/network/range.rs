//! The addresses of one instance, `10.N.0.0/16`: `10.N.0.1` is this process as pods see it, `10.N.0.2` the machine's loopback
//! address, `10.N.0.10` the name server, `10.N.1.0/24` the nodes, `10.N.64.0/18` the pods, `10.N.128.0/17` the services, and the first of these the API server.

use std::net::Ipv4Addr;

use rand::Rng;

/// The range of one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range(u8);

impl Range {
    pub(crate) const CHOICES: std::ops::RangeInclusive<u8> = 1..=254;
    /// At most so many nodes.
    pub(crate) const NODES: u8 = 32;

    pub(crate) fn new(number: u8) -> Option<Self> {
        Self::CHOICES.contains(&number).then_some(Self(number))
    }
    /// One for an instance that has no network.
    pub(crate) fn any() -> Self {
        Self(rand::rng().random_range(Self::CHOICES))
    }
    pub(crate) fn number(self) -> u8 {
        self.0
    }
    fn at(self, high: u8, low: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.0, high, low)
    }
    /// This process, as pods see it; their way to everybody else.
    pub(crate) fn gateway(self) -> Ipv4Addr {
        self.at(0, 1)
    }
    /// What leads to the machine's own 127.0.0.1, where pods may reach it.
    pub(crate) fn host(self) -> Ipv4Addr {
        self.at(0, 2)
    }
    /// All addresses, with the length of their prefix.
    pub(crate) fn whole(self) -> (Ipv4Addr, u8) {
        (self.at(0, 0), 16)
    }
    pub(crate) fn dns(self) -> Ipv4Addr {
        self.at(0, 10)
    }
    pub(crate) fn node(self, number: u8) -> Ipv4Addr {
        self.at(1, number + 1)
    }
    /// The address of the service `kubernetes`.
    pub(crate) fn api_service(self) -> Ipv4Addr {
        self.at(128, 1)
    }
    /// The addresses of services, with the length of their prefix.
    pub(crate) fn services(self) -> (Ipv4Addr, u8) {
        (self.at(128, 0), 17)
    }
    /// One service's address.
    pub(crate) fn service(self, number: u16) -> Ipv4Addr {
        let [high, low] = (number | 0x8000).to_be_bytes();
        self.at(high, low)
    }
    pub(crate) fn is_service(self, address: Ipv4Addr) -> bool {
        let [a, n, c, d] = address.octets();
        (a, n) == (10, self.0) && c >= 128 && (c, d) != (128, 0) && (c, d) != (255, 255)
    }
    pub(crate) fn pod(self, number: u16) -> Ipv4Addr {
        let [high, low] = ((number & 0x3fff) | 0x4000).to_be_bytes();
        self.at(high, low)
    }
    pub(crate) fn is_pod(self, address: Ipv4Addr) -> bool {
        let [a, n, c, _] = address.octets();
        (a, n) == (10, self.0) && c & 0xc0 == 0x40
    }
}
