//! `spec.pod`: how the members' pods look.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, LocalObjectReference, PodSecurityContext, ResourceRequirements, Toleration, TopologySpreadConstraint,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stateward_core::lenient::{empty_as_none, empty_object_as_none, is_default, null_as_default};

/// How the members' pods look.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodPolicy {
    /// Labels of the pods.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pods.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub annotations: BTreeMap<String, String>,
    /// Processor and memory of the container that runs mysqld.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub resources: Option<ResourceRequirements>,
    /// Labels that a node must have.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub node_selector: BTreeMap<String, String>,
    /// Scheduling constraints.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub affinity: Option<Affinity>,
    /// Taints of nodes that are tolerated.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub tolerations: Vec<Toleration>,
    /// How members are spread over nodes and zones. Not set: over both, as far as possible.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Priority class of the pods.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Security context of the pods. Not set: one that meets the restricted pod security standard.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub security_context: Option<PodSecurityContext>,
    /// Secrets for pulling the image from a private registry.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Service account of the pods. Members themselves never speak to Kubernetes, and get no token.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
}
