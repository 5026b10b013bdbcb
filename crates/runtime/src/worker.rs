//! One object's worker: intent, memory, observe, plan, write the status, execute; then wait for the next reason to look. It is
//! the same for every kind; see [`Kind`] for the flow.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::join_all;
use jiff::Timestamp;
use kube::Resource;
use kube::core::object::HasStatus;
use rand::Rng;
use stateward_core::ObjectVersion;
use stateward_core::backoff::Backoff;
use stateward_core::guard::{Check, FRESH_FOR, Fresh, Guard, NoFact};
use stateward_core::kind::{Action, Kind, Trouble};
use stateward_core::reason::shared;
use tokio::sync::Notify;
use tracing::Instrument;

use crate::metrics::End;
use crate::{Driver, Failure, Key, Look, Observed, Step, as_manager};

/// How long a reconcile may take.
pub const LIMIT: Duration = Duration::from_secs(20);
/// A status that can wait is written at most this often.
const TEXT_INTERVAL: Duration = Duration::from_secs(1);
/// A reconcile never follows another at once, whatever the plan says.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
/// An object is looked at again after this time at the latest, whatever the plan says.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// How soon to look again after what a reconcile rested on has changed.
const AFTER_CHANGE: Duration = Duration::from_millis(20);
/// After failures in a row.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(500),
    longest: Duration::from_secs(30),
};
/// How long to wait after a refusal at most, and after how many in a row for how long.
const REFUSED: Duration = Duration::from_millis(250);
const MANY_REFUSALS: (u32, Duration) = (40, Duration::from_secs(1));

/// When an object was last read or written in a reconcile, and what it was. `None` inside: it was gone.
#[derive(Default)]
pub struct Seen(Mutex<Option<(Instant, Option<ObjectVersion>)>>);

impl Seen {
    /// What it was a moment ago, if it was looked at then.
    pub fn lately(&self) -> Option<Option<ObjectVersion>> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lately = seen.as_ref().filter(|(at, _)| at.elapsed() < FRESH_FOR);
        lately.map(|(_, version)| version.clone())
    }

    /// It is this now.
    pub fn now(&self, version: Option<ObjectVersion>) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *seen = Some((Instant::now(), version));
    }
}

/// Wakes an object's worker, and starts it where there is none and the object is there.
pub fn tend<D: Driver>(driver: &Arc<D>, key: &Key) {
    let runtime = driver.runtime();
    runtime.workers.tend(&runtime.killed, D::Kind::NAME, key, |mailbox| {
        let wanted = !runtime.stop.is_cancelled() && driver.objects().get(key).is_some();
        wanted.then(|| run(driver.clone(), key.clone(), mailbox))
    });
}

/// Why a reconcile ended early.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// Somebody else wrote the object.
    #[error("the object has changed meanwhile")]
    Conflict,
    /// What the memory rests on could not be read.
    #[error("could not check what is to be recorded: {0}")]
    Record(#[source] Failure),
    /// The API.
    #[error("{0}: {1}")]
    Kubernetes(&'static str, #[source] kube::Error),
}

/// How a reconcile ended, and when to look again if nothing is heard.
struct Outcome {
    end: End,
    wake: Option<Duration>,
}

struct Worker<D: Driver> {
    driver: Arc<D>,
    key: Key,
    session: D::Session,
    mailbox: Arc<Notify>,
    /// Reconciles in a row that failed, or that were refused for now.
    failures: i64,
    refusals: u32,
    /// What could not be done.
    trouble: Option<Trouble>,
    /// When the status was last written.
    written: Option<Instant>,
}

/// Looks after one object until it is gone or the operator stops.
async fn run<D: Driver>(driver: Arc<D>, key: Key, mailbox: Arc<Notify>) {
    let runtime = driver.runtime();
    let mut worker = Worker {
        driver: driver.clone(),
        key,
        session: D::Session::default(),
        mailbox: mailbox.clone(),
        failures: 0,
        refusals: 0,
        trouble: None,
        written: None,
    };
    tokio::select! {
        () = runtime.stop.cancelled() => return,
        () = driver.synced() => {}
    }
    let mut wake = None;
    loop {
        let pause = wake.unwrap_or_else(|| jittered(driver.resync()));
        if !runtime.next_turn(&mailbox, pause).await {
            return;
        }
        let key = &worker.key;
        let Some(object) = driver.objects().get(key) else {
            if runtime
                .workers
                .leave(D::Kind::NAME, key, || driver.objects().get(key).is_some())
            {
                return;
            }
            continue;
        };
        let generation = object.meta().generation.unwrap_or(0);
        let span = tracing::info_span!("reconcile", kind = D::Kind::NAME, object = %key, generation);
        wake = worker.bounded(&object).instrument(span).await;
    }
}

fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(rand::rng().random_range(0.8..1.2))
}

