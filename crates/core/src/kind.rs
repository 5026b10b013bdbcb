//! A kind of object that Stateward looks after, as a pure function: [`Kind`].

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use kube_core::object::HasStatus;

use crate::conditions::{Condition, ConditionStatus, types};

/// A kind of object: what the user wants of it, what must be remembered of it, and what to do next.
///
/// The worker of `stateward-runtime` drives a kind together with its driver, which does the I/O. So does a simulation.
///
/// # Expected flow
/// A reconcile is started by an event of the object, or of something that it looks at, or by time:
/// 1. [`memory`](Self::memory) reads what was remembered from the status, and [`intent`](Self::intent) what the user wants. A
///    spec that cannot be followed ends the reconcile with the status of [`refused`](Self::refused), and nothing is touched.
/// 2. The driver observes the world.
/// 3. [`plan`](Self::plan) decides, and [`status`](Self::status) makes of it the complete status.
/// 4. When the memory has changed, the status is written now, with the resource version that the reconcile started from.
/// 5. The actions are executed in their order, each when its guards hold. The first that fails ends the reconcile.
/// 6. A status that differs only in what users read is written last.
///
/// # Guarantees
/// - What [`Plan::memory`] says is stored before the first action that rests on it.
/// - An operator that works with an old copy of the object, or beside another operator, fails at that write or at a guard.
/// - A reconcile is bounded in time and never overlaps another of the same object. It may end between any two actions.
/// - Nothing but the status, and what the driver observes, reaches the next reconcile.
///
/// # Assumptions
/// - Every function is pure: no I/O, no clock, no randomness. What varies is in the world; names that must be new are drawn by
///   the driver.
/// - Planning the same again gives the same again. A plan for what is already so has no actions and changes no status.
/// - Every action may be repeated, since a crash may come between an action and the next look.
///
/// # Caveats
/// - The world may be old, as caches are. What an action destroys must be protected by guards, which are read past all caches.
/// - Texts in the status should not contain what changes by itself, such as ages: each change is a write.
pub trait Kind: Sized + Send + Sync + 'static {
    /// The custom resource's name, as in `EtcdCluster`.
    const NAME: &'static str;

    /// The custom resource.
    type Object: HasStatus<Status = Self::Status>;
    /// Its status, complete.
    type Status: Clone + Default + PartialEq + Send + Sync;
    /// What the user wants, checked.
    type Intent: Send + Sync;
    /// What the status remembers for the next decisions.
    type Memory: PartialEq + Send + Sync;
    /// What was observed.
    type World: Send + Sync;
    /// What users are told beside the memory.
    type Report: Send + Sync;
    /// One step.
    type Action: Action;
    /// Settings of the operator that decide what a spec means.
    type Settings: Send + Sync;

    /// The status that an object has.
    fn stored(object: &Self::Object) -> Self::Status {
        object.status().cloned().unwrap_or_default()
    }

    /// What was remembered.
    fn memory(status: &Self::Status) -> Self::Memory;

    /// What the user wants; or why the spec cannot be followed, and what to change.
    fn intent(object: &Self::Object, memory: &Self::Memory, settings: &Self::Settings) -> Result<Self::Intent, String>;

    /// Decides what to do next.
    fn plan(intent: &Self::Intent, memory: &Self::Memory, world: &Self::World, now: Timestamp) -> Plan<Self>;

    /// The complete status after a decision.
    fn status(
        object: &Self::Object,
        intent: &Self::Intent,
        world: &Self::World,
        plan: &Plan<Self>,
        now: Timestamp,
    ) -> Self::Status;

    /// The status while the spec cannot be followed.
    fn refused(object: &Self::Object, why: &str, now: Timestamp) -> Self::Status;

    /// Says in a new status what could not be done.
    fn say(new: &mut Self::Status, old: &Self::Status, trouble: &Trouble, now: Timestamp);

    /// A change of the status that is not urgent: it is only written so often.
    fn can_wait(_old: &Self::Status, _new: &Self::Status) -> bool {
        false
    }
}

/// What a reconcile decided.
pub struct Plan<K: Kind> {
    /// What to remember. Written before the actions.
    pub memory: K::Memory,
    /// What users are told.
    pub report: K::Report,
    /// What to do, in order.
    pub actions: Vec<K::Action>,
    /// When to look again even if nothing is heard. `None`: at the slow resync.
    pub wake: Option<Duration>,
}

/// One step of a plan. It displays as what is done, in the imperative: `create pod a-1`.
pub trait Action: Clone + fmt::Display + Send + Sync + 'static {
    /// Its name in the metrics.
    fn name(&self) -> &'static str;

    /// It only tells somebody something.
    fn is_note(&self) -> bool;

    /// Both wait only for the API server and do not rest on each other: neighbours may be executed at once.
    fn goes_with(&self, _next: &Self) -> bool {
        false
    }
}

/// Why an object is not as it should be, where the plan does not know it: the step that failed, a certificate that cannot be
/// renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// One CamelCase word, for conditions.
    pub reason: &'static str,
    /// A sentence that says what to do, where something helps.
    pub message: String,
}

impl Trouble {
    /// As the condition that users see.
    pub fn condition(&self) -> Condition {
        Condition::new(types::DEGRADED, ConditionStatus::True, self.reason, &self.message)
    }
}
