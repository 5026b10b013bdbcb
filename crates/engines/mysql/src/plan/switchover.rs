//! A planned change of the primary: it becomes read-only by its own word, the next one applies everything, and then it is
//! recorded. `open` makes it writable.
//!
//! Asked for by the deletion of the primary's pod, the annotation, a smaller size, a restart, or `spec.primary.prefer`.

use std::time::Duration;

use super::members::elapsed;
use super::round::{Flow, LATER, Round, SOON, View, Work};
use crate::action::Action;
use crate::memory::Switchover;
use crate::names::ANNOTATION_SWITCHOVER;
use crate::reason::Reason;
use crate::world::Ordinal;

/// A planned change that is not done by then is given up: the primary takes writes again.
const GIVE_UP: Duration = Duration::from_secs(20);
/// For how long none begins by itself after one was given up.
const PAUSE: Duration = Duration::from_secs(60);

pub(super) fn switchover(view: &View<'_>, round: &mut Round) -> Flow {
    if round.memory.switchover.is_none() {
        begin(view, round);
    }
    match round.memory.switchover.clone() {
        Some(switchover) => proceed(view, round, &switchover),
        None => Flow::On,
    }
}

fn begin(view: &View<'_>, round: &mut Round) {
    let primary = view.primary(&round.memory).filter(|(_, reply)| !reply.read_only);
    let Some((primary, reply)) = primary else { return };
    let ready = reply.source.waiting == 0;
    if let Some(to) = asked(view, round, primary) {
        match to {
            Ok(to) if is_ready(view, round, to) && others_follow(view, round, to) && ready => {
                start(view, round, primary, to)
            }
            Ok(to) => {
                let message = format!(
                    "{} becomes the primary as soon as it has caught up (annotation {ANNOTATION_SWITCHOVER})",
                    view.name(to)
                );
                round.say(Work::Changing, Reason::SwitchingOver, message);
                round.wake(LATER);
            }
            Err(why) => {
                round.memory.switched_to.clone_from(&view.intent.requests.switchover_to);
                round.note(true, Reason::SwitchoverGivenUp, why);
            }
        }
        return;
    }
    let failed = round.memory.switchover_failed;
    let pause = failed.map_or(Duration::ZERO, |at| PAUSE.saturating_sub(elapsed(at, view.now)));
    let ending = view.is_ending(primary);
    let leaving = primary.0 >= view.intent.size;
    let restarting = round.next_restart == Some(primary);
    if ending || leaving || restarting {
        if !pause.is_zero() && !ending {
            round.wake(pause);
        } else if let Some(to) = best(view, round, primary).filter(|_| ready) {
            start(view, round, primary, to);
        }
        return;
    }
    let Some(prefer) = view.intent.prefer.filter(|prefer| *prefer != primary) else {
        return;
    };
    // One that is restarted next would have to give the role up again.
    if !is_ready(view, round, prefer)
        || !others_follow(view, round, prefer)
        || !ready
        || view.outdated.contains(&prefer)
    {
        return;
    }
    if pause.is_zero() {
        start(view, round, primary, prefer);
    } else {
        round.wake(pause);
    }
}

/// What the annotation asks for, until it was followed.
fn asked(view: &View<'_>, round: &Round, primary: Ordinal) -> Option<Result<Ordinal, String>> {
    let asked = view.intent.requests.switchover_to.as_ref()?;
    if round.memory.switched_to.as_ref() == Some(asked) {
        return None;
    }
    let Some(to) = crate::names::ordinal(&view.intent.name, asked).filter(|to| to.0 < view.intent.size) else {
        return Some(Err(format!(
            "{asked} (annotation {ANNOTATION_SWITCHOVER}) is no pod of this cluster"
        )));
    };
    if to == primary {
        return Some(Err(format!("{asked} is the primary")));
    }
    match view.intent.prefer {
        Some(prefer) if prefer != to => Some(Err(format!(
            "spec.primary.prefer is {prefer}: change it to {to} instead of setting the annotation {ANNOTATION_SWITCHOVER}"
        ))),
        _ => Some(Ok(to)),
    }
}

