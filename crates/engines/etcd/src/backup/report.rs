//! What the user sees: conditions and the words of what is waited for. Saying the same again changes nothing.

use crate::api::etcd_backup::EtcdBackupStatus;
use stateward_core::conditions::{self, Condition, ConditionStatus, types};

use super::{Activity, Cause, Reason, View, Words};

pub(super) fn report(view: &View<'_>, old: &EtcdBackupStatus, status: &mut EtcdBackupStatus, words: Option<&Words>) {
    let generation = view.backup.metadata.generation;
    status.observed_generation = generation;
    status.waiting = words.map(|words| words.message.clone()).unwrap_or_default();
    let troubled = words.filter(|words| words.activity == Activity::Blocked);
    let failing = status.consecutive_failures > 0;
    if let Some(words) = troubled.filter(|_| !status.succeeded) {
        status.reason.clone_from(&words.message);
    }
    if troubled.is_none() && !failing && view.backup.metadata.deletion_timestamp.is_none() {
        status.reason.clear();
    }
    if words.is_none() && failing {
        let next = status.next_backup_time.as_ref().map(|time| time.0);
        let when = next.map(|time| format!("at {time} ")).unwrap_or_default();
        status.waiting = format!(
            "tried again {when}after {} failures: {}",
            status.consecutive_failures, status.reason
        );
    }
    let degraded = match troubled {
        Some(words) => (ConditionStatus::True, words.reason.clone(), words.message.clone()),
        // The last failure holds until an attempt succeeds.
        None if failing => {
            let said = conditions::get(&old.conditions, types::DEGRADED);
            let said = said.filter(|said| said.status == ConditionStatus::True);
            let reason = said.map_or(Reason::BackupFailed.into(), |said| {
                Cause::OfAgent(said.reason.clone().into())
            });
            (ConditionStatus::True, reason, status.reason.clone())
        }
        None => (ConditionStatus::False, Reason::AsExpected.into(), String::new()),
    };
    let working = words.filter(|words| words.activity == Activity::Working);
    let progressing = match working {
        Some(words) => (ConditionStatus::True, words.reason.clone(), words.message.clone()),
        None if status.current.is_some() => (ConditionStatus::True, Reason::Running.into(), String::new()),
        None => (ConditionStatus::False, Reason::AsExpected.into(), String::new()),
    };
    let complete = if status.succeeded {
        (ConditionStatus::True, Reason::Succeeded.into(), String::new())
    } else {
        let reason = if failing { Reason::Failed } else { Reason::NotYet };
        (ConditionStatus::False, reason.into(), status.reason.clone())
    };
    let now = view.stamp();
    for (type_, (holds, reason, message)) in [
        (types::COMPLETE, complete),
        (types::PROGRESSING, progressing),
        (types::DEGRADED, degraded),
    ] {
        let condition = Condition::new(type_, holds, reason.as_str(), message).observed(generation);
        conditions::set(&mut status.conditions, condition, &now);
    }
}
