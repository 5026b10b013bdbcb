//! `spec.pod`: how members' pods look.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, EnvVar, LocalObjectReference, PersistentVolumeClaimSpec, PodSecurityContext, ResourceRequirements,
    Toleration,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use stateward_core::lenient::{empty_as_none, empty_object_as_none, is_default, null_as_default};

/// How members' pods look.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodPolicy {
    /// Labels of the pods. A cluster with the key app or one that begins with etcd_ is refused; where one has another key that
    /// Stateward sets itself (app.kubernetes.io/...), Stateward's wins.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pods.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub annotations: BTreeMap<String, String>,
    /// Labels that a node must have to run a member.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub node_selector: BTreeMap<String, String>,
    /// Scheduling constraints.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub affinity: Option<Affinity>,
    /// Never two members of this cluster on one node. Of the old API; topologySpreadConstraints say it better.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub anti_affinity: bool,
    /// Taints of nodes that are tolerated.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub tolerations: Vec<Toleration>,
    /// Processor and memory of the container that runs etcd.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub resources: Option<ResourceRequirements>,
    /// Further environment of the container that runs etcd, as ETCD_MAX_REQUEST_BYTES. Variables of flags that are Stateward's
    /// to set are refused, as in etcdOptions.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub etcd_env: Vec<EnvVar>,
    /// The claim of every member, in full. Or set storage, which is shorter.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub persistent_volume_claim_spec: Option<PersistentVolumeClaimSpec>,
    /// Security context of the pods. Not set: one that meets the restricted pod security standard.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub security_context: Option<PodSecurityContext>,
    /// Of the old API; accepted, unused.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub busybox_image: Option<String>,
    /// Of the old API; accepted, unused.
    #[serde(rename = "DNSTimeoutInSecond", default, deserialize_with = "empty_as_none")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_timeout_in_second: Option<i64>,
    /// Domain to append to members' names in URLs, as "cluster.local". Not set: `<member>.<cluster>.<namespace>.svc`.
    /// It is part of every member's address, and cannot change.
    #[serde(rename = "ClusterDomain", default, deserialize_with = "empty_as_none")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_domain: Option<String>,
    /// Secrets for pulling the image from a private registry.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Service account of the pods. Members themselves never speak to Kubernetes, and get no token.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
}
