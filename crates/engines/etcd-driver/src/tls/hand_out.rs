//! What is carried out on the Secrets that members mount. Everything is read afresh here, past all caches, and written with
//! the version it was read at: two operators cannot undo each other's step.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, PostParams};
use kube::{Api, Resource};
use stateward_etcd::api::etcd_cluster::Tls;
use stateward_etcd::api::{EtcdCluster, names};
use stateward_etcd::cluster::guard::{Fact, FactNeed, Facts, Fresh, Guard, Need, SecretNow, SecretRole};
use stateward_etcd::cluster::manifests::tls_secrets;
use stateward_etcd::cluster::{Ca, Intent, facts};

use super::{
    Annotations, Content, Handed, ISSUED_BY, Kept, Origin, ROLES, ROTATED_AT, Role, cert_manager, is_due_now, own_ca,
    secret_of_ca, sign, vouches_for,
};
use crate::Shared;
use crate::observe::is_owned;
use crate::secrets::{Whose, taken, whose};
use stateward_runtime::guards::{Reader, hold};
use stateward_runtime::pki::pem::{Bundle, bundle, file};
use stateward_runtime::{Key, pki};

/// Why it was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// What the decision rests on has changed.
    #[error("{0}")]
    Guard(String),
    /// Something is missing or wrong, with what to do.
    #[error("{0}")]
    Words(String),
    /// A Secret of somebody else's has the name of one of ours.
    #[error("{}", taken(.0))]
    Taken(String),
    /// Kubernetes refused or did not answer.
    #[error(transparent)]
    Kubernetes(#[from] kube::Error),
}

impl From<stateward_runtime::Failure> for Refused {
    fn from(failure: stateward_runtime::Failure) -> Self {
        match failure {
            stateward_runtime::Failure::GuardFailed(why) => Self::Guard(why),
            stateward_runtime::Failure::Kubernetes(error) => Self::Kubernetes(error),
            other => Self::Words(other.to_string()),
        }
    }
}

/// A Secret that members mount, as it is now.
struct Mounted {
    role: Role,
    name: String,
    there: Option<Secret>,
}

impl Mounted {
    fn now(&self) -> Option<SecretNow> {
        let handed = self.handed()?;
        Some(SecretNow {
            name: self.name.clone(),
            role: match self.role {
                Role::Peer => SecretRole::Peer,
                Role::Server => SecretRole::Server,
                Role::Client => SecretRole::Client,
            },
            bundle: self.role.cas(handed.bundle.keys()),
            issued: self.role.cas(&handed.issued),
        })
    }

    fn handed(&self) -> Option<Handed> {
        let secret = self.there.as_ref()?;
        let empty = Content::new();
        let content = secret.data.as_ref().unwrap_or(&empty);
        Some(Handed::of(self.role, content, secret.metadata.annotations.as_ref()))
    }
}

/// A Secret that only Stateward writes. That of an earlier cluster is as good as gone; somebody else's is not touched.
async fn own(api: &Api<Secret>, cluster: &EtcdCluster, name: &str) -> Result<Option<Secret>, Refused> {
    let Some(secret) = api.get_opt(name).await? else {
        return Ok(None);
    };
    let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
    match whose(&secret.metadata, cluster.name(), uid) {
        Whose::Ours => Ok(Some(secret)),
        Whose::LeftBehind => Ok(None),
        Whose::Theirs => Err(Refused::Taken(name.to_owned())),
    }
}

async fn mounted(api: &Api<Secret>, cluster: &EtcdCluster) -> Result<Vec<Mounted>, Refused> {
    let names = tls_secrets(cluster);
    let mut all = Vec::new();
    for role in ROLES {
        if let Some(name) = role.secret(&names) {
            let there = own(api, cluster, &name).await?;
            all.push(Mounted { role, name, there });
        }
    }
    Ok(all)
}

