//! The custom resource.

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What to mirror, and how often.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "kube_core"),
    group = "example.stateward.dev",
    version = "v1",
    kind = "Mirror",
    namespaced,
    status = "MirrorStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct MirrorSpec {
    /// How many pods hold the file, the primary among them.
    pub size: usize,
    /// The file that the first pod starts with.
    pub text: String,
}

/// How it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MirrorStatus {
    /// The pod that the others fetch from, since before it was made.
    #[serde(default)]
    pub primary: Option<String>,
    /// The file was served once: no pod starts with a new one any more.
    #[serde(default)]
    pub seeded: bool,
    /// How many pods serve.
    #[serde(default)]
    pub serving: usize,
    /// What is being waited for, in words.
    #[serde(default)]
    pub waiting: String,
}
