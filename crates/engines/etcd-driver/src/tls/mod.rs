//! The certificates of a cluster: which Secrets hold them, whom they tell to trust, and what is to be done about it.
//!
//! With `TLS.auto` and `TLS.certManager` members mount three Secrets that only Stateward writes, with the key names of the
//! old operator: what it signed itself, or a copy of what cert-manager wrote. So it is Stateward who decides when a
//! certificate of another authority reaches members and clients: not before all of them trust it (the plan's `secure.rs`).
//! With `TLS.static` they are the user's; after one of the other two, a copy of those.

mod cert_manager;
mod hand_out;
mod sign;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::client::shown_certificate;
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use stateward_etcd::api::etcd_cluster::{StaticTls, Tls};
use stateward_etcd::api::{EtcdCluster, names};
use stateward_etcd::cluster::manifests::{TlsSecrets, TrustFiles, fingerprint, tls_secrets};
use stateward_etcd::cluster::{Ca, Secrets, TlsStage, Trust, World};

pub(crate) use cert_manager::{Requests, request};
pub(crate) use hand_out::{Refused, issue, renew_ca, secrets_now, trust};
use stateward_runtime::pki::pem::{Bundle, bundle, certificate_name, file, first_end};
use stateward_runtime::pki::unfit;

use crate::Shared;
use crate::secrets::{Found, Owned, SecretReader, taken};
use stateward_runtime::Key;
use stateward_runtime::secrets::look;

/// Annotation: the authorities that vouch for the certificate in this Secret.
const ISSUED_BY: &str = "stateward.dev/issued-by";
/// Annotation: when this Secret last changed whom to trust, or who vouches.
const ROTATED_AT: &str = "stateward.dev/authority-changed-at";
/// Annotation of a person on an EtcdCluster: another value asks for another certificate authority. On the Secret of the
/// authority: the value that was followed.
const ROTATE: &str = "stateward.dev/rotate-ca";
/// For how long clients are left to read what is new, where the spec says nothing.
const OVERLAP_SECONDS: i64 = 120;

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Peer,
    Server,
    Client,
}

const ROLES: [Role; 3] = [Role::Peer, Role::Server, Role::Client];

impl Role {
    /// File names of certificate, key and CA.
    fn keys(self) -> [&'static str; 3] {
        match self {
            Self::Peer => ["peer.crt", "peer.key", "peer-ca.crt"],
            Self::Server => ["server.crt", "server.key", "server-ca.crt"],
            Self::Client => ["etcd-client.crt", "etcd-client.key", "etcd-client-ca.crt"],
        }
    }

    /// The volume of a member's pod with it.
    fn volume(self) -> &'static str {
        match self {
            Self::Peer => "member-peer-tls",
            Self::Server => "member-server-tls",
            Self::Client => "etcd-client-tls",
        }
    }

    /// The traffic that it is for, as authorities are named.
    fn side(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Server | Self::Client => "client",
        }
    }

    fn secret(self, names: &TlsSecrets) -> Option<String> {
        match self {
            Self::Peer => names.peer.clone(),
            Self::Server => names.server.clone(),
            Self::Client => names.client.clone(),
        }
    }

    fn cas<'a>(self, names: impl IntoIterator<Item = &'a String>) -> BTreeSet<Ca> {
        let side = self.side();
        names.into_iter().map(|name| format!("{side}/{name}")).collect()
    }
}

type Content = BTreeMap<String, ByteString>;
type Annotations = BTreeMap<String, String>;

/// What a Secret that members mount holds.
struct Handed {
    bundle: Bundle,
    issued: BTreeSet<String>,
    certificate: Option<String>,
    not_after: Option<Timestamp>,
    rotated: Option<Timestamp>,
}

