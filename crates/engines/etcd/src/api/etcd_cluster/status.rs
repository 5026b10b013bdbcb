//! The status of an EtcdCluster: what the old API had, what each member is, and the records that must be there before
//! the step that depends on them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bootstrap, OnQuorumLoss};
use crate::api::etcd_restore::{ClaimRecord, RestorePhase, RestoreSource};
use stateward_core::conditions::Condition;
use stateward_core::lenient::{empty_as_default, empty_as_none, is_default, null_as_default, time_or_none};

/// What is known of the cluster, and what is being done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdClusterStatus {
    /// Creating, Running or Failed; empty before the first look.
    #[serde(default, deserialize_with = "null_as_default")]
    pub phase: Phase,
    /// Why the phase is Failed.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub reason: String,
    /// Whether spec.paused has taken effect.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub control_paused: bool,
    /// Available, Progressing, Degraded, Scaling, Upgrading, Recovering.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub conditions: Vec<Condition>,
    /// How many members the cluster has now.
    #[serde(default, deserialize_with = "null_as_default")]
    pub size: i32,
    /// How many of them are ready.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub ready_members: i32,
    /// Selector of the members' pods, for the scale subresource.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub selector: String,
    /// The service for clients.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub service_name: String,
    /// Its port.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub client_port: i32,
    /// The names of the members, which are the names of their pods.
    #[serde(default, deserialize_with = "null_as_default")]
    pub members: MembersStatus,
    /// The version that all members have reached.
    #[serde(default, deserialize_with = "null_as_default")]
    pub current_version: String,
    /// The version that they are being brought to; empty while there is no other.
    #[serde(default, deserialize_with = "null_as_default")]
    pub target_version: String,
    /// The generation of the spec that this was said of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What is being waited for, in words; empty when nothing is.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub waiting: String,
    /// etcd's ID of the cluster, in hexadecimal.
    #[serde(
        rename = "clusterID",
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "is_default"
    )]
    pub cluster_id: String,
    /// One entry for each member.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub member_statuses: Vec<MemberStatus>,
    /// The decision to start this cluster, written before its first pod is made. It is never made twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<BootstrapRecord>,
    /// A recovery from quorum loss, written before its first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryRecord>,
    /// The last restore from a backup, written before its first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<RestoreRecord>,
    /// Every ID that etcd gave this EtcdCluster, in hexadecimal, the newest last: a recovery may use backups of these.
    #[serde(
        rename = "clusterIDs",
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "is_default"
    )]
    pub cluster_ids: Vec<String>,
    /// Where each member last ran, and whether it is known to have ended: what a recovery from quorum loss rests on.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub last_seen: Vec<MemberSeen>,
    /// Voters of the last member list that are not this cluster's pods; not set until a list was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_voters: Option<Vec<String>>,
    /// Claims of members that restores replaced and that are still there. With `storage.retain: Retain` they stay.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub replaced_claims: Vec<ClaimRecord>,
    /// Claims that a recovery left, which are kept for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_claims: Option<OldClaims>,
    /// The upgrade that is under way, written before its first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<UpgradeRecord>,
    /// Whether all pods are stopped because of spec.hibernate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hibernating: Option<bool>,
    /// Whether the members' logs may hold what etcd 3.6 cannot read; not set when they do not.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub old_log: Option<OldLog>,
    /// The last member that was replaced because it crashed again and again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crash_replacement: Option<CrashReplacement>,
    /// The last defragmentation by schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defragmentation: Option<DefragmentationRecord>,
    /// What TLS has taken effect.
    #[serde(rename = "TLS", default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsStatus>,
}

/// The phase of a cluster, as the old API had it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum Phase {
    /// Being created.
    Creating,
    /// Created.
    Running,
    /// Cannot be created or run; the reason says why.
    Failed,
    /// Not looked at yet.
    #[default]
    #[serde(rename = "", other)]
    None,
}

/// The names of the members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MembersStatus {
    /// Those that answer.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub ready: Vec<String>,
    /// Those that do not.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub unready: Vec<String>,
}

/// One member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberStatus {
    /// Its name, which is the name of its pod.
    #[serde(default)]
    pub name: String,
    /// etcd's ID of it, in hexadecimal; empty until it is known.
    #[serde(default, skip_serializing_if = "is_default")]
    pub id: String,
    /// Leader, Follower or Learner; not set while it cannot be told.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub role: Option<MemberRole>,
    /// Healthy, Starting, Unhealthy, Unreachable or Failed.
    #[serde(default, deserialize_with = "empty_as_default")]
    pub health: MemberHealth,
    /// What is wrong with it, in words.
    #[serde(default, skip_serializing_if = "is_default")]
    pub message: String,
    /// The version it runs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub version: String,
    /// Size of its database, rounded so that a quiet cluster writes no status.
    #[serde(default, skip_serializing_if = "is_default")]
    pub db_size: String,
    /// How much of it is in use, rounded likewise.
    #[serde(default, skip_serializing_if = "is_default")]
    pub db_size_in_use: String,
    /// Where the other members reach it.
    #[serde(rename = "peerURL", default, skip_serializing_if = "is_default")]
    pub peer_url: String,
    /// The node it is on.
    #[serde(default, skip_serializing_if = "is_default")]
    pub node: String,
    /// UID of its pod.
    #[serde(rename = "podUID", default, skip_serializing_if = "is_default")]
    pub pod_uid: String,
    /// UID of its claim.
    #[serde(rename = "claimUID", default, skip_serializing_if = "is_default")]
    pub claim_uid: String,
}

/// The role of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum MemberRole {
    /// Leads.
    Leader,
    /// Votes.
    Follower,
    /// Does not vote yet.
    Learner,
}

