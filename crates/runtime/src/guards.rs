//! Evaluating guards: facts are read until all hold, or one does not.

use stateward_core::guard::{self, Check, Fact, Fresh, Guard, Need};

use crate::Failure;

/// Reads facts past all caches.
pub trait Reader<F: Fact> {
    /// Why a fact could not be read.
    type Error: From<Failure>;

    /// Reads what is needed.
    fn read(
        &mut self,
        need: Need<F::Need>,
        fresh: &mut Fresh<F::Facts>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// All of the guards hold at this moment.
pub async fn hold<F: Fact, R: Reader<F>>(
    guards: &[Guard<F>],
    mut fresh: Fresh<F::Facts>,
    context: &F::Context,
    reader: &mut R,
) -> Result<(), R::Error> {
    loop {
        match guard::check(guards, &fresh, context) {
            Check::Holds => return Ok(()),
            Check::Refused(why) => return Err(Failure::GuardFailed(why).into()),
            Check::Unread(need) => reader.read(need, &mut fresh).await?,
        }
    }
}
