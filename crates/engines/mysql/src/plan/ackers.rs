//! Who may acknowledge (A), how many must (k), and for how many the primary waits.
//!
//! - A grows before a receiver may acknowledge.
//! - A member leaves A only after it was kept from acknowledging, and when k of those that remain hold all that the primary had
//!   then. A higher k is recorded when as many hold all that the primary had since it waits for as many.
//! - A lower k is recorded before the primary waits for fewer.

use std::collections::BTreeSet;

use super::members::is_open;
use super::round::{Round, SOON, View, Work};
use crate::action::Action;
use crate::api::WhenNoAcker;
use crate::gtid::GtidSet;
use crate::memory::Pending;
use crate::reason::Reason;
use crate::world::{Ordinal, Reply};

pub(super) fn ackers(view: &View<'_>, round: &mut Round) {
    // What a primary without its data says of itself is no reason to need less of the others.
    let Some((primary, reply)) = view.primary(&round.memory) else {
        return;
    };
    if round.primary_changes() || view.stored.primary != Some(primary) {
        return;
    }
    let before = round.memory.ackers.clone();
    choose_leavers(view, round, primary);
    required(view, round, primary);
    enlist(view, round, primary);
    keep_leavers_out(view, round);
    let target = target(view, round, primary, reply);
    settle(view, round, primary, target);
    if round.memory.ackers != before {
        round.wake(SOON);
    }
    lock(view, round, primary, reply);
    set_acks(round, primary, reply);
    nudge(view, round, primary, reply);
}

/// The acknowledgers but the primary itself, which is one until enough others hold what it has.
fn replicas(round: &Round, primary: Ordinal) -> BTreeSet<Ordinal> {
    let ackers = round.memory.ackers.iter().copied();
    ackers.filter(|member| *member != primary).collect()
}

fn live(view: &View<'_>, round: &Round, members: &BTreeSet<Ordinal>) -> usize {
    let live = members
        .iter()
        .filter(|member| view.acknowledges(&round.memory, **member));
    live.count()
}

/// Acknowledgers that shall leave: those that must, and those that can be spared.
fn choose_leavers(view: &View<'_>, round: &mut Round, primary: Ordinal) {
    round.leavers.clear();
    if round.memory.ackers.contains(&primary) {
        return; // Everybody is needed until the primary is established.
    }
    let memory = &round.memory;
    let must = |member: &Ordinal| {
        let purged = view
            .reply(*member)
            .and_then(|reply| reply.channel.as_ref())
            .is_some_and(|channel| channel.purged);
        view.is_lost(memory, *member)
            || member.0 >= view.intent.size
            || memory.quarantine.contains_key(member)
            || purged
            || (view.intent.acks == 0 && memory.required == 0)
    };
    let mut leavers: BTreeSet<Ordinal> = memory.ackers.iter().copied().filter(must).collect();
    let mut stay: BTreeSet<Ordinal> = memory.ackers.difference(&leavers).copied().collect();
    let spare: Vec<Ordinal> = stay
        .iter()
        .rev()
        .copied()
        .filter(|member| {
            view.away(*member).is_some() || round.next_restart == Some(*member) || is_cut_off(view, round, *member)
        })
        .collect();
    for member in spare {
        let mut without = stay.clone();
        without.remove(&member);
        let needed = usize::try_from(memory.required.max(memory.acks)).unwrap_or(usize::MAX);
        if live(view, round, &without) >= needed {
            stay = without;
            leavers.insert(member);
        }
    }
    round.leavers = leavers;
}

/// It replies, and its receiver cannot connect.
fn is_cut_off(view: &View<'_>, round: &Round, member: Ordinal) -> bool {
    let channel = view.reply(member).and_then(|reply| reply.channel.as_ref());
    channel.is_some_and(|channel| channel.receiver_error.is_some()) && !view.follows(&round.memory, member)
}

