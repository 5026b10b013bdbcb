//! The objects that are made, as pure builders, and the hashes by which the planner sees whether they are as the spec says.

mod budget;
mod config;
mod network;
mod pod;
mod service;
mod set;

use std::collections::BTreeMap;

pub use budget::budget;
pub use config::{config_map, running};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
pub use network::network_policy;
use serde::Serialize;
use serde_json::Value;
pub use service::{headless_service, primary_service, read_service};
pub use set::stateful_set;
use stateward_core::manifests::hash;

use crate::api::config::is_static;
use crate::api::{GROUP, VERSION};
use crate::intent::{Intent, Tls};
use crate::names;
use crate::world::Object;

/// An object that exists once for a cluster.
#[allow(clippy::large_enum_variant, reason = "it lives from its making to its writing")]
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Manifest {
    /// my.cnf.
    ConfigMap(ConfigMap),
    /// One of the Services.
    Service(Service),
    /// The disruption budget.
    Budget(PodDisruptionBudget),
    /// The network policy.
    NetworkPolicy(NetworkPolicy),
}

impl Manifest {
    /// Its metadata.
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::ConfigMap(object) => &object.metadata,
            Self::Service(object) => &object.metadata,
            Self::Budget(object) => &object.metadata,
            Self::NetworkPolicy(object) => &object.metadata,
        }
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::ConfigMap(object) => &mut object.metadata,
            Self::Service(object) => &mut object.metadata,
            Self::Budget(object) => &mut object.metadata,
            Self::NetworkPolicy(object) => &mut object.metadata,
        }
    }
}

/// An object as it should be, with the hash of what it was made from. `None`: it is no object of this module.
pub fn object(object: Object, intent: &Intent) -> Option<Manifest> {
    let mut manifest = bare(object, intent)?;
    let hash = hash_of(&manifest, intent);
    manifest.metadata_mut().annotations = Some(annotations(intent, hash));
    Some(manifest)
}

fn bare(object: Object, intent: &Intent) -> Option<Manifest> {
    Some(match object {
        Object::Config => Manifest::ConfigMap(config_map(intent)),
        Object::Headless => Manifest::Service(headless_service(intent)),
        Object::PrimaryService => Manifest::Service(primary_service(intent)),
        Object::ReadService => Manifest::Service(read_service(intent)),
        Object::Budget => Manifest::Budget(budget(intent)),
        Object::NetworkPolicy => Manifest::NetworkPolicy(network_policy(intent)),
        Object::Backup => return None,
    })
}

fn hash_of(manifest: &Manifest, intent: &Intent) -> String {
    hash(&(manifest, &intent.uid.0))
}

/// Hash of what an object that exists once for the cluster is made from.
pub fn object_hash(object: Object, intent: &Intent) -> String {
    match bare(object, intent) {
        Some(manifest) => hash_of(&manifest, intent),
        None => hash(&(format!("{object:?}"), &intent.name)),
    }
}

/// Hash of what a pod is made from and needs a restart to change. Constants of the template are no part of it: a new release of
/// Stateward restarts no pod.
pub fn pod_hash(intent: &Intent) -> String {
    let mut pod = intent.pod.clone();
    pod.labels.clear();
    pod.annotations.clear();
    let config = intent.config.all.iter();
    let read_at_start: Vec<_> = config.filter(|(name, _)| is_static(name)).collect();
    hash(&(
        &intent.repository,
        intent.version.to_string(),
        intent.server_id_base,
        &pod,
        read_at_start,
        matches!(intent.tls, Tls::Off),
    ))
}

/// Hash of what the StatefulSet is made from beside the template of its pods and their number.
pub fn set_metadata_hash(intent: &Intent) -> String {
    hash(&(&intent.name, &intent.pod.labels, &intent.pod.annotations))
}

/// The metadata that everything of a cluster shares. Owned by the cluster, so that deleting it deletes them.
fn metadata(intent: &Intent, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(intent.namespace.clone()),
        labels: Some(names::labels(&intent.name)),
        owner_references: Some(vec![owner(intent)]),
        ..ObjectMeta::default()
    }
}

fn annotations(intent: &Intent, hash: String) -> BTreeMap<String, String> {
    BTreeMap::from([
        (names::ANNOTATION_METADATA.to_owned(), hash),
        (names::ANNOTATION_CLUSTER_UID.to_owned(), intent.uid.0.clone()),
    ])
}

/// The cluster as the owner of what is made for it.
pub fn owner(intent: &Intent) -> OwnerReference {
    OwnerReference {
        api_version: format!("{GROUP}/{VERSION}"),
        kind: "MySQLCluster".into(),
        name: intent.name.clone(),
        uid: intent.uid.0.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The pods of the cluster.
fn selector(intent: &Intent) -> LabelSelector {
    LabelSelector {
        match_labels: Some(names::selector(&intent.name)),
        ..LabelSelector::default()
    }
}

/// An object as JSON, for server-side apply.
pub fn json(object: &impl Serialize) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}
