//! Planners that break the order of an operations manual: members, leaders, data, messages.

use std::time::Duration;

use jiff::Timestamp;
use stateward_etcd::cluster::{
    Effect, Intent, Launch, Listed, MemberName, MemberProbe, Plan, Record, Recovery, Stop, World, members, plan,
};

use super::{Mutant, caught, caught_in, scenes};
use crate::rules::name;

/// Each mutant with the rules that may catch it first.
pub(super) fn all() -> Vec<Mutant> {
    vec![
        caught(
            "no seals",
            members_are_never_sealed,
            &[name::MESSAGES, name::CONVERGES, name::MEMORY],
        ),
        caught(
            "join instead of sealed",
            a_member_comes_back_as_if_it_were_new,
            &[name::MEMORY],
        ),
        caught(
            "seed instead of sealed",
            a_member_comes_back_as_a_first_member,
            &[name::ONE_BOOTSTRAP],
        ),
        caught(
            "bootstraps again",
            the_record_of_the_bootstrap_is_ignored,
            &[name::ONE_BOOTSTRAP, name::WRITES],
        ),
        caught(
            "no record",
            a_first_member_starts_before_it_is_recorded,
            &[name::ONE_BOOTSTRAP],
        ),
        caught("removes the leader", the_leader_is_the_one_that_leaves, &[name::LEADER]),
        caught(
            "restarts the leader",
            the_leader_is_restarted_without_a_transfer,
            &[name::LEADER],
        ),
        caught("deletes data", data_of_listed_members_is_deleted, &[name::DATA]),
        caught("no learners", members_join_as_voters, &[name::ONE_CHANGE]),
        caught(
            "no reply is lost",
            a_member_without_a_reply_counts_as_lost,
            &[name::EVIDENCE],
        ),
        caught(
            "restarts all",
            all_outdated_members_restart_at_once,
            &[name::QUORUM, name::LEADER, name::NO_RESTART, name::CONVERGES],
        ),
        caught(
            "restarts for nothing",
            members_are_restarted_for_no_reason,
            &[name::NO_RESTART],
        ),
        caught("promotes nobody", no_learner_is_promoted, &[name::CONVERGES]),
        caught(
            "removes foreign members",
            foreign_members_are_removed,
            &[name::FOREIGN_MEMBERS, name::ONE_CHANGE],
        ),
        caught("reports nothing", waiting_is_not_explained, &[name::MESSAGES]),
        caught("ignores pause", pause_is_ignored, &[name::PAUSED]).alone(),
        caught(
            "recovers without consent",
            a_survivor_takes_over_without_consent,
            &[name::EVIDENCE],
        ),
        caught(
            "stops members before their successors are tried",
            members_are_stopped_before_their_successors_are_tried,
            &[name::REJECTED_POD],
        )
        .alone(),
        caught("never cleans up", leftovers_stay, &[name::CONVERGES, name::MESSAGES]),
        caught(
            "a restless status",
            the_status_changes_in_every_reconcile,
            &[name::CONVERGES],
        ),
        caught(
            "hurries on",
            the_next_version_does_not_wait_for_the_clusters,
            &[name::VERSIONS],
        ),
        caught_in(
            "keeps the old log",
            an_old_log_is_not_swept,
            scenes::two_upgrades_in_a_row,
            &[name::CONVERGES],
        ),
    ]
}

pub(super) fn listed<'a>(intent: &'a Intent, world: &'a World) -> impl Iterator<Item = (MemberName, &'a Listed)> {
    let lines = world.list.iter().flat_map(|list| &list.members);
    lines.filter_map(|line| Some((members::owner(intent, line)?, line)))
}

pub(super) fn remove(world: &World, member: &MemberName, line: &Listed) -> Option<Effect> {
    Some(Effect::RemoveMember {
        member: member.clone(),
        id: line.id,
        cluster: world.list.as_ref()?.cluster,
        pod: world.pods.get(member).map(|pod| pod.uid.clone()),
        claim: world.claims.get(member).map(|claim| claim.uid.clone()),
    })
}

pub(super) fn restart(world: &World, member: &MemberName) -> Option<Effect> {
    Some(Effect::DeletePod {
        member: member.clone(),
        uid: world.pods.get(member)?.uid.clone(),
        how: Stop::Restart,
    })
}

pub(super) fn members_are_never_sealed(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(intent, record, world, now);
    plan.effects.retain(|effect| !matches!(effect, Effect::SealPod { .. }));
    plan
}

pub(super) fn a_member_comes_back_as_if_it_were_new(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let mut plan = plan(intent, record, world, now);
    let all: Vec<_> = listed(intent, world)
        .map(|(name, line)| (name, line.peer_urls[0].clone()))
        .collect();
    for effect in &mut plan.effects {
        if let Effect::CreatePod { launch, .. } = effect
            && *launch == Launch::Sealed
        {
            *launch = Launch::Join { members: all.clone() };
        }
    }
    plan
}

pub(super) fn a_member_comes_back_as_a_first_member(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let mut plan = plan(intent, record, world, now);
    let token = record.bootstrap.as_ref().map(|bootstrap| bootstrap.token.clone());
    for effect in &mut plan.effects {
        if let Effect::CreatePod { launch, .. } = effect
            && *launch == Launch::Sealed
        {
            *launch = Launch::Seed {
                token: token.clone().unwrap_or_default(),
            };
        }
    }
    plan
}