/// How many acknowledgements the primary is to wait for.
fn required(view: &View<'_>, round: &mut Round, primary: Ordinal) {
    let (wanted, size) = (view.intent.acks, view.intent.size);
    let staying: BTreeSet<Ordinal> = replicas(round, primary).difference(&round.leavers).copied().collect();
    let able = staying
        .iter()
        .filter(|member| view.reply(**member).is_some() && !is_cut_off(view, round, **member));
    let able = u32::try_from(able.count()).unwrap_or(0);
    let lower = match view.intent.when_no_acker {
        WhenNoAcker::Block => wanted,
        WhenNoAcker::Degrade => wanted.min(able),
    };
    if round.memory.required > lower {
        round.memory.required = lower;
        round.memory.acks = round.memory.acks.min(lower);
        return;
    }
    // One more than are needed, where the size allows it, so that one of them can go away without holding up writes.
    let enough = match view.intent.when_no_acker {
        WhenNoAcker::Block => (wanted + 1).min(size.saturating_sub(1)),
        WhenNoAcker::Degrade => 1,
    };
    let live = u32::try_from(live(view, round, &staying)).unwrap_or(0);
    let reach = match view.intent.when_no_acker {
        WhenNoAcker::Block if live >= enough => wanted,
        WhenNoAcker::Block => round.memory.required,
        WhenNoAcker::Degrade => wanted.min(live),
    };
    round.memory.required = round.memory.required.max(reach);
}

/// Replicas that have caught up may acknowledge from now on. A is recorded before any receiver is told so.
fn enlist(view: &View<'_>, round: &mut Round, primary: Ordinal) {
    if view.intent.acks == 0 && round.memory.required == 0 {
        return;
    }
    let joins = |member: &Ordinal| {
        *member != primary
            && !round.memory.ackers.contains(member)
            && !round.memory.expelled.contains(member)
            && round.next_restart != Some(*member)
            && member.0 < view.intent.size
            && !view.is_ending(*member)
            && view.is_clean(&round.memory, *member)
            && view.has_caught_up(&round.memory, *member)
            && view.reply(*member).is_some_and(|reply| !reply.acknowledges)
    };
    let joining: Vec<Ordinal> = view.world.members.keys().copied().filter(joins).collect();
    for member in joining {
        round.memory.ackers.insert(member);
        round.say(
            Work::Changing,
            Reason::EnlistingAcker,
            format!(
                "{} has caught up and acknowledges writes from now on",
                view.name(member)
            ),
        );
    }
}

fn keep_leavers_out(view: &View<'_>, round: &mut Round) {
    for member in round.leavers.clone() {
        round.memory.expelled.insert(member);
        if let Some(reply) = view.reply(member).filter(|reply| !reply.is_fenced()) {
            round.act(Action::StopReceiver {
                member,
                process: reply.process.clone(),
            });
        }
    }
    // Who is back by its own word need not be locked out: either it acknowledges rightly, or its receiver does not run.
    let expelled: Vec<Ordinal> = round.memory.expelled.iter().copied().collect();
    for member in expelled {
        let gone = !view.has_place(member) && view.pod(member).is_none();
        let back = match view.reply(member) {
            None => false,
            Some(_) if round.leavers.contains(&member) => false,
            Some(_) if round.may_acknowledge(member) => true,
            Some(reply) if reply.is_fenced() && !reply.acknowledges => true,
            Some(reply) => {
                round.act(Action::StopReceiver {
                    member,
                    process: reply.process.clone(),
                });
                false
            }
        };
        if back || (gone && !round.memory.ackers.contains(&member)) {
            round.memory.expelled.remove(&member);
        }
    }
}