impl<D: Driver> Worker<D> {
    /// One reconcile within its time. Returns when to look again if nothing is heard.
    async fn bounded(&mut self, object: &Arc<D::Object>) -> Option<Duration> {
        let began = Instant::now();
        let driver = self.driver.clone();
        let metrics = &driver.runtime().metrics;
        let result = tokio::time::timeout(LIMIT, self.reconcile(object)).await;
        metrics.reconcile_seconds.observe(began.elapsed().as_secs_f64());
        let (end, wake) = match result {
            Ok(Ok(outcome)) => {
                if outcome.end != End::Failed {
                    self.failures = 0;
                }
                (outcome.end, outcome.wake)
            }
            Ok(Err(Error::Conflict)) => (End::Refused, Some(AFTER_CHANGE)),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the reconcile failed");
                (End::Failed, None)
            }
            Err(_) => {
                tracing::warn!("the reconcile took longer than {LIMIT:?} and was ended");
                (End::Failed, None)
            }
        };
        metrics.ended(end);
        if end == End::Failed {
            self.failures += 1;
            return Some(jittered(BACKOFF.after(self.failures)));
        }
        wake
    }

    async fn reconcile(&mut self, object: &Arc<D::Object>) -> Result<Outcome, Error> {
        let quiet = Outcome {
            end: End::Quiet,
            wake: None,
        };
        let driver = self.driver.clone();
        if object.meta().deletion_timestamp.is_some() && !driver.finalizes() {
            return Ok(quiet); // what it owns goes with it
        }
        let old = D::Kind::stored(object);
        let memory = D::Kind::memory(&old);
        let intent = match D::Kind::intent(object, &memory, driver.settings()) {
            Ok(intent) => intent,
            Err(why) => {
                let new = D::Kind::refused(object, &why, Timestamp::now());
                self.write_status(object, &old, new).await?;
                return Ok(quiet);
            }
        };
        let look: Look<'_, D> = Look {
            key: &self.key,
            object,
            intent: &intent,
            memory: &memory,
            session: &mut self.session,
            waker: &self.mailbox,
        };
        let observed = driver.observe(look).await;
        let observed = observed.map_err(|error| Error::Kubernetes("could not observe", error))?;
        driver.runtime().workers.has_observed(D::Kind::NAME, &self.key);
        let now = Timestamp::now();
        let plan = D::Kind::plan(&intent, &memory, &observed.world, now);
        let mut new = D::Kind::status(object, &intent, &observed.world, &plan, now);
        if let Some(trouble) = self.trouble.as_ref().or(observed.trouble.as_ref()) {
            D::Kind::say(&mut new, &old, trouble, now);
        }
        // What later decisions rest on is written before the step that depends on it; mere text need not hold it up.
        let first = plan.memory != memory;
        let seen = Seen::default();
        let mut object = object.clone();
        if first {
            let step = self.step(&object, &intent, &observed, &seen);
            match driver.may_remember(&step, &memory, &plan.memory).await {
                Ok(()) => {}
                Err(Failure::GuardFailed(why)) => {
                    tracing::info!("not recorded: {why}");
                    return Ok(self.refused(Some(AFTER_CHANGE)));
                }
                Err(failure) => return Err(Error::Record(failure)),
            }
            if let Some(written) = self.write_status(&object, &old, new.clone()).await? {
                seen.now(Some(ObjectVersion::of(written.meta())));
                object = Arc::new(written);
            }
        }
        let step = self.step(&object, &intent, &observed, &seen);
        let result = execute(&*driver, &step, &plan.actions).await;
        let mut held_back = None;
        if !first && old != new {
            held_back = self.can_wait(&old, &new);
            if held_back.is_none() {
                self.write_status(&object, &old, new).await?;
            }
        }
        let end = match result {
            Ok(()) => {
                if self.trouble.take().is_some() {
                    held_back = Some(SHORTEST_PAUSE); // the status still tells of it
                }
                self.refusals = 0;
                if plan.actions.is_empty() { End::Quiet } else { End::Done }
            }
            Err((action, Failure::NotYet(why))) => {
                tracing::debug!("{action}: {why}");
                return Ok(self.refused(plan.wake));
            }
            Err((action, Failure::GuardFailed(why))) => {
                tracing::info!("not done: {action}: {why}");
                return Ok(self.refused(Some(AFTER_CHANGE)));
            }
            Err((action, failure)) => {
                tracing::warn!("could not {action}: {failure}");
                self.trouble = Some(trouble(&action, failure));
                End::Failed
            }
        };
        let wake = [plan.wake, observed.look_again, held_back].into_iter().flatten().min();
        Ok(Outcome {
            end,
            wake: wake.map(|wake| wake.clamp(SHORTEST_PAUSE, LONGEST_PAUSE)),
        })
    }

    fn step<'a>(
        &'a self,
        object: &'a D::Object,
        intent: &'a <D::Kind as Kind>::Intent,
        observed: &'a Observed<D>,
        seen: &'a Seen,
    ) -> Step<'a, D> {
        Step {
            key: &self.key,
            object,
            intent,
            observed,
            seen,
        }
    }

    /// Another try soon; less soon when it was refused many times.
    fn refused(&mut self, wake: Option<Duration>) -> Outcome {
        self.refusals = self.refusals.saturating_add(1);
        let (many, seldom) = MANY_REFUSALS;
        let wake = wake.unwrap_or(REFUSED).clamp(Duration::from_millis(10), REFUSED);
        Outcome {
            end: End::Refused,
            wake: Some(if self.refusals < many { wake } else { seldom }),
        }
    }

    /// How long a change that is not urgent is held back, so that a busy object's status is not written many times a second.
    fn can_wait(&self, old: &<D::Kind as Kind>::Status, new: &<D::Kind as Kind>::Status) -> Option<Duration> {
        let left = TEXT_INTERVAL.checked_sub(self.written?.elapsed())?;
        D::Kind::can_wait(old, new).then_some(left)
    }

    /// Writes the status if it says anything new, with the resource version that the reconcile began with. Returns the object as
    /// it is then.
    async fn write_status(
        &mut self,
        object: &D::Object,
        old: &<D::Kind as Kind>::Status,
        new: <D::Kind as Kind>::Status,
    ) -> Result<Option<D::Object>, Error> {
        if *old == new {
            return Ok(None);
        }
        let runtime = self.driver.runtime();
        if !runtime.leadership.holds() {
            return Err(Error::Conflict);
        }
        let api = runtime.api::<D::Object>(&self.key.namespace);
        let mut with_status = object.clone();
        *with_status.status_mut() = Some(new);
        match api.replace_status(&self.key.name, &as_manager(), &with_status).await {
            Ok(written) => {
                self.written = Some(Instant::now());
                runtime.metrics.status_writes.inc();
                took(&*self.driver, &self.key, object, Some(written.clone()));
                Ok(Some(written))
            }
            Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => {
                // The watch may be late: ask, so that the next reconcile has the newest.
                let now = api.get_opt(&self.key.name).await;
                let now = now.map_err(|error| Error::Kubernetes("could not read the object", error))?;
                took(&*self.driver, &self.key, object, now);
                Err(Error::Conflict)
            }
            Err(error) => Err(Error::Kubernetes("could not write the status", error)),
        }
    }
}

