//! What comes before the first member runs another minor version, up or down, and what takes a downgrade back.
//!
//! Up: etcd's own version must have followed the last step, since a member may be one minor version ahead of it and no
//! more; and the log must hold nothing that the new version ends at. Down: the members must have made their data readable.

use super::record::{OldLog, Record};
use super::{Effect, LATER, Member, Reason, Step, View, Work, upgrade_path};

/// The first version that ends at what 3.4 and before wrote into the log.
const FIRST_WITHOUT_OLD_LOG: u64 = 6;

/// Another minor version is wished, and the members are not ready for it.
pub(super) fn is_pending(view: &View<'_>) -> bool {
    upgrade_path::is_pending(view.record, &view.version)
}

/// What was recorded for another goal is void: the user has changed their mind.
pub(super) fn forget_other_goals(view: &View<'_>, record: &mut Record) {
    let goal = &view.version;
    if record.ready_for.as_ref().is_some_and(|ready| !ready.same_minor(goal)) {
        record.ready_for = None;
    }
    if record.old_log == Some(OldLog::Sweeping) && !is_pending(view) {
        record.old_log = Some(OldLog::Held);
    }
}

/// One step of making the members ready. All voters answer. `None`: the roll goes on.
pub(super) fn prepare(view: &View<'_>, record: &mut Record, all_as_desired: bool) -> Option<Step> {
    let goal = &view.version;
    if !is_pending(view) {
        return None;
    }
    let current = record.current.clone()?;
    if goal.minor() < current.minor() {
        return Some(down(view, record));
    }
    match record.old_log {
        Some(OldLog::Sweeping) if !all_as_desired => return None, // this is the roll that goes on
        Some(OldLog::Sweeping) => record.old_log = None,
        _ => {}
    }
    if (current.minor(), goal.minor()) == (4, 5) && view.world.auth_enabled.is_none() {
        let message = format!("before {goal}: waiting until the members have said whether authentication is enabled");
        return Some(Step::new(Work::Upgrading, Reason::WaitingForAuthStatus, message).wake(LATER));
    }
    let behind: Vec<_> = names(view, |member| {
        let agreed = member.reply.and_then(|reply| reply.cluster_minor);
        agreed.is_none_or(|agreed| agreed + 1 < goal.minor())
    });
    if !behind.is_empty() {
        return Some(
            Step::new(
                Work::Upgrading,
                Reason::WaitingForClusterVersion,
                format!(
                    "before {goal}: waiting until etcd's own version has followed to 3.{} by the word of {}",
                    goal.minor() - 1,
                    behind.join(", ")
                ),
            )
            .wake(LATER),
        );
    }
    if record.old_log == Some(OldLog::Held) && goal.minor() >= FIRST_WITHOUT_OLD_LOG {
        record.old_log = Some(OldLog::Sweeping);
        return Some(
            Step::new(
                Work::Upgrading,
                Reason::SweepingLog,
                format!(
                    "before {goal}: every member is restarted once with {current}, so that its log holds nothing of etcd 3.4"
                ),
            )
            .wake(std::time::Duration::ZERO),
        );
    }
    record.ready_for = Some(goal.clone());
    Some(
        Step::new(
            Work::Upgrading,
            Reason::RollingUpgrade,
            format!("all members are ready for {goal}"),
        )
        .wake(std::time::Duration::ZERO),
    )
}

/// A lower minor version can only read what the members have made readable for it (3.6 and later can).
fn down(view: &View<'_>, record: &mut Record) -> Step {
    let goal = &view.version;
    let waiting = names(view, |member| {
        let storage = member.reply.and_then(|reply| reply.storage_minor);
        storage.is_some_and(|minor| minor > goal.minor())
    });
    let message = match waiting.as_slice() {
        [] => format!("going back to {goal}: etcd is told first"),
        names => format!(
            "going back to {goal}: etcd makes the data of {} readable for it first",
            names.join(", ")
        ),
    };
    let step = Step::new(Work::Upgrading, Reason::Downgrading, message).wake(LATER);
    // Told until the members themselves say that it is done; only that is recorded, since a call may be lost.
    if waiting.is_empty() {
        record.ready_for = Some(goal.clone());
    }
    let enable = view.world.list.as_ref().map(|list| Effect::EnableDowngrade {
        to: goal.clone(),
        cluster: list.cluster,
    });
    step.with(enable)
}

/// etcd was told to go back, and the user has changed their mind since.
pub(super) fn cancel_downgrade(view: &View<'_>) -> Option<Step> {
    let list = view.world.list.as_ref()?;
    let told = view
        .voters()
        .filter_map(|member| member.reply?.downgrading)
        .find(|minor| *minor < view.version.minor())?;
    Some(
        Step::new(
            Work::Upgrading,
            Reason::CancellingDowngrade,
            format!("etcd was told to go back to 3.{told}, which is not desired any more: the downgrade is cancelled"),
        )
        .with([Effect::CancelDowngrade { cluster: list.cluster }])
        .wake(LATER),
    )
}

fn names<'a>(view: &'a View<'_>, is_meant: impl Fn(&Member<'_>) -> bool) -> Vec<&'a str> {
    view.voters()
        .filter(|member| is_meant(member))
        .map(|member| member.name.0.as_str())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::MemberProbe;
    use crate::cluster::testing::{Given, three, version};

    fn each(given: Given, change: fn(&mut crate::cluster::Reply)) -> Given {
        given.world(|world| {
            for probe in world.probes.values_mut() {
                if let MemberProbe::Reply(reply) = probe {
                    change(reply);
                }
            }
        })
    }

    #[test]
    fn up_waits_until_etcds_own_version_has_followed() {
        let given = three().spec(|intent| intent.version = version("3.6.16"));
        each(given, |reply| reply.cluster_minor = Some(4)).then(Reason::WaitingForClusterVersion, &[]);
    }

    #[test]
    fn what_3_4_left_in_the_logs_is_swept_before_3_6() {
        let given = three().spec(|intent| intent.version = version("3.6.16"));
        let plan = given
            .record(|record| record.old_log = Some(OldLog::Held))
            .then(Reason::SweepingLog, &[]);
        assert_eq!(plan.record.old_log, Some(OldLog::Sweeping));
    }

    #[test]
    fn down_etcd_is_told_until_the_data_is_readable() {
        let given = three().record(|record| record.current = Some(version("3.6.16")));
        let given = given.record(|record| record.target = Some(version("3.6.16")));
        let given = each(given, |reply| reply.version = version("3.6.16"));
        for (storage, ready) in [(6, None), (5, Some(version("3.5.35")))] {
            let given = match storage {
                6 => each(given.clone(), |reply| reply.storage_minor = Some(6)),
                _ => each(given.clone(), |reply| reply.storage_minor = Some(5)),
            };
            let plan = given.then(Reason::Downgrading, &["enable the downgrade to 3.5.35"]);
            assert_eq!(plan.record.ready_for, ready);
        }
    }
}
