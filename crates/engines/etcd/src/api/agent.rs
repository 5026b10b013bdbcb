//! What Stateward tells its own pods (`stateward agent run`) and what they answer.
//!
//! A task is JSON in the environment variable [`TASK`]; secrets and claims are mounted below [`Mounts`]; the outcome is
//! JSON in the container's termination message, so that an agent needs no right on the Kubernetes API at all.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::api::etcd_backup::{BackupRecord, RestorablePoint, Verify};
use crate::api::etcd_restore::RestoreTo;
pub use stateward_core::agent::{LISTEN, Mounts, OUTCOME, PROGRESS_PORT, Place, Retention, TASK, TERMINATION_LOG};

stateward_core::failure_reasons! {
    // Of the store.
    AccessDenied BucketMissing BackupMissing StoreUnreachable StoreFull TimedOut Interrupted SecretInvalid StoreInvalid
    StoreFailed
    // Of a file in it.
    BackupChanged BackupCorrupt KeyInvalid KeyMissing PointMissing WrongKey
    // Of etcd.
    EndpointInvalid EtcdCorrupt EtcdDenied EtcdFailed EtcdUnhealthy EtcdUnreachable OtherCluster SnapshotIncomplete
    // Of the pod.
    ListenFailed RestoreFailed ScratchFailed ToolMissing ToolTooOld VolumeFailed VolumeFull
}

/// Why an agent failed, and what to do.
pub type Failure = stateward_core::agent::Failure<FailureReason>;

/// One piece of work for one container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Task {
    /// Take one snapshot to the store, prove it, and delete what retention lets go.
    Backup(BackupTask),
    /// Find the backup that a restore names and prove it, changing nothing.
    Inspect(InspectTask),
    /// Make a data directory from a backup. Runs in a container of etcd's image, which has etcdutl (and etcd).
    Restore(RestoreTask),
    /// Restore a backup into a scratch member, start it on loopback and compare. Runs in a container of etcd's image.
    Prove(ProveTask),
    /// Stream every change to the store until stopped. Serves [`Progress`].
    Follow(FollowTask),
    /// Delete files of an EtcdBackup that is being deleted.
    Delete(DeleteTask),
}

/// Take one backup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupTask {
    /// Client URLs of the members. The one with the highest revision that is healthy is taken.
    pub endpoints: Vec<String>,
    /// Where to.
    pub place: Place,
    /// The file is `path` + `_v<revision>_<YYYY-MM-DD-HH:MM:SS>`; else exactly `path`.
    #[serde(default)]
    pub periodic: bool,
    /// Give up after so many seconds. Not set: 60 for the first byte and between two pieces.
    #[serde(default)]
    pub timeout_seconds: Option<i64>,
    /// Another pod proves it by restoring it ([`ProveTask`]). Until then it does not count as a backup: a one-shot one is not
    /// at `path`, and no proven one goes for it.
    #[serde(default)]
    pub prove_later: bool,
    /// The EtcdBackup and the number of the attempt, as `1f2e3d4c-7`: where a one-shot backup is until it is proven.
    #[serde(default)]
    pub attempt: String,
    /// What may go afterwards.
    #[serde(flatten)]
    pub retention: Retention,
}

/// Find and prove a backup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InspectTask {
    /// Where it is.
    pub place: Place,
    /// Take exactly this file (as in [`BackupRecord::location`]) rather than `path`.
    #[serde(default)]
    pub location: Option<String>,
    /// Read `path` as a periodic one and take the newest that proves good.
    #[serde(default)]
    pub latest: bool,
    /// A point to reach with the changes that were streamed: the newest snapshot before it is taken.
    #[serde(default)]
    pub restore_to: Option<RestoreTo>,
}

/// Make a data directory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestoreTask {
    /// Where the backup is.
    pub place: Place,
    /// The file that was proven.
    pub location: String,
    /// Its SHA-256; another content is refused.
    pub sha256: String,
    /// The revision that is reached, as it was found when the file was proven.
    #[serde(default)]
    pub revision: i64,
    /// A point to reach with the changes that were streamed.
    #[serde(default)]
    pub restore_to: Option<RestoreTo>,
    /// How far to raise the revision.
    pub revision_bump: i64,
    /// The data directory to make. When it is there already, the work is done and nothing is touched.
    pub data_dir: String,
    /// Name of the one member.
    pub member: String,
    /// Its peer URL.
    pub peer_url: String,
    /// The token of the new cluster.
    pub token: String,
}

