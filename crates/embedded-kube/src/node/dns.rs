//! The name server of the pods, on port 53 of an address of the cluster's network, over UDP and TCP. Answers from the
//! [`Directory`]. Where pods may reach the machine's network, foreign names mean what they mean there; elsewhere an unknown name is
//! refused at once.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, CNAME, PTR, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio_util::sync::CancellationToken;

use super::directory::{DOMAIN, Directory, Meaning};
use crate::network::Outbound;

const SMALLEST_DATAGRAM: u16 = 512;
const IDLE: Duration = Duration::from_secs(10);

/// What names mean.
pub(crate) struct Names {
    directory: Arc<Directory>,
    outbound: Option<Arc<Outbound>>,
}

impl Names {
    pub(crate) fn new(directory: Arc<Directory>, outbound: Option<Arc<Outbound>>) -> Self {
        Self { directory, outbound }
    }

    /// Who knows about a name of which the directory knows nothing.
    fn foreign(&self, name: &str) -> Option<&Outbound> {
        // A service or pod that is not there yet is waited for: a name server far away must not delay the answer.
        let ours = |name: &str| {
            [DOMAIN, "svc", "arpa"]
                .iter()
                .any(|end| name == *end || name.ends_with(&format!(".{end}")))
        };
        self.outbound.as_deref().filter(|_| !name.is_empty() && !ours(name))
    }
}

/// Starts the server.
pub(crate) async fn serve(address: Ipv4Addr, port: u16, names: Names, stop: CancellationToken) -> io::Result<()> {
    let (udp, tcp) = bind((address, port)).await?;
    let (udp, names) = (Arc::new(udp), Arc::new(names));
    tokio::spawn({
        let (names, stop) = (names.clone(), stop.clone());
        async move {
            tokio::select! { () = stop.cancelled() => {}, () = serve_udp(udp, names) => {} }
        }
    });
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                accepted = tcp.accept() => match accepted {
                    Ok((connection, _)) => {
                        tokio::spawn(serve_tcp(connection, names.clone()));
                    }
                    // Too many open files: let others finish.
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                },
            }
        }
    });
    Ok(())
}

