//! Space: claims grow when the spec does, and binlogs are purged before a volume is full. Up to 80 % of a volume no binlog is purged
//! that a member lacks; beyond that, a member that lags is cloned anew.

use super::round::{Round, View, Work};
use crate::action::Action;
use crate::gtid::GtidSet;
use crate::reason::Reason;
use crate::world::{Ordinal, Reply, Volume};

/// In per cent of the volume: binlogs that every member has are purged.
const TIDY_ABOVE: u64 = 50;
/// In per cent of the volume: members that lag are not waited for any more.
const SHORT_ABOVE: u64 = 80;
/// In per cent of the volume: users are warned.
const FULL_ABOVE: u64 = 85;
/// In per cent of the volume: fewer binlogs are not worth a purge.
const WORTH: u64 = 10;
/// How many transactions a purge must be able to remove, so that it is not repeated for the last file.
const MANY: u64 = 1000;

pub(super) fn disk(view: &View<'_>, round: &mut Round) {
    grow(view, round);
    for (member, observed) in &view.world.members {
        let Some(reply) = observed.reply() else { continue };
        let Some(volume) = reply.volume.filter(|volume| volume.size > 0) else {
            continue;
        };
        let used = percent(volume.size.saturating_sub(volume.free), volume);
        if used > FULL_ABOVE {
            let message = format!(
                "the volume of {} is more than {FULL_ABOVE} % full: raise spec.storage.size before it is full",
                view.name(*member)
            );
            round.say(Work::Changing, Reason::DiskAlmostFull, message);
        }
        if used > TIDY_ABOVE && percent(volume.binlogs, volume) > WORTH {
            purge(view, round, *member, reply, used > SHORT_ABOVE);
        }
    }
}

fn percent(part: u64, volume: Volume) -> u64 {
    part.saturating_mul(100) / volume.size.max(1)
}

fn purge(view: &View<'_>, round: &mut Round, member: Ordinal, reply: &Reply, short: bool) {
    // Only the primary's word tells what everybody has, and it is not replaced at this moment.
    if round.primary_changes() || round.memory.primary.and_then(|primary| view.reply(primary)).is_none() {
        return;
    }
    let mut common = reply.executed.clone();
    for other in view.intent.members() {
        match view.reply(other) {
            Some(other) if !other.is_blank() => common = common.intersection(&other.executed),
            // One that is cloned brings what it needs.
            Some(_) => {}
            None if short && !round.memory.ackers.contains(&other) => {}
            None => return,
        }
    }
    if common.subtract(&reply.purged).count() < MANY {
        return;
    }
    let keep: GtidSet = reply.executed.subtract(&common);
    round.say(
        Work::Changing,
        Reason::PurgingBinlogs,
        format!("purging binlogs of {} that every member has", view.name(member)),
    );
    round.act(Action::PurgeBinlogs {
        member,
        process: reply.process.clone(),
        keep,
    });
    round.wake(super::round::RETRY);
}

/// The spec asks for more space than a claim does.
fn grow(view: &View<'_>, round: &mut Round) {
    let bytes = view.intent.storage.bytes;
    for member in view.intent.members() {
        let claim = view.member(member).and_then(|member| member.claim.as_ref());
        let Some(claim) = claim.filter(|claim| claim.bound && !claim.terminating && claim.requested < bytes) else {
            continue;
        };
        round.say(
            Work::Changing,
            Reason::GrowingClaims,
            format!("the claim of {} grows", view.name(member)),
        );
        round.act(Action::GrowClaim {
            member,
            uid: claim.uid.clone(),
            bytes,
        });
    }
}
