//! For each rule one mutant that no other rule catches: it shows that the rule is needed. Those of some rules are with
//! their subject.

use std::time::Duration;

use jiff::Timestamp;
use stateward_etcd::cluster::guard::Kind;
use stateward_etcd::cluster::{Effect, Intent, Launch, Plan, Record, Recovery, Stop, World, plan};

use super::planner::{listed, restart};
use super::{Mutant, caught_in, planner, restores, scenes, trust};
use crate::rules::name;

pub(super) fn all() -> Vec<Mutant> {
    let all = vec![
        caught_in(
            "two followers at once",
            two_followers_at_once,
            scenes::rollout_of_five,
            &[name::QUORUM],
        ),
        caught_in("promotes twice", promotes_twice, scenes::creation, &[name::ONE_CHANGE]),
        caught_in(
            "records it later",
            records_it_later,
            scenes::creation,
            &[name::ONE_BOOTSTRAP],
        ),
        caught_in(
            "deletes what does not reply",
            planner::data_of_listed_members_is_deleted,
            scenes::a_frozen_member,
            &[name::DATA],
        ),
        caught_in(
            "needs no consent",
            needs_no_consent,
            scenes::a_lost_majority,
            &[name::EVIDENCE],
        ),
        caught_in(
            "restarts for labels",
            restarts_for_labels,
            scenes::relabelling,
            &[name::NO_RESTART],
        ),
        caught_in(
            "waits without a message",
            planner::waiting_is_not_explained,
            scenes::a_frozen_member,
            &[name::MESSAGES],
        ),
        caught_in(
            "touches what is paused",
            planner::pause_is_ignored,
            scenes::a_pause,
            &[name::PAUSED],
        ),
        caught_in(
            "restarts the leader only",
            planner::the_leader_is_restarted_without_a_transfer,
            scenes::rollout,
            &[name::LEADER],
        ),
        caught_in(
            "removes a foreign member",
            removes_a_foreign_member,
            scenes::a_foreign_member,
            &[name::FOREIGN_MEMBERS],
        ),
        caught_in(
            "drops by name",
            plan,
            super::guards::another_backup_of_that_name,
            &[name::FOREIGN],
        )
        .without(Kind::BackupUid),
        caught_in(
            "requests a restore without a loss",
            requests_without_a_loss,
            scenes::a_minute,
            &[name::REMEMBERED],
        ),
        caught_in(
            "joins with its data",
            planner::a_member_comes_back_as_if_it_were_new,
            scenes::a_deleted_pod,
            &[name::MEMORY],
        ),
        caught_in(
            "restarts the only one in memory",
            restarts_the_only_one,
            scenes::rollout_of_one_in_memory,
            &[name::WRITES],
        ),
        caught_in(
            "restores twice",
            restores::a_restore_that_is_done_is_forgotten,
            scenes::a_restore,
            &[name::RESTORE_ONCE],
        ),
        caught_in(
            "begins a deleted restore",
            plan,
            scenes::a_deleted_restore,
            &[name::RESTORE_ASKED],
        )
        .without(Kind::RestoreAsked),
        caught_in(
            "begins beside a restore",
            plan,
            scenes::a_restore_beside_a_new_cluster,
            &[name::RESTORE_AWAITED],
        )
        .without(Kind::NoRestoreWaits),
        caught_in(
            "restores what is broken",
            restores::a_backup_is_followed_before_it_is_proven,
            scenes::a_restore_of_a_broken_backup,
            &[name::RESTORE_PROVEN],
        ),
        caught_in(
            "restores beside the old",
            plan,
            super::guards::a_restore_by_an_operator_that_sees_no_pods,
            &[name::RESTORE_FENCED],
        )
        .without(Kind::Alone),
        caught_in(
            "restores another backup",
            restores_another_backup,
            scenes::a_restore,
            &[name::RESTORE_WHOLE],
        ),
        caught_in(
            "deletes what is kept",
            restores::old_data_is_deleted_although_it_is_kept,
            scenes::a_restore_that_keeps_claims,
            &[name::RESTORE_RETAINS],
        ),
        caught_in(
            "stops for a rejected pod",
            planner::members_are_stopped_before_their_successors_are_tried,
            scenes::a_rejected_pod,
            &[name::REJECTED_POD],
        ),
        caught_in(
            "restores what is too new",
            restores::the_version_of_a_backup_is_not_looked_at,
            scenes::a_backup_that_is_too_new,
            &[name::RESTORE_READABLE],
        ),
        caught_in(
            "replaces without end",
            replaces_without_end,
            scenes::a_crash_loop_wherever_it_goes,
            &[name::CRASHES],
        ),
        caught_in(
            "does not wait for the version",
            planner::the_next_version_does_not_wait_for_the_clusters,
            scenes::two_upgrades_at_once,
            &[name::VERSIONS],
        ),
        caught_in(
            "drops the CA early, alone",
            trust::the_old_ca_is_dropped_before_the_new_certificates_are_seen,
            scenes::another_ca,
            &[name::TRUST],
        ),
        caught_in(
            "leaves learners",
            planner::no_learner_is_promoted,
            scenes::creation,
            &[name::CONVERGES],
        ),
    ];
    all.into_iter().map(Mutant::alone).collect()
}