/// The change that is due, and what must be held for it.
fn target(view: &View<'_>, round: &Round, primary: Ordinal, reply: &Reply) -> Option<Pending> {
    let memory = &round.memory;
    if memory.ackers.contains(&primary) {
        return None;
    }
    let stay: BTreeSet<Ordinal> = memory.ackers.difference(&round.leavers).copied().collect();
    let many = u32::try_from(stay.len()).unwrap_or(u32::MAX);
    let lead = view.lead(memory);
    if !round.leavers.is_empty() {
        let kept = |member: &Ordinal| view.is_kept_from_acknowledging(memory, *member);
        if !round.leavers.iter().all(kept) {
            return None;
        }
        let acks = memory.acks.min(many);
        return Some(Pending {
            ackers: stay,
            acks,
            must_hold: if acks == 0 { GtidSet::default() } else { lead? },
        });
    }
    let recorded = view.stored.required >= memory.required;
    let waits = recorded && reply.source.enabled && reply.source.acks >= memory.required;
    if memory.required > memory.acks && many >= memory.required && (waits || !is_open(view, round)) {
        return Some(Pending {
            ackers: stay,
            acks: memory.required,
            must_hold: lead?,
        });
    }
    None
}

/// Makes the change if enough members hold what they must, and records that it waits for that otherwise.
fn settle(view: &View<'_>, round: &mut Round, primary: Ordinal, target: Option<Pending>) {
    let Some(target) = target else {
        round.memory.pending = None;
        if !round.leavers.is_empty() {
            let message = format!("keeping {} from acknowledging writes", view.names(&round.leavers));
            round.say(Work::Recovering, Reason::ReleasingAcker, message);
            round.wake(SOON);
        }
        return;
    };
    let must_hold = match &round.memory.pending {
        Some(pending) if pending.ackers == target.ackers && pending.acks == target.acks => pending.must_hold.clone(),
        _ => target.must_hold.clone(),
    };
    let holds = |member: &&Ordinal| {
        let received = view.reply(**member).map(Reply::received);
        **member != primary && received.is_some_and(|received| received.contains(&must_hold))
    };
    let holders = target.ackers.iter().filter(holds).count();
    if holders >= usize::try_from(target.acks).unwrap_or(usize::MAX) {
        round.memory.ackers = target.ackers;
        round.memory.acks = target.acks;
        round.memory.pending = None;
        round.wake(SOON);
        return;
    }
    let message = format!(
        "waiting until {} of {} hold what the primary has",
        target.acks,
        view.names(&target.ackers)
    );
    round.memory.pending = Some(Pending { must_hold, ..target });
    round.say(Work::Recovering, Reason::WaitingForAckers, message);
    round.wake(SOON);
}

/// The replication accounts at the primary follow what is recorded.
fn lock(view: &View<'_>, round: &mut Round, primary: Ordinal, reply: &Reply) {
    let process = || reply.process.clone();
    for member in round.memory.expelled.clone() {
        let connected = reply.source.connected.contains(&view.intent.server_id(member));
        if !reply.locked.contains(&member) || connected {
            let process = process();
            round.act(Action::Expel {
                primary,
                process,
                member,
            });
        }
    }
    for member in reply.locked.difference(&round.memory.expelled.clone()) {
        let (process, member) = (process(), *member);
        round.act(Action::Readmit {
            primary,
            process,
            member,
        });
    }
}

fn set_acks(round: &mut Round, primary: Ordinal, reply: &Reply) {
    let required = round.memory.required;
    let is_set = reply.source.enabled == (required > 0) && (required == 0 || reply.source.acks == required);
    if reply.read_only || is_set {
        return;
    }
    round.act(Action::SetAcks {
        member: primary,
        process: reply.process.clone(),
        acks: required,
    });
}

/// Commits wait although enough acknowledgers hold everything: they had it before they were enlisted.
fn nudge(view: &View<'_>, round: &mut Round, primary: Ordinal, reply: &Reply) {
    let Some(lead) = view.lead(&round.memory) else { return };
    let live = round.memory.ackers.iter().filter(|member| {
        let received = view.reply(**member).map(Reply::received);
        view.acknowledges(&round.memory, **member) && received.is_some_and(|received| received.contains(&lead))
    });
    let required = round.memory.required;
    let enough = required > 0 && u32::try_from(live.count()).unwrap_or(0) >= required;
    if enough && reply.source.waiting > 0 && !reply.read_only {
        round.act(Action::Nudge {
            member: primary,
            process: reply.process.clone(),
        });
    }
}
