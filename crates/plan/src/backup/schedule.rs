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

/// A last time that lies further ahead than the next one to come is of a clock that was wrong: counted from now again.
/// A little ahead is not wrong, as another operator's clock may be; no scheduled time is used twice for that.
pub(super) fn mend(view: &View<'_>, status: &mut EtcdBackupStatus) {
    let Some(last) = status.last_schedule_time.as_ref().map(|time| time.0) else {
        return;
    };
    let next = match (&view.plan().schedule, interval(view)) {
        (Some(text), _) => Schedule::parse(text).ok().and_then(|schedule| schedule.next(view.now)),
        (None, Some(interval)) => Some(later(view.now, interval)),
        (None, None) => None,
    };
    if next.is_some_and(|next| last > next) {
        status.last_schedule_time = Some(view.stamp());
    }
}

fn interval(view: &View<'_>) -> Option<Duration> {
    let seconds = u64::try_from(view.plan().interval_seconds()?).ok()?;
    Some(Duration::from_secs(seconds.max(1)))
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
        let last = last.unwrap_or(created);
        return match schedule.last(view.now).filter(|time| *time > last) {
            Some(missed) => Due::Now(missed),
            None => schedule.next(view.now.max(last)).map_or(Due::Never, Due::At),
        };
    }
    let (Some(interval), Some(last)) = (interval(view), last) else {
        return match last {
            None => Due::Now(created),
            Some(_) => Due::Never,
        };
    };
    let passed = view.since(last).as_secs() / interval.as_secs();
    match passed {
        0 => Due::At(later(last, interval)),
        times => Due::Now(later(
            last,
            interval.saturating_mul(u32::try_from(times).unwrap_or(u32::MAX)),
        )),
    }
}