/// Restore into a scratch member and compare.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProveTask {
    /// Where the backup is.
    pub place: Place,
    /// The record of the backup. Where it says that the file is elsewhere until it is proven, it takes its place afterwards.
    pub record: BackupRecord,
    /// What may go afterwards.
    #[serde(flatten)]
    pub retention: Retention,
}

/// Stream changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FollowTask {
    /// Client URLs of the members.
    pub endpoints: Vec<String>,
    /// Where to: beside the snapshots of the same `path`.
    pub place: Place,
    /// Begin after this revision where the store holds no later segment.
    #[serde(default)]
    pub after_revision: i64,
}

/// Delete files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeleteTask {
    /// The store.
    pub place: Place,
    /// The files, as in [`BackupRecord::location`].
    pub locations: Vec<String>,
    /// The EtcdBackup, as in [`BackupTask::attempt`]: what its one-shot attempts left goes too.
    #[serde(default)]
    pub unproven_of: String,
    /// Also everything periodic and streamed below `path`.
    #[serde(default)]
    pub all_of_path: bool,
}

/// How it went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// The snapshot is in the store and was read back.
    BackedUp(BackedUp),
    /// The backup is good.
    Inspected(Inspected),
    /// The data directory is there.
    Restored(Inspected),
    /// The scratch member had the same.
    Proven(Proven),
    /// The files are gone.
    Deleted,
    /// It did not work.
    Failed(Failure),
}

/// A backup that is good.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackedUp {
    /// What is in the store.
    pub record: BackupRecord,
    /// How long it took until all of it was in the store, before it was read back.
    #[serde(default)]
    pub sent_millis: i64,
    /// Files that retention let go.
    #[serde(default)]
    pub deleted: Vec<String>,
    /// What retention could not delete, in words.
    #[serde(default)]
    pub retention_problem: String,
}

/// A backup that was found and read through.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Inspected {
    /// The file.
    pub location: String,
    /// Its revision; with a point to reach, the revision that is reached.
    pub revision: i64,
    /// SHA-256 of the snapshot.
    pub sha256: String,
    /// Bytes of the snapshot.
    pub size_bytes: i64,
    /// When the file was written.
    #[serde(default)]
    pub taken: Option<Time>,
    /// The version that its cluster had agreed on, as `3.5.0`; empty where it says none.
    #[serde(default)]
    pub cluster_version: String,
}

/// What the scratch member said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Proven {
    /// How it was proven.
    pub verified: Verify,
    /// Keys found.
    pub keys: i64,
    /// etcd's own hash of its keys, in hexadecimal.
    pub key_hash: String,
    /// Files that retention let go.
    #[serde(default)]
    pub deleted: Vec<String>,
    /// What retention could not delete, in words.
    #[serde(default)]
    pub retention_problem: String,
}

/// How far an agent that works for long is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// The latest point that is safe in the store.
    #[serde(default)]
    pub latest: Option<RestorablePoint>,
    /// What goes wrong at the moment, in words; empty when nothing does.
    #[serde(default)]
    pub problem: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_survives_its_way_through_the_environment() {
        let task = Task::Backup(BackupTask {
            endpoints: vec!["http://example-client:2379".into()],
            periodic: true,
            ..BackupTask::default()
        });
        let text = serde_json::to_string(&task).unwrap();
        assert_eq!(serde_json::from_str::<Task>(&text).unwrap(), task);
        let outcome = Outcome::Failed(Failure {
            reason: FailureReason::AccessDenied,
            message: "the store refused the credentials".into(),
            retry: false,
        });
        let text = serde_json::to_string(&outcome).unwrap();
        assert!(text.contains(r#""reason":"AccessDenied""#), "{text}");
        assert_eq!(serde_json::from_str::<Outcome>(&text).unwrap(), outcome);
        // An agent of another version may report a reason that is not known here.
        let other: Failure = serde_json::from_str(r#"{"reason": "Newer", "message": "", "retry": true}"#).unwrap();
        assert_eq!(other.reason, FailureReason::Other("Newer".into()));
        assert_eq!(other.reason.as_str(), "Newer");
    }
}
