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
        let stuck = !pod.facts.running && !pod.facts.terminating && pod.facts.blocked.is_some();
        if stuck && view.outdated.contains(member) && observed.reply().is_none() {
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
