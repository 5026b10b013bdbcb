//! Hibernation: all pods stop, all data stays.

use super::round::{Flow, Round, View, Work};
use crate::action::Action;
use crate::reason::Reason;

pub(super) fn hibernate(view: &View<'_>, round: &mut Round) -> Flow {
    if !view.intent.hibernate {
        return Flow::On;
    }
    if round.memory.bootstrap.is_some() && !round.memory.founded() {
        // The first transactions are being written: they come first, so that there is data to keep.
        return Flow::On;
    }
    let message = if round.memory.founded() {
        "spec.hibernate is true: all pods are stopped, all data is kept"
    } else {
        "spec.hibernate is true: the cluster is created when it is false"
    };
    round.say(Work::Blocked, Reason::Hibernating, message);
    if !round.memory.founded() {
        return Flow::Stop;
    }
    round.memory.hibernating = true;
    // What was begun is decided anew when the pods run again. A failover goes on then.
    round.memory.switchover = None;
    round.memory.pending = None;
    if let Some(set) = view.world.set.as_ref().filter(|set| set.replicas > 0) {
        round.act(Action::ScaleIn {
            uid: set.uid.clone(),
            replicas: 0,
        });
    }
    Flow::Stop
}
