//! The Kubernetes objects of an etcd cluster, as pure builders.

mod backup;
mod budget;
mod claim;
mod flags;
pub mod launch;
mod pod;
pub mod restore;
mod service;

pub use backup::{kept_backup, upgrade_backup};
pub use budget::budget;
pub use claim::claim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
pub(crate) use pod::restricted;
pub use pod::{TlsSecrets, TrustFiles, leave_user_ids_out, pod, relabel, tls_secrets};
pub use service::{client_service, peer_service};
use sha2::{Digest, Sha256};
use stateward_api::{EtcdCluster, GROUP, VERSION, names};

/// Annotation: hash of the wishes that a service, budget or a pod's metadata was made from.
pub const ANNOTATION_METADATA: &str = "stateward.dev/metadata";
/// Annotation: the keys of the user's labels and annotations that were set, so that removed ones can be taken away.
pub const ANNOTATION_USER_KEYS: &str = "stateward.dev/user-keys";

/// The object metadata that everything of a cluster shares. Owned by it, so that deleting it deletes them.
fn metadata(cluster: &EtcdCluster, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: cluster.metadata.namespace.clone(),
        labels: Some(names::cluster_labels(cluster.name())),
        owner_references: Some(vec![owner(cluster)]),
        ..ObjectMeta::default()
    }
}

/// The cluster as the owner of what is made for it.
pub fn owner(cluster: &EtcdCluster) -> OwnerReference {
    OwnerReference {
        api_version: format!("{GROUP}/{VERSION}"),
        kind: "EtcdCluster".into(),
        name: cluster.name().to_owned(),
        uid: cluster.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// A short hash of anything that can be written as JSON. Fields that are not set do not count, so that a new optional
/// field in a later version changes no hash, and so restarts no pod (rule 6).
pub(crate) fn hash(value: &impl serde::Serialize) -> String {
    let json = serde_json::to_vec(value).unwrap_or_default();
    Sha256::digest(json)
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// What a certificate is called by: the beginning of its SHA-256.
pub fn fingerprint(certificate: &[u8]) -> String {
    Sha256::digest(certificate)
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