impl Handed {
    fn of(role: Role, content: &Content, annotations: Option<&Annotations>) -> Self {
        let [certificate, _, ca] = role.keys();
        let get = |key: &str| content.get(key).map_or(&[][..], |value| value.0.as_slice());
        let annotation = |name: &str| annotations.and_then(|all| all.get(name));
        let bundle = bundle(get(ca));
        Self {
            issued: match annotation(ISSUED_BY) {
                Some(names) => names.split(',').map(str::to_owned).collect(),
                // Secrets of earlier versions know one authority only.
                None => bundle.keys().cloned().collect(),
            },
            certificate: certificate_name(get(certificate)),
            not_after: first_end(get(certificate)),
            rotated: annotation(ROTATED_AT).and_then(|time| time.parse().ok()),
            bundle,
        }
    }
}

/// Where the next certificate of a role comes from.
enum Origin {
    /// It is signed by this authority.
    Sign { ca: String, key: String },
    /// cert-manager or the user wrote it.
    Copy {
        certificate: ByteString,
        key: ByteString,
        ca: ByteString,
    },
}

impl Origin {
    fn bundle(&self) -> Bundle {
        match self {
            Self::Sign { ca, .. } => bundle(ca.as_bytes()),
            Self::Copy { ca, .. } => bundle(&ca.0),
        }
    }

    /// From the Secret of an authority; the error says what is wrong with it.
    fn signing(name: &str, content: &Content, now: Timestamp) -> Result<Self, String> {
        let text = |key: &str| Some(String::from_utf8_lossy(&content.get(key)?.0).into_owned());
        let (Some(ca), Some(key)) = (text("tls.crt"), text("tls.key")) else {
            return Err(format!("the Secret {name} with the CA lacks tls.crt or tls.key"));
        };
        match unfit(&ca, &key, now) {
            None => Ok(Self::Sign { ca, key }),
            Some(why) => Err(format!(
                "no certificate can be signed with the Secret {name}: {why}; put certificate and key of one CA there"
            )),
        }
    }

    /// From the user's own Secrets: the one with the certificate first, then the one of the other end. The error says what is
    /// wrong with them.
    fn kept(found: &[(Kept<'_>, Option<&Content>)]) -> Result<Self, String> {
        let mut trusted = Bundle::new();
        for (kept, content) in found {
            if let Some(wrong) = kept.problem(*content) {
                return Err(wrong);
            }
            let [.., ca] = kept.role.keys();
            trusted.extend(bundle(
                content.and_then(|content| content.get(ca)).map_or(&[], |ca| &ca.0),
            ));
        }
        let (first, content) = found.first().map(|(kept, content)| (kept.role, *content)).unzip();
        let [certificate, key, _] = first.map_or([""; 3], Role::keys);
        let get = |key: &str| {
            content
                .flatten()
                .and_then(|content| content.get(key))
                .cloned()
                .unwrap_or_default()
        };
        Ok(Self::Copy {
            certificate: get(certificate),
            key: get(key),
            ca: ByteString(file(&trusted).into_bytes()),
        })
    }

    /// From a Secret of cert-manager.
    fn written(content: &Content) -> Option<Self> {
        let get = |key: &str| content.get(key).filter(|value| !value.0.is_empty()).cloned();
        Some(Self::Copy {
            certificate: get("tls.crt")?,
            key: get("tls.key")?,
            ca: get("ca.crt")?,
        })
    }
}

/// A Secret of `TLS.static`.
#[derive(Clone, Copy)]
struct Kept<'a> {
    role: Role,
    name: &'a str,
}

impl<'a> Kept<'a> {
    /// Those that a role's certificate and authorities come from. For clients' traffic both ends say whom they trust.
    fn of(secrets: &'a StaticTls, role: Role) -> Vec<Self> {
        let both_ends = match role {
            Role::Peer => vec![Role::Peer],
            Role::Server => vec![Role::Server, Role::Client],
            Role::Client => vec![Role::Client, Role::Server],
        };
        let name = |role| match role {
            Role::Peer => secrets.peer_secret(),
            Role::Server => secrets.server_secret(),
            Role::Client => secrets.operator_secret.as_deref(),
        };
        let named = both_ends.into_iter().filter_map(|role| Some((role, name(role)?)));
        named.map(|(role, name)| Self { role, name }).collect()
    }