/// What a failure is to users.
fn trouble(action: &impl Action, failure: Failure) -> Trouble {
    match failure {
        Failure::Trouble(trouble) => trouble,
        failure @ Failure::NameTaken(_) => Trouble {
            reason: shared::NAME_TAKEN,
            message: failure.to_string(),
        },
        failure => Trouble {
            reason: shared::CANNOT_CARRY_OUT,
            message: format!("could not {action}: {failure}"),
        },
    }
}

type Failed<D> = (<<D as Driver>::Kind as Kind>::Action, Failure);

/// Executes all. The error names the action that failed.
async fn execute<D: Driver>(
    driver: &D,
    step: &Step<'_, D>,
    actions: &[<D::Kind as Kind>::Action],
) -> Result<(), Failed<D>> {
    let Some(first) = actions.first() else { return Ok(()) };
    let begun = driver.begin(step, actions).await;
    begun.map_err(|failure| (first.clone(), failure))?;
    for together in actions.chunk_by(|one, next| one.goes_with(next)) {
        let results = join_all(together.iter().map(|action| one(driver, step, action, together))).await;
        for (action, result) in together.iter().zip(results) {
            result.map_err(|failure| (action.clone(), failure))?;
        }
    }
    Ok(())
}

async fn one<D: Driver>(
    driver: &D,
    step: &Step<'_, D>,
    action: &<D::Kind as Kind>::Action,
    together: &[<D::Kind as Kind>::Action],
) -> Result<(), Failure> {
    let delay = driver.delay(action, together);
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    if !driver.runtime().leadership.holds() {
        return Err(Failure::GuardFailed("another operator leads".into()));
    }
    tracing::debug!("about to {action}");
    driver.holds(step, action).await?;
    driver.execute(step, action).await?;
    if !action.is_note() {
        tracing::info!("done: {action}");
    }
    driver.runtime().metrics.executed(action.name());
    Ok(())
}

