//! EtcdRestore: puts a cluster back from a backup. The object is named like the cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::etcd_backup::{Encryption, ObjectName};
use stateward_core::conditions::Condition;
use stateward_core::lenient::{empty_as_none, empty_object_as_none, is_default, null_as_default, time_or_none};
use stateward_core::store::{StorageType, Store, StoreBlocks, StoreError};

/// Which cluster to put back, and from what.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "kube_core"),
    group = "etcd.database.coreos.com",
    version = "v1beta2",
    kind = "EtcdRestore",
    plural = "etcdrestores",
    namespaced,
    category = "stateward",
    status = "EtcdRestoreStatus",
    derive = "PartialEq",
    doc = "Puts an etcd cluster back from a backup. It is named like the cluster, and takes its spec.",
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.etcdCluster.name"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Succeeded", type_ = "boolean", json_path = ".status.succeeded"),
    printcolumn(name = "Revision", type_ = "integer", json_path = ".status.revision"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct EtcdRestoreSpec {
    /// The EtcdCluster to put back: the one with this object's own name.
    #[serde(default, deserialize_with = "null_as_default")]
    pub etcd_cluster: ObjectName,
    /// The kind of store: S3, ABS, GCS, OSS or File. May be left out, since only one store block is set.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub backup_storage_type: Option<StorageType>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub store: StoreBlocks,
    /// Take the backup from this EtcdBackup (its newest good one) instead of a store block.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub backup_ref: Option<ObjectName>,
    /// Read `path` as the path of a periodic EtcdBackup, and take the newest good backup under it.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub latest: bool,
    /// Restore to a point between two snapshots; the backups must be continuous.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub restore_to: Option<RestoreTo>,
    /// The key with which the backup was encrypted.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub encryption: Option<Encryption>,
    /// How far the revision is raised over the backup's, so that clients never see one again. Not set: 1000000000.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub revision_bump: Option<i64>,
    /// Service account of the pods that fetch the backup: workload identity, where no secret is given.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
}

/// A point to restore to: a revision or a time, not both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestoreTo {
    /// Up to and with this revision.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// Up to this time.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// How far it is. `succeeded` and `reason` are as in the old API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdRestoreStatus {
    /// Whether the restored cluster serves.
    #[serde(default, deserialize_with = "null_as_default")]
    pub succeeded: bool,
    /// Why it does not.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub reason: String,
    /// The step it is at, in one word.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub phase: Option<RestorePhase>,
    /// The generation of the spec that this was said of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Standard conditions: Complete, Progressing, Degraded.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub conditions: Vec<Condition>,
    /// What is being waited for, in words.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub waiting: String,
    /// The backup that was chosen: bucket and key, or a file below the root of the claim. It does not change again.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub location: String,
    /// Revision of the backup.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub revision: i64,
    /// SHA-256 of the backup, in hexadecimal.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub sha256: String,
    /// How often the backup was tried to be fetched.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub attempts: i64,
    /// The pod that fetches and proves the backup, written before it is made.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub agent: String,
    /// When it is tried again.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Time>,
    /// Everything that the first member of the new cluster needs to start from the backup. It does not change again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<RestoreSource>,
    /// UID of the EtcdCluster that is put back.
    #[serde(
        rename = "clusterUID",
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "is_default"
    )]
    pub cluster_uid: String,
    /// Name of the first member of the new cluster.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub seed: String,
    /// When it started.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When the restored cluster served.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
}

/// A backup that was proven, and how to get at it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestoreSource {
    /// The store.
    #[serde(default)]
    pub store: StoreBlocks,
    /// The key with which it was encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
    /// Service account of the pod that fetches it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// The file: bucket and key, or a file below the root of the claim.
    #[serde(default)]
    pub location: String,
    /// SHA-256 of the snapshot, in hexadecimal.
    #[serde(default)]
    pub sha256: String,
    /// The revision that is reached.
    #[serde(default)]
    pub revision: i64,
    /// When the file was written.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub taken: Option<Time>,
    /// The point to reach with the changes that were streamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_to: Option<RestoreTo>,
    /// How far the revision is raised.
    #[serde(default)]
    pub revision_bump: i64,
    /// The version that the cluster of the backup had agreed on; empty where it says none.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub cluster_version: String,
}

/// The steps of a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum RestorePhase {
    /// The backup is fetched and verified; the running cluster is not touched.
    #[default]
    Fetching,
    /// The old members are stopped.
    Replacing,
    /// The first member starts from the backup.
    Seeding,
    /// The new cluster serves; cluster control grows it to size.
    Complete,
    /// It was refused or cannot go on; reason says why.
    Failed,
}

/// A claim, by name and UID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRecord {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// Its UID.
    #[serde(default)]
    pub uid: String,
}

impl EtcdRestoreSpec {
    /// How far the revision is raised when nothing is said: more than a week of writes.
    pub const DEFAULT_REVISION_BUMP: i64 = 1_000_000_000;

    /// The one store that is set.
    pub fn store(&self) -> Result<Store<'_>, StoreError> {
        self.store.store(self.backup_storage_type)
    }
}

impl EtcdRestore {
    /// The name of the cluster to put back: `etcdCluster.name`, or the object's own.
    pub fn cluster_name(&self) -> &str {
        match self.spec.etcd_cluster.name.as_str() {
            "" => self.metadata.name.as_deref().unwrap_or_default(),
            name => name,
        }
    }
}