async fn origin(
    shared: &Shared,
    key: &Key,
    api: &Api<Secret>,
    cluster: &EtcdCluster,
    role: Role,
    mounted: &[Mounted],
) -> Result<Option<Origin>, Refused> {
    if let Tls::Copied(secrets) = cluster.tls() {
        let mut all = Vec::new();
        for kept in Kept::of(secrets, role) {
            let secret = api.get_opt(kept.name).await?;
            all.push((kept, secret.map(|secret| secret.data.unwrap_or_default())));
        }
        let found: Vec<_> = all.iter().map(|(kept, content)| (*kept, content.as_ref())).collect();
        return Origin::kept(&found).map(Some).map_err(Refused::Words);
    }
    if matches!(cluster.tls(), Tls::CertManager(_)) {
        let name = cert_manager::source_secret(cluster, role);
        let secret = api.get_opt(&name).await?;
        if let Some(secret) = &secret {
            if !cert_manager::is_of_certificate(&secret.metadata) {
                return Err(Refused::Taken(name));
            }
            cert_manager::own(shared, key, api, secret).await?;
        }
        return Ok(secret.and_then(|secret| Origin::written(&secret.data.unwrap_or_default())));
    }
    let own = signing(api, cluster, role).await?;
    if role != Role::Peer || own.is_some() || mounted.iter().all(|one| one.there.is_none()) {
        return Ok(own);
    }
    // One CA for members and clients, as in `Look::shared_with_clients`.
    let of_clients = signing(api, cluster, Role::Server).await?;
    let peer = mounted.iter().find(|one| one.role == Role::Peer);
    let handed = peer.and_then(Mounted::handed);
    Ok(of_clients.filter(|origin| handed.is_none_or(|handed| vouches_for(origin, &handed))))
}

/// The CA of a role, with `TLS.auto`.
async fn signing(api: &Api<Secret>, cluster: &EtcdCluster, role: Role) -> Result<Option<Origin>, Refused> {
    let Some(name) = secret_of_ca(cluster, role) else {
        return Ok(None);
    };
    let secret = if own_ca(cluster, role).is_some() {
        own(api, cluster, &name).await?
    } else {
        api.get_opt(&name).await?
    };
    let Some(secret) = secret else {
        return Ok(None);
    };
    Origin::signing(&name, &secret.data.unwrap_or_default(), Timestamp::now())
        .map(Some)
        .map_err(Refused::Words)
}

/// Makes what is missing, renews what is due; with `next`, hands out certificates of another authority, if the guards hold then.
pub(crate) async fn issue(
    shared: &Shared,
    key: &Key,
    cluster: &EtcdCluster,
    intent: &Intent,
    next: bool,
    guards: &[Guard],
) -> Result<(), Refused> {
    let api: Api<Secret> = Api::namespaced(shared.runtime.client.clone(), &key.namespace);
    let now = Timestamp::now();
    if cert_manager::must_ask(shared, key, cluster) {
        cert_manager::request(shared, key, cluster).await?;
    }
    let mounted = mounted(&api, cluster).await?;
    let mut kept = kept_from_static(shared, key, &api, cluster, &mounted).await?;
    let mut bundles: BTreeMap<&str, Bundle> = BTreeMap::new();
    for one in &mounted {
        let side = bundles.entry(one.role.side()).or_default();
        side.extend(one.handed().map(|handed| handed.bundle).unwrap_or_default());
        if let Some(content) = kept.get(&one.name) {
            side.extend(Handed::of(one.role, content, None).bundle);
        }
    }
    for one in &mounted {
        let side = one.role.side();
        let mut same_side = mounted.iter().filter(|one| one.role.side() == side);
        let begins = own_ca(cluster, one.role).is_some() && same_side.all(|one| one.there.is_none());
        let origin = match origin(shared, key, &api, cluster, one.role, &mounted).await? {
            Some(origin) => origin,
            // What the user's Secrets hold is handed out first; otherwise members would meet one that nobody told them of.
            None if begins
                && (kept.contains_key(&one.name) || !is_trusted(&pods(shared, key, cluster).await?, side)) =>
            {
                make_ca(shared, &api, cluster, one.role, None, now).await?
            }
            None if one.there.is_some() => continue,
            None => return Err(Refused::Words(nothing_to_issue_from(cluster))),
        };
        if let Some(mut data) = kept.remove(&one.name) {
            let trusted = bundles.get(one.role.side()).cloned().unwrap_or_default();
            let [.., ca_key] = one.role.keys();
            data.insert(ca_key.to_owned(), ByteString(file(&trusted).into_bytes()));
            let issued = trusted.into_keys().collect::<Vec<_>>().join(",");
            let annotations = Annotations::from([(ISSUED_BY.to_owned(), issued)]);
            write(shared, &api, cluster, one, data, annotations).await?;
            tracing::info!(cluster = %key, secret = one.name, "certificate of the user's own Secret adopted");
            continue;
        }
        let vouching = origin.bundle();
        let names: BTreeSet<String> = vouching.keys().cloned().collect();
        let handed = one.handed();
        let another = handed.as_ref().is_some_and(|handed| handed.issued != names);
        let needed = match &handed {
            None => true,
            Some(_) if another => next,
            Some(handed) => {
                let annotations = one
                    .there
                    .as_ref()
                    .and_then(|secret| secret.metadata.annotations.as_ref());
                is_due_now(cluster, one.role, &origin, annotations, handed, now)
            }
        };
        if !needed {
            continue;
        }
        if another {
            // Of what is handed out really: the authority may be another one since the plan was made.
            let all_trust = Guard::Fact(Fact::AllTrust {
                cas: one.role.cas(&names),
                before: handed
                    .as_ref()
                    .map(|handed| one.role.cas(&handed.issued))
                    .unwrap_or_default(),
            });
            let guards: Vec<Guard> = guards.iter().cloned().chain([all_trust]).collect();
            must_hold(shared, key, cluster, intent, Vec::new(), &guards).await?;
        }
        let mut trusted = bundles.get(one.role.side()).cloned().unwrap_or_default();
        trusted.extend(vouching);
        let (certificate, private, mut annotations) = match (&origin, cluster.tls()) {
            (Origin::Sign { ca, key }, Tls::Auto(auto)) => {
                let wanted = sign::wanted(cluster, auto, one.role);
                let signed = pki::sign(&wanted, ca, key, now).map_err(|error| unfit(cluster, one.role, &error))?;
                (
                    signed.certificate.into_bytes(),
                    signed.key.into_bytes(),
                    signed.annotations,
                )
            }
            (Origin::Copy { certificate, key, .. }, _) => (certificate.0.clone(), key.0.clone(), Annotations::new()),
            (Origin::Sign { .. }, _) => continue,
        };
        annotations.insert(ISSUED_BY.to_owned(), names.into_iter().collect::<Vec<_>>().join(","));
        let rotated = if another {
            Some(now)
        } else {
            handed.and_then(|handed| handed.rotated)
        };
        annotations.extend(rotated.map(|at| (ROTATED_AT.to_owned(), at.to_string())));
        let [certificate_key, private_key, ca_key] = one.role.keys();
        let data = BTreeMap::from([
            (certificate_key.to_owned(), ByteString(certificate)),
            (private_key.to_owned(), ByteString(private)),
            (ca_key.to_owned(), ByteString(file(&trusted).into_bytes())),
        ]);
        write(shared, &api, cluster, one, data, annotations).await?;
        tracing::info!(cluster = %key, secret = one.name, "certificate handed out");
    }
    Ok(())
}

