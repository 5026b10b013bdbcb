//! What one reconcile decides from, and what it collects.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use crate::action::{Action, Note};
use crate::intent::Intent;
use crate::memory::Memory;
use crate::reason::Reason;
use crate::world::{Ordinal, World};

/// How soon to look again at what a server does by itself: applying, connecting.
pub(super) const SOON: Duration = Duration::from_millis(50);
/// How soon to look again while something outside takes its time.
pub(super) const LATER: Duration = Duration::from_millis(500);
/// How often something is tried again that failed for a reason that may stay.
pub(super) const RETRY: Duration = Duration::from_secs(10);

/// Everything a chapter may look at.
pub(super) struct View<'a> {
    pub(super) intent: &'a Intent,
    pub(super) world: &'a World,
    pub(super) now: Timestamp,
    /// What was stored before the world was observed. Only what was recorded then keeps another operator, which knows no more than
    /// the record, from undoing what is observed now.
    pub(super) stored: &'a Memory,
    /// The pods of these members were made from another template, and are to be restarted.
    pub(super) outdated: BTreeSet<Ordinal>,
}

/// What the chapters decided so far.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) memory: Memory,
    pub(super) actions: Vec<Action>,
    /// What is done or waited for; what is said first is shown.
    pub(super) doing: Vec<Doing>,
    pub(super) wake: Option<Duration>,
    /// Acknowledgers that are kept from acknowledging, and leave.
    pub(super) leavers: BTreeSet<Ordinal>,
    /// The member that is restarted next. It leaves the acknowledgers, or gives up its role, before.
    pub(super) next_restart: Option<Ordinal>,
}

/// One statement of what is done or waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Doing {
    pub(super) work: Work,
    pub(super) reason: Reason,
    /// A sentence, and where it helps, what to do.
    pub(super) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// The cluster is created.
    Creating,
    /// Its size changes.
    Scaling,
    /// Its version changes.
    Upgrading,
    /// What was lost is brought back.
    Recovering,
    /// Any other change.
    Changing,
    /// It waits for somebody to act.
    Blocked,
    /// Nothing is done and nothing waits: somebody should act before it is too late.
    Warning,
}

/// Whether the chapters that follow are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    On,
    Stop,
}

impl Round {
    pub(super) fn act(&mut self, action: Action) {
        self.actions.push(action);
        self.wake(SOON);
    }

    pub(super) fn say(&mut self, work: Work, reason: Reason, message: impl Into<String>) {
        let message = message.into();
        self.doing.push(Doing { work, reason, message });
    }

    pub(super) fn wake(&mut self, after: Duration) {
        self.wake = Some(self.wake.map_or(after, |wake| wake.min(after)));
    }

    pub(super) fn note(&mut self, warning: bool, reason: Reason, message: impl Into<String>) {
        let message = message.into();
        self.actions.push(Action::Tell(Note {
            warning,
            reason,
            message,
        }));
    }

    /// It is an acknowledger and stays one.
    pub(super) fn may_acknowledge(&self, member: Ordinal) -> bool {
        self.memory.ackers.contains(&member) && !self.leavers.contains(&member)
    }

    /// The primary is being replaced, as planned or not.
    pub(super) fn primary_changes(&self) -> bool {
        self.memory.failover.is_some() || self.memory.switchover.is_some()
    }
}
