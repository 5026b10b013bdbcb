//! What happens when: virtual time, one event after another.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use jiff::Timestamp;

/// Virtual milliseconds since the history began.
pub(crate) type Ms = u64;
/// The number behind a UID.
pub(crate) type Id = u32;

const EPOCH: i64 = 1_800_000_000_000;

/// The moment as objects carry it.
pub(crate) fn stamp(at: Ms) -> Timestamp {
    Timestamp::from_millisecond(EPOCH + i64::try_from(at).unwrap_or(i64::MAX)).unwrap_or(Timestamp::MAX)
}

/// The moment as a clock that is wrong shows it.
pub(crate) fn skewed(at: Ms, skew: i64) -> Timestamp {
    let shown = EPOCH + i64::try_from(at).unwrap_or(i64::MAX) + skew;
    Timestamp::from_millisecond(shown).unwrap_or(Timestamp::MAX)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// etcd's own clock, and the client's.
    Tick,
    /// The scheduler looks at a pod.
    Schedule(Id),
    /// A kubelet starts a pod's container.
    Start(Id),
    /// An etcd process has read its data and flags.
    Boot(Id, u32),
    /// A kubelet has stopped a pod that is being deleted.
    Stopped(Id),
    /// Kubernetes gives a node up, if it is still away in this absence.
    NodeSilent(usize, u32),
    /// Kubernetes evicts the pods of a node, if it is still away in this absence.
    Evict(usize, u32),
    /// Kubernetes takes the volume of a pod that is gone from a node that does not answer.
    Detach(Id),
    /// A node comes back.
    NodeBack(usize),
    /// All network cuts are healed.
    Reconnect,
    /// Objects whose owner is gone are deleted.
    Collect,
    /// An operator begins a round.
    Round(usize),
    /// An operator carries out the next step of its round.
    Step(usize, u32),
    /// An operator starts again.
    Revive(usize),
    /// An operator learns that it does not lead any more.
    Yield(usize),
    /// The next fault or edit.
    Fault,
    /// The user takes a bad value back.
    TakeBack,
    /// The user asks for another certificate authority.
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
