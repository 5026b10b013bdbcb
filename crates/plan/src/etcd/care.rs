//! Looking after a healthy cluster: alarms, space, claims that grow.

use super::{Alarm, Effect, LATER, Note, Step, Storage, View, Work};

/// Space ran out: forget old revisions, give free space back member by member, take the alarm back.
pub(super) fn clear_alarms(view: &View<'_>) -> Option<Step> {
    let list = view.world.list.as_ref()?;
    let alarmed: Vec<_> = view
        .voters()
        .filter(|member| {
            member
                .answer
                .is_some_and(|answer| answer.alarms.contains(&Alarm::NoSpace))
        })
        .collect();
    if alarmed.is_empty() {
        return None;
    }
    let message = "etcd ran out of its space quota and takes no writes: compacting, defragmenting member by member, then clearing the alarm. Raise spec.maintenance.quota, or delete keys, if it comes back";
    if !view.all_voters_healthy() {
        return Some(
            Step::new(
                Work::Recovering,
                "NoSpace",
                format!("{message} (waiting until all members answer)"),
            )
            .wake(LATER),
        );
    }
    let mut effects = vec![
        Effect::Tell(Note {
            warning: true,
            reason: "NoSpace",
            message: message.to_owned(),
        }),
        Effect::Compact { cluster: list.cluster },
    ];
    effects.extend(leader_last(view).map(|(name, id)| Effect::Defragment {
        member: name,
        id,
        cluster: list.cluster,
    }));
    effects.extend(
        alarmed
            .iter()
            .filter_map(|member| member.listed)
            .map(|listed| Effect::Disarm {
                id: listed.id,
                alarm: Alarm::NoSpace,
                cluster: list.cluster,
            }),
    );
    Some(
        Step::new(Work::Recovering, "NoSpace", message)
            .with(effects)
            .wake(LATER),
    )
}

pub(super) fn care(view: &View<'_>) -> Option<Step> {
    grow_claims(view).or_else(|| defragment(view))
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
    (!effects.is_empty()).then(|| Step::new(Work::Changing, "GrowingClaims", "asking for larger volumes").with(effects))
}

/// Free space is given back when it is worth the pause: one member a round, the leader last, all of them healthy.
fn defragment(view: &View<'_>) -> Option<Step> {
    let list = view.world.list.as_ref()?;
    let above = view.intent.defragment_above?;
    if !view.all_voters_healthy() || view.voters().count() < list.voters().count() {
        return None;
    }
    let (name, id) = leader_last(view).find(|(name, _)| {
        let answer = view.members.get(name).and_then(|member| member.answer);
        answer.is_some_and(|answer| answer.db_size > above && answer.db_in_use.saturating_mul(2) < answer.db_size)
    })?;
    Some(
        Step::new(
            Work::Changing,
            "Defragmenting",
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

fn leader_last<'a>(view: &'a View<'_>) -> impl Iterator<Item = (super::MemberName, super::MemberId)> + 'a {
    let mut members: Vec<_> = view
        .voters()
        .filter_map(|member| Some((member.name.clone(), member.listed?.id)))
        .collect();
    members.sort_by_key(|(_, id)| Some(*id) == view.leader());
    members.into_iter()
}
