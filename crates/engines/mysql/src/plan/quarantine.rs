//! Members with transactions that the primary does not have: they are kept out, their transactions are saved, and they are cloned
//! anew: by themselves where no acknowledger had any of these transactions, else when the user says so.

use super::round::{RETRY, Round, View, Work};
use crate::action::Action;
use crate::api::Errant;
use crate::gtid::GtidSet;
use crate::memory::Quarantine;
use crate::names::ANNOTATION_DISCARD;
use crate::reason::Reason;
use crate::world::Ordinal;

pub(super) fn quarantine(view: &View<'_>, round: &mut Round) {
    detect(view, round);
    let members: Vec<(Ordinal, Quarantine)> = round
        .memory
        .quarantine
        .iter()
        .map(|(member, quarantine)| (*member, quarantine.clone()))
        .collect();
    for (member, quarantine) in members {
        proceed(view, round, member, &quarantine);
    }
}

fn detect(view: &View<'_>, round: &mut Round) {
    if round.memory.failover.is_some() {
        return;
    }
    let others: Vec<Ordinal> = view.others(&round.memory).map(|(member, _)| member).collect();
    for member in others {
        let (Some(errant), Some(reply)) = (view.errant(&round.memory, member), view.reply(member)) else {
            continue;
        };
        let known = round.memory.quarantine.get(&member);
        if errant.is_empty() {
            if known.is_some() {
                round.memory.quarantine.remove(&member);
            }
            continue;
        }
        if known.is_some_and(|known| known.gtids == errant) {
            continue;
        }
        let memory = &round.memory;
        let automatic = view.intent.errant == Errant::Quarantine
            && memory.former_primary == Some(member)
            && errant.is_disjoint(&memory.received_at_promotion)
            && known.is_none_or(|known| known.automatic);
        let message = format!(
            "{} has transactions that the primary does not have, and is kept out: {}",
            view.name(member),
            errant.brief(200)
        );
        round.note(true, Reason::ErrantTransactions, message);
        let quarantine = Quarantine {
            uuid: reply.process.uuid,
            gtids: errant,
            automatic,
            saved: false,
        };
        round.memory.quarantine.insert(member, quarantine);
    }
}

fn proceed(view: &View<'_>, round: &mut Round, member: Ordinal, quarantine: &Quarantine) {
    let name = view.name(member);
    let gtids = quarantine.gtids.brief(200);
    if !view.may_discard(quarantine, member) {
        round.say(
            Work::Blocked,
            Reason::ErrantTransactions,
            format!(
                "{name} is kept out: it has transactions that the primary does not have ({gtids}). To save them and clone {name} anew, \
                 annotate the MySQLCluster with {ANNOTATION_DISCARD}={name}"
            ),
        );
    }
    let Some(reply) = view.reply(member) else { return };
    let process = reply.process.clone();
    if !reply.read_only {
        return; // `seal` ends its process.
    }
    if !reply.is_fenced() {
        round.act(Action::StopReceiver { member, process });
        return;
    }
    if !view.may_discard(quarantine, member) {
        return;
    }
    let mut saved = GtidSet::default();
    for set in &reply.saved {
        saved.extend(set);
    }
    if !saved.contains(&quarantine.gtids) {
        round.say(
            Work::Recovering,
            Reason::SavingTransactions,
            format!("saving the transactions of {name} that the primary does not have: {gtids}"),
        );
        round.act(Action::SaveErrant {
            member,
            process,
            gtids: quarantine.gtids.clone(),
        });
        round.wake(RETRY);
        return;
    }
    if !quarantine.saved {
        if let Some(known) = round.memory.quarantine.get_mut(&member) {
            known.saved = true;
        }
        let message = format!("the transactions of {name} that the primary does not have were saved: {gtids}");
        round.note(false, Reason::TransactionsSaved, message);
    }
    round.say(
        Work::Recovering,
        Reason::Quarantining,
        format!("{name} is cloned anew, as it has transactions that the primary does not have; they are saved"),
    );
}
