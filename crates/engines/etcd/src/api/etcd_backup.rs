//! EtcdBackup: one backup of an etcd cluster, or a schedule of them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use stateward_core::Condition;
use stateward_core::lenient::{
    empty_as_default, empty_as_none, empty_object_as_none, is_default, null_as_default, time_or_none,
};
pub use stateward_core::store::{Compression, Encryption, SecretKey};
use stateward_core::store::{StorageType, Store, StoreBlocks, StoreError};

/// What to back up, where to, and how often.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "kube_core"),
    group = "etcd.database.coreos.com",
    version = "v1beta2",
    kind = "EtcdBackup",
    plural = "etcdbackups",
    namespaced,
    category = "stateward",
    status = "EtcdBackupStatus",
    derive = "PartialEq",
    doc = "One backup of an etcd cluster to a store, or a schedule of them.",
    printcolumn(name = "Store", type_ = "string", json_path = ".spec.storageType"),
    printcolumn(name = "Succeeded", type_ = "boolean", json_path = ".status.succeeded"),
    printcolumn(name = "Revision", type_ = "integer", json_path = ".status.etcdRevision"),
    printcolumn(name = "Last success", type_ = "date", json_path = ".status.lastSuccessDate"),
    printcolumn(name = "Schedule", type_ = "string", json_path = ".spec.schedule", priority = 1),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.Reason", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct EtcdBackupSpec {
    /// Client URLs of the cluster to back up, as "http://example-etcd-cluster-client:2379". Or set clusterRef.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub etcd_endpoints: Vec<String>,
    /// The EtcdCluster to back up, in the same namespace; addresses and TLS are taken from it. Or set etcdEndpoints.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub cluster_ref: Option<ObjectName>,
    /// Secret with `etcd-client.crt`, `etcd-client.key` and `etcd-client-ca.crt`, for etcdEndpoints with https.
    #[serde(rename = "clientTLSSecret", default, deserialize_with = "empty_as_none")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_tls_secret: Option<String>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub plan: BackupPlan,
}

/// Where backups go, how often and how: what EtcdBackup and the `backup` of an EtcdCluster share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupPlan {
    /// The kind of store: S3, ABS, GCS, OSS or File. May be left out, since only one store block is set.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub storage_type: Option<StorageType>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub store: StoreBlocks,
    /// When to back up, as a cron expression of five fields in UTC. Not set: once, or by backupIntervalInSecond.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// Start no further backups by schedule or interval while true.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub suspend: bool,
    /// Time limit, interval and retention.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub backup_policy: Option<BackupPolicy>,
    /// Also stream every change between two snapshots to the store, so that a restore can name a revision or a time.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub continuous: bool,
    /// How a backup is proven after the upload. Check (default): read back, hash compared, opened. Restore: also
    /// restored into a scratch member, whose keys and hash are compared.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub verify: Option<Verify>,
    /// None (default), so that etcdutl alone can read the file, or Zstd.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// Encrypt before the upload, with a key from a Secret.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub encryption: Option<Encryption>,
    /// What becomes of the files when this object is deleted: Retain (default) or Delete.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<DeletionPolicy>,
    /// Service account of the pods that do the work: workload identity, where no secret is given.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
}

/// Time limit, interval and retention.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupPolicy {
    /// Seconds after which one backup is given up. Not set: 60 for the first byte, no limit while data flows.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub timeout_in_second: Option<i64>,
    /// Seconds between two backups. Not set: once, or by schedule.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub backup_interval_in_second: Option<i64>,
    /// How many backups to keep; the oldest beyond it are deleted. Not set: all.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub max_backups: Option<i64>,
    /// Seconds after which a backup is deleted, unless it is the last good one. Not set: never.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub max_age_in_second: Option<i64>,
}

/// How a backup is proven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum Verify {
    /// Read back, hash compared, opened.
    #[default]
    Check,
    /// Also restored into a scratch member, whose keys and hash are compared.
    Restore,
}

/// What becomes of files when their object is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum DeletionPolicy {
    /// They stay.
    #[default]
    Retain,
    /// They go.
    Delete,
}

/// An object in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectName {
    /// Its name.
    #[serde(default, deserialize_with = "null_as_default")]
    pub name: String,
}

