//! What an engine does itself: [`Driver`].

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::serde::Serialize;
use k8s_openapi::serde::de::DeserializeOwned;
use kube::Resource;
use kube::core::NamespaceResourceScope;
use kube::core::object::HasStatus;
use stateward_core::kind::{Action, Kind, Trouble};
use tokio::sync::Notify;

use crate::{Index, Key, Runtime, worker};

/// The I/O of one [`Kind`]: how its world is observed, how its guards are read and how its actions are executed.
///
/// # Expected flow
/// [`watches`](Self::watches) runs as long as the operator does. It fills the caches, and for every event of an object of this
/// kind calls [`worker::tend`](crate::worker::tend), which starts the object's worker. The worker calls, in each reconcile,
/// [`observe`](Self::observe) once, then [`may_remember`](Self::may_remember) before a changed memory is written, then
/// [`begin`](Self::begin) once before the first action, and for each action [`holds`](Self::holds) and
/// [`execute`](Self::execute).
///
/// # Guarantees
/// - There is one worker per object, and it calls nothing here twice at a time; except that neighbouring actions that go with
///   each other ([`Action::goes_with`](stateward_core::kind::Action::goes_with)) are executed at once.
/// - Nothing is called while another operator leads. Leadership is checked again before each action.
/// - Every call is cut off when the reconcile has taken 20 s.
///
/// # Assumptions
/// - `observe` changes nothing. What it needs of Kubernetes comes from caches; the engine itself is asked.
/// - `holds` reads past all caches and decides nothing: whether a guard holds is said by pure code.
/// - What a write of `execute` returns is put into the caches, so that the next reconcile does not decide the same again.
///
/// # Caveats
/// - A [`Session`](Self::Session) lives as long as the worker, not as long as the object: no decision may rest on it.
/// - An object that is observed beside its own events must be named with [`Workers::uses`](crate::Workers::uses), or its
///   changes wake nobody.
pub trait Driver: Sized + Send + Sync + 'static {
    /// What is driven.
    type Kind: Kind<Object = Self::Object>;
    /// Its custom resource.
    type Object: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned
        + HasStatus<Status = <Self::Kind as Kind>::Status>
        + Send
        + Sync
        + 'static;
    /// Connections, and what was read before: kept between the reconciles of one object.
    type Session: Default + Send;
    /// What actions need beside the world, such as connections to the members that answered.
    type Means: Send + Sync;

    /// What all workers share.
    fn runtime(&self) -> &Runtime;

    /// The settings that decide what a spec means.
    fn settings(&self) -> &<Self::Kind as Kind>::Settings;

    /// The objects of this kind, as the caches show them.
    fn objects(&self) -> &Index<Self::Object>;

    /// How soon a quiet object is looked at again. Nothing is polled; this is only for events that were lost.
    fn resync(&self) -> Duration {
        Duration::from_secs(600)
    }

    /// The worker has something to do for an object that is being deleted.
    fn finalizes(&self) -> bool {
        false
    }

    /// Follows everything that fills the caches of this kind and wakes its workers, until it is dropped.
    fn watches(self: Arc<Self>) -> impl Future<Output = ()> + Send;

    /// Waits until everything that decisions rest on was listed once.
    fn synced(&self) -> impl Future<Output = ()> + Send;

    /// A request of ours has changed an object, or found it changed, and the cache has it. The watch says the same later and is not
    /// heard then: whoever else looks at it is woken now.
    fn changed(&self, _key: &Key, _object: &Self::Object) {}

    /// Looks at everything.
    fn observe(&self, look: Look<'_, Self>) -> impl Future<Output = kube::Result<Observed<Self>>> + Send;

    /// Why this memory must not be stored now, if it must not. That the object was not modified is checked with the write.
    fn may_remember(
        &self,
        _step: &Step<'_, Self>,
        _before: &<Self::Kind as Kind>::Memory,
        _after: &<Self::Kind as Kind>::Memory,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }

    /// Before anything is done: a reconcile that rests on an old object does nothing at all.
    fn begin(
        &self,
        step: &Step<'_, Self>,
        actions: &[<Self::Kind as Kind>::Action],
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        let does_something = actions.iter().any(|action| !action.is_note());
        async move {
            if does_something {
                worker::is_unchanged(self, step).await?;
            }
            Ok(())
        }
    }

    /// Everything that an action rests on is still so. What is checked with the request itself needs no more.
    fn holds(
        &self,
        _step: &Step<'_, Self>,
        _action: &<Self::Kind as Kind>::Action,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }

    /// Does it.
    fn execute(
        &self,
        step: &Step<'_, Self>,
        action: &<Self::Kind as Kind>::Action,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// How much later than its neighbours this action starts, of several that are executed at once.
    fn delay(&self, _action: &<Self::Kind as Kind>::Action, _together: &[<Self::Kind as Kind>::Action]) -> Duration {
        Duration::ZERO
    }
}

/// What an observation starts from.
pub struct Look<'a, D: Driver> {
    /// The object's namespace and name.
    pub key: &'a Key,
    /// The object, as the caches show it.
    pub object: &'a D::Object,
    /// What the user wants.
    pub intent: &'a <D::Kind as Kind>::Intent,
    /// What is remembered.
    pub memory: &'a <D::Kind as Kind>::Memory,
    /// What the worker keeps.
    pub session: &'a mut D::Session,
    /// Whoever hears something for this worker notifies it.
    pub waker: &'a Arc<Notify>,
}

/// What was observed.
pub struct Observed<D: Driver> {
    /// What decisions rest on.
    pub world: <D::Kind as Kind>::World,
    /// What actions need beside it.
    pub means: D::Means,
    /// Something that no event tells of is worth another look after this time.
    pub look_again: Option<Duration>,
    /// What is wrong and does not keep the plan from going on.
    pub trouble: Option<Trouble>,
}

/// One reconcile, when its actions are executed.
pub struct Step<'a, D: Driver> {
    /// The object's namespace and name.
    pub key: &'a Key,
    /// The object as it was planned with; as it was written, where the status was written in this reconcile.
    pub object: &'a D::Object,
    /// What the user wants.
    pub intent: &'a <D::Kind as Kind>::Intent,
    /// What was observed.
    pub observed: &'a Observed<D>,
    /// When the object was last read past all caches.
    pub seen: &'a crate::worker::Seen,
}

/// Why an action was not executed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// What the decision rests on has changed: the next reconcile decides anew.
    #[error("{0}")]
    GuardFailed(String),
    /// The engine says: not now.
    #[error("{0}")]
    NotYet(String),
    /// Kubernetes refused or did not answer.
    #[error(transparent)]
    Kubernetes(#[from] kube::Error),
    /// An object of this name belongs to somebody else.
    #[error("{0} exists and belongs to another object: delete it, or choose another name")]
    NameTaken(String),
    /// It failed, for a reason that users see, with what to do.
    #[error("{}", .0.message)]
    Trouble(Trouble),
    /// It failed; the text says why.
    #[error("{0}")]
    Failed(String),
}
