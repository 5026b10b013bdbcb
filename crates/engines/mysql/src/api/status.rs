//! The status of a MySQLCluster: what users read, and the records that must exist before the step that rests on them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stateward_core::conditions::Condition;
use stateward_core::lenient::{is_default, null_as_default, time_or_none};

/// What is known of the cluster, and what is being done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MySQLClusterStatus {
    /// Creating, Running, Hibernating or Failed.
    #[serde(default, deserialize_with = "null_as_default")]
    pub phase: Phase,
    /// Available, Progressing, Degraded, Scaling, Upgrading, Recovering.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub conditions: Vec<Condition>,
    /// The generation of the spec that this was said of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How many members the cluster has now.
    #[serde(default, deserialize_with = "null_as_default")]
    pub size: i32,
    /// How many of them are ready.
    #[serde(default, deserialize_with = "null_as_default")]
    pub ready_members: i32,
    /// Selector of the members' pods, for the scale subresource.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub selector: String,
    /// The pod of the primary, since before it may be written to.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub primary: String,
    /// It grows with every change of the primary.
    #[serde(default, deserialize_with = "null_as_default")]
    pub epoch: i64,
    /// How many replicas acknowledge each write.
    #[serde(default, deserialize_with = "null_as_default")]
    pub acks: i32,
    /// The pods that may acknowledge. While the primary is among them, it is not yet proven that enough others hold what it has.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub ackers: Vec<String>,
    /// How many acknowledgements the primary waits for: more than `acks` while it is not proven that each write had as many.
    #[serde(default, deserialize_with = "null_as_default")]
    pub required_acks: i32,
    /// A change of `acks` or `ackers` that waits until enough members hold what the primary had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_ackers: Option<PendingRecord>,
    /// One entry for each member.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub members: Vec<MemberStatus>,
    /// The version that all members have reached.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub current_version: String,
    /// The version that they are being brought to; empty while there is no other.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub target_version: String,
    /// What is being waited for, in words; empty when nothing is.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub waiting: String,
    /// The decision to create this cluster, recorded before its first pod. It is never made twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<BootstrapRecord>,
    /// A failover in progress: from now on no acknowledger's receiver is started, until another primary is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failover: Option<FailoverRecord>,
    /// A planned change of the primary in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switchover: Option<SwitchoverRecord>,
    /// When the last planned change of the primary was given up.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub switchover_failed_at: Option<Time>,
    /// The value of the annotation stateward.dev/switchover-to that was followed last.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub switched_to: String,
    /// The MySQLBackup that an upgrade waits for.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub upgrade_backup: String,
    /// The primary of this epoch was writable once.
    #[serde(default, deserialize_with = "null_as_default")]
    pub opened: bool,
    /// Members with transactions that the primary does not have.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub quarantine: Vec<QuarantineRecord>,
    /// What acknowledgers had received when the primary became it: GTIDs of the former primary beyond these were acknowledged by
    /// none of them.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub received_at_promotion: String,
    /// The former primary, until it is a clean replica again.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub former_primary: String,
    /// The members' pods are stopped because of spec.hibernate.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub hibernating: bool,
    /// Passwords: which rotation was done last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passwords: Option<PasswordRecord>,
    /// TLS of the members.
    #[serde(rename = "TLS", default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsRecord>,
}

/// Where the cluster is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum Phase {
    /// It has not been writable yet.
    #[default]
    Creating,
    /// It has been writable.
    Running,
    /// Its pods are stopped.
    Hibernating,
    /// It waits for the user.
    Failed,
}

