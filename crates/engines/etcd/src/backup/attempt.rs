//! Whether an attempt starts now. Its number and its pod's name are in the status before the pod is made; while one is
//! there, or a pod of an earlier one may still work, no other starts.

use std::time::Duration;

use crate::api::etcd_backup::{AttemptKind, BackupAttempt, EtcdBackupStatus};
use jiff::Timestamp;
use stateward_core::backoff::Backoff;
use stateward_core::manifests::hash;

use super::schedule::{Due, due, mend};
use super::world::Source;
use super::{Activity, Effect, Reason, Step, View, manifests, outcome, stamp, stop};

/// How long to wait after failures in a row.
pub(super) const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(5),
    longest: Duration::from_secs(600),
};

/// A single backup that failed under the operator before this one. It did not try again, so nobody expects that now.
pub(super) fn is_the_old_operators(view: &View<'_>, status: &EtcdBackupStatus) -> bool {
    let judged = status.observed_generation.is_none() && !status.reason.is_empty();
    judged && !view.plan().is_periodic() && view.backup.metadata.deletion_timestamp.is_none()
}

pub(super) fn attempt(view: &View<'_>, status: &mut EtcdBackupStatus) -> Step {
    let swept = sweep(view, status);
    let step = if status.current.is_some() {
        outcome::look(view, status)
    } else {
        Step::default()
    };
    if status.current.is_some() {
        return swept.and(step);
    }
    swept.and(step).and(start(view, status))
}

/// Pods of attempts that are over: good ones go at once, the last failed one stays until the next, for its log. One that
/// is not the current attempt's and may still work is stopped.
fn sweep(view: &View<'_>, status: &EtcdBackupStatus) -> Step {
    let current = status.current.as_ref().map(|current| current.pod.as_str());
    let others = view
        .world
        .agents
        .iter()
        .filter(|(name, agent)| Some(name.as_str()) != current && manifests::is_attempt(agent));
    let last = others
        .clone()
        .max_by_key(|(_, agent)| agent.created)
        .map(|(name, _)| name);
    let keep = |name: &String| status.consecutive_failures > 0 && current.is_none() && Some(name) == last;
    let gone = others
        .filter(|(name, agent)| agent.terminating.is_none() && !(agent.is_over() && keep(name)))
        .map(|(name, agent)| stop(name, agent));
    Step::default().with(gone.collect::<Vec<_>>())
}

fn start(view: &View<'_>, status: &mut EtcdBackupStatus) -> Step {
    let periodic = view.plan().is_periodic();
    if !periodic && (status.last_success_date.is_some() || status.succeeded) {
        return Step::default();
    }
    if periodic && view.plan().suspend {
        return Step::say(
            Activity::Idle,
            Reason::Suspended,
            "spec.suspend is true: no further backup starts until it is false again",
        );
    }
    mend(view, status);
    let inputs = inputs(view);
    let failing = status.consecutive_failures > 0;
    let scheduled = match due(view, status) {
        Due::Now(time) => time,
        // What failed is still owed.
        Due::At(_) | Due::Never if failing => {
            let last = status.last_schedule_time.as_ref().map(|time| time.0);
            last.unwrap_or(view.now)
        }
        Due::At(time) => {
            status.next_backup_time = Some(stamp(time));
            return Step::default().wake(view.until(time));
        }
        Due::Never => {
            status.next_backup_time = None;
            return Step::default();
        }
    };
    if failing && inputs == status.attempted_with {
        // A time that lies further ahead than any wait is of a clock that was wrong.
        let retry = status.next_backup_time.as_ref().map_or(view.now, |time| time.0);
        let left = view.until(retry);
        if !left.is_zero() && left <= BACKOFF.after(status.consecutive_failures) {
            return Step::default().wake(left);
        }
    }
    if let Some(step) = held_up(view, status) {
        return step;
    }
    begin(view, status, AttemptKind::Backup, Some(scheduled), inputs)
}

/// What stands in the way of an attempt, without being one that failed.
fn held_up(view: &View<'_>, status: &mut EtcdBackupStatus) -> Option<Step> {
    let at_work = view
        .world
        .agents
        .iter()
        .find(|(_, agent)| manifests::is_attempt(agent) && view.may_work(agent));
    if let Some((name, _)) = at_work {
        let message = format!("waiting for pod {name} of an earlier attempt to stop");
        return Some(Step::say(Activity::Working, Reason::Stopping, message).wake(super::STUCK));
    }
    let cluster = view
        .backup
        .spec
        .cluster_ref
        .as_ref()
        .map_or("", |cluster| cluster.name.as_str());
    let trouble = match (&view.world.source, &view.world.missing) {
        (Source::NoCluster, _) => (
            Reason::ClusterMissing,
            format!("EtcdCluster {cluster} does not exist: create it, or change spec.clusterRef"),
        ),
        (Source::Cluster(source), _) if source.members.is_empty() => {
            let message = format!("waiting for EtcdCluster {cluster}, which has no ready member");
            return Some(Step::say(Activity::Working, Reason::WaitingForCluster, message));
        }
        (_, Some(missing)) => (Reason::SecretMissing, missing.clone()),
        _ => return None,
    };
    status.reason.clone_from(&trouble.1);
    Some(Step::say(Activity::Blocked, trouble.0, trouble.1))
}

/// The next attempt: written to the status, which is done before its pod is made.
pub(super) fn begin(
    view: &View<'_>,
    status: &mut EtcdBackupStatus,
    kind: AttemptKind,
    scheduled: Option<Timestamp>,
    inputs: String,
) -> Step {
    status.attempts += 1;
    let number = status.attempts;
    let attempt = BackupAttempt {
        number,
        kind,
        pod: manifests::attempt_name(view, kind, number),
        pod_uid: String::new(),
        started_at: Some(view.stamp()),
        scheduled_for: scheduled.map(stamp),
    };
    if let Some(scheduled) = scheduled {
        status.last_schedule_time = Some(stamp(scheduled));
    }
    status.attempted_with = inputs;
    if status.consecutive_failures == 0 {
        status.reason.clear();
    }
    status.next_backup_time = None;
    status.current = Some(attempt.clone());
    make(view, status, &attempt)
}

/// Makes the pod of the attempt that the status tells of.
pub(super) fn make(view: &View<'_>, status: &mut EtcdBackupStatus, attempt: &BackupAttempt) -> Step {
    let what = match attempt.kind {
        AttemptKind::Backup => "a backup is being taken",
        AttemptKind::Prove => "the backup is being restored into a scratch member, to prove it",
        AttemptKind::Delete => "the files are being deleted",
    };
    let step = Step::say(
        Activity::Working,
        Reason::Running,
        format!("{what} by pod {}", attempt.pod),
    );
    match manifests::pod(view, status, attempt) {
        Some(pod) => step.with([Effect::CreatePod(Box::new(pod))]),
        // It was recorded, never made, and what it needs is gone meanwhile.
        None => outcome::failed(
            view,
            status,
            Reason::NothingToDo,
            "what it was to work on does not exist any more",
        ),
    }
}

/// What stands behind an attempt, as one word: when it changes, a failing one is tried again at once.
pub(super) fn inputs(view: &View<'_>) -> String {
    let generation = view.backup.metadata.generation.unwrap_or(0);
    hash(&(generation, &view.world.secrets))
}
