//! When the next backup is due. Missed times are caught up once: only the latest of them counts.

use std::time::Duration;

use jiff::Timestamp;
use stateward_api::etcd_backup::EtcdBackupStatus;

use super::{View, later};
use crate::cron::Schedule;

/// When.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// It is time, for this scheduled time.
    Now(Timestamp),
    /// Then.
    At(Timestamp),
    /// Never again: it was taken once, or no such time comes.
    Never,
}

/// By the spec, not looking at failures.
pub(super) fn due(view: &View<'_>, status: &EtcdBackupStatus) -> Due {
    let plan = view.plan();
    let created = view
        .backup
        .metadata
        .creation_timestamp
        .as_ref()
        .map_or(view.now, |time| time.0);
    let last = status.last_schedule_time.as_ref().map(|time| time.0);
    if let Some(text) = &plan.schedule {
        let Ok(schedule) = Schedule::parse(text) else {
            return Due::Never; // refused before
        };
        let last = believable(last.unwrap_or(created), schedule.next(view.now), view.now);
        return match schedule.last(view.now).filter(|time| *time > last) {
            Some(missed) => Due::Now(missed),
            None => schedule.next(view.now.max(last)).map_or(Due::Never, Due::At),
        };
    }
    let Some(seconds) = plan.interval_seconds().and_then(|seconds| u64::try_from(seconds).ok()) else {
        return match last {
            None => Due::Now(created),
            Some(_) => Due::Never,
        };
    };
    let interval = Duration::from_secs(seconds.max(1));
    let Some(last) = last else {
        return Due::Now(created);
    };
    let last = believable(last, Some(later(view.now, interval)), view.now);
    let passed = view.since(last).as_secs() / interval.as_secs();
    match passed {
        0 => Due::At(later(last, interval)),
        times => Due::Now(later(
            last,
            interval.saturating_mul(u32::try_from(times).unwrap_or(u32::MAX)),
        )),
    }
}

/// A last time that lies further ahead than the next one to come is of a clock that was wrong: counted from now again.
fn believable(last: Timestamp, next: Option<Timestamp>, now: Timestamp) -> Timestamp {
    if next.is_some_and(|next| last > next) {
        now
    } else {
        last
    }
}
