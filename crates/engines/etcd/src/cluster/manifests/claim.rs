//! The claim of a member.

use crate::api::etcd_cluster::Retain;
use crate::api::{EtcdCluster, names};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::cluster::MemberName;

/// A member's claim: named like the member, owned by the cluster unless it is to outlive it.
pub fn claim(cluster: &EtcdCluster, member: &MemberName) -> PersistentVolumeClaim {
    let mut metadata = super::metadata(cluster, names::claim(&member.0));
    metadata.labels = Some(names::member_labels(cluster.name(), &member.0));
    let mut annotations = cluster
        .spec
        .storage
        .as_ref()
        .map(|storage| storage.annotations.clone())
        .unwrap_or_default();
    annotations.insert(
        names::ANNOTATION_CLUSTER_UID.into(),
        cluster.metadata.uid.clone().unwrap_or_default(),
    );
    metadata.annotations = Some(annotations);
    if cluster.retain() == Retain::Retain {
        metadata.owner_references = None;
    }
    PersistentVolumeClaim {
        metadata,
        spec: Some(cluster.claim_spec()),
        status: None,
    }
}
