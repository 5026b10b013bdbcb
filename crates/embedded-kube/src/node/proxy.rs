//! Service addresses: a TCP listener on each service's address and port, and on its node port of 127.0.0.1, that passes
//! connections on to a ready endpoint. Without a ready endpoint nothing listens, so that clients are refused at once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::directory::Directory;

type Backends = Arc<ArcSwap<Vec<SocketAddrV4>>>;

const CONNECT: Duration = Duration::from_secs(3);

/// Keeps the listeners in step with the directory until told to stop.
pub(crate) async fn run(directory: Arc<Directory>, stop: CancellationToken) {
    let mut listeners: HashMap<SocketAddrV4, (Backends, CancellationToken)> = HashMap::new();
    let mut refused: HashSet<SocketAddrV4> = HashSet::new();
    let mut changes = directory.changes();
    loop {
        changes.borrow_and_update();
        let wanted = wanted(&directory);
        listeners.retain(|address, (_, end)| {
            let keep = wanted.contains_key(address);
            if !keep {
                end.cancel();
            }
            keep
        });
        refused.retain(|address| wanted.contains_key(address));
        let mut retry = false;
        for (address, backends) in wanted {
            if let Some((current, _)) = listeners.get(&address) {
                if **current.load() != backends {
                    current.store(Arc::new(backends));
                }
                continue;
            }
            let listener = match TcpListener::bind(address).await {
                Ok(listener) => listener,
                Err(error) => {
                    // A closed listener's port may take a moment to come free; a forbidden one never does.
                    retry |= error.kind() == std::io::ErrorKind::AddrInUse;
                    if refused.insert(address) {
                        tracing::warn!(%address, %error, "a service address cannot be served");
                    }
                    continue;
                }
            };
            refused.remove(&address);
            let backends = Backends::new(ArcSwap::from_pointee(backends));
            let end = stop.child_token();
            tokio::spawn(accept(listener, backends.clone(), end.clone()));
            listeners.insert(address, (backends, end));
        }
        tokio::select! {
            () = stop.cancelled() => return,
            _ = changes.changed() => {}
            () = tokio::time::sleep(Duration::from_millis(250)), if retry => {}
        }
    }
}

fn wanted(directory: &Directory) -> BTreeMap<SocketAddrV4, Vec<SocketAddrV4>> {
    let mut wanted = BTreeMap::new();
    for service in directory.services(None) {
        // The API server listens on its service address itself.
        if service.namespace == "default" && service.name == "kubernetes" {
            continue;
        }
        for port in service.ports.iter().filter(|port| port.protocol == "TCP") {
            let Some(address) = service.address else { continue };
            let backends: Vec<SocketAddrV4> = directory
                .backends(&service, port)
                .into_iter()
                .map(|(ip, port)| SocketAddrV4::new(ip, port))
                .collect();
            if backends.is_empty() {
                continue;
            }
            if let Some(node_port) = port.node_port {
                wanted.insert(SocketAddrV4::new(Ipv4Addr::LOCALHOST, node_port), backends.clone());
            }
            wanted.insert(SocketAddrV4::new(address, port.port), backends);
        }
    }
    wanted
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn server(address: &str) -> SocketAddrV4 {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let std::net::SocketAddr::V4(local) = listener.local_addr().unwrap() else {
            unreachable!()
        };
        let name = address.to_string();
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let _ = connection.write_all(name.as_bytes()).await;
            }
        });
        local
    }

    async fn reach(port: u16) -> Option<String> {
        let mut connection = TcpStream::connect(("127.7.0.40", port)).await.ok()?;
        let mut text = String::new();
        connection.read_to_string(&mut text).await.ok()?;
        Some(text)
    }

    #[tokio::test]
    async fn connections_go_to_ready_pods_only() {
        // Given two pods behind a service, one ready
        let (one, two) = (server("127.7.128.1").await, server("127.7.128.2").await);
        let directory = Arc::new(Directory::new());
        let port = std::net::TcpListener::bind("127.7.0.40:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let service = serde_json::json!({"metadata": {"name": "s", "namespace": "n"}, "spec": {"clusterIP": "127.7.0.40",
            "selector": {"a": "b"}, "ports": [{"port": port, "targetPort": "web"}]}});
        directory.service(&serde_json::from_value(service).unwrap());
        let pod = |address: SocketAddrV4, ready: &str| {
            let pod = serde_json::json!({"metadata": {"name": "p", "namespace": "n", "uid": address.to_string(), "labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "ports": [{"name": "web", "containerPort": address.port()}]}]},
                "status": {"podIP": address.ip().to_string(), "conditions": [{"type": "Ready", "status": ready}]}});
            directory.pod(&serde_json::from_value(pod).unwrap());
        };
        pod(one, "True");
        pod(two, "False");
        let stop = CancellationToken::new();
        let running = tokio::spawn(run(directory.clone(), stop.clone()));
        let until = async |wanted: Option<&str>| {
            let met = async {
                while reach(port).await.as_deref() != wanted {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(10), met).await.unwrap();
        };
        // Then the ready one answers; when readiness moves, the other; when none is ready, nobody
        until(Some("127.7.128.1")).await;
        pod(two, "True");
        pod(one, "False");
        until(Some("127.7.128.2")).await;
        pod(two, "False");
        until(None).await;
        stop.cancel();
        running.await.unwrap();
    }
}
