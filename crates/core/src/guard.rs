//! Guards: what must still be so at the moment an action is executed. They are data, so that the worker and a simulation
//! evaluate the same conditions with the same code; they differ only in how a fact is read.
//!
//! A guard that does not hold refuses the action, and the next reconcile decides anew. A fact that was not read refuses too.

use std::time::Duration;

use crate::{ObjectVersion, Uid};

/// For how long a quorum read of an object, or a write of it, counts as this moment. Actions of one reconcile follow each other
/// within milliseconds; one that was held up is preceded by another read.
pub const FRESH_FOR: Duration = Duration::from_secs(1);

/// One condition of an action. `F`: what only the engine knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard<F> {
    /// The custom resource is the very version that was planned with: its spec, and what its status remembers.
    Unchanged(ObjectVersion),
    /// What the action changes has this UID. The API server checks it with the request.
    Uid(Uid),
    /// What the action changes was not modified since it was observed. The API server checks it with the request.
    Unmodified,
    /// Nothing has the name of what the action creates. The API server checks it with the request.
    Absent,
    /// A fact that the engine reads.
    Fact(F),
}

/// A condition that only the engine knows.
pub trait Fact {
    /// The facts that were read past all caches.
    type Facts;
    /// Names a fact that must be read.
    type Need;
    /// What it is judged by beside them.
    type Context: ?Sized;

    /// Whether it holds by what was read, or what must be read first.
    fn check(&self, facts: &Self::Facts, context: &Self::Context) -> Check<Self::Need>;
}

/// For actions whose guards need no facts of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoFact {}

impl Fact for NoFact {
    type Facts = ();
    type Need = NoFact;
    type Context = ();

    fn check(&self, (): &(), (): &()) -> Check<NoFact> {
        match *self {}
    }
}

/// What was read past all caches.
#[derive(Clone, Debug, Default)]
pub struct Fresh<T> {
    /// The version of the custom resource; `Some(None)`: it is gone; `None`: not read.
    pub object: Option<Option<ObjectVersion>>,
    /// What the engine has read.
    pub facts: T,
}

/// What must be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need<N> {
    /// The version of the custom resource.
    Object,
    /// A fact of the engine.
    Fact(N),
}

impl<F> From<F> for Guard<F> {
    fn from(fact: F) -> Self {
        Self::Fact(fact)
    }
}

impl<F: Fact> Guard<F> {
    /// Whether it holds by what was read, or what must be read first.
    pub fn check(&self, fresh: &Fresh<F::Facts>, context: &F::Context) -> Check<Need<F::Need>> {
        match self {
            Self::Unchanged(planned) => match &fresh.object {
                None => Check::Unread(Need::Object),
                Some(now) => Check::that(now.as_ref() == Some(planned), || {
                    "the object has changed meanwhile".into()
                }),
            },
            Self::Uid(_) | Self::Unmodified | Self::Absent => Check::Holds,
            Self::Fact(fact) => match fact.check(&fresh.facts, context) {
                Check::Holds => Check::Holds,
                Check::Refused(why) => Check::Refused(why),
                Check::Unread(need) => Check::Unread(Need::Fact(need)),
            },
        }
    }
}

/// Whether all guards hold: whoever is told what to read reads it and asks again. The first that does not hold decides.
pub fn check<F: Fact>(guards: &[Guard<F>], fresh: &Fresh<F::Facts>, context: &F::Context) -> Check<Need<F::Need>> {
    let checks = guards.iter().map(|guard| guard.check(fresh, context));
    let first = checks.into_iter().find(|check| !matches!(check, Check::Holds));
    first.unwrap_or(Check::Holds)
}

/// What of the guards goes with the request to the API server.
pub fn precondition<F>(guards: &[Guard<F>]) -> Precondition {
    let mut all = Precondition::default();
    for guard in guards {
        match guard {
            Guard::Uid(uid) => all.uid = Some(uid.clone()),
            Guard::Unmodified => all.unmodified = true,
            // Only a request that creates has it, and such a request fails where the name is taken.
            Guard::Absent => {}
            Guard::Unchanged(_) | Guard::Fact(_) => {}
        }
    }
    all
}

/// What came of a guard. `N` names the facts that it may need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check<N> {
    /// The action may go on.
    Holds,
    /// It may not, with the reason.
    Refused(String),
    /// This must be read first.
    Unread(N),
}

/// What the API server checks together with the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Precondition {
    /// The object's UID.
    pub uid: Option<Uid>,
    /// Its resource version is the one that was observed.
    pub unmodified: bool,
}

impl<N> Check<N> {
    /// A condition.
    pub fn that(it_holds: bool, why_not: impl FnOnce() -> String) -> Self {
        if it_holds {
            Self::Holds
        } else {
            Self::Refused(why_not())
        }
    }

    /// Nothing speaks against it.
    pub fn unless<T>(offender: Option<T>, why: impl FnOnce(T) -> String) -> Self {
        offender.map_or(Self::Holds, |offender| Self::Refused(why(offender)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It holds when the number that was read is even.
    struct Even;

    impl Fact for Even {
        type Facts = Option<u32>;
        type Need = &'static str;
        type Context = ();

        fn check(&self, read: &Option<u32>, (): &()) -> Check<&'static str> {
            match read {
                None => Check::Unread("a number"),
                Some(number) => Check::that(number % 2 == 0, || format!("{number} is odd")),
            }
        }
    }

    #[test]
    fn what_was_not_read_lets_nothing_pass() {
        let version = |version: &str| ObjectVersion {
            uid: Uid("u".into()),
            resource_version: version.into(),
        };
        // given guards about the object and about a fact
        let guards = [
            Guard::Uid(Uid("u".into())),
            Guard::Unchanged(version("1")),
            Guard::Fact(Even),
        ];
        let fresh = |object, facts| Fresh { object, facts };
        for (object, number, expected) in [
            // then what is missing is asked for, in their order
            (None, None, Check::Unread(Need::Object)),
            (None, Some(2), Check::Unread(Need::Object)),
            (Some(Some(version("1"))), None, Check::Unread(Need::Fact("a number"))),
            // and each must hold
            (Some(Some(version("1"))), Some(2), Check::Holds),
            (Some(Some(version("1"))), Some(3), Check::Refused("3 is odd".into())),
            (
                Some(Some(version("2"))),
                Some(2),
                Check::Refused("the object has changed meanwhile".into()),
            ),
            (
                Some(None),
                Some(2),
                Check::Refused("the object has changed meanwhile".into()),
            ),
        ] {
            assert_eq!(check(&guards, &fresh(object, number), &()), expected);
        }
    }
}