    /// What is wrong with it, and what to do.
    fn problem(self, content: Option<&Content>) -> Option<String> {
        let (name, keys) = (self.name, self.role.keys());
        let Some(content) = content else {
            let keys = keys.join(", ");
            return Some(format!(
                "the Secret {name} does not exist: create it with the keys {keys}"
            ));
        };
        let lacking = keys.iter().find(|key| !content.contains_key(**key))?;
        let keys = keys.join(", ");
        Some(format!("the Secret {name} lacks the key {lacking}: it needs {keys}"))
    }
}

/// The Secret with the CA that signs for a role with `TLS.auto`. Members have a CA of their own, so that no client's certificate lets
/// its holder speak to them as one of them (ADR 19).
fn secret_of_ca(cluster: &EtcdCluster, role: Role) -> Option<String> {
    let Tls::Auto(auto) = cluster.tls() else {
        return None;
    };
    Some(match (role, &auto.ca_secret) {
        (Role::Peer, _) => names::peer_ca_secret(cluster.name()),
        (Role::Server | Role::Client, Some(theirs)) => theirs.clone(),
        (Role::Server | Role::Client, None) => names::ca_secret(cluster.name()),
    })
}

/// The same where it is ours, and not the user's.
fn own_ca(cluster: &EtcdCluster, role: Role) -> Option<String> {
    match cluster.tls() {
        Tls::Auto(auto) if role != Role::Peer && auto.ca_secret.is_some() => None,
        _ => secret_of_ca(cluster, role),
    }
}

/// Why nothing can be issued.
enum Hindrance {
    /// In words.
    Words(String),
    /// A Secret of somebody else's has this name, which is one of those that are made for the cluster.
    Taken(String),
}

/// What was found out in a round.
#[derive(Default)]
pub(crate) struct Judged {
    pub(crate) secrets: Secrets,
    pub(crate) trust: Option<Trust>,
    /// Whom a pod that is made in this round trusts.
    pub(crate) files: Option<TrustFiles>,
    /// When the first of the certificates that members show ends.
    pub(crate) not_after: Option<Timestamp>,
    /// What keeps certificates from being renewed, in words. Those that are there serve on.
    pub(crate) trouble: Option<String>,
    /// The certificates of servers and peers that are in the Secrets now.
    server: Option<String>,
    peer: Option<String>,
}

/// Looks at everything that the spec's TLS needs.
pub(crate) async fn judge(
    reader: &mut SecretReader,
    shared: &Shared,
    key: &Key,
    cluster: &EtcdCluster,
) -> kube::Result<Judged> {
    let mut look = Look {
        reader,
        shared,
        key,
        cluster,
        now: Timestamp::now(),
    };
    match cluster.tls() {
        Tls::Off => Ok(Judged::default()),
        Tls::Static(_) => look.at_static().await,
        Tls::Copied(_) | Tls::Auto(_) | Tls::CertManager(_) => look.at_managed().await,
    }
}

/// The earlier of two times, where there are two.
fn first(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}

/// One look at the Secrets of a cluster.
struct Look<'a> {
    reader: &'a mut SecretReader,
    shared: &'a Shared,
    key: &'a Key,
    cluster: &'a EtcdCluster,
    now: Timestamp,
}

