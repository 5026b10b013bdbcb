//! Pods that are missing come back as the members they were, with their data. Nothing is lost by it, so it needs no
//! quorum, and all come back at once.

use super::{Reason, Step, View, Work, pods};

pub(super) fn restart(view: &View<'_>) -> Option<Step> {
    let back = pods::bring_back(view)?;
    let message = format!("bringing back {} with the data they have", back.names.join(", "));
    Some(Step::new(Work::Recovering, Reason::RestartingMembers, message).with(back.effects))
}