/// It can become the primary at this moment without anybody waiting for it, and the others can follow it.
fn is_ready(view: &View<'_>, round: &Round, to: Ordinal) -> bool {
    let memory = &round.memory;
    let primary = memory.primary;
    let established = primary.is_none_or(|primary| !memory.ackers.contains(&primary));
    let others = view
        .world
        .members
        .keys()
        .filter(|other| **other != to && Some(**other) != primary);
    let mut followers = others.filter(|other| memory.ackers.contains(other) && !view.outdated.contains(other));
    let acks = memory.required == 0 || memory.ackers.contains(&to);
    established
        && acks
        && to.0 < view.intent.size
        && !view.is_ending(to)
        && view.is_clean(memory, to)
        && view.has_caught_up(memory, to)
        && view.reply(to).is_some_and(|reply| reply.unapplied().count() <= 1000)
        && followers.all(|other| view.may_follow_version(*other, to))
        && primary.is_none_or(|primary| view.outdated.contains(&primary) || view.may_follow_version(primary, to))
}

/// Enough of those who acknowledge can follow it: they are not older.
fn others_follow(view: &View<'_>, round: &Round, to: Ordinal) -> bool {
    let memory = &round.memory;
    let others = memory
        .ackers
        .iter()
        .chain(&memory.primary)
        .filter(|other| **other != to);
    let able = others.filter(|other| view.may_follow_version(**other, to)).count();
    able >= usize::try_from(memory.required).unwrap_or(usize::MAX)
}

/// Whom the primary gives its role to.
fn best(view: &View<'_>, round: &Round, primary: Ordinal) -> Option<Ordinal> {
    let members = view.world.members.keys().copied();
    members
        .filter(|member| *member != primary && is_ready(view, round, *member))
        .min_by_key(|member| {
            (
                view.outdated.contains(member),
                !others_follow(view, round, *member),
                view.intent.prefer != Some(*member),
                view.reply(*member).map(|reply| reply.unapplied().count()),
                *member,
            )
        })
}

fn start(view: &View<'_>, round: &mut Round, from: Ordinal, to: Ordinal) {
    round.memory.switchover = Some(Switchover {
        from,
        to,
        since: view.now,
    });
}

fn proceed(view: &View<'_>, round: &mut Round, switchover: &Switchover) -> Flow {
    let Switchover { from, to, since } = *switchover;
    let message = format!("{} gives the role of the primary to {}", view.name(from), view.name(to));
    round.say(Work::Changing, Reason::SwitchingOver, message);
    let Some(primary) = view.reply(from) else {
        // `failover` decides whether it is unavailable.
        round.wake(LATER);
        return Flow::Stop;
    };
    let hopeless = view.data(&round.memory, to) != super::members::Data::Ours || view.away(to).is_some();
    if hopeless || elapsed(since, view.now) >= GIVE_UP {
        give_up(view, round, from, to);
        return Flow::On;
    }
    if !primary.read_only {
        round.act(Action::Close {
            member: from,
            process: primary.process.clone(),
        });
        return Flow::Stop;
    }
    round.wake(SOON);
    // Another operator may open it again as long as this was not recorded.
    if view.stored.switchover.as_ref() != Some(switchover) {
        return Flow::Stop;
    }
    // Read-only by its own word, and nothing is being committed: what it executed is all there is.
    if primary.source.waiting > 0 || !primary.owned.is_empty() {
        return Flow::Stop;
    }
    let Some(next) = view.reply(to) else {
        return Flow::Stop;
    };
    if !next.executed.contains(&primary.executed) || !next.unapplied().is_empty() {
        return Flow::Stop;
    }
    if !primary.executed.contains(&next.executed) {
        // Something was written to it since: it is not clean.
        give_up(view, round, from, to);
        return Flow::On;
    }
    let memory = &mut round.memory;
    memory.switchover = None;
    memory.primary = Some(to);
    memory.epoch += 1;
    memory.opened = false;
    memory.pending = None;
    memory.expelled.clear();
    memory.ackers.remove(&to);
    if memory.required > 0 {
        // It holds all that the next one has.
        memory.ackers.insert(from);
    }
    memory.former_primary = None;
    memory.received_at_promotion = next.executed.clone();
    memory.switchover_failed = None;
    if view.intent.requests.switchover_to == Some(view.name(to)) {
        memory.switched_to.clone_from(&view.intent.requests.switchover_to);
    }
    let message = format!("{} is the primary now, after {}", view.name(to), view.name(from));
    round.note(false, Reason::SwitchedOver, message);
    Flow::On
}

fn give_up(view: &View<'_>, round: &mut Round, from: Ordinal, to: Ordinal) {
    round.memory.switchover = None;
    round.memory.switchover_failed = Some(view.now);
    if view.intent.requests.switchover_to == Some(view.name(to)) {
        round.memory.switched_to.clone_from(&view.intent.requests.switchover_to);
    }
    let message = format!(
        "{} did not catch up in time: {} stays the primary",
        view.name(to),
        view.name(from)
    );
    round.note(true, Reason::SwitchoverGivenUp, message);
}
