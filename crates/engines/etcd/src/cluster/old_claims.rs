//! The claims of the members before a recovery: which of them are kept, and for how long. The one place that decides it.

use std::time::Duration;

use super::members::elapsed;
use super::record::{OldClaims, Record, RestoreStep};
use super::world::{Claim, MemberName};
use super::{Effect, Member, Note, Reason, View};

/// This operator itself must have seen for so long that the new cluster serves, whatever a clock says.
const SEEN_FOR: Duration = Duration::from_secs(3600);

/// A recovery is done: what it left is kept from now on.
pub(super) fn keep(view: &View<'_>, record: &mut Record, claims: Vec<(MemberName, super::Uid)>) -> Option<Effect> {
    let is_there = |(name, uid): &(MemberName, super::Uid)| {
        let claim = view.world.claims.get(name);
        claim.is_some_and(|claim| claim.uid == *uid && !claim.terminating)
    };
    let claims: Vec<_> = claims.into_iter().filter(is_there).collect();
    if claims.is_empty() || view.intent.keep_old_claims.is_zero() {
        return None;
    }
    let names: Vec<&str> = claims.iter().map(|(name, _)| name.0.as_str()).collect();
    let note = Note {
        warning: false,
        reason: Reason::OldClaimsKept,
        message: format!(
            "the claims of the members before the recovery are kept for {} s (spec.recovery.keepOldClaimsSeconds): {}",
            view.intent.keep_old_claims.as_secs(),
            names.join(", ")
        ),
    };
    record.old_claims = Some(OldClaims {
        claims,
        served: view.now,
    });
    Some(Effect::Tell(note))
}

/// The claim of a member that is out of the list stays for now.
pub(super) fn is_kept(view: &View<'_>, member: &MemberName, claim: &Claim) -> bool {
    let Some(old) = &view.record.old_claims else {
        return false;
    };
    let keep = view.intent.keep_old_claims;
    let over = elapsed(old.served, view.now) >= keep && view.world.watched.old_claims >= keep.min(SEEN_FOR);
    !over && old.claims.iter().any(|(name, uid)| name == member && *uid == claim.uid)
}

/// Nothing but a claim that is kept is left of the member.
pub(super) fn is_all_that_is_left(view: &View<'_>, member: &Member<'_>) -> bool {
    member.listed.is_none()
        && member.pod.is_none()
        && view.world.list.is_some()
        && member.claim.is_some_and(|claim| is_kept(view, &member.name, claim))
}

/// A restore that is done has replaced the members before it. Another one may follow, or be taken back, and their claims are
/// still theirs.
pub(super) fn remember_replaced(record: &mut Record, world: &super::World) {
    let done = record
        .restore
        .iter()
        .filter(|restore| restore.step == RestoreStep::Done);
    let replaced = done.flat_map(|restore| {
        let old = restore.old_claims.iter();
        old.filter(|(name, _)| *name != restore.seed).cloned()
    });
    let new: Vec<_> = replaced
        .filter(|claim| !record.replaced_claims.contains(claim))
        .collect();
    record.replaced_claims.extend(new);
    let is_there = |name: &MemberName, uid: &super::Uid| world.claims.get(name).is_some_and(|claim| claim.uid == *uid);
    record.replaced_claims.retain(|(name, uid)| is_there(name, uid));
}

/// What was kept for long enough and is gone need not be remembered.
pub(super) fn forget(intent: &super::Intent, record: &mut Record, world: &super::World, now: jiff::Timestamp) {
    let Some(old) = &record.old_claims else { return };
    let mut claims = old.claims.iter();
    let is_there = claims.any(|(name, uid)| world.claims.get(name).is_some_and(|claim| claim.uid == *uid));
    if !is_there && elapsed(old.served, now) >= intent.keep_old_claims {
        record.old_claims = None;
    }
}
