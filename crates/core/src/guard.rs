//! Guards: what must still be so at the moment an action is executed. They are data, so that the worker and a simulation
//! evaluate the same conditions with the same code; they differ only in how a fact is read.
//!
//! A guard that does not hold refuses the action, and the next reconcile decides anew. A fact that was not read refuses too.

use std::time::Duration;

use crate::Uid;

/// For how long a quorum read of an object, or a write of it, counts as this moment. Actions of one reconcile follow each other
/// within milliseconds; one that was held up is preceded by another read.
pub const FRESH_FOR: Duration = Duration::from_secs(1);

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