fn two_followers_at_once(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(intent, record, world, now);
    let leader = world.list.as_ref().and_then(|list| list.leader);
    let stopped = plan.effects.iter().find_map(|effect| {
        let Effect::DeletePod { member, how, .. } = effect else {
            return None;
        };
        (*how == Stop::Restart).then(|| member.clone())
    });
    if let Some(stopped) = stopped {
        let outdated = |pod: &stateward_etcd::cluster::Pod| pod.template != intent.template;
        let other = listed(intent, world).find(|(member, line)| {
            *member != stopped && Some(line.id) != leader && world.pods.get(member).is_some_and(outdated)
        });
        plan.effects
            .extend(other.and_then(|(member, _)| restart(world, &member)));
    }
    plan
}

fn promotes_twice(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(intent, record, world, now);
    let promotes = |effect: &&Effect| matches!(effect, Effect::Promote { .. });
    let again = plan.effects.iter().find(promotes).cloned();
    plan.effects.extend(again);
    plan
}

/// Writes the record of the first member only when that member serves.
fn records_it_later(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(intent, record, world, now);
    if record.bootstrap.is_none() && world.list.is_none() {
        plan.record.bootstrap = None;
    }
    plan
}

fn needs_no_consent(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut intent = intent.clone();
    intent.recovery = Recovery::FromSurvivor(Duration::ZERO);
    plan(&intent, record, world, now)
}

fn restarts_for_labels(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(intent, record, world, now);
    let leader = world.list.as_ref().and_then(|list| list.leader);
    let follower = plan.effects.iter().find_map(|effect| {
        let Effect::RelabelPod { member, .. } = effect else {
            return None;
        };
        let mut lines = listed(intent, world);
        lines.find(|(name, line)| name == member && Some(line.id) != leader)
    });
    if let Some((member, _)) = follower {
        plan.effects
            .retain(|effect| !matches!(effect, Effect::RelabelPod { .. }));
        plan.effects.extend(restart(world, &member));
    }
    plan
}

fn removes_a_foreign_member(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(intent, record, world, now);
    if plan.effects.is_empty() {
        plan.effects = planner::foreign_members_are_removed(intent, record, world, now).effects;
        plan.effects.truncate(1);
    }
    plan
}

fn requests_without_a_loss(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(intent, record, world, now);
    plan.record.asked = Some("demo-recovery".into());
    plan
}

/// It has no durable data: its data is lost with its pod.
fn restarts_the_only_one(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(intent, record, world, now);
    let outdated = listed(intent, world).find(|(member, _)| {
        let pod = world.pods.get(member);
        pod.is_some_and(|pod| pod.template != intent.template)
    });
    if let Some((member, _)) = outdated {
        plan.effects = restart(world, &member).into_iter().collect();
    }
    plan
}

fn restores_another_backup(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(intent, record, world, now);
    for effect in &mut plan.effects {
        if let Effect::CreatePod {
            launch: Launch::Restore { source, .. },
            ..
        } = effect
        {
            source.revision = 0;
        }
    }
    plan
}

fn replaces_without_end(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut forgetful = record.clone();
    forgetful.crash_replaced = None;
    plan(intent, &forgetful, world, now)
}
