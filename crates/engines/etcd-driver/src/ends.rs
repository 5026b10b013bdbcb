//! What proves that a member has ended, and for how long this operator itself has seen what timers wait for.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use stateward_etcd::cluster::{NodeEnd, Record, Uid, Watched, World};

use stateward_runtime::Key;
use stateward_runtime::watch::dead_since;

use crate::Shared;

/// An administrator's word that a node is shut down.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Nodes that ended, pods that said so, volumes that are attached: of whatever members were last seen on.
pub(crate) fn observe(shared: &Shared, record: &Record, world: &mut World) {
    let gone = |uid: &&Uid| shared.caches.pods.said(&uid.0);
    let seen = record.last_seen.values();
    world.ended_pods = seen.map(|seen| &seen.pod).filter(gone).cloned().collect();
    if shared.runtime.namespace.is_some() {
        return; // What is in no namespace is not watched.
    }
    let seen = record.last_seen.values().filter_map(|seen| seen.node.as_ref());
    let nodes: BTreeSet<String> = seen
        .chain(world.pods.values().filter_map(|pod| pod.node.as_ref()))
        .cloned()
        .collect();
    let dead = |name: &String| dead_since(&*node(shared, name)?);
    world.dead_nodes = nodes
        .iter()
        .filter_map(|name| Some((name.clone(), dead(name)?)))
        .collect();
    if shared.runtime.nodes.is_synced() {
        world.ended_nodes = nodes
            .iter()
            .filter_map(|name| Some((name.clone(), end(node(shared, name).as_deref())?)))
            .collect();
    }
    if shared.caches.attachments.is_synced() {
        let all = shared.caches.attachments.all();
        world.attachments = Some(all.iter().filter_map(|attachment| place(attachment)).collect());
    }
}

/// The volume that is attached, or being attached or detached, and the node. As long as the object exists, the storage may
/// still serve that node. An inline volume has no name, and is no claim's.
fn place(attachment: &VolumeAttachment) -> Option<(String, String)> {
    let spec = &attachment.spec;
    Some((spec.source.persistent_volume_name.clone()?, spec.node_name.clone()))
}

fn node(shared: &Shared, name: &str) -> Option<std::sync::Arc<Node>> {
    shared.runtime.nodes.get(&Key::new("", name))
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    ready.any(|condition| condition.status == "True")
}

/// How a node has ended. One that is Ready runs its pods, whatever its taints say; so Kubernetes judges too.
pub(crate) fn end(node: Option<&Node>) -> Option<NodeEnd> {
    let Some(node) = node else {
        return Some(NodeEnd::Deleted);
    };
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let is_out = taints.into_iter().any(|taint| taint.key == OUT_OF_SERVICE);
    (is_out && !is_ready(node)).then_some(NodeEnd::OutOfService)
}

/// Since when a loop has seen something so in every round. An operator that was restarted begins anew.
#[derive(Default)]
pub(crate) struct Watch(HashMap<What, Instant>);

#[derive(Clone, PartialEq, Eq, Hash)]
enum What {
    NoQuorum(Timestamp),
    DeadNode(String, Timestamp),
    Unscheduled(Uid),
    Ready(Uid),
    OldClaims(Timestamp),
    CrashReplaced(Timestamp),
}

impl Watch {
    pub(crate) fn look(&mut self, record: &Record, world: &World) -> Watched {
        let mut now: Vec<What> = Vec::new();
        let no_quorum = record.quorum_lost.filter(|_| world.list.is_none());
        now.extend(no_quorum.map(What::NoQuorum));
        let dead = world.dead_nodes.iter();
        now.extend(dead.map(|(node, since)| What::DeadNode(node.clone(), *since)));
        let unscheduled = world.pods.values().filter(|pod| pod.node.is_none());
        now.extend(unscheduled.map(|pod| What::Unscheduled(pod.uid.clone())));
        let ready = world.pods.values().filter(|pod| pod.ready);
        now.extend(ready.map(|pod| What::Ready(pod.uid.clone())));
        let served = record.old_claims.as_ref().filter(|_| world.list.is_some());
        now.extend(served.map(|old| What::OldClaims(old.served)));
        let crashed = record.crash_replaced.as_ref();
        now.extend(crashed.map(|replaced| What::CrashReplaced(replaced.at)));
        self.0.retain(|what, _| now.contains(what));
        let mut watched = Watched::default();
        for what in now {
            let since = *self.0.entry(what.clone()).or_insert_with(Instant::now);
            let time: Duration = since.elapsed();
            match what {
                What::NoQuorum(_) => watched.no_quorum = time,
                What::OldClaims(_) => watched.old_claims = time,
                What::CrashReplaced(_) => watched.crash_replaced = time,
                What::DeadNode(node, _) => drop(watched.dead_nodes.insert(node, time)),
                What::Unscheduled(uid) => drop(watched.unscheduled.insert(uid, time)),
                What::Ready(uid) => drop(watched.ready.insert(uid, time)),
            }
        }
        watched
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed<T: serde::de::DeserializeOwned>(object: Value) -> T {
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_node_has_ended_when_it_is_deleted_or_out_of_service_and_not_ready() {
        let node = |key: Option<&str>, ready: Option<&str>| -> Node {
            let taints = key.map(|key| json!([{"key": key, "value": "nodeshutdown", "effect": "NoExecute"}]));
            let ready = ready.map(|status| json!([{"type": "Ready", "status": status}]));
            parsed(json!({"spec": {"taints": taints}, "status": {"conditions": ready}}))
        };
        assert_eq!(end(None), Some(NodeEnd::Deleted));
        for (key, ready, expected) in [
            (Some(OUT_OF_SERVICE), Some("Unknown"), Some(NodeEnd::OutOfService)),
            (Some(OUT_OF_SERVICE), Some("False"), Some(NodeEnd::OutOfService)),
            (Some(OUT_OF_SERVICE), None, Some(NodeEnd::OutOfService)),
            // One that is Ready runs its pods.
            (Some(OUT_OF_SERVICE), Some("True"), None),
            // One that does not answer may run them.
            (Some("node.kubernetes.io/unreachable"), Some("Unknown"), None),
            (None, Some("Unknown"), None),
            (None, Some("True"), None),
        ] {
            assert_eq!(end(Some(&node(key, ready))), expected, "{key:?} {ready:?}");
        }
    }

    #[test]
    fn a_volume_counts_as_attached_for_as_long_as_the_object_exists() {
        let attachment = |source: Value, status: Value| -> VolumeAttachment {
            let spec = json!({"attacher": "csi.example.com", "nodeName": "n1", "source": source});
            parsed(json!({"metadata": {"name": "a"}, "spec": spec, "status": status}))
        };
        let named = json!({"persistentVolumeName": "pv-1"});
        let expected = Some(("pv-1".to_owned(), "n1".to_owned()));
        for status in [
            json!({"attached": true}),
            json!({"attached": false}),
            json!({"attached": true, "detachError": {"message": "the node does not answer"}}),
        ] {
            assert_eq!(place(&attachment(named.clone(), status)), expected);
        }
        let inline = json!({"inlineVolumeSpec": {"csi": {"driver": "d", "volumeHandle": "h"}}});
        assert_eq!(place(&attachment(inline, json!({"attached": true}))), None);
    }
}
