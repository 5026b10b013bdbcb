//! `TLS.auto`: a CA of the cluster's own, or the user's, and one certificate for all members. They are renewed after two thirds
//! of their life, and servers read them again without a restart.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use stateward_core::manifests::fingerprint;
use stateward_mysql::intent::{AutoTls, Intent, Tls};
use stateward_mysql::layout::{TLS_CA, TLS_CERTIFICATE, TLS_KEY};
use stateward_mysql::names;
use stateward_mysql::world::{self, Ordinal, Process, Taken};
use stateward_runtime::pki::pem::{bundle, certificate_name, file, first_end};
use stateward_runtime::pki::{self, Wanted};
use stateward_runtime::{Failure, Key, Runtime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::caches::Caches;
use crate::client::CONNECT;
use crate::secrets::{Found, Read, Reader, Writer};
use crate::session::{Reach, Session};

/// Keys of a Secret with a CA.
const CA_KEYS: [&str; 2] = ["tls.crt", "tls.key"];

/// What was read of a cluster's certificates.
#[derive(Default)]
pub(crate) struct Judged {
    pub(crate) tls: world::Tls,
    /// The CA file that members' certificates are verified with, and a word for its version.
    pub(crate) ca: Option<(String, Arc<Vec<u8>>)>,
    pub(crate) taken: Option<Taken>,
    pub(crate) trouble: Option<String>,
}

/// Reads the Secrets with certificates.
pub(crate) async fn judge(
    reader: &mut Reader,
    runtime: &Runtime,
    caches: &Caches,
    cluster: &Key,
    intent: &Intent,
) -> kube::Result<Judged> {
    let mut judged = Judged::default();
    let name = names::tls_secret(&intent.name);
    let found = reader.own(runtime, caches, cluster, &intent.uid.0, &name).await?;
    if matches!(found, Found::Theirs) {
        judged.taken = Some(Taken::Name(format!("the Secret {name}")));
    }
    if let Tls::Auto(auto) = &intent.tls
        && let Some(theirs) = &auto.ca_secret
    {
        let read = reader.users(runtime, cluster, theirs).await?;
        if read.is_none_or(|read| CA_KEYS.iter().any(|key| read.text(key).is_none())) {
            let message = format!(
                "the Secret {theirs} that TLS.auto.caSecret names is not there or lacks a key: create it with tls.crt and tls.key"
            );
            judged.taken.get_or_insert(Taken::Missing(message));
        }
    }
    let Some(read) = found.ours() else {
        return Ok(judged);
    };
    let get = |key: &str| read.content.get(key).map_or(&[][..], |value| value.0.as_slice());
    judged.tls.issued = [TLS_CA, TLS_CERTIFICATE, TLS_KEY]
        .iter()
        .all(|key| !get(key).is_empty());
    judged.tls.not_after = first_end(get(TLS_CERTIFICATE));
    judged.tls.fingerprint = certificate_name(get(TLS_CERTIFICATE));
    if let Tls::Auto(auto) = &intent.tls {
        judged.tls.due = wanted(intent, auto).is_due(read.meta.annotations.as_ref(), Timestamp::now());
    }
    judged.ca = ca_file(read);
    Ok(judged)
}

fn ca_file(read: &Read) -> Option<(String, Arc<Vec<u8>>)> {
    let ca = read.content.get(TLS_CA).filter(|ca| !ca.0.is_empty())?;
    Some((fingerprint(&ca.0), Arc::new(ca.0.clone())))
}

/// The certificate of every member: it carries the names of all, and of the Services.
fn wanted(intent: &Intent, auto: &AutoTls) -> Wanted {
    let (cluster, namespace) = (&intent.name, &intent.namespace);
    let services = [
        format!("*.{cluster}"),
        names::primary_service(cluster),
        names::read_service(cluster),
    ];
    let mut all = Vec::new();
    for service in services {
        all.extend([
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.svc.cluster.local"),
            format!("{service}.{namespace}"),
        ]);
    }
    all.extend([names::primary_service(cluster), names::read_service(cluster)]);
    all.extend(["localhost".to_owned(), "127.0.0.1".to_owned()]);
    all.extend(auto.dns_names.iter().chain(&auto.ip_addresses).cloned());
    Wanted {
        names: all,
        server: true,
        days: i64::from(auto.validity_days).clamp(1, 3650),
    }
}

/// Issues or renews the certificate of members.
pub(crate) async fn issue(writer: Writer<'_>) -> Result<(), Failure> {
    let intent = writer.intent;
    let Tls::Auto(auto) = &intent.tls else { return Ok(()) };
    let now = Timestamp::now();
    let (ca, key) = authority(writer, auto, now).await?;
    if let Some(why) = pki::unfit(&ca, &key, now) {
        return Err(Failure::Failed(format!(
            "no certificate can be signed: {why}; put certificate and key of one CA into the Secret"
        )));
    }
    let wanted = wanted(intent, auto);
    let signed = pki::sign(&wanted, &ca, &key, now);
    let signed = signed.map_err(|error| Failure::Failed(format!("no certificate can be signed: {error}")))?;
    let name = names::tls_secret(&intent.name);
    writer
        .write(&name, "Opaque", |content, annotations| {
            // Who verified with the CA before still does.
            let mut trusted = bundle(content.get(TLS_CA).map_or(&[], |ca| &ca.0));
            trusted.retain(|_, one| first_end(one.as_bytes()).is_some_and(|end| end > now));
            trusted.extend(bundle(ca.as_bytes()));
            content.insert(TLS_CA.into(), ByteString(file(&trusted).into_bytes()));
            content.insert(TLS_CERTIFICATE.into(), ByteString(signed.certificate.into_bytes()));
            content.insert(TLS_KEY.into(), ByteString(signed.key.into_bytes()));
            annotations.extend(signed.annotations);
        })
        .await?;
    Ok(())
}

/// The CA that signs: certificate and key.
async fn authority(writer: Writer<'_>, auto: &AutoTls, now: Timestamp) -> Result<(String, String), Failure> {
    let [certificate, key] = CA_KEYS;
    if let Some(theirs) = &auto.ca_secret {
        let read = Reader::default().users(writer.runtime, writer.cluster, theirs).await?;
        let both = read.and_then(|read| Some((read.text(certificate)?, read.text(key)?)));
        return both.ok_or_else(|| Failure::Failed(format!("the Secret {theirs} lacks tls.crt or tls.key: add them")));
    }
    let name = format!("{} CA {}", writer.intent.name, now.as_second());
    let made = pki::make_authority(&name, now);
    let made = made.map_err(|error| Failure::Failed(format!("no CA can be made: {error}")))?;
    let secret = names::ca_secret(&writer.intent.name);
    let written = writer
        .write(&secret, "kubernetes.io/tls", |content, annotations| {
            if CA_KEYS
                .iter()
                .all(|key| content.get(*key).is_some_and(|value| !value.0.is_empty()))
            {
                return;
            }
            content.insert(certificate.into(), ByteString(made.certificate.into_bytes()));
            content.insert(key.into(), ByteString(made.key.into_bytes()));
            annotations.extend(made.annotations);
        })
        .await?;
    let content = written.data.unwrap_or_default();
    let text = |key: &str| String::from_utf8(content.get(key)?.0.clone()).ok();
    let both = text(certificate).zip(text(key));
    both.ok_or_else(|| Failure::Failed(format!("the Secret {secret} cannot be read: delete it")))
}

/// The certificate that a process presents. It is looked at once, and again while it is not the one that was issued.
pub(crate) async fn presented(
    session: &mut Session,
    member: Ordinal,
    reach: &Reach,
    process: &Process,
    issued: &world::Tls,
) -> Option<String> {
    let ca = reach.server.target.ca.clone()?;
    if let Some((known, certificate)) = session.presented.get(&member)
        && known == process
        && Some(certificate) == issued.fingerprint.as_ref()
    {
        return Some(certificate.clone());
    }
    let target = &reach.server.target;
    let look = look(target.address, &target.host, &ca);
    let certificate = timeout(CONNECT, look).await.ok()??;
    session.presented.insert(member, (process.clone(), certificate.clone()));
    Some(certificate)
}

/// Begins a session as far as the TLS handshake.
async fn look(address: IpAddr, host: &str, ca: &[u8]) -> Option<String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca).flatten() {
        roots.add(certificate).ok()?;
    }
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let port = u16::try_from(names::PORT).ok()?;
    let mut stream = TcpStream::connect(SocketAddr::new(address, port)).await.ok()?;
    let mut header = [0; 4];
    stream.read_exact(&mut header).await.ok()?;
    let [low, middle, high, _] = header;
    let mut greeting = vec![0; usize::from(low) | usize::from(middle) << 8 | usize::from(high) << 16];
    stream.read_exact(&mut greeting).await.ok()?;
    stream.write_all(&ssl_request()).await.ok()?;
    let name = ServerName::try_from(host.to_owned()).ok()?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.ok()?;
    let (_, connection) = stream.get_ref();
    connection.peer_certificates()?.first().map(|one| fingerprint(one))
}

/// The packet that asks for TLS: protocol 4.1, secure connections, authentication plugins.
fn ssl_request() -> Vec<u8> {
    let capabilities: u32 = 0x0200 | 0x0800 | 0x8000 | 0x0008_0000;
    let mut packet = vec![32, 0, 0, 1];
    packet.extend(capabilities.to_le_bytes());
    packet.extend((16_u32 << 20).to_le_bytes());
    packet.push(45); // utf8mb4
    packet.extend([0; 23]);
    packet
}

/// What every channel and clone verifies its peer with.
pub(crate) fn channel_ca(intent: &Intent) -> Option<String> {
    matches!(intent.tls, Tls::Auto(_)).then(|| format!("{}/{TLS_CA}", stateward_mysql::layout::TLS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_for_tls_has_its_length() {
        let packet = ssl_request();
        assert_eq!(packet.len(), 4 + usize::from(packet[0]));
    }
}
