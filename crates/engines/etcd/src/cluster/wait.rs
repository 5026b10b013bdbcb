//! No chapter has anything to do and not all is well: what is waited for, in words (rule 7).

use super::members::Health;
use super::{LATER, Member, Reason, Step, View, Work};

pub(super) fn wait(view: &View<'_>) -> Option<Step> {
    if view.world.list.is_none() {
        let away: Vec<String> = view.members.values().filter_map(words).collect();
        if let Some(advice) = super::quorum::unproven(view) {
            let message = format!("no quorum of members answers: {}. {advice}", away.join("; "));
            return Some(Step::new(Work::Blocked, Reason::WaitingForProof, message).wake(LATER));
        }
        let message = if away.is_empty() {
            "waiting for a quorum to confirm the member list".to_owned()
        } else {
            format!("no quorum of members answers: {}", away.join("; "))
        };
        return Some(Step::new(Work::Recovering, Reason::WaitingForQuorum, message).wake(LATER));
    }
    if let Some(words) = view
        .members
        .values()
        .filter(|member| member.listed.is_some())
        .find_map(words)
    {
        return Some(
            Step::new(
                Work::Recovering,
                Reason::WaitingForMember,
                format!("waiting for {words}"),
            )
            .wake(LATER),
        );
    }
    let leaves =
        |member: &&Member<'_>| member.listed.is_none() && !super::old_claims::is_all_that_is_left(view, member);
    let leaving = view.members.values().find(leaves)?;
    Some(Step::new(
        Work::Changing,
        Reason::CleaningUp,
        format!(
            "waiting until the pod and the claim of {} are gone; it is out of the cluster",
            leaving.name
        ),
    ))
}

/// Why a member is not healthy.
fn words(member: &Member<'_>) -> Option<String> {
    let why = match &member.health {
        Health::Healthy => return None,
        Health::Unstarted => "not started yet".to_owned(),
        Health::Unavailable(why) => why.clone(),
        Health::Lost(proof) => format!("lost: {}", proof.words()),
    };
    Some(format!("{} ({why})", member.name))
}

#[cfg(test)]
mod tests {
    use crate::cluster::Reason;
    use crate::cluster::testing::three;

    #[test]
    fn every_wait_has_a_reason() {
        for (given, reason, says) in [
            (three(), Reason::AsExpected, ""),
            (
                three().silent("c-b"),
                Reason::WaitingForMember,
                "waiting for c-b (its pod runs but it does not answer",
            ),
            (
                three().without_quorum(),
                Reason::WaitingForQuorum,
                "no quorum of members answers: c-a (it sees no leader)",
            ),
            (
                three().with_objects("c-old").pod("c-old", |pod| pod.terminating = true),
                Reason::CleaningUp,
                "waiting until the pod and the claim of c-old are gone",
            ),
        ] {
            let given = given.world(|world| {
                let old = world.claims.get_mut(&"c-old".into());
                old.into_iter().for_each(|claim| claim.terminating = true);
            });
            let plan = given.then(reason, &[]);
            assert!(plan.report.waiting.starts_with(says), "{}", plan.report.waiting);
        }
    }
}
