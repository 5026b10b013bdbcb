//! A member that is proven lost leaves the list; `grow` then adds its successor.
//!
//! Remove first, add second: with one of three voters dead etcd refuses to add before (strict reconfiguration check),
//! and with more voters removing a dead one costs no fault tolerance.

use super::members::Fate;
use super::{Effect, Note, Step, View, Work};

pub(super) fn replace(view: &View<'_>) -> Option<Step> {
    let list = view.world.list.as_ref()?;
    let member = view
        .members
        .values()
        .find(|member| member.listed.is_some() && matches!(member.fate, Fate::Lost(_)))?;
    let (Some(listed), Fate::Lost(proof)) = (member.listed, &member.fate) else {
        return None;
    };
    let words = proof.words();
    let message = format!("replacing {}: {words}", member.name);
    if !listed.learner {
        // Those that answer must be a quorum of what remains (etcd refuses otherwise too).
        let remaining = list.voters().count() - 1;
        let healthy = view
            .voters()
            .filter(|other| other.name != member.name && other.is_healthy())
            .count();
        if remaining == 0 || healthy < remaining / 2 + 1 {
            return Some(
                Step::new(
                    Work::Recovering,
                    "WaitingToReplace",
                    format!("{message}; waiting until enough other members answer"),
                )
                .wake(super::LATER),
            );
        }
        // A leader that is corrupt still answers: leadership goes first.
        if list.leader == Some(listed.id)
            && member.can_hand_over()
            && let Some(next) = view
                .voters()
                .find(|other| other.name != member.name && other.is_healthy())
                .and_then(|other| other.listed)
        {
            return Some(
                Step::new(Work::Recovering, "MovingLeadership", message)
                    .with([Effect::MoveLeader {
                        from: listed.id,
                        to: next.id,
                        cluster: list.cluster,
                    }])
                    .wake(super::SOON),
            );
        }
    }
    let remove = Effect::RemoveMember {
        member: member.name.clone(),
        id: listed.id,
        cluster: list.cluster,
        pod: member.pod.map(|pod| pod.uid.clone()),
        claim: member.claim.map(|claim| claim.uid.clone()),
    };
    let note = Effect::Tell(Note {
        warning: true,
        reason: "MemberLost",
        message: format!("member {} ({}) is replaced: {words}", member.name, listed.id),
    });
    Some(
        Step::new(Work::Recovering, "ReplacingMember", message)
            .with([remove, note])
            .wake(std::time::Duration::ZERO),
    )
}
