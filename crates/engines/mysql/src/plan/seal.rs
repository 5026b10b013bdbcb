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
        // What is being cloned is discarded, is not served, and starts again read-only.
        .filter(|(_, reply)| !reply.read_only && !reply.clone.as_ref().is_some_and(|clone| clone.running))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::{Given, three};
    use crate::world::CloneState;

    fn ended(given: &Given) -> Vec<Ordinal> {
        let actions = given.plan().actions;
        let ended = actions.iter().filter_map(|action| match action {
            Action::EndProcess { member, .. } => Some(*member),
            _ => None,
        });
        ended.collect()
    }

    #[test]
    fn a_replica_that_takes_writes_is_ended_unless_its_data_is_being_replaced() {
        let writable = three().reply(2, |reply| reply.read_only = false);
        assert_eq!(ended(&writable), [Ordinal(2)]);
        let cloning = writable.reply(2, |reply| {
            reply.clone = Some(CloneState {
                running: true,
                percent: 10,
                error: None,
                donor: "orders-1.orders.ns.svc".into(),
            });
        });
        assert!(ended(&cloning).is_empty());
    }
}
