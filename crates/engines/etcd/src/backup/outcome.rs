//! What came of an attempt, and what follows from it.

use crate::api::agent::{BackedUp, Outcome};
use crate::api::etcd_backup::{AttemptKind, BackupAttempt, BackupRecord, EtcdBackupStatus, Verify};
use jiff::Timestamp;

use super::attempt::{BACKOFF, begin, inputs, make};
use super::{
    Activity, Cause, Effect, NEVER_STARTED, Reason, STUCK, Step, View, later, manifests, stamp, stop, tell, verify,
};
use crate::agent::State;

/// How many backups the status tells of at most; the store may hold more.
pub const RECORDS: usize = 20;

/// What the pod of an attempt shows.
#[allow(clippy::large_enum_variant, reason = "one at a time lives, for a moment")]
pub(super) enum Verdict {
    /// It was never made, as far as is known.
    NotMade,
    /// It works, or waits to.
    Working(Step),
    /// It said how it went.
    Said(Outcome),
    /// It came to nothing: why, a sentence, and what is to be stopped.
    Failed(Reason, String, Vec<Effect>),
}

/// Looks at the attempt's pod.
pub(super) fn verdict(view: &View<'_>, current: &mut BackupAttempt) -> Verdict {
    let pod = current.pod.clone();
    let Some(agent) = view.world.agents.get(&pod) else {
        if current.pod_uid.is_empty() {
            return Verdict::NotMade;
        }
        return Verdict::Failed(
            Reason::PodVanished,
            format!("pod {pod} is gone and did not say how it went: it was deleted, or its node is gone"),
            Vec::new(),
        );
    };
    current.pod_uid.clone_from(&agent.uid.0);
    let blocked = match &agent.state {
        State::Said(outcome) => return Verdict::Said((**outcome).clone()),
        State::TimedOut(words) => {
            return Verdict::Failed(
                Reason::TimedOut,
                format!("pod {pod} took too long: {words}"),
                Vec::new(),
            );
        }
        State::Died(words) => {
            return Verdict::Failed(Reason::PodFailed, format!("pod {pod} failed: {words}"), Vec::new());
        }
        State::Waiting(blocked) => Some(blocked.as_deref()),
        State::Running => None,
    };
    if view.is_stuck(agent) {
        return Verdict::Failed(
            Reason::NodeLost,
            format!("pod {pod} is on a node that does not answer"),
            Vec::new(),
        );
    }
    let stopped = |reason, words| Verdict::Failed(reason, words, vec![stop(&pod, agent)]);
    let age = view.since(agent.created);
    let limit = manifests::deadline(view, current.kind) + STUCK;
    match blocked {
        Some(blocked) if age > NEVER_STARTED => {
            let why = blocked.map(|why| format!(" ({why})")).unwrap_or_default();
            stopped(Reason::PodNotStarted, format!("pod {pod} did not start in time{why}"))
        }
        Some(blocked) => {
            let why = blocked.map(|why| format!(": {why}")).unwrap_or_default();
            let left = NEVER_STARTED.saturating_sub(age);
            let activity = if why.is_empty() {
                Activity::Working
            } else {
                Activity::Blocked
            };
            let reason = if why.is_empty() {
                Reason::Starting
            } else {
                Reason::PodNotStarting
            };
            Verdict::Working(Step::say(activity, reason, format!("waiting for pod {pod} to start{why}")).wake(left))
        }
        None if age > limit => stopped(Reason::TimedOut, format!("pod {pod} took too long and was stopped")),
        None => {
            let message = match current.kind {
                AttemptKind::Backup => format!("pod {pod} takes a backup"),
                AttemptKind::Prove => format!("pod {pod} restores the backup into a scratch member, to prove it"),
                AttemptKind::Delete => format!("pod {pod} deletes the files"),
            };
            Verdict::Working(Step::say(Activity::Working, Reason::Running, message).wake(limit.saturating_sub(age)))
        }
    }
}

