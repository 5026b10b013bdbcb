//! The way out of the cluster's network: connections to foreign addresses, and foreign names, are passed on in the machine's
//! network. Packet filter rules lead the connections here ([`filter`](super::filter)). TCP and names only.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use rustix::net::sockopt::ip_original_dst;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::enter::Outside;
use super::range::Range;

/// The name by which pods reach what listens on the machine's 127.0.0.1.
pub(crate) const HOST_NAME: &str = "host.cluster.internal";

const CONNECT: Duration = Duration::from_secs(10);
/// Shorter than the five seconds after which a program's resolver asks again.
const LOOKUP: Duration = Duration::from_secs(4);
/// Each lookup is a thread.
const LOOKUPS: usize = 32;

/// The machine's network, as far as pods may use it.
pub(crate) struct Outbound {
    outside: Outside,
    host: Ipv4Addr,
    lookups: Semaphore,
}

impl Outbound {
    pub(crate) fn new(outside: Outside, range: Range) -> Self {
        Self {
            outside,
            host: range.host(),
            lookups: Semaphore::new(LOOKUPS),
        }
    }

    /// Starts to accept what the rules lead here; tells the port.
    pub(crate) async fn relay(&self, range: Range, stop: CancellationToken) -> io::Result<u16> {
        let listener = TcpListener::bind((range.gateway(), 0)).await?;
        let port = listener.local_addr()?.port();
        let (outside, host) = (self.outside.clone(), self.host);
        tokio::spawn(async move {
            loop {
                let accepted = tokio::select! {
                    () = stop.cancelled() => return,
                    accepted = listener.accept() => accepted,
                };
                let Ok((client, _)) = accepted else {
                    // Too many open files: let others finish.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                };
                let (outside, stop) = (outside.clone(), stop.clone());
                tokio::spawn(async move {
                    tokio::select! { () = stop.cancelled() => {}, () = pass_on(client, outside, host) => {} }
                });
            }
        });
        Ok(port)
    }

    /// What a name means on the machine; empty where it means nothing.
    pub(crate) async fn resolve(&self, name: &str) -> io::Result<Vec<Ipv4Addr>> {
        if name == HOST_NAME {
            return Ok(vec![self.host]);
        }
        let _turn = self.lookups.acquire().await.map_err(io::Error::other)?;
        match tokio::time::timeout(LOOKUP, self.outside.resolve(name)).await {
            Ok(found) => found,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

async fn pass_on(mut client: TcpStream, outside: Outside, host: Ipv4Addr) {
    let connected = async {
        let mut wanted = ip_original_dst(&client)?;
        if *wanted.ip() == host {
            wanted.set_ip(Ipv4Addr::LOCALHOST);
        }
        outside.connect(wanted, CONNECT).await
    };
    match connected.await {
        Ok(mut server) => {
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        }
        Err(error) => {
            tracing::debug!(%error, "a connection to the outside failed");
            // A reset, the closest to a refusal that is left.
            let _ = client.set_zero_linger();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::filter::{Filter, Services};
    use crate::network::netlink::{LOOPBACK, Netlink};
    use crate::network::{Namespace, Plane};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::sync::Arc;

    const FOREIGN: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);

    /// A network that plays the machine's, with a server on a foreign address and one on the loopback address.
    fn machine() -> (Outside, [u16; 2]) {
        let (machine, _) = Namespace::create().unwrap();
        machine.run(|| Netlink::open()?.add_address(LOOPBACK, FOREIGN)).unwrap();
        let ports = [FOREIGN, Ipv4Addr::LOCALHOST].map(|address| {
            let listener = machine.run(move || TcpListener::bind((address, 0))).unwrap();
            let port = listener.local_addr().unwrap().port();
            std::thread::spawn(move || {
                for connection in listener.incoming() {
                    let mut connection = connection.unwrap();
                    let mut line = [0; 4];
                    let _ = connection.read_exact(&mut line);
                    let _ = connection.write_all(format!("{address} hears ").as_bytes());
                    let _ = connection.write_all(&line);
                }
            });
            port
        });
        (machine.run(Outside::start).unwrap(), ports)
    }

    fn ask(inside: &Namespace, address: Ipv4Addr, port: u16) -> io::Result<String> {
        inside.run(move || {
            let patience = Duration::from_secs(5);
            let mut connection = TcpStream::connect_timeout(&(address, port).into(), patience)?;
            connection.set_read_timeout(Some(patience))?;
            connection.write_all(b"word")?;
            let mut text = String::new();
            connection.read_to_string(&mut text)?;
            Ok(text)
        })
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn pods_reach_what_the_machine_reaches_where_that_is_allowed() {
        // Given a machine with servers, and a pod
        let (outside, [foreign, local]) = machine();
        let plane = Arc::new(Plane::claim(None).unwrap());
        let range = plane.range();
        let pod = plane.connect(range.pod(1)).unwrap().namespace;
        let home = Namespace::current().unwrap();
        // When there is no way out, then nothing foreign can be reached
        Filter::new(plane.clone(), None).serve(Services::new()).await.unwrap();
        assert!(ask(&pod, FOREIGN, foreign).is_err());
        assert!(ask(&pod, range.host(), local).is_err());
        // When there is one, then pods and this process reach servers of the machine, also those on its loopback address
        let stop = CancellationToken::new();
        let outbound = Outbound::new(outside, range);
        let port = outbound.relay(range, stop.clone()).await.unwrap();
        plane.lead_out().unwrap();
        let filter = Filter::new(plane.clone(), Some(port));
        filter.serve(Services::new()).await.unwrap();
        for inside in [&pod, &home] {
            assert_eq!(ask(inside, FOREIGN, foreign).unwrap(), "203.0.113.7 hears word");
            assert_eq!(ask(inside, range.host(), local).unwrap(), "127.0.0.1 hears word");
        }
        // And where nobody listens, the connection ends
        assert!(ask(&pod, FOREIGN, 9).is_err());
        // And datagrams are refused at once, instead of being lost
        let refused = pod.run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.set_read_timeout(Some(Duration::from_secs(5)))?;
            socket.connect((FOREIGN, 53))?;
            socket.send(b"x")?;
            socket.recv(&mut [0; 8])
        });
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        // And names are what they are to the machine
        assert_eq!(outbound.resolve(HOST_NAME).await.unwrap(), [range.host()]);
        assert_eq!(outbound.resolve("203.0.113.7").await.unwrap(), [FOREIGN]);
        stop.cancel();
    }
}
