//! Tests the planner of backups, and that these tests can fail.

use jiff::Timestamp;
use stateward_etcd::agent::State;
use stateward_etcd::api::EtcdBackup;
use stateward_etcd::api::agent::{BackedUp, BackupTask, Outcome, ProveTask, TASK, Task};
use stateward_etcd::api::etcd_backup::BackupRecord;
use stateward_etcd::backup::{Effect, Plan, World, plan};

use super::rules::name;
use super::{BackupSubject, REAL_BACKUPS, run_backups};

const HISTORIES: u64 = 100;
/// A broken planner must be caught within so many histories.
const SEEDS: u64 = 1000;

#[test]
fn histories_of_backups_keep_every_rule() {
    let mut backups = 0;
    // 424: a pod that another operator created late, while the object was being deleted.
    for seed in (0..HISTORIES).chain([424]) {
        let outcome = run_backups(&REAL_BACKUPS, seed, false);
        if let Some(broken) = outcome.broken {
            let story = run_backups(&REAL_BACKUPS, seed, true).story;
            let tail: Vec<&String> = story.iter().rev().take(120).rev().collect();
            panic!("{tail:#?}\nseed {seed} broke {broken:?}");
        }
        backups += outcome.backups;
    }
    assert!(backups > HISTORIES * 5, "{backups} backups");
}

fn caught(what: &'static str, broken: fn(&EtcdBackup, &World, Timestamp) -> Plan, rules: &[&str]) {
    let subject = BackupSubject {
        name: what,
        plan: broken,
        ..REAL_BACKUPS
    };
    caught_as(&subject, rules);
}

fn caught_as(subject: &BackupSubject, rules: &[&str]) {
    for seed in 0..SEEDS {
        if let Some((rule, message)) = run_backups(subject, seed, false).broken {
            assert!(
                rules.contains(&rule),
                "{}: seed {seed} was caught by \"{rule}\": {message}",
                subject.name
            );
            return;
        }
    }
    panic!("{} was not caught in {SEEDS} histories", subject.name);
}

#[test]
fn attempts_that_are_not_recorded() {
    fn broken(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(backup, world, now);
        if plan.effects.iter().any(|effect| matches!(effect, Effect::CreatePod(_))) {
            plan.status.current = None;
        }
        plan
    }
    caught(
        "no record",
        broken,
        &[name::ONE_AT_A_TIME, name::DUE_ONCE, name::CONVERGES],
    );
}

#[test]
fn a_pod_that_waits_counts_as_gone() {
    fn broken(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
        let mut world = world.clone();
        world
            .agents
            .retain(|_, agent| !matches!(agent.state, State::Waiting(_)) || agent.component == "follow");
        plan(backup, &world, now)
    }
    caught(
        "waiting counts as missing",
        broken,
        &[name::ONE_AT_A_TIME, name::CONVERGES],
    );
}

#[test]
fn writes_without_their_resource_version() {
    let subject = BackupSubject {
        name: "no guards",
        guards: false,
        ..REAL_BACKUPS
    };
    caught_as(
        &subject,
        &[
            name::ONE_AT_A_TIME,
            name::NUMBERS,
            name::DUE_ONCE,
            name::TRUTH,
            name::SUSPENDED,
            name::FINALIZERS,
            name::PATIENCE,
        ],
    );
}

#[test]
fn a_crash_counts_as_success() {
    fn broken(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
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
    caught("a crash is success", broken, &[name::TRUTH]);
}

#[test]
fn records_without_a_bound() {
    fn broken(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(backup, world, now);
        let old = backup.status.clone().unwrap_or_default().backups;
        for record in old {
            if plan.status.backups.iter().all(|kept| kept.location != record.location) {
                plan.status.backups.push(record);
            }
        }
        plan
    }
    caught("all records", broken, &[name::BOUNDED]);
}

#[test]
fn failed_deletions_are_not_counted() {
    fn broken(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
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
    caught("endless deletion", broken, &[name::DELETION_ENDS]);
}

#[test]
fn files_are_forgotten() {
    fn broken(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
        let mut backup = backup.clone();
        if backup.metadata.deletion_timestamp.is_some() {
            backup.spec.plan.deletion_policy = None;
        }
        plan(&backup, world, now)
    }
    caught("files are forgotten", broken, &[name::FILES]);
}

#[test]
fn the_scheduled_time_is_not_remembered() {
    fn broken(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(backup, world, now);
        let old = backup.status.clone().unwrap_or_default();
        if backup.spec.plan.is_periodic() {
            plan.status.last_schedule_time = old.last_schedule_time;
        }
        plan
    }
    caught("no scheduled time", broken, &[name::DUE_ONCE]);
}

#[test]
fn suspend_is_ignored() {
    fn broken(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
        let mut backup = backup.clone();
        backup.spec.plan.suspend = false;
        plan(&backup, world, now)
    }
    caught("suspend is ignored", broken, &[name::SUSPENDED]);
}

#[test]
fn failures_are_tried_again_at_once() {
    fn broken(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(backup, world, now);
        if plan.status.consecutive_failures > 0 {
            plan.status.next_backup_time = None;
        }
        plan
    }
    caught("no backoff", broken, &[name::PATIENCE]);
}

#[test]
fn no_finalizer_is_set() {
    fn broken(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(backup, world, now);
        if backup.metadata.deletion_timestamp.is_none() {
            plan.effects
                .retain(|effect| !matches!(effect, Effect::SetFinalizers(_)));
        }
        plan
    }
    caught("no finalizer", broken, &[name::FINALIZERS]);
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

#[test]
fn retention_before_the_proof() {
    fn broken(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
        with_task(plan(backup, world, now), |task| {
            if let Task::Backup(task) = task
                && task.periodic
            {
                task.prove_later = false;
            }
        })
    }
    caught("retention before the proof", broken, &[name::PROVEN_STAY]);
}

#[test]
fn leftovers_of_killed_agents_count_as_proven() {
    fn broken(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
        with_task(plan(backup, world, now), |task| {
            if let Task::Backup(BackupTask { retention, .. }) | Task::Prove(ProveTask { retention, .. }) = task {
                retention.proven.clear();
            }
        })
    }
    caught("everything counts", broken, &[name::PROVEN_STAY]);
}

#[test]
fn nothing_is_let_go() {
    fn broken(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
        with_task(plan(backup, world, now), |task| {
            if let Task::Backup(BackupTask { retention, .. }) | Task::Prove(ProveTask { retention, .. }) = task {
                retention.max_backups = None;
            }
        })
    }
    caught("no retention", broken, &[name::BOUNDED_FILES]);
}

#[test]
fn a_single_backup_takes_its_place_before_it_is_proven() {
    fn broken(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
        with_task(plan(backup, world, now), |task| {
            if let Task::Backup(task) = task
                && !task.periodic
            {
                task.prove_later = false;
            }
        })
    }
    caught("in place too early", broken, &[name::IN_PLACE]);
}

#[test]
fn what_stood_at_the_path_is_deleted_with_an_object_that_never_was_there() {
    fn broken(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
        with_task(plan(backup, world, now), |task| {
            if let Task::Delete(task) = task {
                task.locations
                    .iter_mut()
                    .for_each(|location| "b/k".clone_into(location));
            }
        })
    }
    caught("deletes what is at the path", broken, &[name::IN_PLACE]);
}

#[test]
fn another_object_at_the_same_path_is_not_seen() {
    fn broken(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
        let mut world = world.clone();
        world.sharer = None;
        plan(backup, &world, now)
    }
    caught("shares a path", broken, &[name::NEIGHBOUR]);
}
