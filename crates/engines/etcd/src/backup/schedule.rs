//! When the next backup is due by the spec.

use std::time::Duration;

use crate::api::etcd_backup::EtcdBackupStatus;
use jiff::Timestamp;
pub(super) use stateward_core::schedule::Due;
use stateward_core::schedule::Times;

use super::View;

fn times(view: &View<'_>) -> Times {
    let plan = view.plan();
    let interval = plan.interval_seconds().and_then(|seconds| u64::try_from(seconds).ok());
    match (&plan.schedule, interval) {
        // One that is no cron expression was refused before.
        (Some(text), _) => {
            stateward_core::cron::Schedule::parse(text).map_or(Times::Never, |cron| Times::Cron(Box::new(cron)))
        }
        (None, Some(seconds)) => Times::Every(Duration::from_secs(seconds.max(1))),
        (None, None) => Times::Once,
    }
}

fn last(status: &EtcdBackupStatus) -> Option<Timestamp> {
    status.last_schedule_time.as_ref().map(|time| time.0)
}

/// A last time of a clock that was wrong is counted from now again.
pub(super) fn mend(view: &View<'_>, status: &mut EtcdBackupStatus) {
    if last(status).is_some_and(|last| times(view).is_of_a_wrong_clock(last, view.now)) {
        status.last_schedule_time = Some(view.stamp());
    }
}

/// By the spec, not looking at failures.
pub(super) fn due(view: &View<'_>, status: &EtcdBackupStatus) -> Due {
    let created = view.backup.metadata.creation_timestamp.as_ref();
    let created = created.map_or(view.now, |time| time.0);
    times(view).due(created, last(status), view.now)
}
