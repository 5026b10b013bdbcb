//! The object is being deleted. What works for it is stopped; with `deletionPolicy: Delete` its files are deleted by one
//! more pod. That is tried a bounded number of times, then the object is let go with a word on what is left: nobody's
//! `kubectl delete` hangs for ever. The spec is not checked here, so that a wrong one cannot hold the object.

use std::time::Duration;

use crate::api::agent::Outcome;
use crate::api::etcd_backup::{AttemptKind, DeletionPolicy, EtcdBackupStatus};
use crate::api::names;

use super::attempt::{begin, inputs};
use super::outcome::{Verdict, look, verdict};
use super::{Activity, Effect, Reason, Step, View, manifests, stop, tell};

/// An attempt is written down before its pod is made, and a round of an operator is bounded: after this time no other
/// operator is between the two any more.
const LATE_POD: Duration = Duration::from_secs(30);

/// After so many failed attempts the object is let go, its files left.
const ATTEMPTS: i64 = 5;

pub(super) fn delete(view: &View<'_>, status: &mut EtcdBackupStatus) -> Step {
    let finalizers = view.backup.metadata.finalizers.clone().unwrap_or_default();
    let ours = |finalizer: &String| {
        finalizer == names::FINALIZER_PERIODIC_BACKUP || finalizer == names::FINALIZER_BACKUP_FILES
    };
    if !finalizers.iter().any(ours) {
        return Step::default(); // what it owns goes with it
    }
    let rest: Vec<String> = finalizers
        .iter()
        .filter(|finalizer| !ours(finalizer))
        .cloned()
        .collect();
    let let_go = Step::default().with([Effect::SetFinalizers(rest)]);
    if let Some(step) = stop_work(view, status) {
        return step;
    }
    let wanted = view.plan().deletion_policy == Some(DeletionPolicy::Delete)
        && finalizers
            .iter()
            .any(|finalizer| finalizer == names::FINALIZER_BACKUP_FILES);
    if !wanted || !manifests::has_files(view, status) {
        return let_go;
    }
    match delete_files(view, status) {
        Deletion::Going(step) => step,
        Deletion::Done => let_go.with([tell(
            false,
            Reason::FilesDeleted,
            "the files of this EtcdBackup are deleted",
        )]),
        Deletion::GivenUp => {
            let files: Vec<&str> = status
                .backups
                .iter()
                .take(5)
                .map(|record| record.location.as_str())
                .collect();
            let message = format!(
                "the files were not deleted in {ATTEMPTS} attempts ({}) and are left in the store: delete them by hand: {}",
                status.reason,
                files.join(", ")
            );
            let_go.with([tell(true, Reason::FilesLeft, message)])
        }
    }
}

/// Takes in what an attempt that is over came to, so that its file is known, and stops everything that still works.
fn stop_work(view: &View<'_>, status: &mut EtcdBackupStatus) -> Option<Step> {
    if let Some(current) = status
        .current
        .clone()
        .filter(|current| current.kind != AttemptKind::Delete)
    {
        match view.world.agents.get(&current.pod) {
            Some(agent) if agent.is_over() => {
                let attempts = status.attempts;
                let _its_effects_are_of_no_use_any_more = look(view, status);
                // A proof that would follow is not made.
                if status
                    .current
                    .as_ref()
                    .is_some_and(|next| next.kind != AttemptKind::Delete)
                {
                    status.current = None;
                    status.attempts = attempts;
                }
            }
            // Once seen, its absence means that it is gone.
            Some(agent) if view.may_work(agent) => {
                if let Some(current) = &mut status.current {
                    current.pod_uid = agent.uid.0.clone();
                }
            }
            None if current.pod_uid.is_empty() && view.since(started(&current)) < LATE_POD => {
                let message =
                    "the object is being deleted: waiting whether another operator still makes the pod it began";
                let left = LATE_POD.saturating_sub(view.since(started(&current)));
                return Some(Step::say(Activity::Working, Reason::Deleting, message).wake(left));
            }
            _ => status.current = None,
        }
    }
    let is_deletion = |name: &String| {
        let current = status.current.as_ref();
        current.is_some_and(|current| current.pod == *name && current.kind == AttemptKind::Delete)
    };
    let at_work: Vec<_> = view
        .world
        .agents
        .iter()
        .filter(|(name, agent)| !is_deletion(name) && view.may_work(agent))
        .collect();
    if at_work.is_empty() {
        return None;
    }
    let stops = at_work
        .iter()
        .filter(|(_, agent)| agent.terminating.is_none())
        .map(|(name, agent)| stop(name, agent));
    let message = "the object is being deleted: waiting for its pods to stop";
    Some(
        Step::say(Activity::Working, Reason::Deleting, message)
            .with(stops)
            .wake(super::STUCK),
    )
}