/// After `TLS.static` members still mount the user's own Secrets. What is in those is handed out on first, by the names of the
/// Secrets that take their place: then the other authority comes by the same steps as any other, and nobody meets a peer
/// that it cannot verify.
async fn kept_from_static(
    shared: &Shared,
    key: &Key,
    api: &Api<Secret>,
    cluster: &EtcdCluster,
    mounted: &[Mounted],
) -> Result<BTreeMap<String, Content>, Refused> {
    let mut kept = BTreeMap::new();
    if mounted.iter().all(|one| one.there.is_some()) {
        return Ok(kept);
    }
    let pods = pods(shared, key, cluster).await?;
    for one in mounted.iter().filter(|one| one.there.is_none()) {
        let mut names = pods.iter().filter_map(|pod| mounted_secret(pod, one.role));
        let Some(name) = names.find(|name| *name != one.name) else {
            continue;
        };
        let content = api
            .get_opt(name)
            .await?
            .and_then(|secret| secret.data)
            .unwrap_or_default();
        let keys = one.role.keys();
        if let Some(lacking) = keys.iter().find(|key| !content.contains_key(**key)) {
            return Err(Refused::Words(format!(
                "members still show the certificate of the Secret {name}, and it lacks the key {lacking}: put it back until all of \
                 them have the new certificates"
            )));
        }
        let wanted = content.into_iter().filter(|(key, _)| keys.contains(&key.as_str()));
        kept.insert(one.name.clone(), wanted.collect());
    }
    Ok(kept)
}

/// The Secret of the user's that a pod mounts for a role. What Stateward writes is mounted in another form, or by its own
/// name.
fn mounted_secret(pod: &Pod, role: Role) -> Option<&str> {
    let volumes = pod.spec.as_ref()?.volumes.iter().flatten();
    let mut own = volumes.filter(|volume| volume.name == role.volume());
    own.find_map(|volume| volume.secret.as_ref()?.secret_name.as_deref())
}

pub(super) fn nothing_to_issue_from(cluster: &EtcdCluster) -> String {
    match secret_of_ca(cluster, Role::Server) {
        Some(name) => {
            format!("the Secret {name} with the CA does not exist: create it with tls.crt and tls.key")
        }
        None => "cert-manager has not written all certificates yet".to_owned(),
    }
}

fn unfit(cluster: &EtcdCluster, role: Role, error: &rcgen::Error) -> Refused {
    let name = secret_of_ca(cluster, role).unwrap_or_default();
    Refused::Words(format!("certificates cannot be signed with the Secret {name}: {error}"))
}

