//! Looking after a healthy cluster: alarms, space, claims that grow.

use jiff::Timestamp;

use super::record::{Defragmented, Record};
use super::{Alarm, Effect, LATER, MemberName, Note, Reason, Step, Storage, View, Work};

/// Space ran out: forget old revisions, give free space back member by member, take the alarms back. It needs every voter,
/// and no learner: the one that cannot start must not keep the cluster from taking writes again.
///
/// Not while CORRUPT is raised too: etcd refuses to compact then, and up to 3.5 it takes writes again as soon as the last
/// alarm of any one kind is disarmed.
pub(super) fn clear_space_alarms(view: &View<'_>) -> Option<Step> {
    let list = view.world.list.as_ref()?;
    let healthy = view.all_voters_healthy() && view.voters().next().is_some();
    if !view.world.has_alarm(Alarm::NoSpace) || view.world.has_alarm(Alarm::Corrupt) || !healthy {
        return None;
    }
    let mut effects = vec![
        Effect::Tell(Note {
            warning: true,
            reason: Reason::NoSpace,
            message: OUT_OF_SPACE.to_owned(),
        }),
        Effect::Compact { cluster: list.cluster },
    ];
    effects.extend(leader_last(view).map(|(name, id)| Effect::Defragment {
        member: name,
        id,
        cluster: list.cluster,
    }));
    let alarmed = view.world.alarms.iter().filter(|(_, alarm)| *alarm == Alarm::NoSpace);
    effects.extend(alarmed.map(|(id, alarm)| Effect::Disarm {
        id: *id,
        alarm: *alarm,
        cluster: list.cluster,
    }));
    Some(
        Step::new(Work::Recovering, Reason::NoSpace, OUT_OF_SPACE)
            .with(effects)
            .wake(LATER),
    )
}

/// The alarm stays until all voters answer: nothing that could wait is begun before.
pub(super) fn wait_for_space(view: &View<'_>) -> Option<Step> {
    let raised = view.world.list.is_some() && view.world.has_alarm(Alarm::NoSpace);
    raised.then(|| {
        let message = format!("{OUT_OF_SPACE} (waiting until all members answer)");
        Step::new(Work::Recovering, Reason::NoSpace, message).wake(LATER)
    })
}

const OUT_OF_SPACE: &str = "etcd ran out of its space quota and takes no writes: compacting, defragmenting member by member, then clearing the alarm. Raise spec.maintenance.quota, or delete keys, if it comes back";

pub(super) fn maintenance(view: &View<'_>, record: &mut Record) -> Option<Step> {
    grow_claims(view).or_else(|| defragment(view, record))
}

/// Claims grow when `storage.size` does. They never shrink.
fn grow_claims(view: &View<'_>) -> Option<Step> {
    let Storage::Durable { bytes } = view.intent.storage else {
        return None;
    };
    let effects: Vec<_> = view
        .world
        .claims
        .iter()
        .filter(|(_, claim)| claim.bound && !claim.terminating && claim.requested < bytes)
        .map(|(name, claim)| Effect::GrowClaim {
            member: name.clone(),
            uid: claim.uid.clone(),
            bytes,
        })
        .collect();
    (!effects.is_empty())
        .then(|| Step::new(Work::Changing, Reason::GrowingClaims, "asking for larger volumes").with(effects))
}

