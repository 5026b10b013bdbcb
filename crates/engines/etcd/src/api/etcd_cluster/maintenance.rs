//! `spec.maintenance`, `recovery`, `updateStrategy`, `service` and `metrics`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::etcd_backup::ObjectName;
use stateward_core::lenient::{empty_as_none, empty_object_as_none, is_default, null_as_default};

/// Defragmentation, database quota and compaction of history.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Maintenance {
    /// When space is given back to the file system.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub defragmentation: Option<Defragmentation>,
    /// Largest size of the database, as "8Gi"; beyond it only reads and deletes work. Not set: etcd's 2Gi.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quantity>,
    /// How old revisions of keys are dropped. Not set: they are all kept, as clients such as Kubernetes compact
    /// themselves.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub auto_compaction: Option<AutoCompaction>,
}

/// When space is given back to the file system: one member at a time, the leader last, only while all are healthy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Defragmentation {
    /// Cron expression of five fields, in UTC. Not set: whenever it is worth it.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// A member is left alone while less than this share of its file is free, in per cent. Not set: 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_free_percent: Option<i32>,
    /// A member is left alone while its file is smaller, as "100Mi". Not set: 100Mi.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub min_size: Option<Quantity>,
    /// Never defragment but to clear a NOSPACE alarm.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub disabled: bool,
}

/// How old revisions of keys are dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoCompaction {
    /// Periodic (default): revisions older than retention. Revision: all but the last ones.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub mode: Option<AutoCompactionMode>,
    /// What is kept: a time, as "1h" or "30m", for Periodic; a number of revisions, as "10000", for Revision.
    #[serde(default, deserialize_with = "null_as_default")]
    pub retention: String,
}

/// How compaction counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum AutoCompactionMode {
    /// By time.
    #[default]
    Periodic,
    /// By number of revisions.
    Revision,
}

/// What may be done when members or quorum are lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Recovery {
    /// What may be done when most members have lost their data. Report (default): say so and touch nothing.
    /// FromSurvivor: a new cluster from the most advanced survivor. FromBackup: a new cluster from the newest proven
    /// backup. Both may lose the last writes.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub on_quorum_loss: Option<OnQuorumLoss>,
    /// Seconds for which quorum must have been lost before anything is done about it. Not set: 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_seconds: Option<i64>,
    /// With FromBackup: the EtcdBackup to take it from, whichever cluster its backups are of. Not set: the newest proven
    /// backup that was taken from this EtcdCluster, not from an earlier one of the same name.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub backup_ref: Option<ObjectName>,
    /// Seconds after which a member on a node that is gone is replaced by another on another node. Not set: 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_loss_seconds: Option<i64>,
    /// Seconds for which the claims of the old members are kept after a recovery, counted from when the new cluster
    /// served. Not set: 86400.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_old_claims_seconds: Option<i64>,
}

/// What may be done when most members have lost their data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum OnQuorumLoss {
    /// Say so and touch nothing.
    #[default]
    Report,
    /// A new cluster from the most advanced survivor.
    FromSurvivor,
    /// A new cluster from the newest proven backup.
    FromBackup,
}

impl Recovery {
    /// Seconds for which quorum must have been lost, when nothing is said.
    pub const DEFAULT_DELAY_SECONDS: i64 = 300;
    /// Seconds after which a member on a lost node is replaced, when nothing is said.
    pub const DEFAULT_NODE_LOSS_SECONDS: i64 = 300;
    /// Seconds for which old claims are kept after a recovery, when nothing is said.
    pub const DEFAULT_KEEP_OLD_CLAIMS_SECONDS: i64 = 86_400;
}

/// How edits of the spec reach running pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    /// RollingUpdate (default): one member after another, the leader last. OnDelete: only when you delete the pod.
    #[serde(
        rename = "type",
        default,
        deserialize_with = "empty_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub type_: Option<UpdateStrategyType>,
    /// Seconds for which an updated member must have been healthy before the next. Not set: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_ready_seconds: Option<i64>,
    /// Take no snapshot before a new minor version. Not set: one is taken where backup names a store.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub skip_snapshot: bool,
}

/// When running pods are replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum UpdateStrategyType {
    /// One member after another, the leader last.
    #[default]
    RollingUpdate,
    /// When the user deletes the pod.
    OnDelete,
}

/// The service for clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServicePolicy {
    /// ClusterIP (default), NodePort or LoadBalancer.
    #[serde(
        rename = "type",
        default,
        deserialize_with = "empty_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub type_: Option<ServiceType>,
    /// Labels of the service.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the service.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub annotations: BTreeMap<String, String>,
    /// With NodePort or LoadBalancer: the port on every node. Not set: one is chosen.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub node_port: Option<i32>,
    /// With LoadBalancer: who implements it.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub load_balancer_class: Option<String>,
    /// With LoadBalancer: networks from which clients may come.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub load_balancer_source_ranges: Vec<String>,
}

/// The type of the service for clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum ServiceType {
    /// Reached from within Kubernetes.
    #[default]
    ClusterIP,
    /// Also on a port of every node.
    NodePort,
    /// Also through a load balancer.
    LoadBalancer,
}

impl ServiceType {
    /// The word that Kubernetes uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIP => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

/// Metrics of the members, served in plain text on a port of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metrics {
    /// Port of metrics and health. Not set: 2381.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// Basic (default) or Extensive, which adds histograms of every request.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub mode: Option<MetricsMode>,
}

/// How much is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum MetricsMode {
    /// The usual.
    #[default]
    Basic,
    /// Histograms of every request too.
    Extensive,
}