/// The pods of a cluster, past all caches.
async fn pods(shared: &Shared, key: &Key, cluster: &EtcdCluster) -> kube::Result<Vec<Pod>> {
    let api: Api<Pod> = Api::namespaced(shared.runtime.client.clone(), &key.namespace);
    let ours = ListParams::default().labels(&names::selector_text(&key.name));
    let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
    let pods = api.list(&ours).await?.items;
    Ok(pods.into_iter().filter(|pod| is_owned(&pod.metadata, uid)).collect())
}

/// Whether members were told whom to trust on a side: then an authority that nobody knows cannot begin there.
fn is_trusted(pods: &[Pod], side: &str) -> bool {
    let trusts = |pod: &Pod| facts::pod(pod).trusts.unwrap_or_default();
    let mut all = pods.iter().flat_map(trusts);
    all.any(|name| name.strip_prefix(side).is_some_and(|rest| rest.starts_with('/')))
}

/// The Secrets that members mount, as guards judge them, past all caches.
pub(crate) async fn secrets_now(shared: &Shared, key: &Key, cluster: &EtcdCluster) -> Result<Vec<SecretNow>, Refused> {
    let api: Api<Secret> = Api::namespaced(shared.runtime.client.clone(), &key.namespace);
    Ok(mounted(&api, cluster).await?.iter().filter_map(Mounted::now).collect())
}

/// The guards hold by these Secrets, and by the pods of this moment where they matter.
async fn must_hold(
    shared: &Shared,
    key: &Key,
    cluster: &EtcdCluster,
    intent: &Intent,
    secrets: Vec<SecretNow>,
    guards: &[Guard],
) -> Result<(), Refused> {
    let fresh = Fresh {
        object: None,
        facts: Facts {
            secrets: Some(secrets),
            ..Facts::default()
        },
    };
    hold(guards, fresh, intent, &mut Pods { shared, key, cluster }).await
}

/// Reads the pods of a cluster; the Secrets were read before.
struct Pods<'a> {
    shared: &'a Shared,
    key: &'a Key,
    cluster: &'a EtcdCluster,
}

impl Reader<Fact> for Pods<'_> {
    type Error = Refused;

    async fn read(&mut self, need: Need, fresh: &mut Fresh) -> Result<(), Refused> {
        if need != Need::Fact(FactNeed::Pods) {
            return Err(Refused::Guard(format!("{need:?} is not known here")));
        }
        fresh.facts.pods = Some(crate::execute::pods(self.shared, self.key, self.cluster).await?);
        Ok(())
    }
}

/// Lets the Secrets say who is trusted.
pub(crate) async fn trust(
    shared: &Shared,
    key: &Key,
    cluster: &EtcdCluster,
    intent: &Intent,
    cas: &BTreeSet<Ca>,
    guards: &[Guard],
) -> Result<(), Refused> {
    let api: Api<Secret> = Api::namespaced(shared.runtime.client.clone(), &key.namespace);
    let mounted = mounted(&api, cluster).await?;
    if let Some(absent) = mounted.iter().find(|one| one.there.is_none()) {
        return Err(Refused::Guard(format!("the Secret {} does not exist", absent.name)));
    }
    let secrets = mounted.iter().filter_map(Mounted::now).collect();
    must_hold(shared, key, cluster, intent, secrets, guards).await?;
    let mut known: BTreeMap<Ca, String> = BTreeMap::new();
    for one in &mounted {
        let Some(handed) = one.handed() else { continue };
        let mut bundle = handed.bundle;
        if let Some(origin) = origin(shared, key, &api, cluster, one.role, &mounted).await? {
            bundle.extend(origin.bundle());
        }
        let side = one.role.side();
        known.extend(bundle.into_iter().map(|(name, pem)| (format!("{side}/{name}"), pem)));
    }
    for one in &mounted {
        let Some(there) = &one.there else { continue };
        let prefix = format!("{}/", one.role.side());
        let wanted = cas.iter().filter_map(|name| {
            let fingerprint = name.strip_prefix(&prefix)?;
            Some((fingerprint.to_owned(), known.get(name)?.clone()))
        });
        let text = file(&wanted.collect());
        let [.., ca_key] = one.role.keys();
        let mut data = there.data.clone().unwrap_or_default();
        if bundle(&data.get(ca_key).cloned().unwrap_or_default().0) == bundle(text.as_bytes()) {
            continue;
        }
        data.insert(ca_key.to_owned(), ByteString(text.into_bytes()));
        let mut annotations = there.metadata.annotations.clone().unwrap_or_default();
        if let Some(handed) = one.handed() {
            let issued = handed.issued.into_iter().collect::<Vec<_>>().join(",");
            annotations.insert(ISSUED_BY.to_owned(), issued);
        }
        annotations.insert(ROTATED_AT.to_owned(), Timestamp::now().to_string());
        write(shared, &api, cluster, one, data, annotations).await?;
    }
    Ok(())
}