/// A former server at this address may be about to end.
async fn bind(at: (Ipv4Addr, u16)) -> io::Result<(UdpSocket, TcpListener)> {
    let mut left = 100;
    loop {
        let bound = async { Ok((UdpSocket::bind(at).await?, TcpListener::bind(at).await?)) };
        match bound.await {
            Err(error) if io::Error::kind(&error) == io::ErrorKind::AddrInUse && left > 0 => left -= 1,
            result => return result,
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn serve_udp(socket: Arc<UdpSocket>, names: Arc<Names>) {
    let mut buffer = vec![0; 4096];
    loop {
        // An error here is of an earlier answer whose asker is gone.
        let Ok((size, asker)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        let (question, socket, names) = (buffer[..size].to_vec(), socket.clone(), names.clone());
        tokio::spawn(async move {
            if let Some(answer) = answer(&question, &names, true).await {
                let _ = socket.send_to(&answer, asker).await;
            }
        });
    }
}

async fn serve_tcp(mut connection: TcpStream, names: Arc<Names>) {
    loop {
        let question = tokio::time::timeout(IDLE, async {
            let size = connection.read_u16().await?;
            let mut question = vec![0; usize::from(size)];
            connection.read_exact(&mut question).await?;
            io::Result::Ok(question)
        });
        let Ok(Ok(question)) = question.await else { return };
        let Some(answer) = answer(&question, &names, false).await else {
            return;
        };
        let Ok(size) = u16::try_from(answer.len()) else { return };
        let framed = [&size.to_be_bytes()[..], &answer].concat();
        if connection.write_all(&framed).await.is_err() {
            return;
        }
    }
}

/// The answer to one message, or none where the message is no question.
async fn answer(question: &[u8], names: &Names, datagram: bool) -> Option<Vec<u8>> {
    let request = Message::from_vec(question).ok()?;
    if request.metadata.message_type != MessageType::Query {
        return None;
    }
    let mut response = Message::response(request.metadata.id, request.metadata.op_code);
    response.metadata.recursion_desired = request.metadata.recursion_desired;
    response.metadata.recursion_available = true;
    response.metadata.authoritative = true;
    response.queries = request.queries.clone();
    if request.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(4096);
        response.set_edns(edns);
    }
    match (request.metadata.op_code, request.queries.first()) {
        (OpCode::Query, Some(query)) => {
            let (name, kind) = (query.name(), query.query_type());
            response.metadata.response_code = match fill(&mut response, name, kind, &names.directory) {
                ResponseCode::NXDomain => fill_foreign(&mut response, name, kind, names).await,
                code => code,
            };
        }
        _ => response.metadata.response_code = ResponseCode::NotImp,
    }
    let bytes = response.to_vec().ok()?;
    let limit = usize::from(request.max_payload().max(SMALLEST_DATAGRAM));
    if datagram && bytes.len() > limit {
        // The asker comes again over TCP.
        return response.truncate().to_vec().ok();
    }
    Some(bytes)
}

/// Addresses of names outside of the cluster. Pods have no IPv6 network, so such a name has no IPv6 address.
async fn fill_foreign(response: &mut Message, name: &Name, kind: RecordType, names: &Names) -> ResponseCode {
    let text = lower(name);
    let Some(outbound) = names.foreign(&text) else {
        return ResponseCode::NXDomain;
    };
    response.metadata.authoritative = false;
    match outbound.resolve(&text).await {
        Err(_) => ResponseCode::ServFail,
        Ok(found) if found.is_empty() => ResponseCode::NXDomain,
        Ok(found) => {
            for address in found
                .into_iter()
                .filter(|_| matches!(kind, RecordType::A | RecordType::ANY))
            {
                response.add_answer(Record::from_rdata(name.clone(), 0, RData::A(A(address))));
            }
            ResponseCode::NoError
        }
    }
}

/// A name in lower case, without the dot at its end.
fn lower(name: &Name) -> String {
    name.to_ascii().to_ascii_lowercase().trim_end_matches('.').to_owned()
}

fn fill(response: &mut Message, name: &Name, kind: RecordType, directory: &Directory) -> ResponseCode {
    let text = lower(name);
    let mut add = |data: RData| {
        // Names move as pods come and go: nothing may be cached.
        response.add_answer(Record::from_rdata(name.clone(), 0, data));
    };
    if let Some(reversed) = text.strip_suffix(".in-addr.arpa") {
        let octets: Vec<u8> = reversed
            .split('.')
            .rev()
            .filter_map(|octet| octet.parse().ok())
            .collect();
        let Ok(octets) = <[u8; 4]>::try_from(octets) else {
            return ResponseCode::NXDomain;
        };
        let names = directory.reverse(octets.into());
        if names.is_empty() {
            return ResponseCode::NXDomain;
        }
        if matches!(kind, RecordType::PTR | RecordType::ANY) {
            for name in names.iter().filter_map(|name| absolute(name)) {
                add(RData::PTR(PTR(name)));
            }
        }
        return ResponseCode::NoError;
    }
    match directory.lookup(&text) {
        Meaning::Unknown => return ResponseCode::NXDomain,
        Meaning::Addresses(addresses) if matches!(kind, RecordType::A | RecordType::ANY) => {
            for address in addresses {
                add(RData::A(A(address)));
            }
        }
        Meaning::Services(services) if matches!(kind, RecordType::SRV | RecordType::ANY) => {
            for (port, target) in services {
                if let Some(target) = absolute(&target) {
                    add(RData::SRV(SRV::new(0, 100, port, target)));
                }
            }
        }
        Meaning::Alias(target) => {
            if let Some(target) = absolute(&target) {
                add(RData::CNAME(CNAME(target)));
            }
        }
        Meaning::Addresses(_) | Meaning::Services(_) => {}
    }
    ResponseCode::NoError
}

fn absolute(name: &str) -> Option<Name> {
    Name::from_ascii(format!("{}.", name.trim_end_matches('.'))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{HOST_NAME, Namespace, Outside, Range};
    use crate::node::directory::tests::sample;
    use hickory_proto::op::Query;

    async fn ask(names: &Names, name: &str, kind: RecordType) -> Message {
        let mut question = Message::query();
        question.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        Message::from_vec(&answer(&question.to_vec().unwrap(), names, true).await.unwrap()).unwrap()
    }

    #[tokio::test]
    async fn answers_by_type() {
        let names = Names::new(Arc::new(sample()), None);
        let cases = [
            ("ETCD.db.svc.cluster.local.", RecordType::A, 2),
            ("etcd.db.svc.cluster.local.", RecordType::AAAA, 0),
            ("_peer._tcp.etcd.db.svc.cluster.local.", RecordType::SRV, 2),
            ("2.128.7.10.in-addr.arpa.", RecordType::PTR, 1),
            ("1.0.0.127.in-addr.arpa.", RecordType::PTR, 1),
        ];
        for (name, kind, count) in cases {
            let response = ask(&names, name, kind).await;
            assert_eq!(response.metadata.response_code, ResponseCode::NoError, "{name}");
            assert_eq!(response.answers.len(), count, "{name}");
            assert!(response.answers.iter().all(|record| record.ttl == 0));
        }
        assert_eq!(
            ask(&names, "example.com.", RecordType::A).await.metadata.response_code,
            ResponseCode::NXDomain
        );
        assert!(answer(b"rubbish", &names, true).await.is_none());
    }

    #[tokio::test]
    async fn foreign_names_mean_what_they_mean_to_the_machine() {
        // Given a way out
        let range = Range::new(7).unwrap();
        let machine = Namespace::current().unwrap().run(Outside::start).unwrap();
        let outbound = Some(Arc::new(Outbound::new(machine, range)));
        let names = Names::new(Arc::new(sample()), outbound);
        let host = format!("{}.", HOST_NAME.to_uppercase());
        // Then names are looked up there, and IPv6 addresses are left out
        for (name, kind, code, count) in [
            (&*host, RecordType::A, ResponseCode::NoError, 1),
            (&*host, RecordType::AAAA, ResponseCode::NoError, 0),
            ("203.0.113.7.", RecordType::A, ResponseCode::NoError, 1),
            // And names of the cluster are not
            ("etcd.db.svc.cluster.local.", RecordType::A, ResponseCode::NoError, 2),
            (
                "203.0.113.7.db.svc.cluster.local.",
                RecordType::A,
                ResponseCode::NXDomain,
                0,
            ),
            ("gone.db.svc.", RecordType::A, ResponseCode::NXDomain, 0),
            ("7.113.0.203.in-addr.arpa.", RecordType::PTR, ResponseCode::NXDomain, 0),
        ] {
            let response = ask(&names, name, kind).await;
            assert_eq!(response.metadata.response_code, code, "{name}");
            assert_eq!(response.answers.len(), count, "{name}");
        }
    }

    #[tokio::test]
    async fn long_answers_come_over_tcp() {
        // Given more pods than fit a datagram
        let directory = Arc::new(sample());
        for number in 3..100 {
            let pod = serde_json::json!({
                "metadata": {"name": "x", "namespace": "db", "uid": format!("u{number}"), "labels": {"app": "etcd"}},
                "spec": {"hostname": format!("etcd-{number}"), "subdomain": "etcd", "containers": []},
                "status": {"podIP": format!("10.7.128.{number}")}});
            directory.pod(&serde_json::from_value(pod).unwrap());
        }
        let stop = CancellationToken::new();
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let names = Names::new(directory, None);
        serve(Ipv4Addr::LOCALHOST, port, names, stop.clone()).await.unwrap();
        let mut question = Message::query();
        question.add_query(Query::query(
            Name::from_ascii("etcd.db.svc.cluster.local.").unwrap(),
            RecordType::A,
        ));
        let question = question.to_vec().unwrap();
        // When asked by datagram, then the answer says to come again
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.send_to(&question, ("127.0.0.1", port)).await.unwrap();
        let mut buffer = vec![0; 4096];
        let size = socket.recv(&mut buffer).await.unwrap();
        assert!(Message::from_vec(&buffer[..size]).unwrap().metadata.truncation);
        // And over TCP all are there
        let mut connection = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        connection
            .write_u16(u16::try_from(question.len()).unwrap())
            .await
            .unwrap();
        connection.write_all(&question).await.unwrap();
        let size = connection.read_u16().await.unwrap();
        let mut bytes = vec![0; usize::from(size)];
        connection.read_exact(&mut bytes).await.unwrap();
        assert_eq!(Message::from_vec(&bytes).unwrap().answers.len(), 99);
        stop.cancel();
    }
}
