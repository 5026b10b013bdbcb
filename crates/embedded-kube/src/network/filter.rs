//! Packet filter rules: services lead to their endpoints, foreign addresses to the relay, and cuts separate addresses. One table
//! an instance, replaced as a whole and at once; connections that exist go on.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use super::plane::Plane;
use super::range::Range;

/// One port of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Destination {
    pub(crate) address: Ipv4Addr,
    pub(crate) port: u16,
    pub(crate) udp: bool,
}

/// The services' ports with the endpoints that take connections.
pub(crate) type Services = BTreeMap<Destination, Vec<SocketAddrV4>>;

/// Two addresses, the lower one first.
type Pair = (Ipv4Addr, Ipv4Addr);

/// The rules of one instance.
pub(crate) struct Filter {
    plane: Arc<Plane>,
    /// The port of the relay to foreign addresses, where there is one.
    relay: Option<u16>,
    services: Mutex<Services>,
    cuts: Mutex<BTreeSet<Pair>>,
    /// What the kernel has. Held while it is told.
    applied: tokio::sync::Mutex<String>,
}

impl Filter {
    pub(crate) fn new(plane: Arc<Plane>, relay: Option<u16>) -> Self {
        Self {
            plane,
            relay,
            services: Mutex::default(),
            cuts: Mutex::default(),
            applied: tokio::sync::Mutex::default(),
        }
    }

    /// Leads services to these endpoints.
    pub(crate) async fn serve(&self, services: Services) -> io::Result<()> {
        *self.services.lock().unwrap_or_else(PoisonError::into_inner) = services;
        self.apply().await
    }

    /// From now on nothing passes between two addresses.
    pub(crate) async fn cut(&self, one: Ipv4Addr, other: Ipv4Addr) -> io::Result<()> {
        let pair = (one.min(other), one.max(other));
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner).insert(pair);
        self.apply().await
    }

    /// Undoes all cuts.
    pub(crate) async fn heal(&self) -> io::Result<()> {
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.apply().await
    }

    async fn apply(&self) -> io::Result<()> {
        let mut applied = self.applied.lock().await;
        let text = {
            let services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
            let cuts = self.cuts.lock().unwrap_or_else(PoisonError::into_inner);
            table(self.plane.range(), self.relay, &services, &cuts)
        };
        if *applied == text {
            return Ok(());
        }
        let rules = text.clone();
        tokio::task::spawn_blocking(move || nft(&[], &rules))
            .await
            .map_err(io::Error::other)??;
        *applied = text;
        Ok(())
    }
}

fn name(range: Range) -> String {
    format!("pods{}", range.number())
}

/// Removes an instance's rules.
pub(super) fn remove(range: Range) {
    let name = name(range);
    // Added first, since removing what is not there is an error.
    if let Err(error) = nft(&[], &format!("add table ip {name}\ndelete table ip {name}\n")) {
        tracing::warn!(%error, "packet filter rules are left behind");
    }
}

