//! An unplanned change of the primary: stop enough acknowledgers, read what they received, record the most advanced as the
//! primary. `open` makes it writable.
//!
//! When |A| - k + 1 acknowledgers have stopped and were read afterwards, they hold every acknowledged transaction, and fewer than k
//! are left that could acknowledge to the old primary.

use std::collections::BTreeSet;
use std::time::Duration;

use super::members::Data;
use super::round::{Flow, LATER, Round, SOON, View, Work};
use crate::action::Action;
use crate::gtid::GtidSet;
use crate::memory::Failover;
use crate::reason::Reason;
use crate::world::{Ordinal, Reply};

/// For how long the primary is waited for when all members start again after hibernation.
const WAKING: Duration = Duration::from_secs(60);

pub(super) fn failover(view: &View<'_>, round: &mut Round) -> Flow {
    let Some(primary) = round.memory.primary else {
        return Flow::On;
    };
    if round.memory.failover.is_none() {
        let Some(why) = down(view, round, primary) else {
            if let Some(left) = view.patience(primary) {
                round.wake(left.max(SOON));
            }
            return Flow::On;
        };
        let pool = pool(view, round, primary);
        let any = pool
            .members
            .iter()
            .any(|member| !round.memory.quarantine.contains_key(member));
        if !(pool.forced || pool.members.len() >= needed(round)) || !any {
            impossible(view, round, primary, &why, &pool);
            return Flow::On;
        }
        round.memory.failover = Some(Failover {
            from: primary,
            reason: why,
            since: view.now,
        });
        round.memory.switchover = None;
    }
    replace(view, round, primary)
}

/// Why the primary must be replaced.
fn down(view: &View<'_>, round: &Round, primary: Ordinal) -> Option<String> {
    let memory = &round.memory;
    if view.is_lost(memory, primary) {
        return Some("its data is lost".into());
    }
    let after = view.intent.failover_after;
    if !memory.hibernating {
        return view.away_for(primary, after);
    }
    // All pods start at the same time: the primary may be the last.
    view.away_for(primary, WAKING.max(after)).filter(|_| {
        view.member(primary)
            .and_then(|member| member.pod.as_ref())
            .is_some_and(|pod| pod.facts.running)
    })
}

fn needed(round: &Round) -> usize {
    round.memory.needed().max(1)
}

/// Those whose received transactions decide.
struct Pool {
    members: Vec<Ordinal>,
    /// The user has confirmed that every other member that could hold something is lost.
    forced: bool,
}

fn pool(view: &View<'_>, round: &Round, primary: Ordinal) -> Pool {
    let memory = &round.memory;
    let is_usable = |member: &Ordinal| view.data(memory, *member) == Data::Ours;
    let ackers = memory.ackers.iter().copied().filter(|member| *member != primary);
    let usable: Vec<Ordinal> = ackers.clone().filter(is_usable).collect();
    if usable.len() >= needed(round) {
        return Pool {
            members: usable,
            forced: false,
        };
    }
    let lost = &view.intent.requests.confirm_lost;
    let mut missing = ackers.chain([primary]).filter(|member| !usable.contains(member));
    let silent = |member: Ordinal| lost.contains(&member) && view.reply(member).is_none();
    let all: Vec<Ordinal> = view
        .others(memory)
        .map(|(member, _)| member)
        .filter(is_usable)
        .collect();
    if !all.is_empty() && missing.all(silent) {
        return Pool {
            members: all,
            forced: true,
        };
    }
    Pool {
        members: usable,
        forced: false,
    }
}

fn replace(view: &View<'_>, round: &mut Round, primary: Ordinal) -> Flow {
    let pool = pool(view, round, primary);
    let mut stopped: Vec<(Ordinal, &Reply)> = Vec::new();
    let mut running = 0_usize;
    for member in &pool.members {
        match view.reply(*member) {
            Some(reply) if reply.is_fenced() => stopped.push((*member, reply)),
            Some(reply) => {
                running += 1;
                round.act(Action::StopReceiver {
                    member: *member,
                    process: reply.process.clone(),
                });
            }
            None => {}
        }
    }
    let enough = if pool.forced {
        running == 0 && !stopped.is_empty()
    } else {
        stopped.len() >= needed(round)
    };
    // A receiver that was stopped before the failover was recorded may be started again by another operator.
    let recorded = view.stored.failover.is_some();
    if enough && recorded && promote(view, round, primary, &stopped, pool.forced) {
        return Flow::On;
    }
    let why = round.memory.failover.as_ref().map(|failover| failover.reason.clone());
    let why = why.unwrap_or_default();
    if running > 0 || !recorded {
        round.say(
            Work::Recovering,
            Reason::FailingOver,
            format!(
                "{} is replaced, as {why}: stopping the replication of those who acknowledge",
                view.name(primary)
            ),
        );
        round.wake(SOON);
        return Flow::Stop;
    }
    if view.data(&round.memory, primary) == Data::Ours {
        // It is back before it could be replaced, and it is still the primary.
        round.memory.failover = None;
        return Flow::On;
    }
    if enough {
        differ(view, round, primary, &pool);
    } else {
        impossible(view, round, primary, &why, &pool);
    }
    Flow::Stop
}

