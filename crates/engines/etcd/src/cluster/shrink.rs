//! Fewer members: never through the leader, those that hurt least first, one at a time.

use std::collections::BTreeMap;

use super::members::Member;
use super::{Effect, LATER, Note, Reason, SOON, Step, View, Work, size};

/// Learners and members that never started leave first, at once: nobody misses them.
pub(super) fn shrink_what_never_started(view: &View<'_>) -> Option<Step> {
    let list = view.world.list.as_ref()?;
    if view.listed() <= size::wanted(view) {
        return None;
    }
    // A voter that was added and never started counts for the quorum: it goes first.
    let unstarted = view.members.values().filter(|member| {
        // A voter that answers counts for the quorum, also before its name is known.
        member
            .listed
            .is_some_and(|listed| listed.learner || (listed.name.is_none() && member.reply.is_none()))
    });
    let member = unstarted.max_by_key(|member| (member.is_voter(), member.pod.is_none(), !member.is_healthy()))?;
    // Without it those that answer and do not stop must be a quorum; else it is started, and is one of them.
    let stay = list.voters().count() - usize::from(member.is_voter());
    let counted = |other: &&Member<'_>| other.name != member.name && other.reply.is_some() && !other.is_stopping();
    if member.is_voter() && view.voters().filter(counted).count() < stay / 2 + 1 {
        return None;
    }
    Some(remove(view, member, view.listed()))
}

pub(super) fn shrink(view: &View<'_>) -> Option<Step> {
    let list = view.world.list.as_ref()?;
    let total = view.listed();
    if total <= view.intent.size {
        return None;
    }
    let marked = |member: &Member<'_>| size::leaves(view, member);
    let mut on_node: BTreeMap<&str, usize> = BTreeMap::new();
    for member in view.voters() {
        if let Some(node) = member.pod.and_then(|pod| pod.node.as_deref()) {
            *on_node.entry(node).or_default() += 1;
        }
    }
    let crowd = |member: &Member<'_>| {
        member
            .pod
            .and_then(|pod| pod.node.as_deref())
            .map_or(0, |node| on_node[node])
    };
    let leader = view.leader();
    let victim = view.voters().max_by_key(|member| {
        (
            marked(member),
            !member.is_healthy(),
            leader != member.listed.map(|listed| listed.id),
            crowd(member),
            member.name.clone(),
        )
    })?;
    let listed = victim.listed?;
    // Those that stay and answer must be a quorum of those that stay.
    let stay = list.voters().count() - 1;
    let healthy = view
        .voters()
        .filter(|member| member.name != victim.name && member.is_healthy())
        .count();
    if healthy < stay / 2 + 1 || (victim.is_healthy() && healthy < stay) {
        return Some(
            Step::new(
                Work::Scaling,
                Reason::WaitingForHealth,
                format!("{} leaves when all members that stay answer", victim.name),
            )
            .wake(LATER),
        );
    }
    if leader == Some(listed.id) && victim.can_hand_over() {
        let next = view
            .voters()
            .find(|member| member.name != victim.name && member.is_healthy())?
            .listed?;
        let hand_over = Effect::MoveLeader {
            from: listed.id,
            to: next.id,
            cluster: list.cluster,
        };
        return Some(
            Step::new(
                Work::Scaling,
                Reason::MovingLeadership,
                format!("{} leads and hands over before it leaves", victim.name),
            )
            .with([hand_over])
            .wake(SOON),
        );
    }
    Some(remove(view, victim, total))
}

fn remove(view: &View<'_>, member: &Member<'_>, total: usize) -> Step {
    let step = Step::new(
        Work::Scaling,
        Reason::RemovingMember,
        format!("{total} members, {} wanted: {} leaves", view.intent.size, member.name),
    );
    let (Some(list), Some(listed)) = (&view.world.list, member.listed) else {
        return step;
    };
    let remove = Effect::RemoveMember {
        member: member.name.clone(),
        id: listed.id,
        cluster: list.cluster,
        pod: member.pod.map(|pod| pod.uid.clone()),
        claim: member.claim.map(|claim| claim.uid.clone()),
    };
    let note = Note {
        warning: false,
        reason: Reason::MemberRemoved,
        message: format!(
            "member {} ({}) left: {} wanted",
            member.name, listed.id, view.intent.size
        ),
    };
    step.with([remove, Effect::Tell(note)]).wake(std::time::Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::three;

    #[test]
    fn a_follower_leaves_and_never_the_leader() {
        for (size, leader, leaves) in [(1, 1, "remove member c-c (3)"), (2, 3, "remove member c-b (2)")] {
            let given = three().spec(|intent| intent.size = size);
            let given = given.world(|world| {
                world.list.as_mut().expect("a list").leader = Some(crate::cluster::MemberId(leader));
            });
            given.then(Reason::RemovingMember, &[leaves]);
        }
    }

    #[test]
    fn nobody_leaves_while_those_that_stay_do_not_answer() {
        let given = three().spec(|intent| intent.size = 2).silent("c-b").silent("c-c");
        given.then(Reason::WaitingForHealth, &[]);
    }

    #[test]
    fn one_that_never_started_leaves_first() {
        let given = three().spec(|intent| intent.size = 2);
        let given = given
            .listed("c-b", |line| (line.name, line.learner) = (None, true))
            .without_pod("c-b");
        given.then(Reason::RemovingMember, &["remove member c-b (2)"]);
    }
}