/// Free space is given back when it is worth the pause: one member a round, the leader last, all of them healthy. By
/// schedule each member has one turn, which is written down first: whatever comes of it, it is not repeated.
fn defragment(view: &View<'_>, record: &mut Record) -> Option<Step> {
    let list = view.world.list.as_ref()?;
    let desired = view.intent.defragmentation.as_ref()?;
    let scheduled = match &desired.schedule {
        Some(schedule) => Some(due(schedule, view.now)?),
        None => None,
    };
    if !view.all_voters_healthy() || view.voters().count() < list.voters().count() {
        return None;
    }
    let had_turn = |name: &MemberName| {
        let done = record.defragmented.as_ref();
        done.is_some_and(|done| Some(done.scheduled) == scheduled && done.members.contains(name))
    };
    let (name, id) = leader_last(view).find(|(name, _)| {
        let reply = view.members.get(name).and_then(|member| member.reply);
        let worth_it = reply.is_some_and(|reply| {
            let free = reply.db_size.saturating_sub(reply.db_in_use);
            reply.db_size > desired.above
                && free.saturating_mul(100) >= reply.db_size.saturating_mul(desired.free_percent)
        });
        worth_it && !had_turn(name)
    })?;
    if let Some(scheduled) = scheduled {
        let done = record.defragmented.take().filter(|done| done.scheduled == scheduled);
        let mut members = done.map(|done| done.members).unwrap_or_default();
        members.push(name.clone());
        record.defragmented = Some(Defragmented { scheduled, members });
    }
    Some(
        Step::new(
            Work::Changing,
            Reason::Defragmenting,
            format!("giving the free space of {name} back"),
        )
        .with([Effect::Defragment {
            member: name,
            id,
            cluster: list.cluster,
        }])
        .wake(LATER),
    )
}

/// For how long after a time of the schedule members have their turns.
const WINDOW: std::time::Duration = std::time::Duration::from_secs(3600);

/// The time of the schedule that began within the last hour: what could not be done by then waits for the next.
fn due(schedule: &str, now: Timestamp) -> Option<Timestamp> {
    let last = stateward_core::cron::Schedule::parse(schedule).ok()?.last(now)?;
    Some(last).filter(|time| super::members::elapsed(*time, now) < WINDOW)
}

fn leader_last<'a>(view: &'a View<'_>) -> impl Iterator<Item = (super::MemberName, super::MemberId)> + 'a {
    let mut members: Vec<_> = view
        .voters()
        .filter_map(|member| Some((member.name.clone(), member.listed?.id)))
        .collect();
    members.sort_by_key(|(_, id)| Some(*id) == view.leader());
    members.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::MemberId;
    use crate::cluster::testing::three;

    #[test]
    fn a_schedule_is_due_for_an_hour() {
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        let three = at("2026-11-15T03:00:00Z");
        assert_eq!(due("0 3 * * *", at("2026-11-15T02:59:59Z")), None);
        assert_eq!(due("0 3 * * *", three), Some(three));
        assert_eq!(due("0 3 * * *", at("2026-11-15T03:59:59Z")), Some(three));
        assert_eq!(due("0 3 * * *", at("2026-11-15T04:00:00Z")), None);
        assert_eq!(due("*/30 * * * *", at("2026-11-15T03:10:00Z")), Some(three));
    }

    #[test]
    fn space_is_given_back_member_by_member_the_leader_last() {
        let given = three().world(|world| world.alarms.extend([(MemberId(2), Alarm::NoSpace)]));
        given.then(
            Reason::NoSpace,
            &[
                "compact",
                "defragment c-b",
                "defragment c-c",
                "defragment c-a",
                "disarm NoSpace of 2",
            ],
        );
        // Not while somebody does not answer.
        given.silent("c-b").then(Reason::NoSpace, &[]);
    }

    #[test]
    fn claims_grow_and_never_shrink() {
        let of = |requested| {
            three().world(|world| {
                for claim in world.claims.values_mut() {
                    claim.requested = requested;
                }
            })
        };
        let wanted =
            |given: crate::cluster::testing::Given| given.spec(|intent| intent.storage = Storage::Durable { bytes: 8 });
        wanted(of(8)).then(Reason::AsExpected, &[]);
        wanted(of(9)).then(Reason::AsExpected, &[]);
        let grown = ["c-a", "c-b", "c-c"].map(|name| format!("grow the claim of {name} to 8 bytes"));
        wanted(of(7)).then(Reason::GrowingClaims, &grown.each_ref().map(String::as_str));
    }
}
