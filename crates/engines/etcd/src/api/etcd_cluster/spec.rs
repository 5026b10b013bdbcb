//! The spec of an EtcdCluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    EtcdClusterStatus, Maintenance, Metrics, PodPolicy, Recovery, ServicePolicy, Storage, TlsPolicy, UpdateStrategy,
};
use crate::api::etcd_backup::BackupPlan;
use stateward_core::lenient::{empty_as_none, empty_object_as_none, is_default, null_as_default};

/// The etcd cluster that is wanted.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "kube_core"),
    group = "etcd.database.coreos.com",
    version = "v1beta2",
    kind = "EtcdCluster",
    plural = "etcdclusters",
    shortname = "etcd",
    namespaced,
    category = "stateward",
    status = "EtcdClusterStatus",
    derive = "PartialEq",
    doc = "An etcd cluster: created, scaled, healed, upgraded, secured and looked after by Stateward.",
    scale(
        spec_replicas_path = ".spec.size",
        status_replicas_path = ".status.size",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Size",
        type_ = "integer",
        json_path = ".spec.size",
        description = "Members wanted"
    ),
    printcolumn(
        name = "Ready",
        type_ = "integer",
        json_path = ".status.readyMembers",
        description = "Members ready"
    ),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.currentVersion"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Available",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Available\")].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Degraded\")].reason",
        description = "What is not as it should be, in one word"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Waiting", type_ = "string", json_path = ".status.waiting", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct EtcdClusterSpec {
    /// How many members the cluster has: 1 to 7. Odd numbers are best: four members tolerate no more losses than
    /// three.
    pub size: i32,
    /// Version of etcd, as "3.6.16"; a leading v is accepted. Changing it upgrades the cluster, member by member.
    /// Not set: the version it runs, or for a new cluster a current one.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Image repository, without a tag; the image is `repository:v<version>`. Not set: quay.io/coreos/etcd.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// While true, nothing at all is done to the cluster: a pod that dies stays away.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub paused: bool,
    /// While true, all pods are stopped and all data is kept; false brings the same cluster back.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub hibernate: bool,
    /// How the members' pods look.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub pod: Option<PodPolicy>,
    /// TLS between members and to clients: one of static, auto, certManager. Can be set, changed and removed while the
    /// cluster runs.
    #[serde(rename = "TLS", default, deserialize_with = "empty_object_as_none")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsPolicy>,
    /// Where members keep their data. Not set: a claim of 1Gi of the default storage class for each.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub storage: Option<Storage>,
    /// How a new cluster is started. SeedThenJoin (default): one member first, which the others join. Parallel: all at
    /// once, from a fixed list. Has no effect on a cluster that exists.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,
    /// Defragmentation, database quota and compaction of history.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub maintenance: Option<Maintenance>,
    /// What may be done when members or quorum are lost.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub recovery: Option<Recovery>,
    /// Backups of this cluster: an EtcdBackup is kept for it with these fields.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub backup: Option<BackupPlan>,
    /// How edits of this spec reach running pods.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub update_strategy: Option<UpdateStrategy>,
    /// The service for clients, `<cluster>-client`.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub service: Option<ServicePolicy>,
    /// How members are spread over nodes and zones. Not set: over both, as far as possible.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Priority class of the members' pods.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Further flags of etcd, without their dashes, as "heartbeat-interval": "250". Flags that Stateward sets itself
    /// are refused.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub etcd_options: BTreeMap<String, String>,
    /// Metrics of the members.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub metrics: Option<Metrics>,
}

/// How a new cluster is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum Bootstrap {
    /// One member first, which the others join.
    #[default]
    SeedThenJoin,
    /// All at once, from a fixed list.
    Parallel,
}
