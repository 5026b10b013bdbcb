//! What the user sees of an EtcdRestore.

use crate::api::etcd_restore::{EtcdRestoreStatus, RestorePhase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stateward_core::conditions::{self, Condition, ConditionStatus, types};

use super::{Reason, Step, View};

/// Conditions, words and the generation they are of. The same as before when nothing changed.
pub(super) fn report(view: &View<'_>, old: &EtcdRestoreStatus, status: &mut EtcdRestoreStatus, step: &Step) {
    let generation = view.restore.metadata.generation;
    let final_before =
        matches!(old.phase, Some(RestorePhase::Complete | RestorePhase::Failed)) && old.phase == status.phase;
    status.observed_generation = generation;
    if final_before {
        return;
    }
    let (reason, message) = step.words.clone().unzip();
    let message = message.unwrap_or_default();
    let complete = status.phase == Some(RestorePhase::Complete);
    let failed = status.phase == Some(RestorePhase::Failed);
    let troubled = failed || !status.reason.is_empty();
    status.waiting = if complete || failed {
        String::new()
    } else {
        message.clone()
    };
    let or = |fallback: Reason| reason.clone().unwrap_or_else(|| fallback.into());
    let said = [
        (
            types::COMPLETE,
            complete,
            if complete {
                Reason::Restored.into()
            } else {
                or(Reason::Replacing)
            },
        ),
        (types::PROGRESSING, !complete && !failed, or(Reason::Restored)),
        (types::DEGRADED, troubled, or(Reason::AsExpected)),
    ];
    for (type_, holds, reason) in said {
        let holds = if holds {
            ConditionStatus::True
        } else {
            ConditionStatus::False
        };
        let condition = Condition::new(type_, holds, reason.as_str(), message.clone()).observed(generation);
        conditions::set(&mut status.conditions, condition, &Time(view.now));
    }
}
