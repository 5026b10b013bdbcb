//! A held connection to each server. Its end wakes the worker at once; one that stays without a reply counts as silent.
//!
//! The server is asked to sleep for a moment, again and again: so its end is noticed when the kernel closes the connection, and a
//! process that hangs is noticed when a moment does not end. A server that does not reply is tried again beside the
//! reconciles, so that it delays none of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use mysql_async::Conn;
use stateward_mysql::world::NoReply;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::server::{connect, rows_on};
use super::{Error, Target};

/// By how much a reply may be late before the server counts as silent.
const GRACE: Duration = Duration::from_millis(500);
/// How soon a server that does not reply is tried again, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(30), Duration::from_secs(1));

/// What is known of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It was not reached yet, and has not failed yet.
    Unknown,
    /// It replies.
    Open,
    /// It does not.
    Closed(NoReply),
}

/// A held connection.
pub(crate) struct Contact {
    state: watch::Receiver<State>,
    moment: Arc<AtomicU64>,
    _task: AbortOnDropHandle<()>,
}

impl Contact {
    /// Holds a connection. `waker` is notified when the server replies for the first time, stops replying, or replies again.
    pub(crate) fn new(target: Target, moment: Duration, waker: Arc<Notify>) -> Self {
        let (sender, state) = watch::channel(State::Unknown);
        let moment = Arc::new(AtomicU64::new(millis(moment)));
        let task = hold(target, moment.clone(), sender, waker);
        Self {
            state,
            moment,
            _task: AbortOnDropHandle::new(tokio::spawn(task)),
        }
    }

    /// How long the server is asked to sleep from the next time on.
    pub(crate) fn set_moment(&self, moment: Duration) {
        self.moment.store(millis(moment), Ordering::Relaxed);
    }

    /// What is known now.
    pub(crate) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// The same, after waiting for the first attempt, so long at most.
    pub(crate) async fn first(&mut self, limit: Duration) -> State {
        // The sender lives as long as the task.
        drop(timeout(limit, self.state.wait_for(|state| *state != State::Unknown)).await);
        self.state()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

async fn hold(target: Target, moment: Arc<AtomicU64>, state: watch::Sender<State>, waker: Arc<Notify>) {
    let (mut pause, longest) = RETRY;
    loop {
        let began = Timestamp::now();
        let (error, since) = match connect(&target).await {
            Ok(conn) => {
                if set(&state, State::Open) {
                    waker.notify_one();
                }
                pause = RETRY.0;
                until_it_ends(conn, &moment).await
            }
            Err(error) => (error, began),
        };
        let closed = closed(&state, &error, since);
        if set(&state, State::Closed(closed)) {
            waker.notify_one();
        }
        sleep(pause).await;
        pause = pause.mul_f64(1.3).min(longest);
    }
}

/// Sets what is known. Returns whether the worker must know: a mere other reason wakes nobody.
fn set(state: &watch::Sender<State>, new: State) -> bool {
    let replies = |state: &State| matches!(state, State::Open);
    let now = replies(&new);
    let before = state.send_replace(new);
    before == State::Unknown || replies(&before) != now
}

/// A server that did not reply before has not replied since then.
fn closed(state: &watch::Sender<State>, error: &Error, since: Timestamp) -> NoReply {
    let earlier = match &*state.borrow() {
        State::Closed(before) => before.since,
        State::Unknown | State::Open => None,
    };
    NoReply {
        since: earlier.or(Some(since)),
        reason: error.to_string(),
    }
}

/// Returns why the connection ended, and since when the server has not replied.
async fn until_it_ends(mut conn: Conn, moment: &AtomicU64) -> (Error, Timestamp) {
    loop {
        let asleep = Duration::from_millis(moment.load(Ordering::Relaxed));
        let question = format!("DO SLEEP({})", asleep.as_secs_f64());
        let due = Timestamp::now() + asleep;
        match timeout(asleep + GRACE, rows_on(&mut conn, &question)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return (error, Timestamp::now()),
            Err(_) => return (Error::TimedOut, due),
        }
    }
}
