//! When a member counts as gone: its process has ended and cannot come back (ADR 17).
//!
//! Giving a quorum up begins another cluster. Whoever is only cut off from the API server goes on to serve the old one
//! meanwhile, so this rests on proof: the kubelet's word, the end of the node or of the attachment of the volume, or the
//! user's. That objects are absent in the API proves nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use super::members::owner;
use super::record::{LastSeen, Record};
use super::world::{MemberName, NodeEnd, Pod, Voice, World};
use super::{Effect, Intent, Stop, View, pods};

/// A kubelet that is in touch with the API server ends pods whose object is gone. Kubernetes takes up to 50 s to notice that
/// one is not (node-monitor-grace-period), and pods have 30 s to end: a node that was Ready for longer than both together
/// has done it.
const OBEYED_AFTER: Duration = Duration::from_secs(120);

/// Why a member counts as gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// The user says so.
    Confirmed,
    /// Its kubelet said that it ended.
    Ended,
    /// It was never on a node.
    NeverRan,
    /// Its node is deleted or out of service.
    NodeEnded(String),
    /// Its volume was attached to its node and is not any more.
    Detached,
    /// Its pod is gone, and its node obeys the API server.
    Obeyed,
}

impl Gone {
    /// Its pod's object may be taken away although no kubelet says that the pod has ended.
    fn needs_no_kubelet(&self) -> bool {
        matches!(self, Self::Confirmed | Self::NodeEnded(_) | Self::Detached)
    }
}

/// Keeps where members run, and what kubelets say of their end: a pod's object may be gone in the next round.
pub(super) fn remember(intent: &Intent, record: &mut Record, world: &World) {
    for (name, pod) in &world.pods {
        let known = record.last_seen.get(name);
        let is_new = known.is_none_or(|seen| seen.pod != pod.uid);
        if is_new && (known.is_some_and(|seen| outlasts(seen, pod)) || (pod.node.is_none() && world.list.is_some())) {
            continue;
        }
        let before = known.filter(|_| !is_new).cloned().unwrap_or_default();
        let volume = world.claims.get(name).and_then(|claim| claim.volume.clone());
        let attached = volume.zip(pod.node.clone()).filter(|place| {
            let all = world.attachments.as_ref();
            all.is_some_and(|all| all.contains(place))
        });
        let seen = LastSeen {
            pod: pod.uid.clone(),
            node: pod.node.clone(),
            attached: before.attached.or(attached.map(|(volume, _)| volume)),
            ended: before.ended || pod.stopped,
        };
        record.last_seen.insert(name.clone(), seen);
    }
    for seen in record.last_seen.values_mut() {
        seen.ended |= world.ended_pods.contains(&seen.pod);
    }
    if let Some(list) = &world.list {
        let listed: BTreeSet<_> = list.members.iter().filter_map(|line| owner(intent, line)).collect();
        let stays = |name: &MemberName| listed.contains(name) || world.pods.contains_key(name);
        record.last_seen.retain(|name, _| stays(name));
    }
}

/// What ran in the pod before may still run, and the new pod has not shown that it has the volume.
fn outlasts(before: &LastSeen, new: &Pod) -> bool {
    let never_ran = before.node.is_none() && !before.pod.0.is_empty();
    !before.ended && !never_ran && !new.ever_ran && before.node != new.node
}

