//! Planners that give up a quorum too soon, too late to be safe, or for the wrong survivor.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use stateward_etcd::cluster::{Effect, Intent, LastSeen, MemberProbe, Plan, Record, Recovery, Watched, World, plan};

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
        caught_in(
            "trusts the wall clock for nodes",
            wall_clock_for_nodes,
            scenes::clock_is_ahead_when_a_node_is_lost,
            &[name::EVIDENCE],
        ),
        caught_in(
            "absent attachments prove it",
            absent_attachments,
            scenes::deleted_by_force_on_local_volumes,
            &[name::EVIDENCE, name::ONE_CLUSTER],
        ),
        caught_in(
            "does not wait for the detachment",
            no_detachment,
            scenes::deleted_by_force,
            &[name::EVIDENCE, name::ONE_CLUSTER],
        ),
        caught_in(
            "does not count foreign voters",
            no_strangers,
            scenes::foreign_voters_do_not_reply,
            &[name::EVIDENCE, name::ONE_CLUSTER, name::FOREIGN_MEMBERS],
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

/// A clock alone tells for how long a node is dead and a pod waits.
fn wall_clock_for_nodes(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut world = world.clone();
    let dead = world.dead_nodes.keys().cloned();
    world.watched.dead_nodes = dead.map(|node| (node, Duration::MAX)).collect();
    let pods = world.pods.values().map(|pod| pod.uid.clone());
    world.watched.unscheduled = pods.map(|uid| (uid, Duration::MAX)).collect();
    plan(intent, record, &world, now)
}

/// A volume whose attachment was never seen counts as detached.
fn absent_attachments(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut record = record.clone();
    for (name, seen) in &mut record.last_seen {
        seen.attached.get_or_insert_with(|| format!("the volume of {name}"));
    }
    let mut world = world.clone();
    world.attachments.get_or_insert_default();
    plan(intent, &record, &world, now)
}

/// Without a quorum, a volume that was attached counts as detached.
fn no_detachment(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut world = world.clone();
    if world.list.is_none() {
        world.attachments = Some(BTreeSet::new());
    }
    plan(intent, record, &world, now)
}

/// Voters that something else created do not count for the quorum.
fn no_strangers(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut record = record.clone();
    if world.list.is_none() && record.other_voters.is_some() {
        record.other_voters = Some(Vec::new());
    }
    plan(intent, &record, world, now)
}

fn by_term(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut world = world.clone();
    for probe in world.probes.values_mut() {
        if let MemberProbe::Reply(reply) = probe {
            reply.index += reply.term * 1000;
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
