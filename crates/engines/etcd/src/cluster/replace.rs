//! A member that is proven lost leaves the list; `grow` then adds its successor.
//!
//! Remove first, add second: with one of three voters dead etcd refuses to add before (strict reconfiguration check),
//! and with more voters removing a dead one costs no fault tolerance.

use std::time::Duration;

use super::members::{Health, LossEvidence, elapsed};
use super::pods::made_otherwise;
use super::record::{CrashReplaced, Record};
use super::{Effect, Member, Note, Reason, Step, View, Work};

/// A member that crashes although its predecessor was replaced for it: the reason is not in its data. It is replaced again
/// only after this time, twice as long each time.
const PATIENCE_WITH_CRASHES: Duration = Duration::from_secs(600);
/// So long after the last one, crashes are counted from the beginning.
const CRASHES_FORGOTTEN: Duration = Duration::from_secs(24 * 3600);

pub(super) fn replace(view: &View<'_>, record: &mut Record) -> Option<Step> {
    let list = view.world.list.as_ref()?;
    // Silent ones first: one that is corrupt still votes, and the quorum may need it until then.
    let lost = |member: &&Member<'_>| member.listed.is_some() && matches!(member.health, Health::Lost(_));
    let lost = view.members.values().filter(lost);
    let member = lost.min_by_key(|member| member.reply.is_some())?;
    let (Some(listed), Health::Lost(proof)) = (member.listed, &member.health) else {
        return None;
    };
    let words = proof.words();
    let crashes = matches!(proof, LossEvidence::CrashLoop(_));
    if crashes && let Some(wait) = held_back(view) {
        let will_change = member.pod.is_some_and(|pod| made_otherwise(view, &member.name, pod));
        if will_change || view.listed() > view.intent.size {
            return None; // another chapter has something better for it
        }
        let message = format!(
            "member {} is left as it is: {words}. Its predecessor was replaced for the same and it did not help. Look at its log (kubectl logs {} --previous) and change what it tells of; a replacement is tried again in {} min",
            member.name,
            member.name,
            wait.as_secs().div_ceil(60)
        );
        return Some(Step::new(Work::Blocked, Reason::CrashesAgain, message).wake(wait));
    }
    let message = format!("replacing {}: {words}", member.name);
    if !listed.learner {
        // Those that answer must be a quorum of what remains (etcd refuses otherwise too).
        let remaining = list.voters().count() - 1;
        let healthy = view
            .voters()
            .filter(|other| other.name != member.name)
            .filter(|other| !other.is_stopping())
            .filter(|other| other.is_healthy() || member.reply.is_none() && other.reply.is_some())
            .count();
        if remaining == 0 || healthy < remaining / 2 + 1 {
            if view.voters().any(|other| other.health == Health::Unstarted) {
                return None; // it is missed, and starting it comes later
            }
            return Some(
                Step::new(
                    Work::Recovering,
                    Reason::WaitingToReplace,
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
                Step::new(Work::Recovering, Reason::MovingLeadership, message)
                    .with([Effect::MoveLeader {
                        from: listed.id,
                        to: next.id,
                        cluster: list.cluster,
                    }])
                    .wake(super::SOON),
            );
        }
    }
    if crashes {
        let before = view.record.crash_replaced.as_ref();
        let recent = before.filter(|before| elapsed(before.at, view.now) < CRASHES_FORGOTTEN);
        record.crash_replaced = Some(CrashReplaced {
            at: view.now,
            times: recent.map_or(0, |recent| recent.times).saturating_add(1),
        });
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
        reason: Reason::MemberLost,
        message: format!("member {} ({}) is replaced: {words}", member.name, listed.id),
    });
    // What is deleted for its content is compared once more at that moment.
    let guard = matches!(proof, LossEvidence::Corrupt(_)).then(|| super::hashes::guard(view, list.cluster));
    Some(
        Step::new(Work::Recovering, Reason::ReplacingMember, message)
            .with(guard)
            .with([remove, note])
            .wake(std::time::Duration::ZERO),
    )
}

/// For how long a member that crashes is not replaced, because the last one that was is not long ago.
fn held_back(view: &View<'_>) -> Option<Duration> {
    let last = view.record.crash_replaced.as_ref()?;
    let pause = PATIENCE_WITH_CRASHES.saturating_mul(1 << last.times.saturating_sub(1).min(6));
    let passed = elapsed(last.at, view.now).min(view.world.watched.crash_replaced);
    pause.checked_sub(passed).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::{MINUTE, crashes, three};

    #[test]
    fn a_member_that_is_proven_lost_leaves_the_list() {
        for given in [
            // Its claim is gone.
            three().lost("c-b"),
            // Its volume is empty: etcd says so.
            three()
                .silent("c-b")
                .pod("c-b", |pod| crashes(pod, "cannot fetch cluster info from peer urls")),
            // Its data cannot be read.
            three()
                .silent("c-b")
                .pod("c-b", |pod| crashes(pod, "walpb: crc mismatch")),
        ] {
            given.then(Reason::ReplacingMember, &["remove member c-b (2)"]);
        }
    }

    #[test]
    fn one_that_does_not_answer_is_not_lost() {
        three().silent("c-b").then(Reason::WaitingForMember, &[]);
    }

    #[test]
    fn it_waits_while_the_others_would_be_no_quorum() {
        three().lost("c-b").silent("c-c").then(Reason::WaitingToReplace, &[]);
    }

    #[test]
    fn crashes_that_a_replacement_did_not_end_are_left_to_a_person() {
        let given = three()
            .silent("c-b")
            .pod("c-b", |pod| crashes(pod, "no words that are known"));
        let plan = given.then(Reason::ReplacingMember, &["remove member c-b (2)"]);
        let given = given.record(|record| record.crash_replaced = plan.record.crash_replaced);
        assert!(given.then(Reason::CrashesAgain, &[]).wake <= Some(10 * MINUTE));
    }
}
