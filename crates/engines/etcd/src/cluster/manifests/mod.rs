//! The Kubernetes objects of an etcd cluster, as pure builders.

mod backup;
mod budget;
mod claim;
mod flags;
pub mod launch;
mod pod;
pub mod restore;
mod service;

use crate::api::{EtcdCluster, GROUP, VERSION, names};
pub use backup::{kept_backup, upgrade_backup};
pub use budget::budget;
pub use claim::claim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
pub use pod::{TlsSecrets, TrustFiles, pod, pod_metadata, stays_on_pod, tls_secrets};
pub use restore::requested_restore;
pub use service::{client_service, peer_service};
pub use stateward_core::manifests::fingerprint;
use stateward_core::manifests::hash;

/// Annotation: hash of the wishes that a service, budget or a pod's metadata was made from.
pub const ANNOTATION_METADATA: &str = "stateward.dev/metadata";
/// Annotation: the keys of the user's labels and annotations that were set. Only the previous release reads it, to remove them; this
/// one knows them by their field manager (ADR 30). To be dropped in the next release.
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
