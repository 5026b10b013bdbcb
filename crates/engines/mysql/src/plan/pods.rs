//! The StatefulSet, which creates the pods, and pods that cannot come back by themselves.

use super::round::{LATER, Round, View, Work};
use crate::action::{Action, ClaimEnd, Stop};
use crate::manifests;
use crate::reason::Reason;
use crate::world::{Member, Ordinal};

pub(super) fn pods(view: &View<'_>, round: &mut Round) {
    let size = view.intent.size;
    let replicas = view.world.set.as_ref().map_or(0, |set| set.replicas);
    let as_wanted = view.world.set.as_ref().is_some_and(|set| {
        set.template == manifests::pod_hash(view.intent) && set.metadata == manifests::set_metadata_hash(view.intent)
    });
    if !as_wanted || replicas < size {
        round.act(Action::ApplySet {
            replicas: replicas.max(size),
        });
    }
    if !as_wanted && replicas > 0 {
        // Their pods are compared with the template when it is in place.
        round.wake(LATER);
    }
    revive(view, round);
    lost(view, round);
}

/// Pods that hold up their own successor.
fn revive(view: &View<'_>, round: &mut Round) {
    for (member, observed) in &view.world.members {
        let Some(pod) = &observed.pod else { continue };
        let uid = pod.facts.uid.clone();
        if pod.facts.terminating && pod.node_ended {
            round.act(Action::DeletePod {
                member: *member,
                uid,
                how: Stop::Force,
            });
            continue;
        }
        // A value that was set back heals a pod that cannot start with the other one.
        // Only the init container of a new pod makes a data directory.
        let memory = &round.memory;
        let needed = memory.failover.is_some() || memory.ackers.contains(member) || memory.primary == Some(*member);
        let empty = view.found_no_data(*member) && !needed && !pod.facts.terminating;
        let stuck = !pod.facts.running && !pod.facts.terminating && pod.facts.blocked.is_some();
        if empty || stuck && view.outdated.contains(member) && observed.reply().is_none() {
            round.act(Action::DeletePod {
                member: *member,
                uid,
                how: Stop::Restart,
            });
        }
    }
}

/// A volume that is lost: its claim goes, by UID, and the StatefulSet creates another.
fn lost(view: &View<'_>, round: &mut Round) {
    if round.memory.failover.is_some() {
        return;
    }
    for (member, observed) in &view.world.members {
        let memory = &round.memory;
        let needed = memory.ackers.contains(member) || memory.primary == Some(*member);
        let leaves = observed.claim.as_ref().is_some_and(|claim| claim.terminating);
        if leaves && !needed && observed.reply().is_none() {
            // A claim goes only when no pod uses it.
            if let Some(pod) = observed.pod.as_ref().filter(|pod| !pod.facts.terminating) {
                round.act(Action::DeletePod {
                    member: *member,
                    uid: pod.facts.uid.clone(),
                    how: Stop::Restart,
                });
            }
            continue;
        }
        let Some(claim) = &observed.claim else { continue };
        if claim.terminating {
            release(round, *member, observed, needed && !claim.lost);
            continue;
        }
        let confirmed = view.intent.requests.confirm_lost.contains(member) && observed.reply().is_none();
        let held = memory.claims.get(member) == Some(&claim.uid);
        if needed || member.0 >= view.intent.size || !(claim.lost || (confirmed && held)) {
            continue;
        }
        let message = format!("the volume of {} is lost: it gets another one", view.name(*member));
        round.say(Work::Recovering, Reason::Cloning, message);
        round.act(Action::DeleteClaim {
            member: *member,
            uid: claim.uid.clone(),
            why: ClaimEnd::Lost,
        });
        if let Some(pod) = observed.pod.as_ref().filter(|pod| !pod.facts.terminating) {
            round.act(Action::DeletePod {
                member: *member,
                uid: pod.facts.uid.clone(),
                how: Stop::Restart,
            });
        }
    }
}

/// A claim that is being deleted goes when no pod uses it, and a pod that does not run may hold it for ever.
fn release(round: &mut Round, member: Ordinal, observed: &Member, needed: bool) {
    let pod = observed
        .pod
        .as_ref()
        .filter(|pod| !pod.facts.running && !pod.facts.terminating);
    if let Some(pod) = pod.filter(|_| !needed && observed.reply().is_none()) {
        round.act(Action::DeletePod {
            member,
            uid: pod.facts.uid.clone(),
            how: Stop::Restart,
        });
    }
}

#[cfg(test)]
mod tests {
    use stateward_core::pod::Exit;

    use super::*;
    use crate::layout;
    use crate::plan::testing::{Given, three};

    /// A member whose container ended because its volume is empty.
    fn emptied(member: u32, given: Given) -> Given {
        let at = given.now;
        given.crashed(member).pod(member, |pod| {
            let message = "the volume has no data directory any more".to_owned();
            let code = layout::NO_DATA;
            pod.facts.last_exit = Some(Exit { code, message, at });
        })
    }

    fn deleted(given: &Given) -> Vec<Ordinal> {
        let actions = given.plan().actions;
        let pods = actions.iter().filter_map(|action| match action {
            Action::DeletePod { member, .. } => Some(*member),
            _ => None,
        });
        pods.collect()
    }

    #[test]
    fn a_member_whose_volume_is_empty_gets_a_new_pod_once_it_is_not_needed() {
        // given a replica that may acknowledge
        let needed = emptied(2, three());
        assert!(needed.memory.ackers.contains(&Ordinal(2)));
        assert!(deleted(&needed).is_empty());
        // and one that may not any more
        let spare = needed.memory(|memory| {
            memory.ackers.remove(&Ordinal(2));
        });
        assert_eq!(deleted(&spare), [Ordinal(2)]);
    }

    #[test]
    fn a_member_that_ended_for_another_reason_keeps_its_pod() {
        let given = emptied(2, three()).pod(2, |pod| {
            if let Some(exit) = &mut pod.facts.last_exit {
                exit.code = 1;
            }
        });
        let spare = given.memory(|memory| {
            memory.ackers.remove(&Ordinal(2));
        });
        assert!(deleted(&spare).is_empty());
    }

    #[test]
    fn a_primary_whose_volume_is_empty_is_replaced() {
        let given = emptied(0, three());
        assert!(deleted(&given).is_empty());
        let failover = given.plan().memory.failover.expect("a failover");
        assert_eq!(failover.reason, "its data is lost");
    }
}
