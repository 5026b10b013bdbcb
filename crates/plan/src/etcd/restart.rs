//! Pods that are missing come back as the members they were, with their data. Nothing is lost by it, so it needs no
//! quorum, and all come back at once.

use super::members::{Fate, owner};
use super::{Effect, Launch, Reason, Step, Stop, View, Work};

pub(super) fn bring_back(view: &View<'_>) -> Option<Step> {
    let mut effects = Vec::new();
    let mut names = Vec::new();
    for member in view.members.values() {
        // With a list only its members come back; without one, those of the last list, and those that the members which
        // answer know: a second voter may have started, and be missed for the quorum, before any list was proven.
        let is_started = |listed: &super::Listed| listed.name.as_ref() == Some(&member.name);
        let is_unstarted =
            |listed: &super::Listed| listed.name.is_none() && owner(view.intent, listed).as_ref() == Some(&member.name);
        let belongs = match &view.world.list {
            Some(_) => member.listed.is_some_and(|listed| listed.name.is_some()),
            None => match view.believed_list() {
                Some(list) if list.iter().any(is_unstarted) => false, // `join` starts it.
                Some(list) if list.iter().any(is_started) => true,
                _ => view.record.members.contains_key(&member.name),
            },
        };
        if !belongs {
            continue;
        }
        match member.pod {
            None if matches!(member.fate, Fate::Away(_)) && member.claim.is_some_and(|claim| !claim.terminating) => {
                effects.push(Effect::CreatePod {
                    member: member.name.clone(),
                    launch: Launch::Sealed,
                    version: view.new_pods.clone(),
                    tls: view.stage_of(&member.name),
                });
                names.push(member.name.0.as_str());
            }
            // An evicted pod keeps its name; only deleting it frees the name for the same member.
            Some(pod) if pod.ended && !pod.terminating && view.intent.is_durable() => {
                effects.push(successor(view, &member.name, view.stage_of(&member.name)));
                effects.push(Effect::DeletePod {
                    member: member.name.clone(),
                    uid: pod.uid.clone(),
                    how: Stop::Restart,
                });
                names.push(member.name.0.as_str());
            }
            // Without a quorum everybody is needed. What is left of a pod on a node that has ended only holds its volume.
            Some(pod)
                if view.world.list.is_none()
                    && member.answer.is_none()
                    && view.intent.is_durable()
                    && super::gone::node_end(view, pod).is_some() =>
            {
                effects.push(Effect::DeletePod {
                    member: member.name.clone(),
                    uid: pod.uid.clone(),
                    how: Stop::Force,
                });
                names.push(member.name.0.as_str());
            }
            // A pod that does not run and was made from other wishes is not waited for: the roll-back of a bad value
            // must not wait for the broken pod.
            Some(pod)
                if (view.intent.is_durable() || !pod.ever_ran)
                    && !pod.terminating
                    && !pod.running
                    && made_otherwise(view, &member.name, pod)
                    && pod.blocked.is_some() =>
            {
                effects.push(successor(view, &member.name, view.stage_of(&member.name)));
                effects.push(Effect::DeletePod {
                    member: member.name.clone(),
                    uid: pod.uid.clone(),
                    how: Stop::Restart,
                });
                names.push(member.name.0.as_str());
            }
            _ => {}
        }
    }
    (!effects.is_empty()).then(|| {
        Step::new(
            Work::Recovering,
            Reason::RestartingMembers,
            format!("bringing back {} with the data they have", names.join(", ")),
        )
        .with(effects)
    })
}

/// The pod that comes after this member's pod must be one that the API server takes, or nothing is stopped.
pub(super) fn successor(view: &View<'_>, member: &super::MemberName, tls: super::TlsStage) -> Effect {
    Effect::TryPod {
        member: member.clone(),
        launch: Launch::Sealed,
        version: view.new_pods.clone(),
        tls,
    }
}

/// The pod would not be made like this now.
pub(super) fn made_otherwise(view: &View<'_>, member: &super::MemberName, pod: &super::Pod) -> bool {
    pod.template != view.intent.template
        || pod.version != view.new_pods
        || pod.tls != view.stage_of(member)
        || super::secure::trusts_others(view, pod)
}

/// The pod was made from other wishes than today's.
pub(super) fn outdated(view: &View<'_>, pod: &super::Pod) -> bool {
    pod.template != view.intent.template
        || pod.version != view.new_pods
        || pod.tls != view.stage
        || super::secure::trusts_others(view, pod)
}