enum Deletion {
    Going(Step),
    Done,
    GivenUp,
}

fn delete_files(view: &View<'_>, status: &mut EtcdBackupStatus) -> Deletion {
    let sweep: Vec<Effect> = view
        .world
        .agents
        .iter()
        .filter(|(name, agent)| {
            let current = status.current.as_ref().is_some_and(|current| current.pod == **name);
            !current && agent.is_over() && agent.terminating.is_none()
        })
        .map(|(name, agent)| stop(name, agent))
        .collect();
    if let Some(mut current) = status.current.clone() {
        let verdict = verdict(view, &mut current);
        status.current = Some(current.clone());
        let why = match verdict {
            Verdict::NotMade => match manifests::pod(view, status, &current) {
                Some(pod) if view.since(started(&current)) < NOT_MADE => {
                    let step = doing().wake(NOT_MADE);
                    return Deletion::Going(step.with(sweep).with([Effect::CreatePod(Box::new(pod))]));
                }
                // A namespace that is being deleted takes no new pods.
                _ => (format!("pod {} cannot be made", current.pod), Vec::new()),
            },
            Verdict::Working(_) if view.since(started(&current)) > GIVE_UP => {
                let stops = view
                    .world
                    .agents
                    .get(&current.pod)
                    .map(|agent| stop(&current.pod, agent));
                (
                    format!("pod {} took too long", current.pod),
                    stops.into_iter().collect(),
                )
            }
            Verdict::Working(step) => {
                return Deletion::Going(step.wake(GIVE_UP.saturating_sub(view.since(started(&current))) + SECOND));
            }
            Verdict::Said(Outcome::Deleted) => return Deletion::Done,
            Verdict::Said(Outcome::Failed(failure)) => (failure.message, Vec::new()),
            Verdict::Said(other) => (format!("pod {} answered {other:?}", current.pod), Vec::new()),
            Verdict::Failed(_, message, effects) => (message, effects),
        };
        status.current = None;
        status.failed_deletions += 1;
        status.reason = why.0;
        if status.failed_deletions >= ATTEMPTS {
            return Deletion::GivenUp;
        }
        let wait = SECOND * u32::try_from(2 * status.failed_deletions).unwrap_or(10);
        status.next_backup_time = Some(super::stamp(super::later(view.now, wait)));
        let message = format!(
            "the files could not be deleted, which is tried again: {}",
            status.reason
        );
        let step = Step::say(Activity::Blocked, Reason::CannotDeleteFiles, message.clone());
        let told = tell(true, Reason::CannotDeleteFiles, message);
        return Deletion::Going(step.with(why.1).with(sweep).with([told]).wake(wait));
    }
    if status.failed_deletions >= ATTEMPTS {
        return Deletion::GivenUp;
    }
    if status.failed_deletions > 0
        && let Some(retry) = status.next_backup_time.as_ref()
    {
        let left = view.until(retry.0);
        if !left.is_zero() && left < GIVE_UP {
            return Deletion::Going(Step::default().with(sweep).wake(left));
        }
    }
    let step = begin(view, status, AttemptKind::Delete, None, inputs(view));
    Deletion::Going(step.with(sweep).wake(NOT_MADE))
}

const SECOND: Duration = Duration::from_secs(1);
/// How long one attempt to delete files may take in all.
const GIVE_UP: Duration = Duration::from_secs(300);

/// How long it is tried to make its pod.
const NOT_MADE: Duration = Duration::from_secs(15);

fn doing() -> Step {
    Step::say(
        Activity::Working,
        Reason::Deleting,
        "the files of this EtcdBackup are being deleted",
    )
}

fn started(current: &crate::api::etcd_backup::BackupAttempt) -> jiff::Timestamp {
    current
        .started_at
        .as_ref()
        .map_or(jiff::Timestamp::UNIX_EPOCH, |time| time.0)
}
