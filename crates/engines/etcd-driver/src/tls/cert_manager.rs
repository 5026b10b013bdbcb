//! `TLS.certManager`: cert-manager is asked for Certificates, and what it writes is handed out from there.
//!
//! Certificates are not watched, since cert-manager may not be there: their Secrets are, and those tell of every renewal.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use stateward_etcd::api::etcd_cluster::{CertManagerTls, IssuerRef, Tls};
use stateward_etcd::api::{EtcdCluster, names};
use stateward_etcd::cluster::Secrets;
use stateward_etcd::cluster::manifests::owner;

use super::hand_out::Refused;
use super::{ROLES, Role, sign};
use crate::Shared;
use crate::observe::is_owned;
use stateward_runtime::Key;

/// How often cert-manager is asked again while it is waited for, and when all is well.
const ASK_AGAIN: Duration = Duration::from_secs(10);
const ASK_SELDOM: Duration = Duration::from_secs(6 * 3600);

/// What cert-manager was asked for by this process, and when.
#[derive(Default)]
pub(crate) struct Requests(Mutex<HashMap<Key, (Value, Instant)>>);

impl Requests {
    fn is_recent(&self, key: &Key, desired: &Value, within: Duration) -> bool {
        let requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        requests
            .get(key)
            .is_some_and(|(asked, at)| asked == desired && at.elapsed() < within)
    }

    fn note(&self, key: &Key, desired: Value) {
        let mut requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        requests.insert(key.clone(), (desired, Instant::now()));
    }
}

/// The Certificate of a role, and the Secret that cert-manager writes for it.
pub(super) fn source_secret(cluster: &EtcdCluster, role: Role) -> String {
    let what = match role {
        Role::Peer => "peer",
        Role::Server => "server",
        Role::Client => "client",
    };
    format!("{}-{what}-cert", cluster.name())
}

/// What is wanted of cert-manager, by role.
fn desired(cluster: &EtcdCluster, tls: &CertManagerTls) -> Value {
    ROLES
        .into_iter()
        .map(|role| (source_secret(cluster, role), desired_spec(cluster, tls, role)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn desired_spec(cluster: &EtcdCluster, tls: &CertManagerTls, role: Role) -> Value {
    let further = tls.dns_names.iter().chain(&tls.ip_addresses).cloned();
    let (addresses, hosts): (Vec<String>, Vec<String>) = sign::names_of(cluster, role, further)
        .into_iter()
        .partition(|name| name.parse::<IpAddr>().is_ok());
    let issuer = match (role, &tls.peer_issuer_ref) {
        (Role::Peer, Some(peers)) => peers,
        _ => &tls.issuer_ref,
    };
    let mut usages = vec!["digital signature", "client auth"];
    let mut spec = json!({
        "secretName": source_secret(cluster, role),
        "issuerRef": issuer_ref(issuer),
        "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
        "secretTemplate": {"labels": names::cluster_labels(cluster.name())},
    });
    match role {
        Role::Client => spec["commonName"] = json!(hosts.first()),
        Role::Peer | Role::Server => {
            usages.push("server auth");
            spec["dnsNames"] = json!(hosts);
            if !addresses.is_empty() {
                spec["ipAddresses"] = json!(addresses);
            }
        }
    }
    spec["usages"] = json!(usages);
    for (field, value) in [("duration", &tls.duration), ("renewBefore", &tls.renew_before)] {
        if let Some(value) = value {
            spec[field] = json!(value);
        }
    }
    spec
}

fn issuer_ref(issuer: &IssuerRef) -> Value {
    json!({
        "name": issuer.name,
        "kind": issuer.kind.as_deref().unwrap_or("Issuer"),
        "group": issuer.group.as_deref().unwrap_or("cert-manager.io"),
    })
}

fn api(shared: &Shared, key: &Key) -> (Api<DynamicObject>, ApiResource) {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("cert-manager.io", "v1", "Certificate"));
    (
        Api::namespaced_with(shared.runtime.client.clone(), &key.namespace, &kind),
        kind,
    )
}

/// Whether cert-manager is to be asked although nothing is waited for: after a restart of the operator and now and then,
/// since somebody may have changed or deleted a Certificate.
pub(super) fn must_ask(shared: &Shared, key: &Key, cluster: &EtcdCluster) -> bool {
    match cluster.tls() {
        Tls::CertManager(tls) => !shared.requests.is_recent(key, &desired(cluster, tls), ASK_SELDOM),
        _ => false,
    }
}

/// What is waited for, in words, with cert-manager's own where it has some.
pub(super) async fn awaited(shared: &Shared, key: &Key, cluster: &EtcdCluster, role: Role) -> kube::Result<Secrets> {
    let Tls::CertManager(tls) = cluster.tls() else {
        return Ok(Secrets::Good);
    };
    let name = source_secret(cluster, role);
    let ask = !shared.requests.is_recent(key, &desired(cluster, tls), ASK_AGAIN);
    let said = match certificate(&api(shared, key).0, &name).await? {
        Some(certificate) => ready_message(&certificate),
        None => None,
    };
    let said = said.map_or(String::new(), |said| format!("; it says: {said}"));
    Ok(Secrets::Awaited {
        what: format!("waiting for cert-manager to write the Secret {name} with tls.crt, tls.key and ca.crt{said}"),
        ask,
    })
}

fn ready_message(certificate: &DynamicObject) -> Option<String> {
    let conditions = certificate.data["status"]["conditions"].as_array()?;
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?;
    ready["message"].as_str().map(str::to_owned)
}

/// A Certificate, if there is one. Of a group that it does not know an API server says so in plain text, which `get_opt`
/// does not take for an answer.
async fn certificate(certificates: &Api<DynamicObject>, name: &str) -> Result<Option<DynamicObject>, kube::Error> {
    match certificates.get_opt(name).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        other => other,
    }
}

/// Makes the Certificates what the spec says.
pub(crate) async fn request(shared: &Shared, key: &Key, cluster: &EtcdCluster) -> Result<(), Refused> {
    let Tls::CertManager(tls) = cluster.tls() else {
        return Ok(());
    };
    let desired = desired(cluster, tls);
    let (certificates, kind) = api(shared, key);
    let secrets: Api<Secret> = Api::namespaced(shared.runtime.client.clone(), &key.namespace);
    let params = PostParams {
        field_manager: Some(names::MANAGER.into()),
        ..PostParams::default()
    };
    for role in ROLES {
        let name = source_secret(cluster, role);
        let spec = &desired[&name];
        match certificate(&certificates, &name).await? {
            None => {
                // cert-manager would overwrite whatever is there.
                let secret = secrets.get_metadata_opt(&name).await?;
                if secret.is_some_and(|secret| !is_of_certificate(&secret.metadata)) {
                    return Err(Refused::Taken(name));
                }
                let mut wanted = DynamicObject::new(&name, &kind).data(json!({ "spec": spec }));
                wanted.metadata.labels = Some(names::cluster_labels(cluster.name()));
                wanted.metadata.owner_references = Some(vec![owner(cluster)]);
                match certificates.create(&params, &wanted).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => {
                        return Err(Refused::Words(
                            "cert-manager is not installed, as this Kubernetes does not know its Certificates: \
                             install it, or set TLS.auto instead of TLS.certManager"
                                .into(),
                        ));
                    }
                    other => prepare(&secrets, cluster, &other?).await?,
                }
            }
            Some(there) if !is_owned(&there.metadata, cluster.metadata.uid.as_deref().unwrap_or_default()) => {
                return Err(Refused::Words(format!(
                    "the Certificate {} exists and belongs to another object: delete it, or choose another name for the cluster",
                    there.name_any()
                )));
            }
            Some(mut there) if !is_as_desired(&there.data["spec"], spec) => {
                there.data["spec"] = spec.clone();
                certificates.replace(&name, &params, &there).await?;
            }
            Some(_) => {}
        }
    }
    shared.requests.note(key, desired);
    Ok(())
}

