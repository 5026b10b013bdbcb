//! The objects that are made, and the hashes by which the planner sees whether they are as the spec says.

use stateward_core::manifests::hash;

use crate::api::config::is_static;
use crate::intent::Intent;
use crate::world::Object;

/// Hash of what a pod is made from and needs a restart to change.
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
        matches!(intent.tls, crate::intent::Tls::Off),
    ))
}

/// Hash of what an object that exists once for the cluster is made from.
pub fn object_hash(object: Object, intent: &Intent) -> String {
    let kind = format!("{object:?}");
    match object {
        Object::Config => hash(&(kind, &intent.config, &intent.tls)),
        Object::Budget => hash(&(kind, intent.size)),
        Object::Headless | Object::PrimaryService | Object::ReadService | Object::NetworkPolicy | Object::Backup => {
            hash(&(kind, &intent.name))
        }
    }
}

/// Hash of what the StatefulSet is made from beside the template of its pods and their number.
pub fn set_metadata_hash(intent: &Intent) -> String {
    hash(&(&intent.name, &intent.pod.labels, &intent.pod.annotations))
}
