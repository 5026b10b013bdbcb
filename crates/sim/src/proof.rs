//! What an operator knows about the end of members and about elapsed time, and what the user does when the status asks
//! for it.

use std::collections::BTreeMap;

use stateward_etcd::cluster::{MemberName, NodeEnd, Record, Uid, Watched, World};

use crate::kube::node_name;
use crate::queue::Ms;
use crate::raft::voters;
use crate::sim::Sim;

/// Since when an operator has observed the conditions that timers wait for, by a clock that is not wrong.
#[derive(Default)]
pub(crate) struct Watch(BTreeMap<String, Ms>);

impl Watch {
    fn look(&mut self, now: Ms, seen: &[String]) -> impl Fn(&str) -> std::time::Duration {
        self.0.retain(|what, _| seen.contains(what));
        for what in seen {
            self.0.entry(what.clone()).or_insert(now);
        }
        let since = self.0.clone();
        move |what: &str| {
            let since = since.get(what).copied().unwrap_or(now);
            std::time::Duration::from_millis(now - since)
        }
    }
}

impl Sim<'_> {
    /// Adds the ends of pods and nodes that the operator has observed, and how long conditions have lasted.
    pub(crate) fn observe_ends(&mut self, index: usize, record: &Record, world: &mut World) {
        let operator = &self.operators[index];
        let exits = &self.reported_exits
            [operator.exits_missed.min(self.reported_exits.len())..operator.exits_seen.min(self.reported_exits.len())];
        world.ended_pods = exits.iter().cloned().collect();
        world.ended_nodes = operator.cache.ended_nodes.as_ref().clone();
        world.attachments = Some(operator.cache.attachments.as_ref().clone());
        world.watched = self.watched(index, record, world);
    }

    fn watched(&mut self, index: usize, record: &Record, world: &World) -> Watched {
        let no_quorum = record.quorum_lost.filter(|_| world.list.is_none());
        let no_quorum = no_quorum.map(|since| format!("quorum {since}"));
        let kept = record.old_claims.as_ref().filter(|_| world.list.is_some());
        let kept = kept.map(|old| format!("claims {}", old.served));
        let crashed = record.crash_replaced.as_ref();
        let crashed = crashed.map(|replaced| format!("crash {}", replaced.at));
        let dead = world.dead_nodes.iter();
        let dead: BTreeMap<&String, String> = dead.map(|(node, since)| (node, format!("{node} {since}"))).collect();
        let waits = world.pods.values().filter(|pod| pod.node.is_none());
        let waits: BTreeMap<&Uid, String> = waits.map(|pod| (&pod.uid, format!("waits {}", pod.uid))).collect();
        let is_there = |uid: &Uid| world.pods.values().any(|pod| pod.uid == *uid);
        let ready = |node: &String| !world.dead_nodes.contains_key(node) && !world.ended_nodes.contains_key(node);
        let gone = record
            .last_seen
            .values()
            .filter(|seen| !seen.ended && !is_there(&seen.pod));
        let gone = gone.filter(|seen| seen.node.as_ref().is_some_and(ready));
        let gone: BTreeMap<&Uid, String> = gone.map(|seen| (&seen.pod, format!("lost {}", seen.pod))).collect();
        let ready = world.pods.values().filter(|pod| pod.ready);
        let ready: BTreeMap<&Uid, String> = ready.map(|pod| (&pod.uid, format!("ready {}", pod.uid))).collect();
        let seen: Vec<String> = (no_quorum.iter().chain(&kept).chain(&crashed))
            .chain(dead.values().chain(waits.values()).chain(gone.values()))
            .chain(ready.values())
            .cloned()
            .collect();
        let now = self.now;
        let time = self.operators[index].watch.look(now, &seen);
        let of = |what: &Option<String>| what.as_deref().map(&time).unwrap_or_default();
        Watched {
            no_quorum: of(&no_quorum),
            old_claims: of(&kept),
            crash_replaced: of(&crashed),
            dead_nodes: dead.iter().map(|(node, what)| ((*node).clone(), time(what))).collect(),
            unscheduled: waits.iter().map(|(uid, what)| ((*uid).clone(), time(what))).collect(),
            ready: ready.iter().map(|(uid, what)| ((*uid).clone(), time(what))).collect(),
            obeyed: gone.iter().map(|(uid, what)| ((*uid).clone(), time(what))).collect(),
        }
    }

    /// Without faults the user reads the status and does what it asks for, if it is true: lost nodes are taken out of
    /// service or deleted, and members that are lost for good are confirmed.
    pub(crate) fn follow_advice(&mut self) {
        if !self.now.is_multiple_of(10_000) {
            return;
        }
        for node in 0..self.nodes.len() {
            let state = &self.nodes[node];
            if state.gone && !state.removed && state.stays && self.kube.now.dead_nodes.contains_key(&node_name(node)) {
                if self.rng.per_mille(500) {
                    self.log(|| format!("user: deletes {}", node_name(node)));
                    self.node_object_deleted(node);
                } else if !self.kube.now.ended_nodes.contains_key(&node_name(node)) {
                    self.log(|| format!("user: takes {} out of service", node_name(node)));
                    self.kube
                        .ended_nodes_mut()
                        .insert(node_name(node), NodeEnd::OutOfService);
                    for pod in self.pods_on(node) {
                        self.remove_pod(pod);
                    }
                }
            }
        }
        let Some(cluster) = &self.kube.now.cluster else { return };
        let asked = cluster.report.as_ref().map(|report| report.waiting.clone());
        let Some(asked) = asked.filter(|asked| asked.contains("confirm-lost=")) else {
            return;
        };
        let lost: Vec<MemberName> = voters(&self.truth.conf)
            .filter_map(|line| line.name.clone())
            .filter(|name| asked.contains(&name.0) && self.is_lost_for_good(name))
            .filter(|name| !cluster.intent.confirmed_lost.contains(name))
            .collect();
        if !lost.is_empty() {
            self.log(|| format!("user: confirms the loss of {lost:?}"));
            self.edit(|intent| intent.confirmed_lost.extend(lost));
        }
    }

    /// It does not run, and its data is deleted or on a node that never comes back.
    pub(crate) fn is_lost_for_good(&self, name: &MemberName) -> bool {
        let runs = self.processes.values().any(|process| process.name == *name);
        let id = self.truth.conf.iter().find(|line| line.name.as_ref() == Some(name));
        let has = self.volumes.values().any(|volume| {
            let data = volume.data.as_ref().filter(|_| !volume.corrupt);
            let stays = volume
                .node
                .is_some_and(|node| self.nodes[node].gone && !self.nodes[node].zone_sleeps);
            !stays && data.is_some_and(|data| id.is_some_and(|line| line.id == data.id))
        });
        !runs && !has
    }
}
