//! What the user sees of an EtcdRestore.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stateward_api::conditions::{self, Condition, ConditionStatus, types};
use stateward_api::etcd_restore::{EtcdRestoreStatus, RestorePhase};

use super::{Step, View};

/// Conditions, words and the generation they are of. The same as before when nothing changed.
pub(super) fn report(view: &View<'_>, old: &EtcdRestoreStatus, status: &mut EtcdRestoreStatus, step: &Step) {
    let generation = view.restore.metadata.generation;
    let final_before =
        matches!(old.phase, Some(RestorePhase::Complete | RestorePhase::Failed)) && old.phase == status.phase;
    status.observed_generation = generation;
    if final_before {
        return;
    }
    let (reason, message) = step.words.clone().unwrap_or_default();
    let complete = status.phase == Some(RestorePhase::Complete);
    let failed = status.phase == Some(RestorePhase::Failed);
    let troubled = failed || !status.reason.is_empty();
    status.waiting = if complete || failed {
        String::new()
    } else {
        message.clone()
    };
    let word = |fallback: &str| {
        if reason.is_empty() {
            fallback.to_owned()
        } else {
            reason.clone()
        }
    };
    let said = [
        (
            types::COMPLETE,
            complete,
            if complete {
                "Restored".to_owned()
            } else {
                word("Replacing")
            },
        ),
        (types::PROGRESSING, !complete && !failed, word("Restored")),
        (types::DEGRADED, troubled, word("AsWished")),
    ];
    for (type_, holds, reason) in said {
        let holds = if holds {
            ConditionStatus::True
        } else {
            ConditionStatus::False
        };
        let condition = Condition::new(type_, holds, &reason, message.clone()).observed(generation);
        conditions::set(&mut status.conditions, condition, &Time(view.now));
    }
}