/// None has all that the others have.
fn differ(view: &View<'_>, round: &mut Round, primary: Ordinal, pool: &Pool) {
    let message = format!(
        "{} is unavailable, and none of {} has all transactions that the others have, or has none of its own. Bring back {}, or compare \
         SELECT @@gtid_executed on each of them",
        view.name(primary),
        view.names(&pool.members),
        view.name(primary),
    );
    round.say(Work::Blocked, Reason::ReceivedSetsDiffer, message);
    round.wake(LATER);
}

/// The most advanced becomes the primary. False: there is none.
fn promote(view: &View<'_>, round: &mut Round, from: Ordinal, stopped: &[(Ordinal, &Reply)], forced: bool) -> bool {
    // What a member wrote itself decides nothing, and keeps it from being promoted.
    let own = |member: Ordinal, reply: &Reply| -> GtidSet {
        let known = round.memory.quarantine.get(&member).map(|one| one.gtids.clone());
        view.written_aside(&round.memory, reply)
            .union(&known.unwrap_or_default())
    };
    let mut all = GtidSet::default();
    for (member, reply) in stopped {
        all.extend(&reply.received().subtract(&own(*member, reply)));
    }
    let best = stopped
        .iter()
        .filter(|(member, reply)| own(*member, reply).is_empty() && reply.received().contains(&all))
        .min_by_key(|(member, reply)| {
            let version = view.version(from).or(round.memory.current);
            (
                view.is_ending(*member),
                member.0 >= view.intent.size,
                version.is_some_and(|version| version != reply.version),
                view.intent.prefer != Some(*member),
                reply.unapplied().count(),
                *member,
            )
        });
    let Some((best, reply)) = best.copied() else {
        return false;
    };
    let has = reply.received();
    let read: BTreeSet<Ordinal> = stopped
        .iter()
        .map(|(member, _)| *member)
        .filter(|one| *one != best)
        .collect();
    let holders = stopped
        .iter()
        .filter(|(member, reply)| *member != best && reply.received().contains(&has))
        .count();
    let memory = &mut round.memory;
    let why = memory
        .failover
        .take()
        .map(|failover| failover.reason)
        .unwrap_or_default();
    if forced {
        // What the lost members had acknowledged is given up, by the user's word.
        memory.acks = 0;
        memory.ackers = BTreeSet::new();
        memory.former_primary = None;
    } else {
        // k others hold everything: who was not read is not needed any more.
        if holders >= usize::try_from(memory.acks).unwrap_or(usize::MAX) {
            memory.ackers = read;
        }
        memory.former_primary = Some(from);
    }
    memory.received_at_promotion = all;
    memory.primary = Some(best);
    memory.epoch += 1;
    memory.opened = false;
    memory.pending = None;
    memory.expelled = BTreeSet::new();
    memory.quarantine.remove(&best);
    memory.hibernating = false;
    let message = format!("{} takes the place of {}, as {why}", view.name(best), view.name(from));
    round.note(true, Reason::FailedOver, message.clone());
    round.say(Work::Recovering, Reason::FailingOver, message);
    round.wake(SOON);
    true
}

/// Too few acknowledgers reply.
fn impossible(view: &View<'_>, round: &mut Round, primary: Ordinal, why: &str, pool: &Pool) {
    round.wake(LATER);
    let memory = &round.memory;
    let name = view.name(primary);
    if view.is_lost(memory, primary) && memory.acks == 0 {
        let message = format!(
            "the data of {name} is lost ({why}), and no replica is proven to have all of it. Restore a backup, or accept what the \
             replicas have: annotate the MySQLCluster with {}={name}",
            crate::names::ANNOTATION_CONFIRM_LOST
        );
        round.say(Work::Blocked, Reason::PrimaryDataLost, message);
        return;
    }
    if memory.acks == 0 {
        let message = format!("waiting for the primary {name}: {why}. No replica is proven to have all that it has");
        round.say(Work::Recovering, Reason::PrimaryUnavailable, message);
        return;
    }
    let missing: Vec<String> = memory
        .ackers
        .iter()
        .filter(|member| !pool.members.contains(member) && **member != primary)
        .map(|member| {
            let why = match view.data(memory, *member) {
                Data::Unknown => view.away(*member).unwrap_or_else(|| "it does not reply".into()),
                Data::Blank => "its data is lost".into(),
                Data::Foreign => "its data is of another cluster".into(),
                Data::Ours => String::new(),
            };
            format!("{} ({why})", view.name(*member))
        })
        .collect();
    let message = format!(
        "the primary {name} is unavailable ({why}), and {} of the {} members that acknowledge writes must reply before another can \
         take its place. Bring back {name} or {}; if they are gone for good, name all of them in the annotation {}",
        needed(round),
        memory.ackers.len(),
        missing.join(", "),
        crate::names::ANNOTATION_CONFIRM_LOST
    );
    round.say(Work::Blocked, Reason::MajorityOfAckersLost, message);
}