impl Look<'_> {
    async fn find(&mut self, secret: &str) -> kube::Result<Option<Found>> {
        self.reader.find(self.shared, self.key, secret).await
    }

    /// Something is wrong with this Secret: it is looked at again soon.
    fn hurry(&self, secret: &str) {
        self.shared
            .runtime
            .secrets
            .hurry(&Key::new(self.key.namespace.clone(), secret));
    }

    /// A Secret that only Stateward writes.
    async fn find_own(&mut self, secret: &str) -> kube::Result<Owned<Found>> {
        let uid = self.cluster.metadata.uid.as_deref().unwrap_or_default();
        self.reader.find_own(self.shared, self.key, uid, secret).await
    }

    async fn at_static(&mut self) -> kube::Result<Judged> {
        let cluster = self.cluster;
        let names = tls_secrets(cluster);
        let mut bundle = BTreeSet::new();
        let mut not_after = None;
        for role in ROLES {
            let Some(name) = role.secret(&names) else { continue };
            let found = self.find(&name).await?;
            let content = found.as_ref().map(|found| found.content.as_ref());
            if let Some(what) = (Kept { role, name: &name }).problem(content) {
                self.hurry(&name);
                return Ok(Judged {
                    secrets: Secrets::Missing(what),
                    ..Judged::default()
                });
            }
            if let (Some(content), true) = (content, role != Role::Client) {
                let handed = Handed::of(role, content, None);
                bundle.extend(role.cas(handed.bundle.keys()));
                not_after = first(not_after, handed.not_after);
            }
        }
        Ok(Judged {
            files: Some(TrustFiles {
                cas: bundle.clone(),
                ..TrustFiles::default()
            }),
            trust: Some(Trust {
                issued: bundle.clone(),
                wanted: bundle.clone(),
                bundle,
                ..Trust::default()
            }),
            not_after,
            ..Judged::default()
        })
    }

    async fn at_managed(&mut self) -> kube::Result<Judged> {
        let (shared, key, cluster, now) = (self.shared, self.key, self.cluster, self.now);
        let names = tls_secrets(cluster);
        let mut trust = Trust {
            managed: true,
            ..Trust::default()
        };
        let overlap = Duration::from_secs(u64::try_from(overlap_seconds(cluster)).unwrap_or(0));
        let (mut due, mut absent, mut awaited, mut trouble) = (false, false, None, None);
        // Members' certificates of a CA that is gone, or that was the clients' as well and is replaced.
        let mut adrift = false;
        let mut handed: BTreeMap<&str, Handed> = BTreeMap::new();
        for role in ROLES {
            let Some(name) = role.secret(&names) else { continue };
            let origin = match self.origin(role).await? {
                Ok(origin) => {
                    adrift |= role == Role::Peer && origin.is_none() && matches!(cluster.tls(), Tls::Auto(_));
                    origin
                }
                Err(Hindrance::Taken(secret)) => return Ok(Judged::taken(&secret)),
                Err(Hindrance::Words(words)) => {
                    trouble = Some(words);
                    None
                }
            };
            let sources: Option<BTreeSet<String>> = origin.as_ref().map(|origin| origin.bundle().into_keys().collect());
            let found = match self.find_own(&name).await? {
                Owned::Ours(found) => found,
                Owned::Theirs => return Ok(Judged::taken(&name)),
                Owned::Free => {
                    (due, absent) = (true, true);
                    if origin.is_none() && matches!(cluster.tls(), Tls::CertManager(_)) {
                        awaited = awaited.or(Some(role));
                    }
                    continue;
                }
            };
            let one = Handed::of(role, &found.content, found.annotations.as_ref());
            trust.wanted.extend(role.cas(sources.as_ref().unwrap_or(&one.issued)));
            trust.issued.extend(role.cas(&one.issued));
            if let Some(at) = one.rotated {
                let by_the_clock = Duration::try_from(now.duration_since(at)).unwrap_or_default();
                let since = by_the_clock.min(self.reader.seen_for(at));
                trust.overlap_left = trust.overlap_left.max(overlap.saturating_sub(since));
            }
            // A certificate of another authority is not handed out before everybody trusts it.
            let same = sources.as_ref() == Some(&one.issued);
            let annotations = found.annotations.as_ref();
            due |= same && origin.is_some_and(|origin| is_due_now(cluster, role, &origin, annotations, &one, now));
            handed.insert(role.keys()[0], one);
        }
        let of = |role: Role| handed.get(role.keys()[0]);
        let judged = if let Some(role) = awaited {
            Judged {
                secrets: cert_manager::awaited(shared, key, cluster, role).await?,
                ..Judged::default()
            }
        } else if let (Some(peer), Some(server), Some(client)) = (of(Role::Peer), of(Role::Server), of(Role::Client)) {
            let shared_by = |one: &Bundle, other: &Bundle| -> Bundle {
                let both = one.iter().filter(|(name, _)| other.contains_key(*name));
                both.map(|(name, pem)| (name.clone(), pem.clone())).collect()
            };
            let clients = shared_by(&server.bundle, &client.bundle);
            trust.uneven = !server.bundle.keys().eq(client.bundle.keys());
            trust.bundle = Role::Peer.cas(peer.bundle.keys());
            trust.bundle.extend(Role::Server.cas(clients.keys()));
            trust.renew = adrift || sign::ca_is_due(shared, key, cluster, now).await?;
            let files = TrustFiles {
                cas: trust.bundle.clone(),
                peer: Some(file(&peer.bundle)),
                client: Some(file(&clients)),
            };
            Judged {
                secrets: if due || cert_manager::must_ask(shared, key, cluster) {
                    Secrets::Due { first: absent }
                } else {
                    Secrets::Good
                },
                trust: Some(trust),
                files: Some(files),
                not_after: first(peer.not_after, server.not_after),
                trouble,
                server: server.certificate.clone(),
                peer: peer.certificate.clone(),
            }
        } else {
            Judged {
                secrets: Secrets::Due { first: true },
                ..Judged::default()
            }
        };
        Ok(judged)
    }

    /// Where the certificate of a role comes from, as the caches have it. The error says what is wrong with an authority that the user keeps.
    async fn origin(&mut self, role: Role) -> kube::Result<Result<Option<Origin>, Hindrance>> {
        let cluster = self.cluster;
        if let Tls::Copied(secrets) = cluster.tls() {
            let mut all = Vec::new();
            for kept in Kept::of(secrets, role) {
                all.push((kept, self.find(kept.name).await?));
            }
            let found: Vec<_> = all
                .iter()
                .map(|(kept, found)| (*kept, found.as_ref().map(|found| found.content.as_ref())))
                .collect();
            let origin = Origin::kept(&found);
            if origin.is_err() {
                for kept in Kept::of(secrets, role) {
                    self.hurry(kept.name);
                }
            }
            return Ok(origin.map(Some).map_err(Hindrance::Words));
        }
        if matches!(cluster.tls(), Tls::CertManager(_)) {
            let name = cert_manager::source_secret(cluster, role);
            let seen = look(&self.shared.runtime, &Key::new(self.key.namespace.clone(), &name)).await?;
            if seen.is_some_and(|seen| !cert_manager::is_of_certificate(&seen.metadata)) {
                return Ok(Err(Hindrance::Taken(name)));
            }
            let found = self.find(&name).await?;
            return Ok(Ok(found.and_then(|found| Origin::written(&found.content))));
        }
        match (role, self.signing(role).await?) {
            (Role::Peer, Ok(None)) if self.has_handed_out().await? => self.shared_with_clients().await,
            (_, origin) => Ok(origin),
        }
    }

    /// The CA of a role, with `TLS.auto`.
    async fn signing(&mut self, role: Role) -> kube::Result<Result<Option<Origin>, Hindrance>> {
        let cluster = self.cluster;
        let Some(name) = secret_of_ca(cluster, role) else {
            return Ok(Ok(None));
        };
        let found = if own_ca(cluster, role).is_some() {
            match self.find_own(&name).await? {
                Owned::Ours(found) => found,
                Owned::Free => return Ok(Ok(None)), // it is made anew
                Owned::Theirs => return Ok(Err(Hindrance::Taken(name))),
            }
        } else {
            match self.find(&name).await? {
                Some(found) => found,
                None => return Ok(Err(Hindrance::Words(hand_out::nothing_to_issue_from(cluster)))),
            }
        };
        let origin = Origin::signing(&name, &found.content, self.now);
        if origin.is_err() {
            self.hurry(&name);
        }
        Ok(origin.map(Some).map_err(Hindrance::Words))
    }

    /// Whether a Secret that members mount is there.
    async fn has_handed_out(&mut self) -> kube::Result<bool> {
        for name in names::tls_secrets(self.cluster.name()) {
            if matches!(self.find_own(&name).await?, Owned::Ours(_)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A cluster of an earlier version has one CA for members and clients, and keeps it: another one takes restarts, and those come with
    /// the next rotation. When the one CA was replaced, members stay with their certificates until they get a CA of their own.
    async fn shared_with_clients(&mut self) -> kube::Result<Result<Option<Origin>, Hindrance>> {
        let origin = match self.signing(Role::Server).await? {
            Ok(Some(origin)) => origin,
            other => return Ok(other),
        };
        let [peer, ..] = names::tls_secrets(self.cluster.name());
        let handed = match self.find_own(&peer).await? {
            Owned::Ours(found) => Handed::of(Role::Peer, &found.content, found.annotations.as_ref()),
            Owned::Free | Owned::Theirs => return Ok(Ok(Some(origin))),
        };
        Ok(Ok(vouches_for(&origin, &handed).then_some(origin)))
    }
}

/// Whether a certificate comes from there.
fn vouches_for(origin: &Origin, handed: &Handed) -> bool {
    origin.bundle().keys().eq(handed.issued.iter())
}

/// Whether a certificate that is there is to be handed out anew, by the same authority.
fn is_due_now(
    cluster: &EtcdCluster,
    role: Role,
    origin: &Origin,
    annotations: Option<&Annotations>,
    handed: &Handed,
    now: Timestamp,
) -> bool {
    match (cluster.tls(), origin) {
        (Tls::Auto(auto), _) => sign::wanted(cluster, auto, role).is_due(annotations, now),
        (_, Origin::Copy { certificate, .. }) => certificate_name(&certificate.0) != handed.certificate,
        _ => false,
    }
}

fn overlap_seconds(cluster: &EtcdCluster) -> i64 {
    let given = match cluster.tls() {
        Tls::Auto(auto) => auto.overlap_seconds,
        Tls::CertManager(certificates) => certificates.overlap_seconds,
        Tls::Copied(secrets) => secrets.overlap_seconds,
        Tls::Off | Tls::Static(_) => None,
    };
    given.unwrap_or(OVERLAP_SECONDS).max(0)
}

impl Judged {
    fn taken(secret: &str) -> Self {
        Self {
            secrets: Secrets::Taken(taken(secret)),
            ..Self::default()
        }
    }

    /// Whether members show the certificates that the Secrets have now. They are asked only before an authority is
    /// dropped: whoever still showed one of its certificates could not be verified any more.
    pub(crate) async fn look_at_members(&self, world: &World) -> bool {
        let pending = self
            .trust
            .as_ref()
            .is_some_and(|trust| trust.managed && trust.issued == trust.wanted && trust.bundle != trust.wanted);
        if !pending {
            return false;
        }
        let looks = world.pods.values().map(async |pod| {
            let Some(address) = pod.address.as_ref().and_then(|ip| ip.parse::<IpAddr>().ok()) else {
                return false;
            };
            let shows = async |port: u16, certificate: &Option<String>| {
                let seen = shown_certificate(SocketAddr::new(address, port), Duration::from_secs(1)).await;
                seen.is_some_and(|seen| Some(fingerprint(&seen)) == *certificate)
            };
            pod.running && shows(2379, &self.server).await && (pod.tls != TlsStage::On || shows(2380, &self.peer).await)
        });
        join_all(looks).await.into_iter().all(|good| good)
    }
}
