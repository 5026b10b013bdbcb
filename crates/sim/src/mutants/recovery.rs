//! Planners that give up a quorum too soon, too late to be safe, or for the wrong survivor.

use std::time::Duration;

use jiff::Timestamp;
use stateward_etcd::cluster::{Effect, Intent, LastSeen, Plan, Record, Recovery, Voice, Watched, World, plan};

use super::recovery_scenes as scenes;
use super::{Mutant, caught, caught_in};
use crate::rules::name;

pub(super) fn all() -> Vec<Mutant> {
    vec![
        caught("ignores delaySeconds", no_delay, &[name::DELAY]).alone(),
        caught_in(
            "trusts the wall clock",
            wall_clock,
            scenes::clock_is_ahead,
            &[name::DELAY],
        ),
        caught_in("chooses by the term", by_term, scenes::tail_and_term, &[name::SURVIVOR]).alone(),
        caught_in(
            "skips fencing",
            no_fence,
            scenes::survivor_runs_on,
            &[name::ONE_CLUSTER],
        )
        .alone(),
        caught_in(
            "without a pod is lost",
            no_fence,
            scenes::deleted_by_force,
            &[name::EVIDENCE, name::ONE_CLUSTER],
        ),
        caught_in(
            "a stranded volume is lost",
            stranded,
            scenes::stranded,
            &[name::EVIDENCE],
        ),
        caught_in(
            "the only member is sealed by a patch",
            sealed_by_patch,
            scenes::only_member_starts_again,
            &[name::WRITES, name::ONE_CLUSTER],
        ),
        caught_in(
            "deletes old claims immediately",
            no_keeping,
            scenes::leaves_old_claims,
            &[name::OLD_CLAIMS],
        )
        .alone(),
        caught_in(
            "any backup of the name",
            any_backup,
            scenes::backup_of_another,
            &[name::OWN_BACKUP],
        )
        .alone(),
        caught_in(
            "goes on although the user changed their mind",
            no_change_of_mind,
            scenes::goes_on_without_consent,
            &[name::EVIDENCE],
        ),
        caught_in(
            "keeps to the backup that was named by mistake",
            keeps_to_what_was_asked,
            scenes::mistake_is_taken_back,
            &[name::OWN_BACKUP],
        ),
    ]
}

fn no_delay(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut intent = intent.clone();
    intent.recovery = match intent.recovery {
        Recovery::FromSurvivor(_) => Recovery::FromSurvivor(Duration::ZERO),
        Recovery::FromBackup(_) => Recovery::FromBackup(Duration::ZERO),
        Recovery::Report => Recovery::Report,
    };
    plan(&intent, record, world, now)
}

fn wall_clock(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut world = world.clone();
    world.watched.no_quorum = Duration::MAX;
    plan(intent, record, &world, now)
}

fn by_term(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut world = world.clone();
    for voice in world.voices.values_mut() {
        if let Voice::Answered(answer) = voice {
            answer.index += answer.term * 1000;
        }
    }
    plan(intent, record, &world, now)
}

/// A member without a pod counts as lost.
fn no_fence(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut record = record.clone();
    for (name, seen) in &mut record.last_seen {
        if !world.pods.contains_key(name) {
            *seen = LastSeen {
                ended: true,
                ..seen.clone()
            };
        }
    }
    plan(intent, &record, world, now)
}

fn stranded(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut intent = intent.clone();
    if world.list.is_none() {
        let waits = world
            .pods
            .iter()
            .filter(|(_, pod)| pod.node.is_none() && pod.blocked.is_some());
        intent.confirmed_lost.extend(waits.map(|(name, _)| name.clone()));
    }
    plan(&intent, record, world, now)
}

fn sealed_by_patch(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(intent, record, world, now);
    let survivor = record.recovery.as_ref().filter(|recovery| recovery.served);
    let pod = survivor.and_then(|recovery| Some((&recovery.survivor, world.pods.get(&recovery.survivor)?)));
    if let Some((survivor, pod)) = pod {
        plan.record.recovery = None;
        plan.effects = vec![Effect::SealPod {
            member: survivor.clone(),
            uid: pod.uid.clone(),
        }];
    }
    plan
}

fn no_keeping(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut world = world.clone();
    world.watched = Watched {
        old_claims: Duration::MAX,
        ..world.watched
    };
    let mut forgetful = record.clone();
    forgetful.old_claims = None;
    let mut plan = plan(intent, &forgetful, &world, now);
    plan.record.old_claims = plan.record.old_claims.or_else(|| record.old_claims.clone());
    plan
}

fn any_backup(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut world = world.clone();
    for backup in &mut world.backups {
        backup.cluster = record.cluster_ids.last().copied();
    }
    plan(intent, record, &world, now)
}

/// What a recovery has asked for counts as what it may use.
fn keeps_to_what_was_asked(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut world = world.clone();
    let point = world.backups.first().map(|point| point.name.clone());
    for request in world.restores.iter_mut().filter(|request| request.recovery) {
        request.backup = intent.recovery_backup.clone().or_else(|| point.clone());
    }
    plan(intent, record, &world, now)
}

/// Whoever was chosen becomes the cluster, whatever the spec says since.
fn no_change_of_mind(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut intent = intent.clone();
    if record.recovery.is_some() {
        intent.recovery = Recovery::FromSurvivor(Duration::ZERO);
    }
    plan(&intent, record, world, now)
}