/// A member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberStatus {
    /// Its pod.
    #[serde(default, deserialize_with = "null_as_default")]
    pub name: String,
    /// What it is.
    #[serde(default, deserialize_with = "null_as_default")]
    pub role: MemberRole,
    /// How it is.
    #[serde(default, deserialize_with = "null_as_default")]
    pub health: MemberHealth,
    /// The version that it runs.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub version: String,
    /// The UUID of its server.
    #[serde(
        rename = "serverUUID",
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "is_default"
    )]
    pub server_uuid: String,
    /// Whether it may acknowledge writes.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub acknowledges: bool,
    /// How far it is behind the primary, rounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_seconds: Option<i64>,
    /// How much of its data it has cloned, while it clones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_percent: Option<i32>,
    /// What is wrong with it, or done with it.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub message: String,
    /// The configuration that was set in its running server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<AppliedConfig>,
    /// Set while it is kept from acknowledging at the primary: its replication account is locked there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expelled: Option<Expelled>,
    /// The UID of its claim, once it held the cluster's data. A claim with another UID is a lost volume.
    #[serde(
        rename = "claimUID",
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "is_default"
    )]
    pub claim_uid: String,
}

/// A member that is kept from acknowledging.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Expelled {
    /// Since when.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// System variables that were set in a running server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppliedConfig {
    /// The process that they were set in: a restarted one reads my.cnf anew.
    #[serde(default, deserialize_with = "null_as_default")]
    pub boot: String,
    /// Hash of names and values.
    #[serde(default, deserialize_with = "null_as_default")]
    pub hash: String,
    /// Their names.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub keys: Vec<String>,
}

/// What a member is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum MemberRole {
    /// It takes writes.
    Primary,
    /// It follows the primary.
    Replica,
    /// It is kept out, since it has transactions that the primary does not have.
    Quarantined,
    /// It does not follow yet.
    #[default]
    Joining,
}

/// How a member is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum MemberHealth {
    /// It serves in its role.
    Healthy,
    /// It has not replied yet.
    #[default]
    Starting,
    /// It replies and does not serve in its role.
    Unhealthy,
    /// It does not reply.
    Unavailable,
    /// Its data is lost.
    Lost,
}

/// The decision to create a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapRecord {
    /// The pod whose empty server becomes the first primary.
    #[serde(default, deserialize_with = "null_as_default")]
    pub seed: String,
    /// The first transactions: every member's data begins with them. Empty until they exist.
    #[serde(
        rename = "firstGTIDs",
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "is_default"
    )]
    pub first_gtids: String,
}

/// A change of those who acknowledge.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingRecord {
    /// The pods that may acknowledge afterwards.
    #[serde(default, deserialize_with = "null_as_default")]
    pub ackers: Vec<String>,
    /// How many of them acknowledge each write afterwards.
    #[serde(default, deserialize_with = "null_as_default")]
    pub acks: i32,
    /// What as many of them must hold before.
    #[serde(
        rename = "mustHoldGTIDs",
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "is_default"
    )]
    pub must_hold: String,
}

/// A failover in progress.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailoverRecord {
    /// The primary that is replaced.
    #[serde(default, deserialize_with = "null_as_default")]
    pub from: String,
    /// Why.
    #[serde(default, deserialize_with = "null_as_default")]
    pub reason: String,
    /// Since when.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// A planned change of the primary.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SwitchoverRecord {
    /// The primary that gives its role up.
    #[serde(default, deserialize_with = "null_as_default")]
    pub from: String,
    /// The member that becomes the primary.
    #[serde(default, deserialize_with = "null_as_default")]
    pub to: String,
    /// Since when.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// A member with transactions that the primary does not have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuarantineRecord {
    /// Its pod.
    #[serde(default, deserialize_with = "null_as_default")]
    pub member: String,
    /// The UUID of its server.
    #[serde(rename = "serverUUID", default, deserialize_with = "null_as_default")]
    pub server_uuid: String,
    /// The transactions.
    #[serde(rename = "GTIDs", default, deserialize_with = "null_as_default")]
    pub gtids: String,
    /// It is saved and cloned anew without asking: no acknowledger had any of these.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub automatic: bool,
    /// Where they were saved; empty until they are.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub saved: String,
}

/// Which rotation of passwords was done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PasswordRecord {
    /// The annotation's value that was followed last.
    #[serde(default, deserialize_with = "null_as_default")]
    pub rotation: String,
    /// When the old passwords stop working; not set once they have.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub old_until: Option<Time>,
}

/// TLS of the members.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TlsRecord {
    /// When the first certificate expires.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Time>,
}
