//! The recent changes of one resource. Watches read from it at their own pace: a slow client holds a cursor, never a
//! queue, and gets `410 Expired` once the log has moved past it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use super::{Key, Object};

/// Changes kept per resource.
const KEPT: usize = 2048;

/// One change: created (no `before`), changed, or deleted (no `after`).
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) revision: u64,
    pub(crate) key: Key,
    pub(crate) before: Option<Arc<Object>>,
    pub(crate) after: Option<Arc<Object>>,
    /// The object of a deletion: the last state, with the revision of the deletion.
    pub(crate) shown: Arc<Object>,
}

/// The requested revision is no longer in the log.
#[derive(Debug)]
pub(crate) struct TooOld {
    pub(crate) oldest: u64,
}

pub(crate) struct Log {
    events: Mutex<Events>,
    newest: watch::Sender<u64>,
}

struct Events {
    queue: VecDeque<Arc<Event>>,
    /// Everything after this revision is here.
    floor: u64,
}

impl Log {
    pub(super) fn new(floor: u64) -> Self {
        Self {
            events: Mutex::new(Events {
                queue: VecDeque::new(),
                floor,
            }),
            newest: watch::Sender::new(floor),
        }
    }

    pub(super) fn push(&self, event: Event) {
        let mut events = self.events.lock().unwrap_or_else(|e| e.into_inner());
        if events.queue.len() >= KEPT
            && let Some(dropped) = events.queue.pop_front()
        {
            events.floor = dropped.revision;
        }
        events.queue.push_back(Arc::new(event));
    }

    /// Wakes the watches; called once the snapshot with the new events is published.
    pub(super) fn announce(&self, revision: u64) {
        self.newest.send_replace(revision);
    }

    /// A receiver that changes whenever there is something new.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// Up to `limit` events after `revision`.
    pub(crate) fn after(&self, revision: u64, limit: usize) -> Result<Vec<Arc<Event>>, TooOld> {
        let events = self.events.lock().unwrap_or_else(|e| e.into_inner());
        if revision < events.floor {
            return Err(TooOld { oldest: events.floor });
        }
        let start = events.queue.partition_point(|event| event.revision <= revision);
        Ok(events.queue.range(start..).take(limit).cloned().collect())
    }
}