/// Whether this Secret is of the Certificate of its name: cert-manager notes that on each that it writes, and until then it has the
/// Certificate as its owner.
pub(super) fn is_of_certificate(secret: &ObjectMeta) -> bool {
    let annotations = secret.annotations.as_ref();
    let mut owners = secret.owner_references.iter().flatten();
    annotations.and_then(|all| all.get("cert-manager.io/certificate-name")) == secret.name.as_ref()
        || owners.any(|owner| owner.kind == "Certificate" && Some(&owner.name) == secret.name.as_ref())
}

/// The Certificate as an owner: the Secret that cert-manager writes goes with it, and it with the cluster. By itself cert-manager leaves
/// the Secret behind. Not the cluster itself: cert-manager would write it anew while its Certificate is still there.
fn owning(certificate: &DynamicObject) -> OwnerReference {
    OwnerReference {
        api_version: "cert-manager.io/v1".into(),
        kind: "Certificate".into(),
        uid: certificate.uid().unwrap_or_default(),
        name: certificate.name_any(),
        ..OwnerReference::default()
    }
}

/// Makes the empty Secret that cert-manager fills: an owner can be given to a new object without a right to delete it, which the
/// admission plugin OwnerReferencesPermissionEnforcement asks for otherwise. Where cert-manager was faster, see [`own`].
async fn prepare(secrets: &Api<Secret>, cluster: &EtcdCluster, certificate: &DynamicObject) -> kube::Result<()> {
    let empty = || k8s_openapi::ByteString(Vec::new());
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(certificate.name_any()),
            labels: Some(names::cluster_labels(cluster.name())),
            owner_references: Some(vec![owning(certificate)]),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".into()),
        data: Some([("tls.crt".to_owned(), empty()), ("tls.key".to_owned(), empty())].into()),
        ..Secret::default()
    };
    match secrets.create(&PostParams::default(), &secret).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}

/// Gives a Secret that cert-manager made before us its Certificate as the owner. Where that is not allowed, it stays when the
/// Certificate goes, as cert-manager has it.
pub(super) async fn own(shared: &Shared, key: &Key, secrets: &Api<Secret>, secret: &Secret) -> kube::Result<()> {
    let name = secret.name_any();
    if secret.metadata.owner_references.iter().flatten().next().is_some() {
        return Ok(());
    }
    let Some(certificate) = certificate(&api(shared, key).0, &name).await? else {
        return Ok(());
    };
    let mut owned = secret.clone();
    owned.metadata.owner_references = Some(vec![owning(&certificate)]);
    let params = PostParams {
        field_manager: Some(names::MANAGER.into()),
        ..PostParams::default()
    };
    match secrets.replace(&name, &params, &owned).await {
        Err(kube::Error::Api(status)) if status.code == 403 => {
            tracing::debug!(secret = name, "its owner may not be set: {}", status.message);
            Ok(())
        }
        other => other.map(drop),
    }
}

fn is_as_desired(there: &Value, desired: &Value) -> bool {
    let removed = |field| there.get(field).is_some() && desired.get(field).is_none();
    contains(there, desired) && !["duration", "renewBefore", "ipAddresses"].into_iter().any(removed)
}

/// Everything that is wished is there; what the API added by itself does not matter.
fn contains(there: &Value, desired: &Value) -> bool {
    match (there, desired) {
        (Value::Object(there), Value::Object(desired)) => desired
            .iter()
            .all(|(key, desired)| there.get(key).is_some_and(|there| contains(there, desired))),
        _ => there == desired,
    }
}