pub(super) fn the_record_of_the_bootstrap_is_ignored(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    if world.list.is_none() {
        let mut blind = world.clone();
        blind.pods.clear();
        blind.claims.clear();
        return plan(intent, &Record::default(), &blind, now);
    }
    plan(intent, record, world, now)
}

pub(super) fn a_first_member_starts_before_it_is_recorded(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let mut plan = plan(intent, record, world, now);
    if record.bootstrap.is_none() {
        plan.record = record.clone();
    }
    plan
}

pub(super) fn the_leader_is_the_one_that_leaves(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let mut plan = plan(intent, record, world, now);
    let leader = world.list.as_ref().and_then(|list| list.leader);
    let leads = listed(intent, world).find(|(_, line)| Some(line.id) == leader);
    for effect in &mut plan.effects {
        if let (Effect::RemoveMember { .. }, Some((member, line))) = (&*effect, &leads)
            && let Some(other) = remove(world, member, line)
        {
            *effect = other;
        }
    }
    plan
}

pub(super) fn the_leader_is_restarted_without_a_transfer(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let mut plan = plan(intent, record, world, now);
    for effect in &mut plan.effects {
        if let Effect::MoveLeader { from, .. } = effect
            && let Some((member, _)) = listed(intent, world).find(|(_, line)| line.id == *from)
            && let Some(other) = restart(world, &member)
        {
            *effect = other;
        }
    }
    plan
}

pub(super) fn data_of_listed_members_is_deleted(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let mut plan = plan(intent, record, world, now);
    for (member, line) in listed(intent, world) {
        let no_reply = matches!(world.probes.get(&member), Some(MemberProbe::NoReply(_)));
        if let (true, Some(claim), Some(list)) = (no_reply && !line.learner, world.claims.get(&member), &world.list) {
            plan.effects.push(Effect::DeleteClaim {
                member,
                uid: claim.uid.clone(),
                cluster: list.cluster,
            });
        }
    }
    plan
}

pub(super) fn members_join_as_voters(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(intent, record, world, now);
    for effect in &mut plan.effects {
        if let Effect::AddMember { learner, .. } = effect {
            *learner = false;
        }
    }
    plan
}

pub(super) fn a_member_without_a_reply_counts_as_lost(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let mut plan = plan(intent, record, world, now);
    let no_reply = listed(intent, world)
        .find(|(member, line)| !line.learner && matches!(world.probes.get(member), Some(MemberProbe::NoReply(_))));
    if let Some((member, line)) = no_reply
        && plan.effects.is_empty()
    {
        plan.effects.extend(remove(world, &member, line));
    }
    plan
}

pub(super) fn all_outdated_members_restart_at_once(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let mut plan = plan(intent, record, world, now);
    if plan
        .effects
        .iter()
        .any(|effect| matches!(effect, Effect::DeletePod { how: Stop::Restart, .. }))
    {
        plan.effects = listed(intent, world)
            .filter_map(|(member, _)| restart(world, &member))
            .collect();
    }
    plan
}

pub(super) fn members_are_restarted_for_no_reason(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let mut plan = plan(intent, record, world, now);
    let leader = world.list.as_ref().and_then(|list| list.leader);
    let follower = listed(intent, world).find(|(_, line)| Some(line.id) != leader && !line.learner);
    if plan.effects.is_empty() && intent.size >= 3 {
        plan.effects
            .extend(follower.and_then(|(member, _)| restart(world, &member)));
    }
    plan
}

pub(super) fn no_learner_is_promoted(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(intent, record, world, now);
    plan.effects.retain(|effect| !matches!(effect, Effect::Promote { .. }));
    plan
}

pub(super) fn foreign_members_are_removed(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(intent, record, world, now);
    let lines = world.list.iter().flat_map(|list| &list.members);
    for line in lines.filter(|line| members::owner(intent, line).is_none()) {
        plan.effects.extend(remove(world, &MemberName("foreign".into()), line));
    }
    plan
}

pub(super) fn waiting_is_not_explained(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(intent, record, world, now);
    plan.report.waiting.clear();
    plan
}

pub(super) fn pause_is_ignored(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut intent = intent.clone();
    intent.paused = false;
    plan(&intent, record, world, now)
}

pub(super) fn a_survivor_takes_over_without_consent(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let mut intent = intent.clone();
    intent.recovery = Recovery::FromSurvivor(Duration::ZERO);
    plan(&intent, record, world, now)
}

pub(super) fn members_are_stopped_before_their_successors_are_tried(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let mut plan = plan(intent, record, world, now);
    plan.effects.retain(|effect| !matches!(effect, Effect::TryPod { .. }));
    plan
}

pub(super) fn leftovers_stay(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(intent, record, world, now);
    plan.effects
        .retain(|effect| !matches!(effect, Effect::DeleteClaim { .. }));
    plan
}

pub(super) fn the_status_changes_in_every_reconcile(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let mut plan = plan(intent, record, world, now);
    plan.report.generation = now.as_second();
    plan
}

pub(super) fn the_next_version_does_not_wait_for_the_clusters(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let mut world = world.clone();
    for probe in world.probes.values_mut() {
        if let MemberProbe::Reply(reply) = probe {
            reply.cluster_minor = Some(reply.version.minor());
        }
    }
    plan(intent, record, &world, now)
}

pub(super) fn an_old_log_is_not_swept(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(intent, record, world, now);
    plan.record.old_log = None;
    plan
}
