//! The event queue: virtual time, one event after another.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use jiff::Timestamp;

/// Virtual milliseconds since the history began.
pub(crate) type Ms = u64;
/// The number behind a UID.
pub(crate) type Id = u32;

const EPOCH: i64 = 1_800_000_000_000;

/// The time as objects store it.
pub(crate) fn stamp(at: Ms) -> Timestamp {
    Timestamp::from_millisecond(EPOCH + i64::try_from(at).unwrap_or(i64::MAX)).unwrap_or(Timestamp::MAX)
}

/// The time on a clock that is wrong.
pub(crate) fn skewed(at: Ms, skew: i64) -> Timestamp {
    let shown = EPOCH + i64::try_from(at).unwrap_or(i64::MAX) + skew;
    Timestamp::from_millisecond(shown).unwrap_or(Timestamp::MAX)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// The clock of etcd and of its clients.
    Tick,
    /// The scheduler tries to place a pod.
    Schedule(Id),
    /// A kubelet starts a pod's container.
    Start(Id),
    /// An etcd process has read its data and flags.
    Boot(Id, u32),
    /// A kubelet has stopped a pod that is being deleted.
    Stopped(Id),
    /// Kubernetes marks a node as unreachable, if this absence still lasts.
    NodeSilent(usize, u32),
    /// Kubernetes evicts the pods of a node, if this absence still lasts.
    Evict(usize, u32),
    /// Kubernetes detaches the volume of a deleted pod from a node that does not respond.
    Detach(Id),
    /// A node comes back.
    NodeBack(usize),
    /// All network cuts are healed.
    Reconnect,
    /// Objects whose owner is deleted are collected.
    Collect,
    /// An operator begins a reconcile.
    Reconcile(usize),
    /// An operator executes the next step of its reconcile.
    Step(usize, u32),
    /// An operator starts again.
    Revive(usize),
    /// An operator learns that it lost leadership.
    Yield(usize),
    /// The next fault or edit.
    Fault,
    /// The user reverts a bad value.
    Revert,
    /// The user requests a rotation of the CA.
    Rotate,
    /// Faults stop.
    Calm,
}

#[derive(Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Reverse<(Ms, u64, Event)>>,
    count: u64,
}

impl Queue {
    pub(crate) fn at(&mut self, when: Ms, event: Event) {
        self.count += 1;
        self.heap.push(Reverse((when, self.count, event)));
    }

    pub(crate) fn next(&mut self) -> Option<(Ms, Event)> {
        self.heap.pop().map(|Reverse((when, _, event))| (when, event))
    }
}
