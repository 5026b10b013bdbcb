//! The labels by which Services find pods. The old primary loses its label before the new one has it, and a pod is labelled as the
//! primary only while its server takes writes.

use super::members::{Data, is_open};
use super::round::{Round, View};
use crate::action::Action;
use crate::world::{Ordinal, Pod, Role};

/// A pod that is not the open primary loses the label of one.
pub(super) fn take(view: &View<'_>, round: &mut Round) {
    let primary = round.memory.primary;
    let ends = round.memory.failover.is_some();
    let closed = primary
        .and_then(|primary| view.reply(primary))
        .is_some_and(|reply| reply.read_only);
    for (member, observed) in &view.world.members {
        let Some(pod) = observed.pod.as_ref().filter(|pod| pod.role == Some(Role::Primary)) else {
            continue;
        };
        if Some(*member) != primary || ends || closed {
            round.act(label(*member, pod, None, false));
        }
    }
}

/// Every pod has the labels that it serves by.
pub(super) fn give(view: &View<'_>, round: &mut Round) {
    let memory = &round.memory;
    let open = is_open(view, round) && !round.primary_changes();
    let reads: Vec<Ordinal> = view
        .world
        .members
        .keys()
        .copied()
        .filter(|member| in_sync(view, round, *member))
        .collect();
    let mut actions = Vec::new();
    for (member, observed) in &view.world.members {
        let Some(pod) = observed.pod.as_ref().filter(|pod| !pod.facts.terminating) else {
            continue;
        };
        let Some(reply) = observed.reply() else { continue };
        if memory.primary == Some(*member) {
            let serves = open && (pod.role != Some(Role::Primary) || pod.reads != reads.is_empty());
            if serves {
                actions.push(Action::Label {
                    member: *member,
                    uid: pod.facts.uid.clone(),
                    role: Some(Role::Primary),
                    reads: reads.is_empty(),
                    writable: Some(reply.process.clone()),
                });
            }
            continue;
        }
        let serves = view.data(memory, *member) == Data::Ours
            && reply.read_only
            && !memory.quarantine.contains_key(member)
            && !reply.clone.as_ref().is_some_and(|clone| clone.running)
            && member.0 < view.intent.size;
        // Without the primary, nothing tells whether a replica is clean, and how far it is behind: those that served go on.
        let known = view.errant(memory, *member).is_some();
        let role = if known {
            serves.then_some(Role::Replica)
        } else {
            pod.role.filter(|_| serves)
        };
        let role = role.filter(|role| *role == Role::Replica);
        let reads = if open {
            reads.contains(member)
        } else {
            pod.reads && serves
        };
        let was_primary = pod.role == Some(Role::Primary);
        if (pod.role != role || pod.reads != reads) && !(was_primary && role.is_none()) {
            actions.insert(0, label(*member, pod, role, reads));
        }
    }
    for action in actions {
        round.act(action);
    }
}

/// It serves reads: it follows, and is not too far behind.
fn in_sync(view: &View<'_>, round: &Round, member: Ordinal) -> bool {
    let memory = &round.memory;
    let lag = view.reply(member).and_then(|reply| reply.channel.as_ref()?.lag);
    memory.primary != Some(member)
        && member.0 < view.intent.size
        && !view.is_ending(member)
        && view.is_clean(memory, member)
        && view.follows(memory, member)
        && lag.is_some_and(|lag| lag <= view.intent.max_lag)
}

fn label(member: Ordinal, pod: &Pod, role: Option<Role>, reads: bool) -> Action {
    Action::Label {
        member,
        uid: pod.facts.uid.clone(),
        role,
        reads,
        writable: None,
    }
}
