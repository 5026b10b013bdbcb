//! What is remembered because it was observed.

use super::members::Data;
use super::round::{Round, View};
use crate::world::Ordinal;

pub(super) fn remember(view: &View<'_>, round: &mut Round) {
    claims(view, round);
    former_primary(view, round);
    forget(view, round);
    version(view, round);
    if let Some(primary) = round.memory.primary
        && !view.intent.hibernate
        && view.reply(primary).is_some()
    {
        round.memory.hibernating = false;
    }
}

/// The claims with the cluster's data. One that acknowledged, or was written to, with another claim is lost.
fn claims(view: &View<'_>, round: &mut Round) {
    for (member, observed) in &view.world.members {
        let Some(claim) = observed.claim.as_ref().filter(|claim| !claim.terminating) else {
            continue;
        };
        if !round.memory.founded() || view.data(&round.memory, *member) != Data::Ours {
            continue;
        }
        let holds = round.memory.ackers.contains(member) || round.memory.primary == Some(*member);
        if !holds || !round.memory.claims.contains_key(member) {
            round.memory.claims.insert(*member, claim.uid.clone());
        }
    }
}

/// The former primary follows and has nothing of its own: no question is left.
fn former_primary(view: &View<'_>, round: &mut Round) {
    let Some(former) = round.memory.former_primary else {
        return;
    };
    let memory = &round.memory;
    let gone = !view.has_place(former) && view.pod(former).is_none() && former.0 >= view.intent.size;
    if gone || (view.is_clean(memory, former) && view.follows(memory, former)) {
        round.memory.former_primary = None;
    }
}

/// Members that were scaled in.
fn forget(view: &View<'_>, round: &mut Round) {
    let remembered = round.memory.claims.keys().chain(round.memory.applied.keys());
    let remembered = remembered.chain(round.memory.quarantine.keys());
    let is_gone = |member: &Ordinal| {
        let empty = view
            .member(*member)
            .is_none_or(|member| member.pod.is_none() && member.claim.is_none());
        let needed = round.memory.ackers.contains(member) || round.memory.primary == Some(*member);
        empty && !needed && member.0 >= view.intent.size && !view.has_place(*member)
    };
    let gone: Vec<Ordinal> = remembered.copied().filter(is_gone).collect();
    for member in gone {
        round.memory.claims.remove(&member);
        round.memory.applied.remove(&member);
        round.memory.quarantine.remove(&member);
    }
}

/// The version that all members run by their own word.
fn version(view: &View<'_>, round: &mut Round) {
    let Some(target) = round.memory.target else { return };
    let mut members = view.intent.members();
    let reached = members.all(|member| view.reply(member).is_some_and(|reply| reply.version == target));
    if reached {
        round.memory.current = Some(target);
        round.memory.target = None;
        round.memory.upgrade_backup = None;
    }
}
