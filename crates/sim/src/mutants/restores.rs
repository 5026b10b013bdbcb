//! Planners with mistakes about restores.

use jiff::Timestamp;
use stateward_etcd::cluster::{Effect, Intent, Launch, Plan, Record, RequestState, World, plan};

use super::{Mutant, caught};
use crate::rules::name;

/// Each mutant with the rules that may catch it first.
pub(super) fn all() -> Vec<Mutant> {
    vec![
        caught(
            "follows anything",
            a_backup_is_followed_before_it_is_proven,
            &[name::RESTORE_PROVEN],
        ),
        caught(
            "restores again",
            a_restore_that_is_done_is_forgotten,
            &[name::RESTORE_ONCE],
        ),
        caught(
            "no fencing",
            old_members_come_back_beside_the_restored_one,
            &[name::RESTORE_FENCED, name::CONVERGES],
        ),
        caught(
            "deletes old claims early",
            old_data_is_deleted_before_the_new_cluster_serves,
            &[name::DATA],
        ),
        caught(
            "deletes claims that are kept",
            old_data_is_deleted_although_it_is_kept,
            &[name::RESTORE_RETAINS],
        )
        .alone(),
        caught(
            "an empty restore",
            the_restored_member_begins_empty,
            &[name::ONE_BOOTSTRAP],
        ),
        caught(
            "no record of a restore",
            a_restore_is_not_recorded_first,
            &[
                name::QUORUM,
                name::RESTORE_PROVEN,
                name::LEADER,
                name::NO_RESTART,
                name::CONVERGES,
            ],
        ),
    ]
}

pub(super) fn a_backup_is_followed_before_it_is_proven(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let mut world = world.clone();
    for request in &mut world.restores {
        request.state = RequestState::Proven(Box::default());
    }
    plan(intent, record, &world, now)
}

pub(super) fn a_restore_that_is_done_is_forgotten(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let mut forgetful = record.clone();
    forgetful.restore = record.restoring().cloned();
    plan(intent, &forgetful, world, now)
}

pub(super) fn old_members_come_back_beside_the_restored_one(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let mut plan = plan(intent, record, world, now);
    if let Some(restoring) = record.restoring() {
        let old = world.claims.keys().filter(|name| **name != restoring.seed);
        let back = old.filter(|name| !world.pods.contains_key(*name));
        plan.effects.extend(back.map(|name| Effect::CreatePod {
            member: name.clone(),
            launch: Launch::Sealed,
            version: intent.version.clone(),
            tls: stateward_etcd::cluster::TlsStage::Off,
        }));
    }
    plan
}

pub(super) fn old_data_is_deleted_before_the_new_cluster_serves(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let mut plan = plan(intent, record, world, now);
    let cluster = record.bootstrap.as_ref().and_then(|bootstrap| bootstrap.cluster);
    if let (Some(restoring), Some(cluster)) = (record.restoring(), cluster) {
        let old = restoring.old_claims.iter();
        plan.effects.extend(old.map(|(member, uid)| Effect::DeleteClaim {
            member: member.clone(),
            uid: uid.clone(),
            cluster,
        }));
    }
    plan
}

pub(super) fn old_data_is_deleted_although_it_is_kept(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let mut careless = intent.clone();
    careless.retain_claims = false;
    plan(&careless, record, world, now)
}

pub(super) fn the_restored_member_begins_empty(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let mut plan = plan(intent, record, world, now);
    for effect in &mut plan.effects {
        if let Effect::CreatePod { launch, .. } = effect
            && let Launch::Restore { token, .. } = &launch
        {
            *launch = Launch::Seed { token: token.clone() };
        }
    }
    plan
}

pub(super) fn a_restore_is_not_recorded_first(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let asked = plan(intent, record, world, now);
    if record.restore == asked.record.restore || asked.record.restoring().is_none() {
        return asked;
    }
    // It continues from a decision that was not written.
    let mut hasty = plan(intent, &asked.record, world, now);
    hasty.record = record.clone();
    hasty
}

pub(super) fn the_version_of_a_backup_is_not_looked_at(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let (mut record, mut world) = (record.clone(), world.clone());
    for request in &mut world.restores {
        if let RequestState::Proven(source) = &mut request.state {
            source.cluster_version.clear();
        }
    }
    if let Some(restore) = &mut record.restore {
        restore.source.cluster_version.clear();
    }
    plan(intent, &record, &world, now)
}
