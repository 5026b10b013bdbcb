//! Planners of backups, and a driver, that are broken on purpose.

use jiff::Timestamp;
use stateward_etcd::agent::State;
use stateward_etcd::api::EtcdBackup;
use stateward_etcd::api::agent::{BackedUp, BackupTask, Outcome, ProveTask, TASK, Task};
use stateward_etcd::api::etcd_backup::BackupRecord;
use stateward_etcd::backup::{Effect, Plan, World, plan};

use super::BackupMutant;
use crate::backups::rules::name;
use crate::backups::{BackupSubject, REAL_BACKUPS};

type Planner = fn(&EtcdBackup, &World, Timestamp) -> Plan;

fn caught(name: &'static str, broken: Planner, rules: &'static [&'static str]) -> BackupMutant {
    BackupMutant {
        subject: BackupSubject {
            name,
            plan: broken,
            ..REAL_BACKUPS
        },
        rules,
        alone: false,
    }
}

/// Only this rule catches it.
fn alone(name: &'static str, broken: Planner, rules: &'static [&'static str]) -> BackupMutant {
    BackupMutant {
        alone: true,
        ..caught(name, broken, rules)
    }
}

pub(super) fn all() -> Vec<BackupMutant> {
    vec![
        caught(
            "backups without a record",
            attempts_that_are_not_recorded,
            &[name::ONE_AT_A_TIME, name::DUE_ONCE, name::CONVERGES],
        ),
        caught(
            "a waiting agent counts as missing",
            a_pod_that_waits_counts_as_gone,
            &[name::ONE_AT_A_TIME, name::CONVERGES],
        ),
        BackupMutant {
            subject: BackupSubject {
                name: "backups without guards",
                guards: false,
                ..REAL_BACKUPS
            },
            rules: &[
                name::ONE_AT_A_TIME,
                name::NUMBERS,
                name::DUE_ONCE,
                name::TRUTH,
                name::SUSPENDED,
                name::FINALIZERS,
                name::PATIENCE,
            ],
            alone: false,
        },
        alone(
            "starts beside an agent that stops",
            an_agent_that_stops_counts_as_gone,
            &[name::ONE_AT_A_TIME],
        ),
        alone("counts an attempt twice", an_attempt_is_counted_twice, &[name::NUMBERS]),
        alone(
            "gives up after failures",
            it_gives_up_after_failures,
            &[name::CONVERGES],
        ),
        alone("a crash is a success", a_crash_counts_as_success, &[name::TRUTH]),
        alone("keeps all records", records_without_a_bound, &[name::BOUNDED]),
        alone(
            "deletes without end",
            failed_deletions_are_not_counted,
            &[name::DELETION_ENDS],
        ),
        alone("forgets files", files_are_forgotten, &[name::FILES]),
        alone(
            "forgets the scheduled time",
            the_scheduled_time_is_not_remembered,
            &[name::DUE_ONCE],
        ),
        alone("ignores suspend", suspend_is_ignored, &[name::SUSPENDED]),
        alone(
            "retries immediately",
            failures_are_tried_again_at_once,
            &[name::PATIENCE],
        ),
        alone("sets no finalizer", no_finalizer_is_set, &[name::FINALIZERS]),
        alone(
            "retention before the proof",
            retention_before_the_proof,
            &[name::PROVEN_STAY],
        ),
        caught(
            "leftovers count as proven",
            leftovers_of_killed_agents_count_as_proven,
            &[name::PROVEN_STAY],
        ),
        alone("no retention", nothing_is_let_go, &[name::BOUNDED_FILES]),
        alone(
            "in place too early",
            a_single_backup_takes_its_place_before_it_is_proven,
            &[name::IN_PLACE],
        ),
        caught(
            "deletes what was at the path",
            what_stood_at_the_path_is_deleted_with_an_object_that_never_was_there,
            &[name::IN_PLACE],
        ),
        alone(
            "shares a path",
            another_object_at_the_same_path_is_not_seen,
            &[name::NEIGHBOUR],
        ),
    ]
}

/// The next attempt does not wait until the pod of the last one has stopped.
fn an_agent_that_stops_counts_as_gone(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
    let mut world = world.clone();
    world.agents.retain(|_, agent| agent.terminating.is_none());
    plan(backup, &world, now)
}

fn an_attempt_is_counted_twice(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(backup, world, now);
    let before = backup.status.as_ref().map_or(0, |status| status.attempts);
    if plan.status.attempts > before {
        plan.status.attempts += 1;
    }
    plan
}

fn it_gives_up_after_failures(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
    let before = backup.status.clone().unwrap_or_default();
    let plan = plan(backup, world, now);
    let begins = plan.status.attempts > before.attempts && backup.metadata.deletion_timestamp.is_none();
    if !begins || before.current.is_some() || before.consecutive_failures < 3 {
        return plan;
    }
    Plan {
        effects: Vec::new(),
        status: before,
        ..plan
    }
}

fn attempts_that_are_not_recorded(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(backup, world, now);
    if plan.effects.iter().any(|effect| matches!(effect, Effect::CreatePod(_))) {
        plan.status.current = None;
    }
    plan
}

fn a_pod_that_waits_counts_as_gone(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
    let mut world = world.clone();
    world
        .agents
        .retain(|_, agent| !matches!(agent.state, State::Waiting(_)) || agent.component == "follow");
    plan(backup, &world, now)
}

fn a_crash_counts_as_success(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
    let mut world = world.clone();
    for agent in world.agents.values_mut() {
        if matches!(agent.state, State::Died(_) | State::TimedOut(_)) && agent.component == "backup" {
            let record = BackupRecord {
                location: format!("b/k_{}", now.as_millisecond()),
                ..BackupRecord::default()
            };
            let done = BackedUp {
                record,
                ..BackedUp::default()
            };
            agent.state = State::Said(Box::new(Outcome::BackedUp(done)));
        }
    }
    plan(backup, &world, now)
}

fn records_without_a_bound(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(backup, world, now);
    let old = backup.status.clone().unwrap_or_default().backups;
    for record in old {
        if plan.status.backups.iter().all(|kept| kept.location != record.location) {
            plan.status.backups.push(record);
        }
    }
    plan
}

fn failed_deletions_are_not_counted(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
    let mut world = world.clone();
    // a store that never responds
    for agent in world.agents.values_mut() {
        if agent.component == "delete" && matches!(agent.state, State::Said(_)) {
            agent.state = State::Died("no network".into());
        }
    }
    let mut plan = plan(backup, &world, now);
    plan.status.failed_deletions = 0;
    plan
}

fn files_are_forgotten(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
    let mut backup = backup.clone();
    if backup.metadata.deletion_timestamp.is_some() {
        backup.spec.plan.deletion_policy = None;
    }
    plan(&backup, world, now)
}

fn the_scheduled_time_is_not_remembered(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(backup, world, now);
    let old = backup.status.clone().unwrap_or_default();
    if backup.spec.plan.is_periodic() {
        plan.status.last_schedule_time = old.last_schedule_time;
    }
    plan
}

fn suspend_is_ignored(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
    let mut backup = backup.clone();
    backup.spec.plan.suspend = false;
    plan(&backup, world, now)
}

fn failures_are_tried_again_at_once(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(backup, world, now);
    if plan.status.consecutive_failures > 0 {
        plan.status.next_backup_time = None;
    }
    plan
}

fn no_finalizer_is_set(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(backup, world, now);
    if backup.metadata.deletion_timestamp.is_none() {
        plan.effects
            .retain(|effect| !matches!(effect, Effect::SetFinalizers(_)));
    }
    plan
}

/// The same plan with an edited task for the pod that it creates.
fn with_task(mut plan: Plan, edit: impl Fn(&mut Task)) -> Plan {
    for effect in &mut plan.effects {
        let Effect::CreatePod(pod) = effect else { continue };
        let containers = pod.spec.iter_mut().flat_map(|spec| &mut spec.containers);
        for variable in containers.flat_map(|container| container.env.iter_mut().flatten()) {
            let task = variable
                .value
                .as_deref()
                .and_then(|text| serde_json::from_str(text).ok());
            if let Some(mut task) = task.filter(|_| variable.name == TASK) {
                edit(&mut task);
                variable.value = serde_json::to_string(&task).ok();
            }
        }
    }
    plan
}

fn retention_before_the_proof(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
    with_task(plan(backup, world, now), |task| {
        if let Task::Backup(task) = task
            && task.periodic
        {
            task.prove_later = false;
        }
    })
}

fn leftovers_of_killed_agents_count_as_proven(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
    with_task(plan(backup, world, now), |task| {
        if let Task::Backup(BackupTask { retention, .. }) | Task::Prove(ProveTask { retention, .. }) = task {
            retention.proven.clear();
        }
    })
}

fn nothing_is_let_go(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
    with_task(plan(backup, world, now), |task| {
        if let Task::Backup(BackupTask { retention, .. }) | Task::Prove(ProveTask { retention, .. }) = task {
            retention.max_backups = None;
        }
    })
}

fn a_single_backup_takes_its_place_before_it_is_proven(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
    with_task(plan(backup, world, now), |task| {
        if let Task::Backup(task) = task
            && !task.periodic
        {
            task.prove_later = false;
        }
    })
}

fn what_stood_at_the_path_is_deleted_with_an_object_that_never_was_there(
    backup: &EtcdBackup,
    world: &World,
    now: Timestamp,
) -> Plan {
    with_task(plan(backup, world, now), |task| {
        if let Task::Delete(task) = task {
            task.locations
                .iter_mut()
                .for_each(|location| "b/k".clone_into(location));
        }
    })
}

fn another_object_at_the_same_path_is_not_seen(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
    let mut world = world.clone();
    world.sharer = None;
    plan(backup, &world, now)
}
