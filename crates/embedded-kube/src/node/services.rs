//! Services: keeps the packet filter rules that lead to ready endpoints in step with the directory, and passes connections to
//! node ports on from the loopback addresses, here and in the machine's network.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::directory::Directory;
use crate::network::{self, Destination, Filter};

type Backends = Arc<ArcSwap<Vec<SocketAddrV4>>>;

const CONNECT: Duration = Duration::from_secs(3);

/// Keeps rules and listeners in step with the directory until told to stop.
pub(crate) async fn run(directory: Arc<Directory>, filter: Arc<Filter>, nodes: Vec<Ipv4Addr>, stop: CancellationToken) {
    let mut node_ports = NodePorts::default();
    let mut told = String::new();
    let mut changes = directory.changes();
    loop {
        changes.borrow_and_update();
        let (services, ports) = wanted(&directory, &nodes);
        let failed = match filter.serve(services).await {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        };
        if told != failed && !failed.is_empty() {
            tracing::warn!(error = failed, "services do not lead where they should");
        }
        told = failed;
        let again = !node_ports.keep(ports, &stop).await || !told.is_empty();
        tokio::select! {
            () = stop.cancelled() => return,
            _ = changes.changed() => {}
            () = tokio::time::sleep(Duration::from_millis(250)), if again => {}
        }
    }
}

type Ports = BTreeMap<u16, Vec<SocketAddrV4>>;

fn wanted(directory: &Directory, nodes: &[Ipv4Addr]) -> (BTreeMap<Destination, Vec<SocketAddrV4>>, Ports) {
    let (mut wanted, mut node_ports) = (BTreeMap::new(), Ports::new());
    for service in directory.services(None) {
        // The API server listens on its service address itself.
        if service.namespace == "default" && service.name == "kubernetes" {
            continue;
        }
        for port in &service.ports {
            let udp = port.protocol == "UDP";
            let Some(address) = service.address.filter(|_| udp || port.protocol == "TCP") else {
                continue;
            };
            let backends = directory.backends(&service, port);
            let backends: Vec<SocketAddrV4> = backends
                .into_iter()
                .map(|(ip, port)| SocketAddrV4::new(ip, port))
                .collect();
            let places = nodes.iter().filter_map(|node| Some((*node, port.node_port?)));
            for (address, port) in places.chain([(address, port.port)]) {
                wanted.insert(Destination { address, port, udp }, backends.clone());
            }
            if let Some(node_port) = port.node_port.filter(|_| !udp && !backends.is_empty()) {
                node_ports.insert(node_port, backends);
            }
        }
    }
    (wanted, node_ports)
}

/// The listeners on node ports of the loopback addresses. Without a ready endpoint nothing listens, so that clients are refused
/// at once.
#[derive(Default)]
struct NodePorts {
    listeners: HashMap<u16, (Backends, CancellationToken)>,
    refused: HashSet<u16>,
}

impl NodePorts {
    /// False: some port could not be had yet.
    async fn keep(&mut self, wanted: Ports, stop: &CancellationToken) -> bool {
        self.listeners.retain(|port, (_, end)| {
            let keep = wanted.contains_key(port);
            if !keep {
                end.cancel();
            }
            keep
        });
        self.refused.retain(|port| wanted.contains_key(port));
        let mut all = true;
        for (port, backends) in wanted {
            if let Some((current, _)) = self.listeners.get(&port) {
                if **current.load() != backends {
                    current.store(Arc::new(backends));
                }
                continue;
            }
            let listeners = match listen(port).await {
                Ok(listeners) => listeners,
                Err(error) => {
                    all = false;
                    if self.refused.insert(port) {
                        tracing::warn!(port, %error, "a node port cannot be served on the loopback address");
                    }
                    continue;
                }
            };
            self.refused.remove(&port);
            let backends = Backends::new(ArcSwap::from_pointee(backends));
            let end = stop.child_token();
            for listener in listeners {
                tokio::spawn(accept(listener, backends.clone(), end.clone()));
            }
            self.listeners.insert(port, (backends, end));
        }
        all
    }
}

/// Here, and in the machine's network where this process left it.
async fn listen(port: u16) -> io::Result<Vec<TcpListener>> {
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    let mut listeners = vec![TcpListener::bind(address).await?];
    if let Some(outside) = network::outside() {
        let listener = outside.listen(address.into())?;
        listener.set_nonblocking(true)?;
        listeners.push(TcpListener::from_std(listener)?);
    }
    Ok(listeners)
}

async fn accept(listener: TcpListener, backends: Backends, end: CancellationToken) {
    let next = Arc::new(AtomicUsize::new(0));
    loop {
        tokio::select! {
            () = end.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    tokio::spawn(pass_on(client, backends.clone(), next.clone()));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
        }
    }
}

async fn pass_on(mut client: TcpStream, backends: Backends, next: Arc<AtomicUsize>) {
    let candidates = backends.load_full();
    for _ in 0..candidates.len() {
        let backend = candidates[next.fetch_add(1, Ordering::Relaxed) % candidates.len()];
        if let Ok(Ok(mut server)) = tokio::time::timeout(CONNECT, TcpStream::connect(backend)).await {
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            return;
        }
    }
    // Nobody took it: a reset, as a refused connection would have been.
    let _ = client.set_zero_linger();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::new(10, 7, 64, 1), port)
    }

    #[test]
    fn services_lead_to_ready_pods_only() {
        // Given a service with a named port, a node port and two pods, one ready
        let directory = Directory::new();
        let service = serde_json::json!({"metadata": {"name": "s", "namespace": "n"}, "spec": {"clusterIP": "10.7.128.40",
            "selector": {"a": "b"}, "ports": [{"port": 80, "nodePort": 30080, "targetPort": "web"},
                {"port": 53, "protocol": "UDP"}, {"port": 9, "protocol": "SCTP"}]}});
        directory.service(&serde_json::from_value(service).unwrap());
        for (name, port, ready) in [("one", 8080, "True"), ("two", 8081, "False")] {
            let pod = serde_json::json!({"metadata": {"name": name, "namespace": "n", "uid": name, "labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "ports": [{"name": "web", "containerPort": port}]}]},
                "status": {"podIP": "10.7.64.1", "conditions": [{"type": "Ready", "status": ready}]}});
            directory.pod(&serde_json::from_value(pod).unwrap());
        }
        // Then its ports lead to the ready one, on the nodes' addresses too
        let node = Ipv4Addr::new(10, 7, 1, 1);
        let (services, node_ports) = wanted(&directory, &[node]);
        let to = |address: Ipv4Addr, port, udp| Destination { address, port, udp };
        let address = Ipv4Addr::new(10, 7, 128, 40);
        let expected = [
            (to(node, 30080, false), vec![at(8080)]),
            (to(address, 53, true), vec![at(53)]),
            (to(address, 80, false), vec![at(8080)]),
        ];
        assert_eq!(services.into_iter().collect::<Vec<_>>(), expected);
        assert_eq!(node_ports, Ports::from([(30080, vec![at(8080)])]));
    }
}