/// Gives rules to the kernel.
pub(super) fn nft(options: &[&str], rules: &str) -> io::Result<()> {
    let mut child = crate::node::program("nft")
        .args(options)
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(rules.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let what = text.lines().next().unwrap_or_default();
    Err(io::Error::other(format!("nft refuses the rules: {what}")))
}

/// The whole table as text for `nft -f`.
fn table(range: Range, relay: Option<u16>, services: &Services, cuts: &BTreeSet<Pair>) -> String {
    let name = name(range);
    let (first, prefix) = range.services();
    let refused = format!(
        "ip daddr {first}/{prefix} ip daddr != {} jump refuse",
        range.api_service()
    );
    let mut chains = String::new();
    let mut ports = Vec::new();
    let mut own: BTreeSet<Ipv4Addr> = BTreeSet::new();
    for (number, (to, endpoints)) in services.iter().filter(|(_, all)| !all.is_empty()).enumerate() {
        let protocol = if to.udp { "udp" } else { "tcp" };
        ports.push(format!("{} . {protocol} . {} : goto s{number}", to.address, to.port));
        own.extend(endpoints.iter().map(|endpoint| *endpoint.ip()));
        let choices: Vec<String> = (0..endpoints.len())
            .map(|index| format!("{index} : goto s{number}e{index}"))
            .collect();
        for (index, endpoint) in endpoints.iter().enumerate() {
            let _ = writeln!(
                chains,
                "chain s{number}e{index} {{ meta l4proto {protocol} dnat to {endpoint}; }}"
            );
        }
        let _ = writeln!(
            chains,
            "chain s{number} {{ numgen inc mod {} vmap {{ {} }}; }}",
            endpoints.len(),
            choices.join(", ")
        );
    }
    let lead = match ports.is_empty() {
        true => String::new(),
        false => format!("ip daddr . meta l4proto . th dport vmap {{ {} }};", ports.join(", ")),
    };
    let (out, no_way) = match relay {
        Some(port) => out(range, port),
        None => Default::default(),
    };
    // A pod that meets itself behind a service answers to us, and we to it.
    let hairpin = set("ip saddr . ip daddr", own.iter().map(|ip| (*ip, *ip)), "masquerade;");
    let both = cuts.iter().flat_map(|(one, other)| [(*one, *other), (*other, *one)]);
    let cut = set("ip saddr . ip daddr", both, "drop;");
    format!(
        "add table ip {name}\ndelete table ip {name}\ntable ip {name} {{\n{chains}\
         chain refuse {{ meta l4proto tcp reject with tcp reset; reject; }}\n\
         chain lead {{ {lead}{out} }}\n\
         chain prerouting {{ type nat hook prerouting priority -100; jump lead; }}\n\
         chain output {{ type nat hook output priority -100; jump lead; }}\n\
         chain postrouting {{ type nat hook postrouting priority 100; {hairpin} }}\n\
         chain forward {{ type filter hook forward priority 0; {cut} {refused}; {no_way} }}\n\
         chain sent {{ type filter hook output priority 0; {cut} {refused}; {no_way} }}\n}}\n"
    )
}

/// What leads from the cluster's addresses to foreign ones, and refuses what the relay does not pass on.
fn out(range: Range, port: u16) -> (String, String) {
    let (first, prefix) = range.whole();
    let ours = format!("ip saddr {first}/{prefix}");
    let foreign = [format!("!= {first}/{prefix}"), range.host().to_string()];
    let lead = foreign.each_ref().map(|to| {
        let gateway = range.gateway();
        format!("\n{ours} ip daddr {to} meta l4proto tcp dnat to {gateway}:{port};")
    });
    let no_way = foreign.map(|to| format!("{ours} ip daddr {to} jump refuse;"));
    (lead.concat(), no_way.concat())
}

fn set(what: &str, pairs: impl Iterator<Item = Pair>, verdict: &str) -> String {
    let pairs: Vec<String> = pairs.map(|(from, to)| format!("{from} . {to}")).collect();
    match pairs.is_empty() {
        true => String::new(),
        false => format!("{what} {{ {} }} {verdict}", pairs.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Namespace;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::time::Duration;

    /// Says its name to whoever connects to this port of all its addresses.
    fn server(inside: &Namespace, name: &'static str, port: u16) {
        let listener = inside.run(move || TcpListener::bind(("0.0.0.0", port))).unwrap();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let from = connection.peer_addr().unwrap().ip();
                let _ = connection.write_all(format!("{name} to {from}").as_bytes());
            }
        });
    }

    fn ask(inside: &Namespace, address: Ipv4Addr, port: u16) -> io::Result<String> {
        inside.run(move || {
            let patience = Duration::from_millis(700);
            let mut connection = TcpStream::connect_timeout(&(address, port).into(), patience)?;
            let mut text = String::new();
            connection.read_to_string(&mut text)?;
            Ok(text)
        })
    }

    fn kind(answer: io::Result<String>) -> io::ErrorKind {
        answer
            .map(|text| panic!("somebody answered: {text}"))
            .unwrap_or_else(|error| error.kind())
    }

    #[tokio::test]
    async fn services_and_cuts_are_packet_filter_rules() {
        // Given three pods with servers on the same port of all addresses
        let plane = Arc::new(Plane::claim(None).unwrap());
        let range = plane.range();
        let address = |number: u16| range.pod(number);
        let begun = std::time::Instant::now();
        let places = [1, 2, 3].map(|number| plane.connect(address(number)).unwrap());
        println!("a pod's network takes {:?}", begun.elapsed() / 3);
        for (place, name) in places.iter().zip(["one", "two", "three"]) {
            server(&place.namespace, name, 80);
        }
        let [one, two, three] = places.each_ref().map(|place| &place.namespace);
        let home = &Namespace::current().unwrap();
        // Then they reach one another, and this process reaches them
        assert_eq!(ask(two, address(1), 80).unwrap(), format!("one to {}", address(2)));
        assert_eq!(
            ask(home, address(2), 80).unwrap(),
            format!("two to {}", range.gateway())
        );
        assert_eq!(ask(one, Ipv4Addr::LOCALHOST, 80).unwrap(), "one to 127.0.0.1");
        // When a service has two of them, then it leads to both in turn, also from one of them and from here
        let filter = Filter::new(plane.clone(), None);
        let to = Destination {
            address: range.service(5),
            port: 8080,
            udp: false,
        };
        let names = Destination {
            address: range.service(5),
            port: 53,
            udp: true,
        };
        let endpoint = |number| SocketAddrV4::new(address(number), 80);
        let services = Services::from([(to, vec![endpoint(1), endpoint(2)]), (names, vec![endpoint(3)])]);
        let begun = std::time::Instant::now();
        filter.serve(services).await.unwrap();
        println!("new rules take {:?}", begun.elapsed());
        for inside in [one, two, three, home] {
            let answers: BTreeSet<String> = (0..4)
                .map(|_| {
                    ask(inside, to.address, to.port)
                        .unwrap()
                        .split(' ')
                        .next()
                        .unwrap()
                        .to_owned()
                })
                .collect();
            assert_eq!(answers.iter().map(String::as_str).collect::<Vec<_>>(), ["one", "two"]);
        }
        let heard = three.run(move || UdpSocket::bind(("0.0.0.0", 80))).unwrap();
        heard.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let sender = one.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
        sender.send_to(b"x", (names.address, names.port)).unwrap();
        assert_eq!(heard.recv_from(&mut [0; 8]).unwrap().1.ip(), address(1));
        // A port that the service does not have, and one without endpoints, refuse at once
        assert_eq!(kind(ask(one, to.address, 9)), io::ErrorKind::ConnectionRefused);
        filter.serve(Services::from([(to, Vec::new())])).await.unwrap();
        assert_eq!(kind(ask(one, to.address, to.port)), io::ErrorKind::ConnectionRefused);
        assert_eq!(kind(ask(home, to.address, to.port)), io::ErrorKind::ConnectionRefused);
        // When two pods are cut off from each other, then everybody else reaches both
        filter.cut(address(2), address(1)).await.unwrap();
        assert_eq!(kind(ask(one, address(2), 80)), io::ErrorKind::TimedOut);
        assert_eq!(kind(ask(two, address(1), 80)), io::ErrorKind::TimedOut);
        assert!(ask(three, address(1), 80).is_ok() && ask(home, address(2), 80).is_ok());
        filter.heal().await.unwrap();
        assert!(ask(one, address(2), 80).is_ok());
        // When the plug of one is pulled, then nobody reaches it
        plane.disconnect(&places[0]);
        assert!(ask(two, address(1), 80).is_err());
        // And its successor has the address
        let again = plane.connect(address(1)).unwrap();
        server(&again.namespace, "again", 80);
        assert!(ask(two, address(1), 80).unwrap().starts_with("again"));
    }

    #[tokio::test]
    async fn two_instances_have_networks_of_their_own() {
        let one = Plane::claim(Some(77)).unwrap();
        let two = Plane::claim(Some(one.range().number())).unwrap();
        assert_ne!(one.range(), two.range());
        let number = one.range().number();
        drop(one);
        let again = Plane::claim(Some(number)).unwrap();
        assert_eq!(again.range().number(), number);
    }
}