/// How a member is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum MemberHealth {
    /// It answers, and knows a leader.
    Healthy,
    /// It has not answered yet since it was started.
    Starting,
    /// It answers, and says that something is wrong.
    Unhealthy,
    /// It does not answer. That alone proves nothing.
    #[default]
    Unreachable,
    /// It is proven lost, and is to be replaced.
    Failed,
}

/// The decision to start a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapRecord {
    /// etcd's initial cluster token, of this cluster only.
    #[serde(default)]
    pub token: String,
    /// How it is started.
    #[serde(default, deserialize_with = "empty_as_default")]
    pub strategy: Bootstrap,
    /// The first member, or with Parallel the first of them.
    #[serde(default)]
    pub seed: String,
    /// With Parallel: all first members, the seed included.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub members: Vec<String>,
    /// Whether data lives only as long as pods.
    #[serde(default)]
    pub ephemeral: bool,
    /// How far it is.
    #[serde(default, deserialize_with = "empty_as_default")]
    pub phase: BootstrapPhase,
    /// When it was decided.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When the first members served.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
}

/// How far a start is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum BootstrapPhase {
    /// Decided; the first members are being made and have never served.
    #[default]
    Starting,
    /// They have served: there is data from here on.
    Done,
}

/// A recovery from quorum loss.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryRecord {
    /// How: FromSurvivor or FromBackup; Report while only the loss is recorded.
    #[serde(default, deserialize_with = "empty_as_default")]
    pub method: OnQuorumLoss,
    /// How far it is.
    #[serde(default, deserialize_with = "empty_as_default")]
    pub phase: RecoveryPhase,
    /// When quorum was found lost.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub lost_at: Option<Time>,
    /// When it was decided.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// With FromSurvivor: the member that becomes the cluster.
    #[serde(default, skip_serializing_if = "is_default")]
    pub seed: String,
    /// With FromBackup: the EtcdRestore that was made for it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub restore: String,
    /// With FromSurvivor: it served alone, and is restarted as an ordinary member before others join.
    #[serde(default, skip_serializing_if = "is_default")]
    pub served: bool,
}

/// Where a member last ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberSeen {
    /// The member.
    #[serde(default)]
    pub member: String,
    /// UID of its pod.
    #[serde(rename = "podUID", default, skip_serializing_if = "is_default")]
    pub pod_uid: String,
    /// The node of that pod; empty when it was on none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub node: String,
    /// The PersistentVolume that was attached to that node for it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attached: String,
    /// The node's kubelet said that its containers have ended for good.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ended: bool,
}

/// Claims of the members before a recovery.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OldClaims {
    /// The claims.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub claims: Vec<ClaimRecord>,
    /// When the new cluster served: spec.recovery.keepOldClaimsSeconds begin here.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub served_at: Option<Time>,
}

/// How far a recovery is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum RecoveryPhase {
    /// Quorum is lost; nothing has been touched.
    #[default]
    Lost,
    /// The old members are being stopped for good.
    Stopping,
    /// The first member of the new cluster starts.
    Seeding,
}

/// A cluster that is replaced by one from a backup, or was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestoreRecord {
    /// UID of the EtcdRestore.
    #[serde(rename = "restoreUID", default)]
    pub restore_uid: String,
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// How far it is: Replacing, Seeding or Complete.
    #[serde(default, deserialize_with = "empty_as_default")]
    pub phase: RestorePhase,
    /// Token of the new logical cluster.
    #[serde(default)]
    pub token: String,
    /// First member of the new cluster.
    #[serde(default)]
    pub seed: String,
    /// Claims of the old members, which must not rejoin; kept until the new cluster serves.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub old_claims: Vec<ClaimRecord>,
    /// The backup.
    #[serde(default)]
    pub source: RestoreSource,
    /// Whether it is a recovery from quorum loss.
    #[serde(default, skip_serializing_if = "is_default")]
    pub recovery: bool,
    /// What was lost by it, in words.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lost: String,
    /// When it was decided.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When the new cluster served.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
}

/// An upgrade, or a downgrade.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeRecord {
    /// The version before.
    #[serde(default)]
    pub from: String,
    /// The version after.
    #[serde(default)]
    pub to: String,
    /// When it was decided.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// The EtcdBackup taken before it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub backup: String,
    /// Whether the members are ready for it: pods are made with the new version.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ready: bool,
    /// Why it does not go on, in words.
    #[serde(default, skip_serializing_if = "is_default")]
    pub halted: String,
}

/// The last member that was replaced because it crashed again and again: the next one is replaced less soon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CrashReplacement {
    /// When.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// How many there were in a row.
    #[serde(default)]
    pub times: i64,
}

/// A defragmentation by schedule, written before each member's turn so that none is repeated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DefragmentationRecord {
    /// The time of the schedule that it is for.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub scheduled_at: Option<Time>,
    /// The members that had their turn.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub members: Vec<String>,
}

/// What etcd 3.4 and before left in the members' logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum OldLog {
    /// It may be there, until the way to 3.6 begins.
    Held,
    /// Every member is restarted once to be rid of it.
    Sweeping,
}

/// What TLS has taken effect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TlsStatus {
    /// Whether members talk to each other with TLS.
    #[serde(default)]
    pub peers: bool,
    /// Whether members talk to clients with TLS.
    #[serde(default)]
    pub clients: bool,
    /// Secret for the traffic between members; kept after TLS is removed from the spec, since members need it until the
    /// last of them has switched.
    #[serde(default, skip_serializing_if = "is_default")]
    pub peer_secret: String,
    /// The step of a change between with and without, or of a rotation, in one word; empty when there is none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub stage: String,
    /// When the first of the certificates in use ends.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Time>,
}
