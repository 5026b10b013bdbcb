//! `spec.storage`: where members keep their data.

use k8s_openapi::api::core::v1::{PersistentVolumeClaimSpec, VolumeResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::EtcdCluster;
use stateward_core::lenient::{empty_as_none, is_default, null_as_default};

/// Size of a member's claim when nothing is said.
const DEFAULT_SIZE: &str = "1Gi";

/// Where members keep their data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// Size of every member's claim, as "8Gi"; it can grow, never shrink. With ephemeral: the limit of the folder or
    /// memory. Not set: 1Gi.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// Storage class of the claims. Not set: the default one.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// Keep data only as long as the pod lives; a lost member is replaced by an empty one that joins anew. A cluster
    /// that loses most of its pods at once is lost. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<bool>,
    /// With ephemeral: Disk (default), a folder of the node, or Memory.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub medium: Option<Medium>,
    /// What becomes of the claims when the EtcdCluster is deleted or replaced by a restore: Delete (default) or Retain.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub retain: Option<Retain>,
    /// Annotations of the claims.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub annotations: std::collections::BTreeMap<String, String>,
}

/// Where ephemeral data is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum Medium {
    /// In a folder of the node.
    #[default]
    Disk,
    /// In memory.
    Memory,
}

/// What becomes of claims when their EtcdCluster is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum Retain {
    /// They go with it.
    #[default]
    Delete,
    /// They stay.
    Retain,
}

impl EtcdCluster {
    /// Whether data lives only as long as pods. The record of the bootstrap decides for a cluster that exists (an old
    /// client that sends the object back drops the fields it does not know), then the spec, then the operator's
    /// default.
    pub fn is_ephemeral(&self, by_default: bool) -> bool {
        let recorded = self
            .status
            .as_ref()
            .and_then(|status| status.bootstrap.as_ref())
            .map(|record| record.ephemeral);
        recorded.unwrap_or_else(|| self.wants_ephemeral(by_default))
    }

    /// Whether the spec asks for ephemeral data.
    pub fn wants_ephemeral(&self, by_default: bool) -> bool {
        let storage = self.spec.storage.as_ref();
        match storage.and_then(|storage| storage.ephemeral) {
            Some(ephemeral) => ephemeral,
            // whoever describes a claim wants one
            None => {
                let describes_claim = storage.is_some_and(|s| s.size.is_some() || s.storage_class_name.is_some())
                    || self
                        .spec
                        .pod
                        .as_ref()
                        .is_some_and(|pod| pod.persistent_volume_claim_spec.is_some());
                by_default && !describes_claim
            }
        }
    }

    /// The claim of a member: `pod.persistentVolumeClaimSpec` where given, with `storage` filling in what it leaves
    /// open.
    pub fn claim_spec(&self) -> PersistentVolumeClaimSpec {
        let given = self
            .spec
            .pod
            .as_ref()
            .and_then(|pod| pod.persistent_volume_claim_spec.clone());
        let mut claim = given.unwrap_or_default();
        let storage = self.spec.storage.clone().unwrap_or_default();
        if claim.access_modes.as_ref().is_none_or(Vec::is_empty) {
            claim.access_modes = Some(vec!["ReadWriteOnce".to_owned()]);
        }
        if claim.storage_class_name.is_none() {
            claim.storage_class_name = storage.storage_class_name;
        }
        let resources = claim.resources.get_or_insert_with(VolumeResourceRequirements::default);
        resources
            .requests
            .get_or_insert_default()
            .entry("storage".to_owned())
            .or_insert_with(|| storage.size.unwrap_or_else(|| Quantity(DEFAULT_SIZE.to_owned())));
        claim
    }

    /// What becomes of claims when the cluster is deleted.
    pub fn retain(&self) -> Retain {
        self.spec
            .storage
            .as_ref()
            .and_then(|storage| storage.retain)
            .unwrap_or_default()
    }
}