/// The object is the very version that was planned with: read past all caches unless it was a moment ago.
pub async fn is_unchanged<D: Driver>(driver: &D, step: &Step<'_, D>) -> Result<(), Failure> {
    let now = match step.seen.lately() {
        Some(lately) => lately,
        None => read(driver, step).await?,
    };
    let planned: Guard<NoFact> = Guard::Unchanged(ObjectVersion::of(step.object.meta()));
    let fresh = Fresh {
        object: Some(now),
        facts: (),
    };
    match planned.check(&fresh, &()) {
        Check::Holds => Ok(()),
        Check::Refused(why) => Err(Failure::GuardFailed(why)),
        Check::Unread(_) => Err(Failure::GuardFailed("the object was not read".into())),
    }
}

/// The object is this now, by a request of ours; or it is gone.
pub fn took<D: Driver>(driver: &D, key: &Key, before: &D::Object, now: Option<D::Object>) {
    match now {
        Some(now) => driver.objects().put(now),
        None => driver
            .objects()
            .lost(key, before.meta().uid.as_deref().unwrap_or_default()),
    }
    driver.changed(key, before);
}

/// A quorum read of the object.
pub async fn read<D: Driver>(driver: &D, step: &Step<'_, D>) -> kube::Result<Option<ObjectVersion>> {
    let api = driver.runtime().api::<D::Object>(&step.key.namespace);
    let now = api.get_opt(&step.key.name).await?;
    let version = now.as_ref().map(|now| ObjectVersion::of(now.meta()));
    took(driver, step.key, step.object, now);
    step.seen.now(version.clone());
    Ok(version)
}
