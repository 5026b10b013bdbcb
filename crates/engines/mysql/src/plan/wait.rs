//! Nothing can be done at the moment, and not everything is as expected: what is waited for.

use super::members::{Data, is_open};
use super::round::{RETRY, Round, View, Work};
use crate::reason::Reason;
use crate::world::Ordinal;

pub(super) fn wait(view: &View<'_>, round: &mut Round) {
    blocked_writes(view, round);
    for member in view.intent.members() {
        if let Some(left) = view.patience(member) {
            round.wake(left.max(super::round::SOON));
        }
        let Some(why) = view.why_silent(member) else { continue };
        let reason = reason(view, member);
        let work = if round.memory.opened {
            Work::Recovering
        } else {
            Work::Creating
        };
        round.say(work, reason, why);
        round.wake(RETRY);
    }
    for member in view.intent.members() {
        let lags = view.data(&round.memory, member) == Data::Ours
            && Some(member) != round.memory.primary
            && view.is_clean(&round.memory, member)
            && !view.has_caught_up(&round.memory, member);
        let acknowledges = view.intent.acks == 0 || round.memory.ackers.contains(&member);
        if is_open(view, round)
            && (lags || (view.is_clean(&round.memory, member) && !acknowledges && Some(member) != round.memory.primary))
        {
            let message = format!("waiting until {} has caught up with the primary", view.name(member));
            round.say(Work::Recovering, Reason::WaitingForReplica, message);
            round.wake(super::round::LATER);
        }
    }
}

/// Too few acknowledge, so that writes wait.
fn blocked_writes(view: &View<'_>, round: &mut Round) {
    let memory = &round.memory;
    let live = memory
        .ackers
        .iter()
        .filter(|member| view.acknowledges(memory, **member))
        .count();
    let live = u32::try_from(live).unwrap_or(0);
    if !is_open(view, round) || live >= memory.required {
        return;
    }
    let message = format!(
        "writes wait: {} replicas must acknowledge each of them, and {live} can (spec.durability.whenNoAcker is Block)",
        memory.required
    );
    round.say(Work::Recovering, Reason::WritesBlocked, message);
    round.wake(super::round::LATER);
}

fn reason(view: &View<'_>, member: Ordinal) -> Reason {
    let claim = view.member(member).and_then(|member| member.claim.as_ref());
    match view.pod(member) {
        None => Reason::WaitingForPods,
        Some(_) if claim.is_some_and(|claim| !claim.bound) => Reason::ClaimNotBound,
        Some(pod) if pod.facts.blocked.is_some() => Reason::PodNotRunning,
        Some(pod) if !pod.facts.running => Reason::WaitingForPods,
        Some(_) => Reason::MemberNotReplying,
    }
}