/// The proof that a member is gone, if there is one.
pub(super) fn gone(view: &View<'_>, name: &MemberName) -> Option<Gone> {
    if is_confirmed(view, name) {
        return Some(Gone::Confirmed);
    }
    let seen = view.record.last_seen.get(name)?;
    let now = view.world.pods.get(name);
    // A pod that was made since then is bound to a node, and may begin to run there.
    let other = now.filter(|pod| pod.uid != seen.pod && !pod.stopped);
    if let Some(node) = other.and_then(|pod| pod.node.as_ref())
        && !view.world.ended_nodes.contains_key(node)
    {
        return None;
    }
    if seen.ended {
        return Some(Gone::Ended);
    }
    let Some(node) = &seen.node else {
        // Only the pod itself shows it: one that is gone may have been bound, and may run, since it was last seen.
        let waits = now.is_some_and(|pod| pod.uid == seen.pod && pod.node.is_none());
        return waits.then_some(Gone::NeverRan);
    };
    if view.world.ended_nodes.contains_key(node) {
        return Some(Gone::NodeEnded(node.clone()));
    }
    if let (Some(volume), Some(all)) = (&seen.attached, &view.world.attachments)
        && !all.contains(&(volume.clone(), node.clone()))
    {
        return Some(Gone::Detached);
    }
    let is_there = now.is_some_and(|pod| pod.uid == seen.pod);
    let obeyed = view.world.watched.obeyed.get(&seen.pod);
    (!is_there && obeyed.is_some_and(|time| *time >= OBEYED_AFTER)).then_some(Gone::Obeyed)
}

/// The user says that it is lost, and it does not say otherwise itself.
pub(super) fn is_confirmed(view: &View<'_>, name: &MemberName) -> bool {
    let answers = matches!(view.world.voices.get(name), Some(Voice::Answered(_)));
    view.intent.confirmed_lost.contains(name) && !answers
}

/// Stops everybody but one member, before a new cluster begins.
pub(super) struct Fence {
    pub(super) stop: Vec<Effect>,
    /// Those that are stopped or not proven to have ended yet.
    pub(super) waits: Vec<MemberName>,
    /// The proof rests on the end of these nodes: it is looked at again before the new cluster begins.
    nodes: BTreeSet<String>,
}

impl Fence {
    /// What must still be so when the new cluster begins.
    pub(super) fn guard(&self) -> Option<Effect> {
        let nodes = self.nodes.clone();
        (!nodes.is_empty()).then_some(Effect::CheckNodesEnded { nodes })
    }

    /// What is waited for, and where nothing but a person can end the wait, what to do.
    pub(super) fn words(&self, view: &View<'_>) -> String {
        let cut_off: Vec<_> = self.waits.iter().filter(|name| needs_a_person(view, name)).collect();
        if cut_off.is_empty() {
            let names: Vec<_> = self.waits.iter().map(|name| name.0.as_str()).collect();
            return format!("waiting until {} have ended", names.join(", "));
        }
        advice(view, &cut_off)
    }
}

/// Pods are deleted with their grace period, and by force only where they are proven to run no more. `absent`: members
/// whose pod is gone must be proven to have ended too.
pub(super) fn fence(view: &View<'_>, but: &MemberName, how: Stop, absent: bool) -> Fence {
    let mut fence = Fence {
        stop: Vec::new(),
        waits: Vec::new(),
        nodes: BTreeSet::new(),
    };
    let known = view.record.members.keys().chain(view.record.last_seen.keys());
    let known = known.filter(|_| absent);
    let names: BTreeSet<&MemberName> = known.chain(view.world.pods.keys()).collect();
    for name in names.into_iter().filter(|name| *name != but) {
        let proof = gone(view, name);
        if let Some(Gone::NodeEnded(node)) = &proof {
            fence.nodes.insert(node.clone());
        }
        let Some(pod) = view.world.pods.get(name) else {
            if proof.is_none() && !has_left(view, name) {
                fence.waits.push(name.clone());
            }
            continue;
        };
        fence.waits.push(name.clone());
        let force = proof.is_some_and(|proof| proof.needs_no_kubelet()) && !obeys(view, pod);
        if force || !pod.terminating {
            fence
                .stop
                .push(pods::stop(name, pod, if force { Stop::Force } else { how }));
        }
    }
    fence
}

/// Its kubelet is in touch with the API server, as far as Kubernetes knows, and says itself when the pod has ended.
fn obeys(view: &View<'_>, pod: &Pod) -> bool {
    pod.node
        .as_ref()
        .is_some_and(|node| !view.world.dead_nodes.contains_key(node) && !view.world.ended_nodes.contains_key(node))
}

