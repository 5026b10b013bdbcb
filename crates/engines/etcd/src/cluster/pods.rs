//! Members' pods: how one is made, stopped and brought back, and whether it is what would be made now. Chapters share this.

use super::members::{Health, owner};
use super::{Effect, Launch, Listed, MemberName, Pod, Stop, TlsStage, View, rotation};

/// Makes a member's pod, as pods are made now.
pub(super) fn create(view: &View<'_>, member: &MemberName, launch: Launch, tls: TlsStage) -> Effect {
    Effect::CreatePod {
        member: member.clone(),
        launch,
        version: view.new_pods.clone(),
        tls,
    }
}

/// Stops this very pod.
pub(super) fn stop(member: &MemberName, pod: &Pod, how: Stop) -> Effect {
    Effect::DeletePod {
        member: member.clone(),
        uid: pod.uid.clone(),
        how,
    }
}

/// The pod that comes after this member's pod must be one that the API server takes, or nothing is stopped.
pub(super) fn successor(view: &View<'_>, member: &MemberName, tls: TlsStage) -> Effect {
    try_out(view, member, Launch::Sealed, tls)
}

/// The API server takes this pod, or nothing that follows is done.
pub(super) fn try_out(view: &View<'_>, member: &MemberName, launch: Launch, tls: TlsStage) -> Effect {
    Effect::TryPod {
        member: member.clone(),
        launch,
        version: view.new_pods.clone(),
        tls,
    }
}

/// The pod would not be made like this now.
pub(super) fn made_otherwise(view: &View<'_>, member: &MemberName, pod: &Pod) -> bool {
    pod.template != view.intent.template
        || pod.version != view.new_pods
        || pod.tls != view.stage_of(member)
        || rotation::trusts_others(view, pod)
}

/// The pod was made from other wishes than today's.
pub(super) fn outdated(view: &View<'_>, pod: &Pod) -> bool {
    pod.template != view.intent.template
        || pod.version != view.new_pods
        || pod.tls != view.stage
        || rotation::trusts_others(view, pod)
}

/// Pods that come back as the members they were.
pub(super) struct Comeback {
    pub(super) effects: Vec<Effect>,
    pub(super) names: Vec<String>,
}

/// Brings back the pods of members that are only away. `None`: there are none.
pub(super) fn bring_back(view: &View<'_>) -> Option<Comeback> {
    let mut effects = Vec::new();
    let mut names = Vec::new();
    for member in view.members.values() {
        // With a list only its members come back; without one, those of the last list, and those that the members which
        // answer know: a second voter may have started, and be missed for the quorum, before any list was proven.
        let is_started = |listed: &Listed| listed.name.as_ref() == Some(&member.name);
        let is_unstarted =
            |listed: &Listed| listed.name.is_none() && owner(view.intent, listed).as_ref() == Some(&member.name);
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
            None if matches!(member.health, Health::Unavailable(_))
                && member.claim.is_some_and(|claim| !claim.terminating) =>
            {
                effects.push(create(view, &member.name, Launch::Sealed, view.stage_of(&member.name)));
                names.push(member.name.0.clone());
            }
            // An evicted pod keeps its name; only deleting it frees the name for the same member.
            Some(pod) if pod.ended && !pod.terminating && view.intent.is_durable() => {
                effects.push(successor(view, &member.name, view.stage_of(&member.name)));
                effects.push(stop(&member.name, pod, Stop::Restart));
                names.push(member.name.0.clone());
            }
            // Without a quorum everybody is needed. What is left of a pod on a node that has ended only holds its volume.
            Some(pod)
                if view.world.list.is_none()
                    && member.reply.is_none()
                    && view.intent.is_durable()
                    && super::gone::node_end(view, pod).is_some() =>
            {
                effects.push(stop(&member.name, pod, Stop::Force));
                names.push(member.name.0.clone());
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
                effects.push(stop(&member.name, pod, Stop::Restart));
                names.push(member.name.0.clone());
            }
            _ => {}
        }
    }
    (!effects.is_empty()).then_some(Comeback { effects, names })
}
