//! Members that are in the list and not yet full members: start them one after another, promote them when they have
//! caught up.
//!
//! One at a time, since two members that start with `existing` at the same moment wait for each other's answer
//! (docs/etcd-facts.md).

use super::members::{Health, LossEvidence, initial_cluster, owner, says_no_data};
use super::{Effect, LATER, Launch, LaunchKind, Listed, MemberName, Reason, SOON, Step, Stop, View, Work, pods};

pub(super) fn join(view: &View<'_>) -> Option<Step> {
    match &view.world.list {
        Some(list) => join_proven(view, list.cluster, &list.members),
        // Before 3.4 a second voter counts from the moment it is added: the first one alone has no quorum then, and
        // only starting the second brings it back. Its own word is enough to start what it lists.
        None => start_next(view, view.believed_list()?),
    }
}

fn join_proven(view: &View<'_>, cluster: super::ClusterId, list: &[Listed]) -> Option<Step> {
    // The one that has caught up becomes a voter; etcd itself judges whether it has.
    for member in view.members.values() {
        let (Some(listed), Some(pod)) = (member.listed, member.pod) else {
            continue;
        };
        if !listed.learner || !member.is_healthy() {
            continue;
        }
        let mut effects = Vec::new();
        if pod.launch != LaunchKind::Sealed {
            effects.push(Effect::SealPod {
                member: member.name.clone(),
                uid: pod.uid.clone(),
            });
        }
        effects.push(Effect::Promote {
            member: member.name.clone(),
            id: listed.id,
            cluster,
        });
        return Some(
            Step::new(
                Work::Scaling,
                Reason::PromotingLearner,
                format!("{} catches up with the leader before it votes", member.name),
            )
            .with(effects)
            .wake(SOON),
        );
    }
    start_next(view, list)
}

/// Starts the next member that is listed and was never started.
fn start_next(view: &View<'_>, list: &[Listed]) -> Option<Step> {
    let unstarted: Vec<MemberName> = list
        .iter()
        .filter(|listed| listed.name.is_none())
        .filter_map(|listed| owner(view.intent, listed))
        .collect();
    // A learner that has started but does not answer yet holds the others back.
    let starting = list
        .iter()
        .filter(|listed| listed.learner && listed.name.is_some())
        .filter_map(|listed| owner(view.intent, listed));
    for name in starting {
        let Some(member) = view.members.get(&name) else {
            continue;
        };
        if let Health::Unavailable(why) = &member.health {
            let step = Step::new(
                Work::Scaling,
                Reason::WaitingForLearner,
                format!("learner {name} does not answer yet: {why}"),
            );
            let runs = member.pod.is_some_and(|pod| pod.running);
            return Some(if runs { step.until_word() } else { step.wake(LATER) });
        }
    }
    let expected = initial_cluster(view.intent, list);
    for name in &unstarted {
        let pod = view.world.pods.get(name);
        let Some(pod) = pod else { continue };
        if view.members.get(name).is_some_and(|member| member.reply.is_some()) {
            if view.world.list.is_none() {
                continue; // Its name waits for a quorum, and the quorum may wait for the next one.
            }
            return Some(
                Step::new(
                    Work::Scaling,
                    Reason::StartingMember,
                    format!("{name} has started and tells its name"),
                )
                .wake(SOON),
            );
        }
        if let Some(step) = begin_elsewhere(view, list, name) {
            return Some(step);
        }
        if pod.terminating {
            return Some(Step::new(
                Work::Scaling,
                Reason::WaitingForPod,
                format!("pod {name} of an earlier attempt is stopping"),
            ));
        }
        // etcd ends when its initial cluster is not the list of the moment it starts.
        let mut names: Vec<MemberName> = expected.iter().map(|(name, _)| name.clone()).collect();
        names.sort();
        names.dedup();
        // A sealed one took part before its name was known: it starts from its data, whatever the list was, if it has any.
        let stale = match pod.launch {
            LaunchKind::Join => pod.initial_cluster != names,
            LaunchKind::Sealed => pod.last_exit.as_ref().is_some_and(|exit| says_no_data(&exit.message)),
            _ => true,
        };
        let never_will = pod.ended
            || (!pod.running && pods::made_otherwise(view, name, pod) && (pod.blocked.is_some() || !pod.ever_ran));
        if (stale && (!pod.running || pod.restarts > 0)) || never_will {
            let again = pods::stop(name, pod, Stop::Restart);
            return Some(
                Step::new(
                    Work::Scaling,
                    Reason::RestartingJoin,
                    format!("{name} starts again with the member list of now"),
                )
                .with([again]),
            );
        }
        if view.intent.is_durable() && pod.node.is_none() && !view.world.claims.contains_key(name) {
            return Some(
                Step::new(
                    Work::Scaling,
                    Reason::StartingMember,
                    format!("the claim of {name} is made again"),
                )
                .with([Effect::CreateClaim { member: name.clone() }]),
            );
        }
        let why = match &pod.blocked {
            Some(blocked) => format!("{name} waits to start: {}: {}", blocked.reason, blocked.message),
            None => format!("{name} is starting"),
        };
        let step = Step::new(Work::Scaling, Reason::StartingMember, why);
        return Some(if pod.running {
            step.until_word()
        } else {
            step.wake(LATER)
        });
    }
    let name = unstarted.iter().find(|name| !view.world.pods.contains_key(*name))?;
    let mut effects = Vec::new();
    if view.intent.is_durable() {
        match view.world.claims.get(name) {
            // It was in a proven list and may have voted since: without that proof it is not begun anew.
            None if view.world.list.is_none() && view.record.members.contains_key(name) => {
                return Some(
                    Step::new(
                        Work::Recovering,
                        Reason::WaitingForQuorum,
                        format!("{name} has no claim; whether it ever had data is known when a quorum answers"),
                    )
                    .wake(LATER),
                );
            }
            None => effects.push(Effect::CreateClaim { member: name.clone() }),
            Some(claim) if claim.terminating => {
                return Some(Step::new(
                    Work::Scaling,
                    Reason::WaitingForClaim,
                    format!("an old claim {name} is being deleted"),
                ));
            }
            Some(_) => {}
        }
    }
    effects.push(pods::create(
        view,
        name,
        Launch::Join { members: expected },
        view.stage_of(name),
    ));
    Some(Step::new(Work::Scaling, Reason::StartingMember, format!("starting {name}")).with(effects))
}