/// Nothing that Kubernetes does by itself will bring the proof.
pub(super) fn needs_a_person(view: &View<'_>, name: &MemberName) -> bool {
    if gone(view, name).is_some() {
        return false;
    }
    let pod = view.world.pods.get(name);
    match view.record.last_seen.get(name) {
        Some(seen) if pod.is_none_or(|pod| pod.uid != seen.pod) => !view.world.watched.obeyed.contains_key(&seen.pod),
        None if pod.is_none() => true,
        _ => pod.is_some_and(|pod| pod.node.is_some() && !obeys(view, pod)),
    }
}

/// Which node to power off, and what to type.
pub(super) fn advice(view: &View<'_>, names: &[&MemberName]) -> String {
    let node_of = |name: &MemberName| {
        let seen = view.record.last_seen.get(name).filter(|seen| !seen.ended);
        let pod = view.world.pods.get(name).and_then(|pod| pod.node.clone());
        seen.and_then(|seen| seen.node.clone()).or(pod)
    };
    let who = names.iter().map(|name| match node_of(name) {
        Some(node) => format!("{name} (node {node})"),
        None => name.to_string(),
    });
    let who = who.collect::<Vec<_>>().join(", ");
    let nodes: BTreeSet<String> = names.iter().filter_map(|name| node_of(name)).collect();
    let ended = |node: &String| view.world.ended_nodes.contains_key(node);
    let taints: Vec<String> = nodes
        .iter()
        .filter(|node| !ended(node))
        .map(|node| format!("kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"))
        .collect();
    let power_off = if taints.is_empty() {
        String::new()
    } else {
        format!(
            " Bring these nodes back; or power them off and then type: {}.",
            taints.join("; ")
        )
    };
    let mut confirmed: BTreeSet<&MemberName> = names.iter().copied().collect();
    confirmed.extend(view.intent.confirmed_lost.iter());
    let confirmed: Vec<&str> = confirmed.iter().map(|name| name.0.as_str()).collect();
    format!(
        "it is not proven that {who} cannot come back or still serve.{power_off} If they are lost for good with their data and do not run any more, type: kubectl annotate --overwrite etcd {} -n {} {}={}",
        view.intent.name,
        view.intent.namespace,
        crate::api::names::ANNOTATION_CONFIRM_LOST,
        confirmed.join(",")
    )
}

/// The member waits for its volume: it is on a node that has ended and can be used on no other, or a node that does not
/// answer still has it.
pub(super) fn has_no_place(view: &View<'_>, member: &super::Member<'_>) -> bool {
    let seen = view.record.last_seen.get(&member.name);
    let other = member
        .pod
        .zip(seen)
        .filter(|(pod, seen)| pod.uid != seen.pod && !pod.ever_ran);
    other.is_some_and(|(pod, seen)| {
        let on = |nodes: &dyn Fn(&String) -> bool| seen.node.as_ref().is_some_and(nodes);
        let has_ended = on(&|node| view.world.ended_nodes.contains_key(node));
        let is_dead = on(&|node| view.world.dead_nodes.contains_key(node));
        pod.blocked.is_some() && ((has_ended && pod.node.is_none()) || (is_dead && !seen.ended))
    })
}

/// How a node that a member was on has ended.
pub(super) fn node_end(view: &View<'_>, pod: &Pod) -> Option<NodeEnd> {
    view.world.ended_nodes.get(pod.node.as_ref()?).copied()
}

/// A removal that was answered by a timeout may have happened after all, and the record still counts the member. It has left
/// when those that answer do not list it and it ends by itself without an error, which only a removed etcd does.
pub(super) fn has_left(view: &View<'_>, name: &MemberName) -> bool {
    let is_it = |listed| owner(view.intent, listed).as_ref() == Some(name);
    let unlisted = view.believed_list().is_some_and(|list| !list.iter().any(is_it));
    let ended = |pod: &Pod| pod.restarts > 0 && pod.last_exit.as_ref().is_some_and(|exit| exit.code == 0);
    let silent = !matches!(view.world.voices.get(name), Some(Voice::Answered(_)));
    unlisted && silent && view.world.pods.get(name).is_some_and(ended)
}
