//! The primary takes writes: only after enough others hold all that it executed. Also after it restarted: its crash recovery commits
//! transactions that nobody acknowledged (MySQL bug 99370).

use super::members::is_open;
use super::round::{Round, SOON, View, Work};
use crate::action::Action;
use crate::api::WhenNoAcker;
use crate::reason::Reason;
use crate::world::Ordinal;

pub(super) fn open(view: &View<'_>, round: &mut Round) {
    let Some(primary) = round.memory.primary else { return };
    if round.primary_changes() {
        return;
    }
    if is_open(view, round) {
        round.memory.opened = true;
        return;
    }
    let Some((_, reply)) = view.primary(&round.memory) else {
        return;
    };
    round.wake(SOON);
    let left = reply.unapplied();
    if !left.is_empty() || !reply.is_fenced() {
        let applies = reply.channel.as_ref().is_some_and(|channel| channel.applier);
        if !applies || !reply.is_fenced() {
            round.act(Action::StopReceiver {
                member: primary,
                process: reply.process.clone(),
            });
        }
        let error = reply.channel.as_ref().and_then(|channel| channel.applier_error.clone());
        match error {
            Some(error) => round.say(
                Work::Blocked,
                Reason::ApplierStopped,
                format!(
                    "{} cannot apply what it received, so it takes no writes: {error}",
                    view.name(primary)
                ),
            ),
            None => round.say(
                Work::Recovering,
                Reason::Promoting,
                format!("{} applies what it received before it takes writes", view.name(primary)),
            ),
        }
        return;
    }
    let ackers = round.memory.ackers.iter().copied();
    let holds = |member: &Ordinal| {
        let received = view.reply(*member).map(|other| other.received());
        *member != primary && received.is_some_and(|received| received.contains(&reply.executed))
    };
    let holders: Vec<Ordinal> = ackers.filter(holds).collect();
    let count = u32::try_from(holders.len()).unwrap_or(0);
    // k others hold everything: the primary's own copy is not needed any more.
    if count >= round.memory.acks {
        round.memory.ackers.remove(&primary);
    }
    if count < round.memory.required {
        let created = !round.memory.opened && round.memory.epoch <= 1;
        let work = if created { Work::Creating } else { Work::Recovering };
        let how = match view.intent.when_no_acker {
            WhenNoAcker::Block => "spec.durability.whenNoAcker is Block",
            WhenNoAcker::Degrade => "as far as replicas reply",
        };
        round.say(
            work,
            Reason::WaitingForAckers,
            format!(
                "{} takes writes when {} replicas hold all that it has; {count} do ({how})",
                view.name(primary),
                round.memory.required
            ),
        );
        return;
    }
    // As many hold everything. Another operator may open it at this moment for as many as were recorded before.
    round.memory.acks = round.memory.required.min(view.stored.required).max(round.memory.acks);
    round.memory.opened = true;
    round.act(Action::Open {
        member: primary,
        process: reply.process.clone(),
        acks: round.memory.required,
        holders,
    });
    let message = format!("{} takes writes", view.name(primary));
    round.note(false, Reason::PrimaryOpened, message.clone());
    round.say(Work::Recovering, Reason::OpeningPrimary, message);
}
