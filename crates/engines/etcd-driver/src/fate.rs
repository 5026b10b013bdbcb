//! What proves that a member has ended, and for how long this operator itself has seen what timers wait for.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
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
        let places = all.iter().filter_map(|attachment| {
            let spec = &attachment.spec;
            Some((spec.source.persistent_volume_name.clone()?, spec.node_name.clone()))
        });
        world.attachments = Some(places.collect());
    }
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
    Obeyed(Uid),
    OldClaims(Timestamp),
    CrashReplaced(Timestamp),
}

impl Watch {
    pub(crate) fn look(&mut self, shared: &Shared, record: &Record, world: &World) -> Watched {
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
        let is_there = |uid: &Uid| world.pods.values().any(|pod| pod.uid == *uid);
        let gone = record
            .last_seen
            .values()
            .filter(|seen| !seen.ended && !is_there(&seen.pod));
        for seen in gone {
            let node = seen.node.as_ref().and_then(|name| node(shared, name));
            if node.is_some_and(|node| is_ready(&node)) {
                now.push(What::Obeyed(seen.pod.clone()));
            }
        }
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
                What::Obeyed(uid) => drop(watched.obeyed.insert(uid, time)),
            }
        }
        watched
    }
}
