//! When a member counts as gone: its process has ended and cannot come back (ADR 17).
//!
//! Giving a quorum up begins another cluster. Whoever is only cut off from the API server goes on to serve the old one
//! meanwhile, so this rests on proof: the kubelet's word, the end of the node or of the attachment of the volume, or the
//! user's. That objects are absent in the API proves nothing.

use std::collections::BTreeSet;

use super::members::owner;
use super::record::{LastSeen, Record};
use super::world::{MemberName, MemberProbe, NodeEnd, Pod, World};
use super::{Effect, Intent, Stop, View, pods};

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
    let (volume, all) = (seen.attached.as_ref()?, view.world.attachments.as_ref()?);
    (!all.contains(&(volume.clone(), node.clone()))).then_some(Gone::Detached)
}

/// The user says that it is lost, and it does not say otherwise itself.
pub(super) fn is_confirmed(view: &View<'_>, name: &MemberName) -> bool {
    let answers = matches!(view.world.probes.get(name), Some(MemberProbe::Reply(_)));
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
        // No kubelet will say any more how the pod ended that it was last seen in.
        Some(seen) if pod.is_none_or(|pod| pod.uid != seen.pod) => true,
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
    let silent = !matches!(view.world.probes.get(name), Some(MemberProbe::Reply(_)));
    unlisted && silent && view.world.pods.get(name).is_some_and(ended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::{Given, three};
    use crate::cluster::{MemberId, Uid};

    const NODE: &str = "node-of-c-b";

    fn place() -> (String, String) {
        ("volume-c-b".into(), NODE.into())
    }

    /// Three members that were seen in a round before, with their volumes attached.
    fn seen() -> Given {
        let given = three().world(|world| world.attachments = Some([place()].into()));
        remembered(given)
    }

    fn remembered(mut given: Given) -> Given {
        remember(&given.intent, &mut given.record, &given.world);
        given
    }

    /// A pod under its name that is another one, on this node, and never ran.
    fn replaced(given: Given, node: Option<&str>) -> Given {
        given.with_objects("c-b").pod("c-b", |pod| {
            pod.uid = Uid("another".into());
            pod.node = node.map(str::to_owned);
            (pod.running, pod.ever_ran, pod.ready) = (false, false, false);
        })
    }

    fn silent(given: Given) -> Given {
        given.silent("c-b")
    }

    fn node_ends(given: Given, end: NodeEnd) -> Given {
        given.world(|world| {
            world.ended_nodes.insert(NODE.into(), end);
        })
    }

    fn detached(given: Given) -> Given {
        given.world(|world| world.attachments = Some(BTreeSet::new()))
    }

    fn confirmed(given: Given) -> Given {
        given.spec(|intent| {
            intent.confirmed_lost.insert("c-b".into());
        })
    }

    fn without_node(given: Given) -> Given {
        let waits = given.without_quorum().pod("c-b", |pod| {
            pod.node = None;
            (pod.running, pod.ever_ran, pod.ready) = (false, false, false);
        });
        remembered(waits)
    }

    #[test]
    fn each_proof_is_one_and_nothing_else_is() {
        let node_ended = Some(Gone::NodeEnded(NODE.into()));
        let absent = || seen().without_pod("c-b");
        let ended = || {
            absent().world(|world| {
                world.ended_pods.insert(Uid("pod-c-b".into()));
            })
        };
        let stopped = || remembered(seen().pod("c-b", |pod| (pod.running, pod.stopped) = (false, true)));
        let blind = |given: Given| given.world(|world| world.attachments = None);
        let dead = |given: Given| {
            let now = given.now;
            given.world(|world| {
                world.dead_nodes.insert(NODE.into(), now);
            })
        };
        let table: Vec<(&str, Given, Option<Gone>)> = vec![
            ("it runs", seen(), None),
            ("it does not reply", silent(seen()), None),
            ("its node is dead", dead(silent(seen())), None),
            // Absence proves nothing, whatever else is healthy.
            ("its pod is absent", absent(), None),
            (
                "its claim is absent too",
                absent().world(|world| {
                    world.claims.remove(&"c-b".into());
                }),
                None,
            ),
            ("its pod is absent and its node is dead", dead(absent()), None),
            ("it was never seen", three().without_pod("c-b"), None),
            // The user.
            ("confirmed", confirmed(silent(seen())), Some(Gone::Confirmed)),
            ("confirmed and absent", confirmed(absent()), Some(Gone::Confirmed)),
            ("confirmed, and it replies", confirmed(seen()), None),
            // The kubelet.
            ("its kubelet reported the end", ended(), Some(Gone::Ended)),
            (
                "the end was seen a round before",
                stopped().without_pod("c-b"),
                Some(Gone::Ended),
            ),
            // Never on a node.
            ("it waits for a node", without_node(seen()), Some(Gone::NeverRan)),
            (
                "it waited when it was last seen",
                without_node(three()).without_pod("c-b"),
                None,
            ),
            // The node.
            (
                "its node is deleted",
                node_ends(silent(seen()), NodeEnd::Deleted),
                node_ended.clone(),
            ),
            (
                "its node is out of service",
                node_ends(absent(), NodeEnd::OutOfService),
                node_ended.clone(),
            ),
            // The volume.
            ("its volume was detached", detached(absent()), Some(Gone::Detached)),
            ("its volume is attached", absent(), None),
            ("attachments cannot be seen now", blind(absent()), None),
            (
                "its attachment was never seen",
                detached(remembered(blind(three()))).without_pod("c-b"),
                None,
            ),
            // Another pod may begin to run, whatever is known of the one before.
            ("replaced on a live node", replaced(ended(), Some("node-4")), None),
            (
                "replaced on a live node, detached",
                replaced(detached(seen()), Some("node-4")),
                None,
            ),
            (
                "replaced, not on a node yet",
                replaced(detached(seen()), None),
                Some(Gone::Detached),
            ),
            (
                "replaced on a node that has ended",
                replaced(node_ends(seen(), NodeEnd::Deleted), Some(NODE)),
                node_ended,
            ),
        ];
        for (what, given, proof) in table {
            let found = given.look(|view| gone(view, &"c-b".into()));
            assert_eq!(found, proof, "{what}");
        }
    }

    #[test]
    fn a_member_whose_pod_vanished_unseen_needs_a_person() {
        let given = seen().without_pod("c-b").without_quorum();
        given.look(|view| {
            assert!(needs_a_person(view, &"c-b".into()));
            let advice = advice(view, &[&"c-b".into()]);
            assert!(advice.contains("stateward.dev/confirm-lost=c-b"), "{advice}");
            assert!(advice.contains(&format!("kubectl taint node {NODE} ")), "{advice}");
        });
        // One whose pod is there on a node that Kubernetes holds for healthy does not: its kubelet will say so.
        silent(seen()).look(|view| assert!(!needs_a_person(view, &"c-b".into())));
    }

    #[test]
    fn one_that_replies_again_is_seen_where_it_is() {
        let given = seen().pod("c-b", |pod| {
            pod.uid = Uid("another".into());
            pod.node = Some("node-4".into());
        });
        let given = remembered(given.answers("c-b", MemberId(2)));
        let seen = &given.record.last_seen[&"c-b".into()];
        assert_eq!((seen.pod.0.as_str(), seen.node.as_deref()), ("another", Some("node-4")));
        assert!(!seen.ended && seen.attached.is_none());
    }
}