/// Looks at the attempt under way, and takes in what came of it.
pub(super) fn look(view: &View<'_>, status: &mut EtcdBackupStatus) -> Step {
    let Some(mut current) = status.current.clone() else {
        return Step::default();
    };
    let verdict = verdict(view, &mut current);
    status.current = Some(current.clone());
    match verdict {
        Verdict::NotMade => make(view, status, &current),
        Verdict::Working(step) => step,
        Verdict::Failed(reason, message, effects) => {
            if current.kind == AttemptKind::Prove {
                verify::unproven(status);
            }
            failed(view, status, reason, &message).with(effects)
        }
        Verdict::Said(Outcome::BackedUp(done)) if current.kind == AttemptKind::Backup => backed_up(view, status, done),
        Verdict::Said(Outcome::Proven(proof)) if current.kind == AttemptKind::Prove => {
            let problem = verify::proven(view, status, &proof);
            Step::default().with(problem).and(succeeded(view, status))
        }
        Verdict::Said(Outcome::Failed(failure)) => {
            if current.kind == AttemptKind::Prove {
                verify::unproven(status);
            }
            failed(view, status, Cause::OfAgent(failure.reason), &failure.message)
        }
        Verdict::Said(other) => {
            let message = format!(
                "pod {} answered with something else than was asked ({other:?}): is its image another version of Stateward?",
                current.pod
            );
            failed(view, status, Reason::WrongAnswer, &message)
        }
    }
}

fn backed_up(view: &View<'_>, status: &mut EtcdBackupStatus, done: BackedUp) -> Step {
    let mut step = Step::default();
    if !done.retention_problem.is_empty() {
        step = step.with([tell(true, Reason::RetentionFailed, done.retention_problem.clone())]);
    }
    let mut record = done.record;
    record.completed_at = record.completed_at.or_else(|| Some(view.stamp()));
    let by_restoring = verify::is_asked(view) || !record.unproven_at.is_empty();
    // Until it is proven as asked nothing starts from it, and it takes nobody's place.
    record.verified = record.verified.or(Some(Verify::Check)).filter(|_| !by_restoring);
    let replaced = |old: &BackupRecord| old.location == record.location && record.unproven_at.is_empty();
    let gone = |old: &BackupRecord| {
        [&old.location, &old.unproven_at]
            .iter()
            .any(|place| done.deleted.contains(place))
    };
    status.backups.retain(|old| !replaced(old) && !gone(old));
    status.backups.insert(0, record);
    verify::bound(view, status);
    if by_restoring {
        return step.and(begin(view, status, AttemptKind::Prove, None, inputs(view)));
    }
    step.and(succeeded(view, status))
}

/// The newest record is good.
fn succeeded(view: &View<'_>, status: &mut EtcdBackupStatus) -> Step {
    status.current = None;
    status.consecutive_failures = 0;
    status.next_backup_time = None;
    let Some(record) = status.backups.first() else {
        return failed(
            view,
            status,
            Reason::WrongAnswer,
            "the backup that was proven is not in the list",
        );
    };
    status.succeeded = true;
    status.reason.clear();
    status.etcd_version.clone_from(&record.etcd_version);
    status.etcd_revision = record.revision;
    status.last_success_date.clone_from(&record.completed_at);
    let message = format!(
        "backed up revision {} of etcd {} to {} ({} bytes, {:.1} s)",
        record.revision,
        record.etcd_version,
        record.location,
        record.size_bytes,
        record.duration_millis as f64 / 1000.0
    );
    Step::default().with([tell(false, Reason::BackupSucceeded, message)])
}

/// The attempt came to nothing: another follows, later each time.
pub(super) fn failed(view: &View<'_>, status: &mut EtcdBackupStatus, reason: impl Into<Cause>, message: &str) -> Step {
    let reason = reason.into();
    status.current = None;
    status.succeeded = false;
    message.clone_into(&mut status.reason);
    status.consecutive_failures += 1;
    let wait = BACKOFF.after(status.consecutive_failures);
    let next: Timestamp = later(view.now, wait);
    status.next_backup_time = Some(stamp(next));
    let told = tell(true, Reason::BackupFailed, format!("{reason}: {message}"));
    Step::say(Activity::Blocked, reason, message).with([told]).wake(wait)
}
