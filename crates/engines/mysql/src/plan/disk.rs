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
    own(view, round);
    for (member, observed) in &view.world.members {
        let Some(reply) = observed.reply() else { continue };
        let Some(volume) = reply.volume.filter(|volume| volume.size > 0) else {
            continue;
        };
        let used = percent(volume.size.saturating_sub(volume.free), volume);
        if used > FULL_ABOVE {
            let name = view.name(*member);
            let message = if volume.size / 2 > view.intent.storage.bytes {
                format!(
                    "the file system of {name}'s volume is more than {FULL_ABOVE} % full; it is larger than the claim, so others use it \
                     too: free space there"
                )
            } else {
                format!(
                    "the volume of {name} is more than {FULL_ABOVE} % full: raise spec.storage.size before it is full"
                )
            };
            round.say(Work::Warning, Reason::DiskAlmostFull, message);
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

/// Claims go with the cluster unless the spec retains them.
fn own(view: &View<'_>, round: &mut Round) {
    let owned = !view.intent.storage.retain;
    for (member, observed) in &view.world.members {
        if let Some(claim) = observed.claim.as_ref().filter(|claim| !claim.terminating)
            && observed.owned != owned
        {
            round.act(Action::OwnClaim {
                member: *member,
                uid: claim.uid.clone(),
                owned,
            });
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::{Given, three};

    /// Three members, the volume of one of which has so many bytes, 90 % of them used.
    fn almost_full(size: u64) -> Given {
        three().reply(2, |reply| {
            reply.volume = Some(Volume {
                size,
                free: size / 10,
                binlogs: 0,
            });
        })
    }

    #[test]
    fn claims_go_with_the_cluster_unless_they_are_retained() {
        let claims = |given: Given| {
            let actions = given.plan().actions;
            let claims = actions
                .iter()
                .filter(|action| matches!(action, Action::OwnClaim { .. }));
            claims.map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(claims(three()).is_empty());
        let found = three().world(|world| world.members.values_mut().for_each(|member| member.owned = false));
        assert_eq!(claims(found).len(), 3);
        let retained = three().edited(|spec| spec["storage"] = serde_json::json!({"size": "10Gi", "retain": "Retain"}));
        let kept = claims(retained);
        assert_eq!(kept.len(), 3);
        assert!(kept[0].contains("outlive the cluster"), "{kept:?}");
    }

    #[test]
    fn a_volume_that_is_almost_full_is_reported_while_nothing_waits() {
        let claim = three().intent.storage.bytes;
        for (size, advice) in [(claim, "raise spec.storage.size"), (claim * 10, "free space there")] {
            let report = almost_full(size).plan().report;
            assert!(report.degraded.holds, "{report:?}");
            assert_eq!(report.degraded.reason, Reason::DiskAlmostFull);
            assert!(report.degraded.message.contains(advice), "{report:?}");
            assert!(report.degraded.message.contains("orders-2"), "{report:?}");
            assert!(!report.progressing.holds, "{report:?}");
            assert!(report.available.holds, "{report:?}");
            assert_eq!(report.waiting, "");
        }
    }
}
