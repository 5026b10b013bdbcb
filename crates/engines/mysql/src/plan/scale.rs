//! Fewer members: the highest ordinals first, none of them the primary or an acknowledger any more. Their claims are deleted
//! afterwards, by UID, unless the spec retains them. More members need only pods; `clone` and `replicate` do the rest.

use super::members::is_open;
use super::round::{LATER, Round, View, Work};
use crate::action::{Action, ClaimEnd};
use crate::names::ANNOTATION_DISCARD;
use crate::reason::Reason;
use crate::world::Ordinal;

pub(super) fn scale(view: &View<'_>, round: &mut Round) {
    let Some(set) = &view.world.set else { return };
    if round.primary_changes() || !round.memory.founded() {
        return;
    }
    if set.replicas < view.intent.size {
        let message = format!("creating members until there are {}", view.intent.size);
        round.say(Work::Scaling, Reason::ScalingOut, message);
    }
    // While there is no primary that takes writes, every member may be needed.
    let primary_is_open = is_open(view, round) && view.primary(&round.memory).is_some();
    if set.replicas > view.intent.size && primary_is_open {
        let mut keep = set.replicas;
        let mut why = None;
        while keep > view.intent.size && why.is_none() {
            why = needed(view, round, Ordinal(keep - 1));
            keep -= u32::from(why.is_none());
        }
        match why {
            Some((reason, why)) => {
                let work = if reason.degrades() {
                    Work::Blocked
                } else {
                    Work::Scaling
                };
                round.say(work, reason, why);
                round.wake(LATER);
            }
            None => round.say(
                Work::Scaling,
                Reason::ScalingIn,
                format!("removing members until there are {}", view.intent.size),
            ),
        }
        if keep < set.replicas {
            round.act(Action::ScaleIn {
                uid: set.uid.clone(),
                replicas: keep,
            });
        }
    }
    if primary_is_open {
        delete_claims(view, round);
    }
}

/// Why a member cannot be removed yet.
fn needed(view: &View<'_>, round: &Round, member: Ordinal) -> Option<(Reason, String)> {
    let (memory, name) = (&round.memory, view.name(member));
    if memory.primary == Some(member) {
        let message =
            format!("before {name} is removed, it gives the role of the primary to a member that has caught up");
        return Some((Reason::ScalingIn, message));
    }
    let acknowledges = memory.ackers.contains(&member)
        || memory
            .pending
            .as_ref()
            .is_some_and(|pending| pending.ackers.contains(&member));
    if acknowledges {
        let message = format!("before {name} is removed, others must hold all that it acknowledged");
        return Some((Reason::ReleasingAcker, message));
    }
    unsaved(view, round, member)
}

/// It has transactions that no other member has.
fn unsaved(view: &View<'_>, round: &Round, member: Ordinal) -> Option<(Reason, String)> {
    let quarantine = round.memory.quarantine.get(&member)?;
    let name = view.name(member);
    let message = format!(
        "{name} is not removed: it has transactions that the primary does not have. Annotate the MySQLCluster with \
         {ANNOTATION_DISCARD}={name} if they are not needed"
    );
    let discarded = view.intent.requests.discard.contains(&member);
    (!quarantine.saved && !discarded).then_some((Reason::ErrantTransactions, message))
}

fn delete_claims(view: &View<'_>, round: &mut Round) {
    if view.intent.storage.retain {
        return;
    }
    for (member, observed) in &view.world.members {
        let Some(claim) = observed.claim.as_ref().filter(|claim| !claim.terminating) else {
            continue;
        };
        let free = member.0 >= view.intent.size
            && !view.has_place(*member)
            && observed.pod.is_none()
            && needed(view, round, *member).is_none();
        if free {
            round.say(
                Work::Scaling,
                Reason::ScalingIn,
                format!("deleting the claim of {}, which was removed", view.name(*member)),
            );
            round.act(Action::DeleteClaim {
                member: *member,
                uid: claim.uid.clone(),
                why: ClaimEnd::ScaledIn,
            });
        }
    }
}
