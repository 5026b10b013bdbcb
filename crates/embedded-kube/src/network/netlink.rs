//! Links, addresses and routes of one network namespace, through a netlink socket. A socket belongs to the namespace of
//! the thread that opened it, for good.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, State,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// The index of `lo` in every namespace.
pub(super) const LOOPBACK: u32 = 1;

/// A socket to the kernel.
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// For the namespace of this thread.
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends one request and waits for its acknowledgement; tells what came before that.
    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Option<RouteNetlinkMessage>> {
        self.sequence += 1;
        let mut packet = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(message));
        packet.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        packet.header.sequence_number = self.sequence;
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut found = None;
        loop {
            let (received, _) = self.socket.recv_from_full()?;
            let mut rest = &received[..];
            while !rest.is_empty() {
                let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
                let length = (answer.header.length as usize).next_multiple_of(4);
                let ours = answer.header.sequence_number == self.sequence;
                match answer.payload {
                    NetlinkPayload::Error(error) if ours => {
                        return match error.code {
                            None => Ok(found),
                            Some(code) => Err(io::Error::from_raw_os_error(code.get().abs())),
                        };
                    }
                    NetlinkPayload::InnerMessage(message) if ours => found = Some(message),
                    _ => {}
                }
                rest = rest.get(length.max(1)..).unwrap_or_default();
            }
        }
    }

    /// A pair of links: `name` here, which is up, and `peer` in another namespace, which the kernel does not let be up yet.
    pub(super) fn add_pair(
        &mut self,
        (name, index): (&str, u32),
        peer: &str,
        namespace: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let mut other = LinkMessage::default();
        other.attributes.push(LinkAttribute::IfName(peer.into()));
        other.attributes.push(LinkAttribute::NetNsFd(namespace.as_raw_fd()));
        let mut link = up();
        link.header.index = index;
        link.attributes.push(LinkAttribute::IfName(name.into()));
        link.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(other))),
        ]));
        self.request(RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL)
            .map(drop)
    }

    /// Removes a link by its name, and with it the other end of its pair.
    pub(super) fn remove(&mut self, name: &str) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.attributes.push(LinkAttribute::IfName(name.into()));
        self.request(RouteNetlinkMessage::DelLink(link), 0).map(drop)
    }

    /// The index of a link.
    pub(super) fn index(&mut self, name: &str) -> io::Result<u32> {
        Ok(self.link(name)?.header.index)
    }

    /// Whether a link carries packets: the kernel sees to that a moment after both its ends are up, and drops them before.
    pub(super) fn carries(&mut self, name: &str) -> io::Result<bool> {
        let attributes = self.link(name)?.attributes;
        Ok(attributes.contains(&LinkAttribute::OperState(State::Up)))
    }

    fn link(&mut self, name: &str) -> io::Result<LinkMessage> {
        let mut link = LinkMessage::default();
        link.attributes.push(LinkAttribute::IfName(name.into()));
        match self.request(RouteNetlinkMessage::GetLink(link), 0)? {
            Some(RouteNetlinkMessage::NewLink(link)) => Ok(link),
            _ => Err(io::Error::other(format!("no link {name}"))),
        }
    }

    /// Takes a link up.
    pub(super) fn set_up(&mut self, index: u32) -> io::Result<()> {
        let mut link = up();
        link.header.index = index;
        self.request(RouteNetlinkMessage::SetLink(link), 0).map(drop)
    }

    /// Gives a link one address; fails where it has it already.
    pub(super) fn add_address(&mut self, index: u32, address: Ipv4Addr) -> io::Result<()> {
        self.request(
            RouteNetlinkMessage::NewAddress(address_message(index, address)),
            NLM_F_CREATE | NLM_F_EXCL,
        )
        .map(drop)
    }

    /// Takes an address away.
    pub(super) fn remove_address(&mut self, index: u32, address: Ipv4Addr) -> io::Result<()> {
        self.request(RouteNetlinkMessage::DelAddress(address_message(index, address)), 0)
            .map(drop)
    }

    /// Adds a route.
    pub(super) fn add_route(&mut self, route: Route) -> io::Result<()> {
        self.request(
            RouteNetlinkMessage::NewRoute(route.message()),
            NLM_F_CREATE | NLM_F_EXCL,
        )
        .map(drop)
    }

    /// Adds a route in the place of another to the same addresses.
    pub(super) fn replace_route(&mut self, route: Route) -> io::Result<()> {
        self.request(
            RouteNetlinkMessage::NewRoute(route.message()),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
        .map(drop)
    }

    /// Removes a route.
    pub(super) fn remove_route(&mut self, route: Route) -> io::Result<()> {
        self.request(RouteNetlinkMessage::DelRoute(route.message()), 0)
            .map(drop)
    }
}

fn up() -> LinkMessage {
    let mut link = LinkMessage::default();
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    link
}

fn address_message(index: u32, address: Ipv4Addr) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = 32;
    message.header.index = index;
    message.attributes = vec![
        AddressAttribute::Local(address.into()),
        AddressAttribute::Address(address.into()),
    ];
    message
}

/// Where packets to a range of addresses go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    to: (Ipv4Addr, u8),
    index: u32,
    gateway: Option<Ipv4Addr>,
    source: Option<Ipv4Addr>,
}

impl Route {
    /// Out of a link.
    pub(super) fn link(to: Ipv4Addr, prefix: u8, index: u32) -> Self {
        Self {
            to: (to, prefix),
            index,
            gateway: None,
            source: None,
        }
    }

    /// Everything else, by way of a neighbor.
    pub(super) fn default_by(gateway: Ipv4Addr, index: u32) -> Self {
        Self {
            gateway: Some(gateway),
            ..Self::link(Ipv4Addr::UNSPECIFIED, 0, index)
        }
    }

    /// With this address as the sender of what this machine sends itself.
    pub(super) fn from(self, source: Ipv4Addr) -> Self {
        Self {
            source: Some(source),
            ..self
        }
    }

    fn message(self) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.destination_prefix_length = self.to.1;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.kind = RouteType::Unicast;
        message.header.scope = if self.gateway.is_some() {
            RouteScope::Universe
        } else {
            RouteScope::Link
        };
        message.attributes.push(RouteAttribute::Oif(self.index));
        if self.to.1 > 0 {
            message
                .attributes
                .push(RouteAttribute::Destination(RouteAddress::Inet(self.to.0)));
        }
        if let Some(gateway) = self.gateway {
            message
                .attributes
                .push(RouteAttribute::Gateway(RouteAddress::Inet(gateway)));
        }
        if let Some(source) = self.source {
            message
                .attributes
                .push(RouteAttribute::PrefSource(RouteAddress::Inet(source)));
        }
        message
    }
}
