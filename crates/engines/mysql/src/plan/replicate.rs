//! Every clean member follows the primary, and acknowledges if it is recorded to.

use super::members::Data;
use super::round::{RETRY, Round, View, Work};
use crate::action::Action;
use crate::reason::Reason;
use crate::world::{Ordinal, Receiver, Reply};

pub(super) fn replicate(view: &View<'_>, round: &mut Round) {
    if round.primary_changes() {
        return;
    }
    let Some(primary) = round.memory.primary else { return };
    let Some(source) = view.reply(primary) else { return };
    // What it has not applied yet would look like transactions that only the others have.
    if view.data(&round.memory, primary) != Data::Ours || !source.unapplied().is_empty() {
        return;
    }
    let others: Vec<Ordinal> = view.others(&round.memory).map(|(member, _)| member).collect();
    for member in others {
        if let Some(reply) = view.reply(member) {
            follow(view, round, (primary, source), member, reply);
        }
    }
}

fn follow(view: &View<'_>, round: &mut Round, source: (Ordinal, &Reply), member: Ordinal, reply: &Reply) {
    let (primary, source) = source;
    let is_cloned = reply.clone.as_ref().is_some_and(|clone| clone.running);
    let is_needed = view.is_clean(&round.memory, member)
        && reply.read_only
        && !is_cloned
        && !round.leavers.contains(&member)
        && !round.memory.expelled.contains(&member)
        && member.0 < view.intent.size
        && (round.next_restart != Some(member) || round.memory.ackers.contains(&member));
    if !is_needed {
        return;
    }
    let name = view.name(member);
    if !view.may_follow_version(member, primary) {
        let message = format!("{name} runs an older version than the primary: it follows after its restart");
        round.say(Work::Upgrading, Reason::Upgrading, message);
        return;
    }
    let acknowledge = round.memory.ackers.contains(&member);
    let host = view.intent.host(primary);
    let channel = reply.channel.as_ref();
    let leads_there = channel.is_some_and(|channel| channel.host == host);
    let receives = channel.is_some_and(|channel| channel.receiver != Receiver::Stopped);
    let applies = channel.is_some_and(|channel| channel.applier);
    if let Some(channel) = channel {
        if channel.purged {
            return; // `clone` replaces its data.
        }
        if let Some(error) = channel.applier_error.as_ref().filter(|_| !channel.applier) {
            let message = format!(
                "{name} cannot apply a transaction: {error}. It is tried again; if it stays, delete the claim and the pod of {name} to \
                 clone it anew"
            );
            round.say(Work::Recovering, Reason::ApplierStopped, message);
            again(view, round, (primary, source), member, reply, acknowledge);
            round.wake = round.wake.map(|wake| wake.max(RETRY));
            return;
        }
        if let Some(error) = channel.receiver_error.as_ref().filter(|_| leads_there) {
            let message = format!("{name} does not receive from the primary: {error}");
            round.say(Work::Recovering, Reason::ReceiverStopped, message);
        }
    }
    if leads_there && receives && applies && reply.acknowledges == acknowledge {
        // A receiver asks for acknowledging when it connects, and not later.
        let wrong = channel.is_some_and(|channel| channel.receiver == Receiver::Running)
            && reply.acknowledging != acknowledge
            && source.source.enabled;
        if !wrong {
            return;
        }
    }
    if !leads_there && !reply.unapplied().is_empty() {
        let message = format!("{name} applies what it received before it follows the new primary");
        round.say(Work::Recovering, Reason::WaitingForReplica, message);
        if !applies || !reply.is_fenced() {
            round.act(Action::StopReceiver {
                member,
                process: reply.process.clone(),
            });
        }
        round.wake(super::round::SOON);
        return;
    }
    let message = format!("{name} begins to follow {}", view.name(primary));
    round.say(Work::Recovering, Reason::StartingReplication, message);
    again(view, round, (primary, source), member, reply, acknowledge);
}

fn again(
    _: &View<'_>,
    round: &mut Round,
    source: (Ordinal, &Reply),
    member: Ordinal,
    reply: &Reply,
    acknowledge: bool,
) {
    round.act(Action::Replicate {
        member,
        process: reply.process.clone(),
        source: source.0,
        source_process: source.1.process.clone(),
        acknowledge,
    });
}