/// How it went. `succeeded`, `Reason`, `etcdVersion`, `etcdRevision` and `lastSuccessDate` are as in the old API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdBackupStatus {
    /// Whether the last attempt succeeded.
    #[serde(default, deserialize_with = "null_as_default")]
    pub succeeded: bool,
    /// Why it did not.
    #[serde(
        rename = "Reason",
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "is_default"
    )]
    pub reason: String,
    /// Version of the etcd server that the last good backup is of.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub etcd_version: String,
    /// Revision of the last good backup.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub etcd_revision: i64,
    /// When the last good backup was complete.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub last_success_date: Option<Time>,
    /// The generation of the spec that this was said of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Standard conditions: Complete, Progressing, Degraded.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub conditions: Vec<Condition>,
    /// What is being waited for, in words.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub waiting: String,
    /// The attempt that is under way, written before it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<BackupAttempt>,
    /// The number of the last attempt; it also counts those that are over.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub attempts: i64,
    /// The latest scheduled time for which an attempt was started.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub last_schedule_time: Option<Time>,
    /// What the last attempt was made with: a failing backup is tried again at once when the spec or a Secret changes.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub attempted_with: String,
    /// Failed attempts to delete the files of this object, which is being deleted.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub failed_deletions: i64,
    /// Failed attempts since the last good backup.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub consecutive_failures: i64,
    /// When the next backup is due.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub next_backup_time: Option<Time>,
    /// The backups that are kept, newest first; the list is bounded, the store may hold more.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub backups: Vec<BackupRecord>,
    /// With continuous: the latest point that can be restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_restorable: Option<RestorablePoint>,
}

/// An attempt under way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupAttempt {
    /// Number of the attempt, counted from 1 over the life of the object.
    #[serde(default)]
    pub number: i64,
    /// What is done.
    #[serde(default, deserialize_with = "empty_as_default", skip_serializing_if = "is_default")]
    pub kind: AttemptKind,
    /// The pod that does the work.
    #[serde(default)]
    pub pod: String,
    /// Its UID, once it was seen: a pod that is not there any more has vanished, and is not made again.
    #[serde(
        rename = "podUID",
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "is_default"
    )]
    pub pod_uid: String,
    /// When it started.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// The scheduled time it stands for.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub scheduled_for: Option<Time>,
}

/// What an attempt does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum AttemptKind {
    /// Take a snapshot to the store.
    #[default]
    Backup,
    /// Restore it into a scratch member, to prove it.
    Prove,
    /// Delete the files.
    Delete,
}

/// One backup in the store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupRecord {
    /// Where it is: bucket and key, or a file below the root of the claim.
    #[serde(default)]
    pub location: String,
    /// Where it is until it is proven, when it is not yet at `location`: what stands there stays until then.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unproven_at: String,
    /// Its revision.
    #[serde(default)]
    pub revision: i64,
    /// Version of the etcd server it was taken from.
    #[serde(default)]
    pub etcd_version: String,
    /// ID of the cluster it was taken from, in hexadecimal.
    #[serde(rename = "clusterID", default, skip_serializing_if = "is_default")]
    pub cluster_id: String,
    /// The endpoint it was taken from.
    #[serde(default, skip_serializing_if = "is_default")]
    pub endpoint: String,
    /// Bytes of the snapshot.
    #[serde(default)]
    pub size_bytes: i64,
    /// Bytes in the store, where compressed or encrypted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub stored_bytes: i64,
    /// SHA-256 of the snapshot, in hexadecimal.
    #[serde(default)]
    pub sha256: String,
    /// When it was complete.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    /// Milliseconds from the first byte to the proof.
    #[serde(default)]
    pub duration_millis: i64,
    /// How it was proven.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub verified: Option<Verify>,
    /// Keys found in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<i64>,
    /// etcd's own hash of its keys, in hexadecimal, where it was restored to prove it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub key_hash: String,
}

/// A point that can be restored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestorablePoint {
    /// Its revision.
    #[serde(default)]
    pub revision: i64,
    /// When that revision was seen.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

impl BackupPlan {
    /// The one store that is set.
    pub fn store(&self) -> Result<Store<'_>, StoreError> {
        self.store.store(self.storage_type)
    }

    /// Whether backups repeat, by interval or by schedule.
    pub fn is_periodic(&self) -> bool {
        self.schedule.is_some() || self.interval_seconds().is_some()
    }

    /// Seconds between two backups, where that is set.
    pub fn interval_seconds(&self) -> Option<i64> {
        self.backup_policy
            .as_ref()
            .and_then(|policy| policy.backup_interval_in_second)
    }

    /// How many to keep.
    pub fn max_backups(&self) -> Option<i64> {
        self.backup_policy.as_ref().and_then(|policy| policy.max_backups)
    }

    /// For how many seconds to keep them.
    pub fn max_age_seconds(&self) -> Option<i64> {
        self.backup_policy.as_ref().and_then(|policy| policy.max_age_in_second)
    }
}
