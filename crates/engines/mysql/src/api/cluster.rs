//! The spec of a MySQLCluster.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stateward_core::lenient::{empty_as_none, is_default, null_as_default};

use super::{MySQLClusterStatus, PodPolicy};

/// The MySQL cluster that is wanted.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "kube_core"),
    group = "mysql.stateward.dev",
    version = "v1alpha1",
    kind = "MySQLCluster",
    plural = "mysqlclusters",
    shortname = "mysql",
    namespaced,
    category = "stateward",
    status = "MySQLClusterStatus",
    derive = "PartialEq",
    doc = "A MySQL cluster: a primary and replicas that lose no acknowledged write.",
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
    printcolumn(name = "Primary", type_ = "string", json_path = ".status.primary"),
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
        description = "What is not as expected, in one word"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Epoch", type_ = "integer", json_path = ".status.epoch", priority = 1),
    printcolumn(name = "Waiting", type_ = "string", json_path = ".status.waiting", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct MySQLClusterSpec {
    /// How many members the cluster has: 1 to 9, one of them the primary. Even sizes are allowed.
    pub size: i32,
    /// Version of MySQL, as "9.7.4". Changing it upgrades the cluster, replicas first. It can only go forward. Not set: the
    /// version it runs, or for a new cluster a current one.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Image repository, without a tag; the image is `repository:<version>`. Not set: docker.io/library/mysql.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// While true, nothing is changed: pods come back, and a primary that restarts stays read-only.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub paused: bool,
    /// While true, all pods are stopped and all data is kept; false starts the same cluster again.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub hibernate: bool,
    /// Where members keep their data. Not set: a claim of 10Gi of the default storage class for each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// The server ID of a member is this number plus its ordinal. Not set: 100. It cannot change.
    #[serde(rename = "serverIDBase", default, skip_serializing_if = "Option::is_none")]
    pub server_id_base: Option<i64>,
    /// System variables of MySQL, by role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Config>,
    /// How many replicas acknowledge a write before its client is answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// Where a new replica gets its data from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone: Option<ClonePolicy>,
    /// When another member becomes the primary, and what is done with transactions that only the former one has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failover: Option<Failover>,
    /// Which member is the primary. Not set: the primary stays where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<PrimaryPolicy>,
    /// Which replicas serve reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads: Option<Reads>,
    /// How edits of this spec reach running pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<Update>,
    /// TLS between members and for clients. Not set: auto.
    #[serde(rename = "TLS", default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsPolicy>,
    /// The database and the account that are made for an application.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<Database>,
    /// Passwords of your own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// How the members' pods look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodPolicy>,
}

/// Where members keep their data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// Size of every member's claim, as "10Gi"; it can grow, never shrink. Not set: 10Gi.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// Storage class of the claims. Not set: the default one.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// What becomes of a claim when its member is scaled in or the MySQLCluster is deleted: Delete (default) or Retain.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub retain: Option<Retain>,
}

/// What becomes of a claim that is not needed any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum Retain {
    /// It is deleted.
    #[default]
    Delete,
    /// It stays.
    Retain,
}

/// System variables by role, as in my.cnf, with '-' or '_'. Values are strings, numbers or booleans. A key that is removed
/// returns to its default. Variables that Stateward sets itself are refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    /// For all members.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub all: BTreeMap<String, Value>,
    /// For the primary, over those for all. Only variables that can be set without a restart.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub primary: BTreeMap<String, Value>,
    /// For replicas, over those for all. Only variables that can be set without a restart.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub replica: BTreeMap<String, Value>,
}

/// How many replicas acknowledge a write before its client is answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Durability {
    /// "Auto" (default: half of size, rounded down), or a number below size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "int_or_string")]
    pub acks: Option<Acks>,
    /// Block (default): a write waits until enough replicas acknowledge it. Degrade: writes go on with fewer acknowledgements,
    /// also with none, and those may be lost with the primary.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub when_no_acker: Option<WhenNoAcker>,
}

/// `Auto` or a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Acks {
    /// A number.
    Number(i64),
    /// A word: only Auto is one.
    Word(String),
}

/// What a primary does that no replica acknowledges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum WhenNoAcker {
    /// Writes wait.
    #[default]
    Block,
    /// Writes go on.
    Degrade,
}

/// Where a new replica gets its data from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClonePolicy {
    /// Replica (default): from a clean replica, from the primary only while there is none. Primary: from the primary.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub from: Option<CloneFrom>,
}

/// The donor of a clone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum CloneFrom {
    /// A clean replica.
    #[default]
    Replica,
    /// The primary.
    Primary,
}

/// When another member becomes the primary.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failover {
    /// Seconds without a reply after which a primary whose container runs is replaced. A container that ended and a pod that is
    /// gone count immediately. Not set: 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_seconds: Option<i64>,
    /// What is done with a former primary that has transactions which no replica had. Quarantine (default): they are saved, and
    /// the member is cloned anew. Ask: it waits for the annotation stateward.dev/discard-errant.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub errant: Option<Errant>,
}

/// What is done with a former primary that has transactions which no replica had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = stateward_core::undescribed)]
pub enum Errant {
    /// They are saved, and the member is cloned anew.
    #[default]
    Quarantine,
    /// The member waits for the user.
    Ask,
}

/// Which member is the primary.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrimaryPolicy {
    /// The ordinal of the member that is the primary whenever it is healthy and has caught up. Editing it is a planned
    /// switchover. Not set: the primary stays where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefer: Option<i64>,
}

/// Which replicas serve reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reads {
    /// A replica that is further behind leaves `NAME-read`. Not set: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_lag_seconds: Option<i64>,
}

/// How edits of the spec reach running pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Update {
    /// Members with a lower ordinal keep their pods as they are. Not set: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<i64>,
    /// Take no backup before a new version. Not set: one is taken where a backup names a store.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub skip_backup: bool,
}

/// TLS between members and for clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TlsPolicy {
    /// Issued and rotated by Stateward; `auto: {}` is enough, and the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto: Option<AutoTls>,
    /// Refuse clients that do not use TLS.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub require_clients: bool,
    /// No TLS at all.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub disabled: bool,
}

/// Certificates that Stateward issues and rotates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoTls {
    /// Secret of type kubernetes.io/tls with a CA of your own to issue from. Not set: one is made.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub ca_secret: Option<String>,
    /// Days for which a certificate is valid; it is renewed after two thirds. Not set: 90.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub validity_days: Option<i64>,
    /// Further DNS names in the certificate, for clients from outside.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub dns_names: Vec<String>,
    /// IP addresses in the certificate, for clients from outside.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub ip_addresses: Vec<String>,
}

/// The database and the account that are made for an application.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Database {
    /// The database. Not set: app.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The account with all rights on it. Not set: app.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// Passwords of your own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Auth {
    /// A Secret of yours with the key `password` for the application's account. Not set: a password is generated.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub app_secret: Option<String>,
}

fn int_or_string(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"x-kubernetes-int-or-string": true})
}

impl MySQLCluster {
    /// The name; the API server gives every object one.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// The repository of the image.
    pub fn repository(&self) -> &str {
        self.spec.repository.as_deref().unwrap_or(super::DEFAULT_REPOSITORY)
    }

    /// A value of an annotation that users set.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        let annotations = self.metadata.annotations.as_ref()?;
        annotations
            .get(key)
            .map(|value| value.trim())
            .filter(|value| !value.is_empty())
    }
}