/// Before 3.4 a voter that was added counts for the quorum that it takes to remove it again: the second of two that never
/// starts, because its node or its volume's node is gone, would be waited for for ever. It begins anew elsewhere.
///
/// Nothing confirmed can be lost by it, even if it had started unheard: any two quorums of an even number of voters share
/// two members, so that one of those that remember is in both.
fn begin_elsewhere(view: &View<'_>, list: &[Listed], name: &MemberName) -> Option<Step> {
    let member = view.members.get(name)?;
    let Health::Lost(proof @ (LossEvidence::NodeDead(_) | LossEvidence::VolumeStranded)) = &member.health else {
        return None;
    };
    let voters = list.iter().filter(|listed| !listed.learner).count();
    let unstarted = list.iter().filter(|listed| listed.name.is_none()).count();
    // With a proven list `replace` does it; one that was in such a list may have voted since.
    let is_new = view.world.list.is_none() && !view.record.members.contains_key(name);
    let cluster = view.record.bootstrap.as_ref()?.cluster?;
    if !is_new || !voters.is_multiple_of(2) || unstarted != 1 {
        return None;
    }
    let stop = member
        .pod
        .map(|pod| pods::stop(name, pod, if pod.node.is_some() { Stop::Force } else { Stop::Restart }));
    let discard = member.claim.filter(|claim| !claim.terminating);
    let discard = discard.map(|claim| Effect::DeleteUnstartedClaim {
        member: name.clone(),
        uid: claim.uid.clone(),
        cluster,
    });
    let message = format!("{name} never started and begins elsewhere: {}", proof.words());
    Some(
        Step::new(Work::Scaling, Reason::RestartingJoin, message)
            .with(stop.into_iter().chain(discard))
            .wake(LATER),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::three;

    #[test]
    fn a_learner_that_has_caught_up_is_sealed_and_promoted() {
        let given = three().listed("c-c", |line| line.learner = true);
        let given = given.pod("c-c", |pod| pod.launch = LaunchKind::Join);
        given.then(Reason::PromotingLearner, &["seal c-c", "promote c-c (3)"]);
    }

    #[test]
    fn a_learner_that_does_not_answer_is_waited_for() {
        let given = three().listed("c-c", |line| line.learner = true).silent("c-c");
        assert!(given.then(Reason::WaitingForLearner, &[]).awaits_word);
    }

    #[test]
    fn a_member_that_was_added_is_started_with_the_list_of_now() {
        let given = three()
            .listed("c-c", |line| (line.name, line.learner) = (None, true))
            .without_pod("c-c");
        given.then(Reason::StartingMember, &["create pod c-c (Join, etcd 3.5.35)"]);
    }

    #[test]
    fn a_pod_that_was_made_for_another_list_starts_again() {
        let given = three()
            .listed("c-c", |line| (line.name, line.learner) = (None, true))
            .silent("c-c");
        let given = given.pod("c-c", |pod| {
            pod.launch = LaunchKind::Join;
            pod.initial_cluster = vec!["c-a".into(), "c-c".into()];
            pod.running = false;
        });
        given.then(Reason::RestartingJoin, &["delete pod c-c (Restart, uid pod-c-c)"]);
    }
}
