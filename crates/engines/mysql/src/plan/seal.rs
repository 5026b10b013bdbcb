//! Only the primary is writable. A former primary that still runs may have commits that wait: releasing them would acknowledge
//! what the cluster does not have, so its process is ended. It starts again read-only.

use super::round::{Round, View, Work};
use crate::action::Action;
use crate::reason::Reason;
use crate::world::Ordinal;

pub(super) fn seal(view: &View<'_>, round: &mut Round) {
    if !round.memory.founded() {
        return;
    }
    let writable: Vec<Ordinal> = view
        .others(&round.memory)
        .filter(|(_, reply)| !reply.read_only)
        .map(|(member, _)| member)
        .collect();
    for member in writable {
        let Some(pod) = view.pod(member) else { continue };
        round.act(Action::EndProcess {
            member,
            uid: pod.facts.uid.clone(),
        });
        let message = format!(
            "{} is not the primary and takes writes: its process is ended",
            view.name(member)
        );
        round.say(Work::Recovering, Reason::FailingOver, message);
    }
}