/// New authorities in the place of our own that are due; certificates stay as they are. Members that shared the clients' get one of
/// their own now.
pub(crate) async fn renew_ca(shared: &Shared, key: &Key, cluster: &EtcdCluster) -> Result<(), Refused> {
    let api: Api<Secret> = Api::namespaced(shared.runtime.client.clone(), &key.namespace);
    let now = Timestamp::now();
    for role in [Role::Peer, Role::Server] {
        let Some(name) = own_ca(cluster, role) else {
            continue;
        };
        let there = own(&api, cluster, &name).await?;
        if let Some(there) = &there {
            let made = there.metadata.creation_timestamp.as_ref().map(|time| time.0);
            if !sign::must_renew_ca(cluster, there.metadata.annotations.as_ref(), made, now) {
                shared.runtime.secrets.put(there.metadata.clone());
                continue;
            }
        }
        make_ca(shared, &api, cluster, role, there, now).await?;
        tracing::info!(cluster = %key, secret = name, "a new CA was made");
    }
    Ok(())
}

async fn make_ca(
    shared: &Shared,
    api: &Api<Secret>,
    cluster: &EtcdCluster,
    role: Role,
    there: Option<Secret>,
    now: Timestamp,
) -> Result<Origin, Refused> {
    let made = sign::make_ca(cluster, role, now).map_err(|error| unfit(cluster, role, &error))?;
    let text = |text: &String| ByteString(text.clone().into_bytes());
    let data = BTreeMap::from([
        ("tls.crt".to_owned(), text(&made.certificate)),
        ("tls.key".to_owned(), text(&made.key)),
        ("ca.crt".to_owned(), text(&made.certificate)),
    ]);
    let name = own_ca(cluster, role).unwrap_or_default();
    let mut secret = secret(cluster, &name, data, made.annotations);
    secret.type_ = Some("kubernetes.io/tls".into());
    let written = match there {
        // Made once: whoever comes second takes the first's at the next look.
        None => api.create(&PostParams::default(), &secret).await,
        Some(there) => {
            secret.metadata.resource_version = there.metadata.resource_version;
            secret.metadata.uid = there.metadata.uid;
            secret.type_ = there.type_;
            api.replace(&name, &PostParams::default(), &secret).await
        }
    };
    let written = written.map_err(|error| conflict(shared, &secret, error))?;
    shared.runtime.secrets.put(written.metadata);
    Ok(Origin::Sign {
        ca: made.certificate,
        key: made.key,
    })
}

async fn write(
    shared: &Shared,
    api: &Api<Secret>,
    cluster: &EtcdCluster,
    one: &Mounted,
    data: Content,
    annotations: Annotations,
) -> Result<(), Refused> {
    let mut secret = secret(cluster, &one.name, data, annotations);
    let written = match &one.there {
        None => api.create(&PostParams::default(), &secret).await,
        Some(there) => {
            secret
                .metadata
                .resource_version
                .clone_from(&there.metadata.resource_version);
            secret.metadata.uid.clone_from(&there.metadata.uid);
            secret.type_.clone_from(&there.type_);
            api.replace(&one.name, &PostParams::default(), &secret).await
        }
    };
    let written = written.map_err(|error| conflict(shared, &secret, error))?;
    shared.runtime.secrets.put(written.metadata);
    Ok(())
}

/// Somebody was faster, or has the name: the next round sees what they wrote.
fn conflict(shared: &Shared, secret: &Secret, error: kube::Error) -> Refused {
    match error {
        kube::Error::Api(status) if status.code == 409 => {
            let name = secret.metadata.name.clone().unwrap_or_default();
            let namespace = secret.metadata.namespace.clone().unwrap_or_default();
            shared.runtime.secrets.forget(&Key::new(namespace, name));
            Refused::Guard(status.message)
        }
        error => Refused::Kubernetes(error),
    }
}

fn secret(cluster: &EtcdCluster, name: &str, data: Content, annotations: Annotations) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: cluster.metadata.namespace.clone(),
            labels: Some(names::cluster_labels(cluster.name())),
            annotations: (!annotations.is_empty()).then_some(annotations),
            owner_references: cluster.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..Secret::default()
    }
}
