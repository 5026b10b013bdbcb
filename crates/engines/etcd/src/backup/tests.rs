//! Given an object and what was seen, when a round is planned, then this is done and said.

use crate::api::EtcdBackup;
use crate::api::agent::{BackedUp, Failure, FailureReason, Outcome, Progress, Proven, TASK, Task};
use crate::api::etcd_backup::{AttemptKind, BackupRecord, EtcdBackupStatus, RestorablePoint, Verify};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use stateward_core::conditions::{is_true, types};

use super::{ClusterSource, Effect, Plan, Reason, Source, World, plan};
use crate::agent::{Agent, State};
use crate::cluster::Uid;

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

const CREATED: &str = "2026-01-01T00:00:00Z";

fn start() -> Timestamp {
    time(CREATED)
}

fn after(seconds: i64) -> Timestamp {
    start() + SignedDuration::from_secs(seconds)
}

fn backup(spec: Value) -> EtcdBackup {
    let mut all = json!({"etcdEndpoints": ["http://c-client:2379"], "s3": {"path": "b/k", "awsSecret": "aws"}});
    for (key, value) in spec.as_object().unwrap() {
        all[key] = value.clone();
    }
    let metadata =
        json!({"name": "nightly", "namespace": "n", "uid": "u", "generation": 1, "creationTimestamp": CREATED});
    serde_json::from_value(json!({"metadata": metadata, "spec": all})).unwrap()
}

/// Carries a plan out in a world without surprises.
struct Stage {
    backup: EtcdBackup,
    world: World,
    now: Timestamp,
    pods: usize,
}

impl Stage {
    fn new(spec: Value) -> Self {
        let world = World {
            image: "stateward".into(),
            ..World::default()
        };
        Self {
            backup: backup(spec),
            world,
            now: start(),
            pods: 0,
        }
    }

    fn round(&mut self) -> Plan {
        let plan = plan(&self.backup, &self.world, self.now);
        // Times have whole seconds once they were written.
        let text = serde_json::to_string(&plan.status).unwrap();
        self.backup.status = serde_json::from_str(&text).unwrap();
        for effect in &plan.effects {
            match effect {
                Effect::SetFinalizers(finalizers) => self.backup.metadata.finalizers = Some(finalizers.clone()),
                Effect::CreatePod(pod) => {
                    self.pods += 1;
                    let mut pod = (**pod).clone();
                    pod.metadata.uid = Some(format!("pod-{}", self.pods));
                    let mut agent = Agent::of(&pod);
                    agent.created = self.now;
                    agent.state = State::Running;
                    self.world.agents.insert(pod.metadata.name.unwrap(), agent);
                }
                Effect::DeletePod { name, uid } => {
                    assert_eq!(self.world.agents[name].uid, *uid);
                    self.world.agents.remove(name);
                }
                Effect::ForgetPod { name, uid } => {
                    assert_eq!(self.world.agents[name].uid, *uid);
                    self.world.agents.remove(name);
                }
                Effect::Tell(_) => {}
            }
        }
        plan
    }

    fn status(&self) -> EtcdBackupStatus {
        self.backup.status.clone().unwrap_or_default()
    }

    fn current(&self) -> String {
        self.status().current.expect("an attempt").pod
    }

    fn says(&mut self, outcome: Outcome) -> Plan {
        let pod = self.current();
        self.world.agents.get_mut(&pod).unwrap().state = State::Said(Box::new(outcome));
        self.round()
    }

    fn backed_up(&mut self, location: &str) -> Plan {
        self.says(Outcome::BackedUp(BackedUp {
            record: record(location),
            ..BackedUp::default()
        }))
    }
}

fn record(location: &str) -> BackupRecord {
    BackupRecord {
        location: location.into(),
        revision: 7,
        etcd_version: "3.5.35".into(),
        ..BackupRecord::default()
    }
}

fn failure() -> Outcome {
    Outcome::Failed(Failure {
        reason: FailureReason::AccessDenied,
        message: "the store refused the credentials".into(),
        retry: false,
    })
}

#[test]
fn a_single_backup_is_taken_once() {
    let mut stage = Stage::new(json!({}));
    stage.round();
    let status = stage.status();
    assert_eq!((status.attempts, stage.current().as_str()), (1, "nightly-backup-1"));
    assert!(!status.succeeded && is_true(&status.conditions, types::PROGRESSING));
    stage.round();
    assert_eq!(stage.status().current.unwrap().pod_uid, "pod-1");
    stage.backed_up("b/k");
    let status = stage.status();
    assert!(status.succeeded && status.current.is_none() && status.reason.is_empty());
    assert_eq!((status.etcd_revision, status.etcd_version.as_str()), (7, "3.5.35"));
    assert!(is_true(&status.conditions, types::COMPLETE) && !is_true(&status.conditions, types::PROGRESSING));
    // its pod is taken away, and then nothing happens any more, whatever the time
    stage.round();
    stage.now = after(1_000_000);
    let last = stage.round();
    assert!(stage.world.agents.is_empty());
    assert_eq!((last.effects, last.wake, stage.pods), (vec![], None, 1));
}

#[test]
fn a_pod_that_was_recorded_and_not_made_is_made_and_one_that_vanished_is_not() {
    let mut stage = Stage::new(json!({}));
    stage.round();
    stage.world.agents.clear(); // the operator died before it was made
    stage.round();
    assert_eq!((stage.pods, stage.status().attempts), (2, 1));
    stage.round();
    stage.world.agents.clear(); // somebody deleted it
    stage.round();
    let status = stage.status();
    assert_eq!((status.consecutive_failures, status.current.is_none()), (1, true));
    assert!(status.reason.contains("nightly-backup-1 is gone"), "{}", status.reason);
    stage.now = after(5);
    stage.round();
    assert_eq!(stage.current(), "nightly-backup-2");
}

#[test]
fn failures_are_shown_and_tried_again_later_each_time_or_at_once_when_something_changed() {
    let mut stage = Stage::new(json!({}));
    let mut waits = Vec::new();
    for _ in 0..9 {
        stage.round();
        let wait = stage.says(failure()).wake.expect("another try");
        waits.push(wait.as_secs());
        let status = stage.status();
        assert!(!status.succeeded && is_true(&status.conditions, types::DEGRADED));
        assert_eq!(status.reason, "the store refused the credentials");
        let early = stage.round();
        assert!(early.status.current.is_none() && early.wake.is_some());
        assert!(
            early.status.waiting.contains("tried again at"),
            "{}",
            early.status.waiting
        );
        stage.now += SignedDuration::from_secs(i64::try_from(wait.as_secs()).unwrap() + 1);
    }
    assert_eq!(waits, [5, 10, 20, 40, 80, 160, 320, 600, 600]);
    stage.round();
    stage.says(failure());
    stage.world.secrets = "another".into();
    stage.round();
    assert!(stage.status().current.is_some(), "a new secret is tried at once");
    stage.backed_up("b/k");
    let status = stage.status();
    assert!(status.succeeded && status.consecutive_failures == 0 && !is_true(&status.conditions, types::DEGRADED));
}

#[test]
fn an_interval_runs_at_once_and_catches_up_once() {
    let mut stage = Stage::new(json!({"backupPolicy": {"backupIntervalInSecond": 60, "maxBackups": 3}}));
    let first = stage.round();
    assert!(matches!(&first.effects[0], Effect::SetFinalizers(all) if *all == ["backup-operator-periodic"]));
    stage.backed_up("b/k_1");
    let next = stage.round();
    assert_eq!(next.wake.map(|wake| wake.as_secs()), Some(60));
    assert_eq!(next.status.next_backup_time.map(|time| time.0), Some(after(60)));
    // ten are missed: one is caught up, for the latest
    stage.now = after(630);
    stage.round();
    let current = stage.status().current.unwrap();
    assert_eq!(
        (current.number, current.scheduled_for.map(|time| time.0)),
        (2, Some(after(600)))
    );
    stage.backed_up("b/k_2");
    assert_eq!(
        stage.round().status.next_backup_time.map(|time| time.0),
        Some(after(660))
    );
    for round in 3..9 {
        stage.now = after(660 + round * 60);
        stage.round();
        stage.backed_up(&format!("b/k_{round}"));
    }
    assert_eq!(stage.status().backups.len(), 3);
    // while suspended none starts
    stage.backup.spec.plan.suspend = true;
    stage.now = after(9000);
    let quiet = stage.round();
    assert!(quiet.status.current.is_none() && quiet.status.waiting.contains("spec.suspend"));
}

#[test]
fn a_schedule_waits_for_its_time_and_a_clock_that_was_wrong_does_not_stop_it() {
    let mut stage = Stage::new(json!({"schedule": "0 2 * * *"}));
    let first = stage.round();
    assert_eq!(first.wake.map(|wake| wake.as_secs()), Some(7200));
    stage.now = time("2026-01-04T05:00:00Z");
    stage.round();
    let scheduled = stage.status().current.unwrap().scheduled_for.map(|time| time.0);
    assert_eq!(scheduled, Some(time("2026-01-04T02:00:00Z")));
    stage.backed_up("b/k_1");
    // the clock was years ahead, and one backup was taken then
    let mut status = stage.status();
    status.last_schedule_time = Some(super::stamp(time("2031-01-01T02:00:00Z")));
    stage.backup.status = Some(status);
    let next = stage.round();
    assert_eq!(
        next.status.next_backup_time.map(|time| time.0),
        Some(time("2026-01-05T02:00:00Z"))
    );
    let mut often = Stage::new(json!({"backupPolicy": {"backupIntervalInSecond": 60}}));
    often.round();
    often.backed_up("b/k_1");
    let mut status = often.status();
    status.last_schedule_time = Some(super::stamp(time("2031-01-01T02:00:00Z")));
    often.backup.status = Some(status);
    often.round();
    often.now = after(61);
    often.round();
    assert!(often.status().current.is_some(), "counted from when it was noticed");
    // a little ahead is not wrong: no scheduled time is used twice
    let mut status = stage.status();
    status.last_schedule_time = Some(super::stamp(time("2026-01-05T02:00:00Z")));
    stage.backup.status = Some(status);
    stage.now = time("2026-01-05T02:00:00Z");
    assert!(stage.round().status.current.is_none());
}

#[test]
fn restore_proves_before_it_counts() {
    let mut stage = Stage::new(json!({"verify": "Restore"}));
    stage.round();
    stage.backed_up("b/k");
    let status = stage.status();
    let current = status.current.clone().unwrap();
    assert_eq!(
        (current.kind, current.pod.as_str()),
        (AttemptKind::Prove, "nightly-prove-2")
    );
    assert!(!status.succeeded && status.last_success_date.is_none());
    stage.says(proven());
    let status = stage.status();
    assert!(status.succeeded);
    assert_eq!(
        (status.backups[0].verified, status.backups[0].keys),
        (Some(Verify::Restore), Some(3))
    );
    // one that cannot be restored is no backup
    let mut stage = Stage::new(json!({"verify": "Restore"}));
    stage.round();
    stage.backed_up("b/k");
    stage.says(failure());
    let status = stage.status();
    assert!(!status.succeeded && status.backups[0].verified.is_none() && super::point(&stage.backup).is_none());
}

#[test]
fn what_a_pod_needs_is_waited_for_without_trying() {
    let mut stage = Stage::new(json!({"etcdEndpoints": [], "clusterRef": {"name": "c"}}));
    stage.world.source = Source::NoCluster;
    let gone = stage.round();
    assert!(
        gone.status.reason.contains("EtcdCluster c does not exist"),
        "{}",
        gone.status.reason
    );
    stage.world.source = Source::Cluster(Box::default());
    assert!(stage.round().status.waiting.contains("no ready member"));
    stage.world.source = Source::Cluster(Box::new(ClusterSource {
        members: vec!["https://c-x.c.n.svc:2379".into()],
        client_secret: Some("etcd-client-tls".into()),
        ..ClusterSource::default()
    }));
    stage.world.missing = Some("the Secret aws does not exist".into());
    assert!(stage.round().status.reason.contains("aws") && stage.pods == 0);
    stage.world.missing = None;
    let made = stage.round();
    let Some(Effect::CreatePod(pod)) = made.effects.first() else {
        panic!("{:?}", made.effects);
    };
    let spec = pod.spec.as_ref().unwrap();
    let secrets: Vec<_> = spec
        .volumes
        .iter()
        .flatten()
        .filter_map(|volume| volume.secret.as_ref())
        .collect();
    let names: Vec<_> = secrets
        .iter()
        .filter_map(|secret| secret.secret_name.as_deref())
        .collect();
    assert_eq!(names, ["aws", "etcd-client-tls"]);
    let env = spec.containers[0].env.as_ref().unwrap();
    let task = env
        .iter()
        .find(|env| env.name == TASK)
        .and_then(|env| env.value.as_deref())
        .unwrap();
    let Task::Backup(task) = serde_json::from_str(task).unwrap() else {
        panic!("{task}");
    };
    assert_eq!(task.endpoints, ["https://c-x.c.n.svc:2379"]);
    assert!(stage.status().reason.is_empty() && stage.status().attempts == 1);
}

#[test]
fn wrong_specs_are_refused_in_words_and_good_again_when_mended() {
    for (spec, words) in [
        (json!({"s3": Value::Null}), "no store is given"),
        (json!({"schedule": "0 2 * *"}), "is not a cron expression"),
        (
            json!({"clusterRef": {"name": "c"}}),
            "set either clusterRef.name or etcdEndpoints",
        ),
        (json!({"etcdEndpoints": ["https://c:2379"]}), "set clientTLSSecret"),
        (json!({"etcdEndpoints": ["c:2379"]}), "is not a URL"),
        (json!({"continuous": true}), "needs snapshots to start from"),
    ] {
        let mut stage = Stage::new(spec);
        let refused = stage.round();
        assert!(refused.status.reason.contains(words), "{}", refused.status.reason);
        assert!(is_true(&refused.status.conditions, types::DEGRADED) && refused.effects.is_empty());
        let again = stage.round();
        assert_eq!(
            Some(again.status),
            stage.backup.status,
            "saying it again changes nothing"
        );
        stage.backup.spec = backup(json!({})).spec;
        stage.round();
        assert!(stage.status().current.is_some() && stage.status().reason.is_empty());
    }
}

#[test]
fn changes_are_followed_from_the_first_good_backup_on() {
    let policy = json!({"continuous": true, "backupPolicy": {"backupIntervalInSecond": 3600}});
    let mut stage = Stage::new(policy);
    stage.round();
    assert!(!stage.world.agents.contains_key("nightly-follow"));
    stage.backed_up("b/k_1");
    stage.round();
    assert!(stage.world.agents.contains_key("nightly-follow"));
    stage.world.progress = Some(Progress {
        latest: Some(RestorablePoint {
            revision: 99,
            time: None,
        }),
        problem: String::new(),
    });
    stage.round();
    assert_eq!(stage.status().latest_restorable.map(|point| point.revision), Some(99));
    stage.world.progress.as_mut().unwrap().problem = "the store is full".into();
    assert!(stage.round().status.waiting.contains("the store is full"));
    // an edit that it must know of replaces it; without `continuous` it goes
    stage.backup.spec.plan.store.s3.as_mut().unwrap().path = "b/other".into();
    stage.world.progress = None;
    let uid = stage.world.agents["nightly-follow"].uid.clone();
    stage.round();
    stage.round();
    assert_ne!(stage.world.agents["nightly-follow"].uid, uid);
    stage.backup.spec.plan.continuous = false;
    stage.round();
    assert!(!stage.world.agents.contains_key("nightly-follow") && stage.status().latest_restorable.is_none());
}

#[test]
fn deletion_stops_everything_deletes_files_as_told_and_never_hangs() {
    let policy = json!({"backupPolicy": {"backupIntervalInSecond": 60}, "deletionPolicy": "Delete"});
    let mut stage = Stage::new(policy.clone());
    stage.round();
    assert_eq!(stage.backup.metadata.finalizers.as_ref().unwrap().len(), 2);
    stage.backup.metadata.deletion_timestamp = Some(super::stamp(start()));
    stage.round(); // the running attempt is stopped
    assert!(stage.world.agents.is_empty());
    stage.round();
    assert_eq!(stage.current(), "nightly-delete-2");
    stage.says(Outcome::Deleted);
    assert_eq!(stage.backup.metadata.finalizers, Some(vec![]));
    // a store that is never there
    let mut stage = Stage::new(policy);
    stage.round();
    stage.backed_up("b/k_1");
    stage.backup.metadata.deletion_timestamp = Some(super::stamp(start()));
    let mut rounds = 0;
    let told = loop {
        let plan = stage.round();
        if stage.backup.metadata.finalizers == Some(vec![]) {
            break plan.effects;
        }
        if let Some(current) = stage.status().current {
            stage.world.agents.get_mut(&current.pod).unwrap().state = State::Died("no network".into());
        }
        stage.now += SignedDuration::from_secs(20);
        rounds += 1;
        assert!(rounds < 50, "it hangs");
    };
    assert!(told.iter().any(
        |effect| matches!(effect, Effect::Tell(note) if note.reason == Reason::FilesLeft && note.message.contains("b/k_1"))
    ));
}

#[test]
fn files_stay_where_nothing_is_said() {
    let mut stage = Stage::new(json!({"backupPolicy": {"backupIntervalInSecond": 60}}));
    stage.round();
    stage.backed_up("b/k_1");
    stage.backup.metadata.deletion_timestamp = Some(super::stamp(start()));
    let last = stage.round();
    assert_eq!(last.effects, [Effect::SetFinalizers(vec![])]);
}

#[test]
fn what_failed_under_the_old_operator_is_not_taken_up() {
    let mut stage = Stage::new(json!({}));
    stage.backup.status = Some(EtcdBackupStatus {
        reason: "failed to save".into(),
        ..EtcdBackupStatus::default()
    });
    let plan = stage.round();
    assert!(plan.effects.is_empty() && Some(plan.status) == stage.backup.status);
}

#[test]
fn a_pod_that_hangs_is_stopped_and_nothing_starts_beside_it() {
    let mut stage = Stage::new(json!({"backupPolicy": {"timeoutInSecond": 60}}));
    stage.round();
    let pod = stage.current();
    stage.now = after(60 + 30 + 601);
    let stopped = stage.round();
    assert!(
        stopped
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::DeletePod { name, .. } if *name == pod))
    );
    // it takes its time to stop
    let agent = Agent {
        uid: Uid("pod-1".into()),
        component: "backup".into(),
        task: String::new(),
        created: start(),
        terminating: Some(stage.now),
        address: None,
        node_dead: None,
        state: State::Running,
    };
    stage.world.agents.insert(pod.clone(), agent);
    stage.now += SignedDuration::from_secs(30);
    let waits = stage.round();
    assert!(
        waits.status.current.is_none() && waits.status.waiting.contains("earlier attempt"),
        "{}",
        waits.status.waiting
    );
    // its node is gone: it is not waited for for ever
    stage.now += SignedDuration::from_secs(700);
    stage.round();
    assert_eq!(stage.current(), "nightly-backup-2");
}

#[test]
fn proofs_that_fail_push_out_nothing_that_is_proven() {
    // given two proven backups, which is all that is to be kept
    let mut stage =
        Stage::new(json!({"verify": "Restore", "backupPolicy": {"backupIntervalInSecond": 60, "maxBackups": 2}}));
    for number in 1..=2 {
        stage.now = after(number * 60);
        stage.round();
        stage.backed_up(&format!("b/k_{number}"));
        stage.says(proven());
    }
    // when many more are taken and none of them can be proven
    for number in 3..40 {
        stage.now += SignedDuration::from_secs(700);
        stage.round();
        stage.backed_up(&format!("b/k_{number}"));
        stage.says(failure());
    }
    // then both are still known, and the newest of them is what a restore starts from
    let status = stage.status();
    let good: Vec<_> = status
        .backups
        .iter()
        .filter(|record| record.verified.is_some())
        .collect();
    assert_eq!(
        good.iter().map(|record| record.location.as_str()).collect::<Vec<_>>(),
        ["b/k_2", "b/k_1"]
    );
    assert!(status.backups.len() <= super::RECORDS, "{}", status.backups.len());
}

fn proven() -> Outcome {
    Outcome::Proven(Proven {
        verified: Verify::Restore,
        keys: 3,
        key_hash: "ab".into(),
        ..Proven::default()
    })
}

#[test]
fn the_restorable_time_moves_on_while_a_cluster_is_quiet() {
    let mut stage = Stage::new(json!({"continuous": true, "backupPolicy": {"backupIntervalInSecond": 3600}}));
    stage.round();
    stage.backed_up("b/k_1");
    for seconds in [10, 20] {
        // when nothing is written, and the pod says that this moment can be restored too
        stage.now = after(seconds);
        stage.world.progress = Some(Progress {
            latest: Some(RestorablePoint {
                revision: 99,
                time: Some(super::stamp(after(seconds))),
            }),
            problem: String::new(),
        });
        stage.round();
        // then the status says so
        let latest = stage.status().latest_restorable.expect("a point");
        assert_eq!(
            (latest.revision, latest.time.map(|time| time.0)),
            (99, Some(after(seconds)))
        );
    }
}

/// The task of the pod that a plan makes.
fn task(plan: &Plan) -> Task {
    let made = plan.effects.iter().find_map(|effect| {
        let Effect::CreatePod(pod) = effect else { return None };
        pod.spec.as_ref()
    });
    let env = made.expect("a pod").containers[0].env.as_ref().unwrap();
    let text = env.iter().find(|env| env.name == TASK).unwrap().value.clone().unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn retention_comes_after_the_proof_and_knows_what_is_proven() {
    let policy = json!({"verify": "Restore", "backupPolicy": {"backupIntervalInSecond": 60, "maxBackups": 2}});
    let mut stage = Stage::new(policy);
    stage.round();
    stage.backed_up("b/k_1");
    stage.says(failure());
    stage.now = after(700);
    stage.round();
    stage.backed_up("b/k_2");
    stage.says(proven());
    // when the next is taken, then its pod knows that a proof follows, and what is proven
    stage.now = after(1400);
    let Task::Backup(backup) = task(&stage.round()) else {
        panic!()
    };
    assert!(backup.prove_later);
    let known = (&backup.retention.proven[..], &backup.retention.unproven[..]);
    assert_eq!(known, (&["b/k_2".to_owned()][..], &["b/k_1".to_owned()][..]));
    // and the pod that proves it lets go of older ones
    let Task::Prove(prove) = task(&stage.backed_up("b/k_3")) else {
        panic!()
    };
    assert_eq!(prove.retention.max_backups, Some(2));
    assert_eq!(prove.retention.proven, ["b/k_2"]);
    assert_eq!(stage.status().backups[0].verified, None, "not proven yet");
    let said = Outcome::Proven(Proven {
        verified: Verify::Restore,
        deleted: vec!["b/k_1".into()],
        retention_problem: "the store is slow".into(),
        ..Proven::default()
    });
    let done = stage.says(said);
    let left: Vec<_> = stage
        .status()
        .backups
        .iter()
        .map(|record| record.location.clone())
        .collect();
    assert_eq!(left, ["b/k_3", "b/k_2"]);
    let warned = |effect: &Effect| matches!(effect, Effect::Tell(note) if note.reason == Reason::RetentionFailed);
    assert!(done.effects.iter().any(warned));
}

#[test]
fn a_backup_that_was_only_read_back_takes_no_place_of_one_that_was_restored() {
    // given three backups that were restored, and two that were only read back while that was enough
    let policy = json!({"verify": "Restore", "backupPolicy": {"backupIntervalInSecond": 60, "maxBackups": 3}});
    let mut stage = Stage::new(policy);
    let mut number = 0;
    let mut take = |stage: &mut Stage, verify: Verify| {
        number += 1;
        stage.backup.spec.plan.verify = Some(verify);
        stage.now = after(600 * number);
        stage.round();
        let location = format!("b/k_{number}");
        let next = stage.backed_up(&location);
        if verify == Verify::Check {
            return None;
        }
        let Task::Prove(prove) = task(&next) else { panic!() };
        let said = Proven {
            verified: Verify::Restore,
            deleted: prove.retention.proven.iter().skip(2).cloned().collect(),
            ..Proven::default()
        };
        stage.says(Outcome::Proven(said));
        Some(prove.retention)
    };
    for verify in [
        Verify::Restore,
        Verify::Restore,
        Verify::Restore,
        Verify::Check,
        Verify::Check,
    ] {
        take(&mut stage, verify);
    }
    let locations = |stage: &Stage| {
        let records = stage.status().backups;
        records.into_iter().map(|record| record.location).collect::<Vec<_>>()
    };
    assert_eq!(locations(&stage), ["b/k_5", "b/k_4", "b/k_3"]);
    // when restores are asked for again, then those that were read back count apart
    let retention = take(&mut stage, Verify::Restore).expect("a proof");
    assert_eq!(retention.proven, ["b/k_3"]);
    assert_eq!(retention.unproven, ["b/k_6", "b/k_5", "b/k_4"]);
    // and the record keeps the one that was restored
    assert!(
        locations(&stage).contains(&"b/k_3".to_owned()),
        "{:?}",
        locations(&stage)
    );
}

#[test]
fn a_single_backup_takes_its_place_when_it_is_proven() {
    let mut stage = Stage::new(json!({"verify": "Restore", "deletionPolicy": "Delete"}));
    let Task::Backup(first) = task(&stage.round()) else {
        panic!()
    };
    assert!(first.prove_later && first.attempt.ends_with("-1"), "{}", first.attempt);
    let elsewhere = |number: i64| {
        Outcome::BackedUp(BackedUp {
            record: BackupRecord {
                unproven_at: format!("b/k.unproven-u-{number}"),
                ..record("b/k")
            },
            ..BackedUp::default()
        })
    };
    stage.says(elsewhere(1));
    assert!(super::point(&stage.backup).is_none());
    stage.says(failure());
    // given the proof failed and the object goes, then what stands at the path is not touched
    let mut deleted = Stage::new(json!({"verify": "Restore", "deletionPolicy": "Delete"}));
    deleted.backup.status = stage.backup.status.clone();
    deleted.backup.metadata.finalizers = Some(vec!["stateward.dev/backup-files".into()]);
    deleted.backup.metadata.deletion_timestamp = Some(super::stamp(start()));
    let Task::Delete(delete) = task(&deleted.round()) else {
        panic!()
    };
    assert_eq!(delete.locations, ["b/k.unproven-u-1"]);
    // given the next one is proven, even when a proof is not asked for any more, then it is at its place
    stage.now = after(60);
    stage.round();
    stage.backup.spec.plan.verify = None;
    let Task::Prove(prove) = task(&stage.says(elsewhere(3))) else {
        panic!()
    };
    assert_eq!(prove.record.unproven_at, "b/k.unproven-u-3");
    stage.says(proven());
    let status = stage.status();
    assert_eq!(status.backups.len(), 1);
    assert_eq!(
        (
            status.backups[0].location.as_str(),
            status.backups[0].unproven_at.as_str()
        ),
        ("b/k", "")
    );
    assert!(status.succeeded && super::point(&stage.backup).is_some());
}

#[test]
fn agents_pull_their_images_as_the_cluster_does() {
    let cluster: crate::api::EtcdCluster = serde_json::from_value(json!({
        "metadata": {"name": "c", "namespace": "n"},
        "spec": {"size": 3, "pod": {"imagePullSecrets": [{"name": "registry"}]}},
        "status": {"members": {"ready": ["c-x"]}},
    }))
    .unwrap();
    let spec = json!({"etcdEndpoints": [], "clusterRef": {"name": "c"}, "verify": "Restore", "continuous": true,
        "backupPolicy": {"backupIntervalInSecond": 60}, "deletionPolicy": "Delete"});
    let mut stage = Stage::new(spec);
    stage.world.source = Source::Cluster(Box::new(ClusterSource::of(&cluster)));
    let mut plans = vec![
        stage.round(),
        stage.backed_up("b/k_1"),
        stage.says(proven()),
        stage.round(),
    ];
    stage.backup.metadata.deletion_timestamp = Some(super::stamp(start()));
    plans.extend([stage.round(), stage.round()]);
    let mut kinds = Vec::new();
    for effect in plans.into_iter().flat_map(|plan| plan.effects) {
        if let Effect::CreatePod(pod) = effect {
            kinds.push(pod.metadata.labels.unwrap()["app.kubernetes.io/component"].clone());
            let secrets = pod.spec.unwrap().image_pull_secrets.expect("secrets");
            assert_eq!(secrets[0].name, "registry", "{kinds:?}");
        }
    }
    assert_eq!(kinds, ["backup", "prove", "follow", "delete"]);
}

fn periodic(name: &str, created: &str, spec: Value) -> EtcdBackup {
    let mut backup = backup(json!({"backupPolicy": {"backupIntervalInSecond": 60}, "deletionPolicy": "Delete"}));
    for (key, value) in spec.as_object().unwrap() {
        let mut all = serde_json::to_value(&backup.spec).unwrap();
        all[key] = value.clone();
        backup.spec = serde_json::from_value(all).unwrap();
    }
    backup.metadata.name = Some(name.into());
    backup.metadata.uid = Some(name.into());
    backup.metadata.creation_timestamp = Some(super::stamp(time(created)));
    backup
}

#[test]
fn two_periodic_backups_do_not_write_to_one_path() {
    let (older, younger) = (
        periodic("older", CREATED, json!({})),
        periodic("younger", "2026-01-02T00:00:00Z", json!({})),
    );
    let once = {
        let mut once = older.clone();
        once.spec.plan.backup_policy = None;
        once
    };
    let of = |backup: &EtcdBackup, others: &[&EtcdBackup]| super::sharer(backup, others.iter().copied());
    assert!(!of(&older, &[&older, &younger]).unwrap().is_older);
    assert_eq!(of(&younger, &[&once, &younger]), None, "one-shots may share a path");
    let elsewhere = [
        json!({"s3": {"path": "b/other", "awsSecret": "aws"}}),
        json!({"s3": {"path": "b/k", "endpoint": "http://minio:9000"}}),
        json!({"s3": Value::Null, "gcs": {"path": "b/k"}}),
    ];
    for spec in elsewhere {
        let other = periodic("older", CREATED, spec.clone());
        assert_eq!(of(&younger, &[&other]), None, "{spec}");
    }
    // a host without a dot is a Service of the own namespace; a bucket of a provider is the same one everywhere
    let near = json!({"s3": {"path": "b/k", "endpoint": "http://minio:9000"}});
    let mut there = periodic("older", CREATED, near.clone());
    there.metadata.namespace = Some("elsewhere".into());
    assert_eq!(of(&periodic("younger", CREATED, near), &[&there]), None);
    there.spec = older.spec.clone();
    assert_eq!(of(&younger, &[&there]).unwrap().name, "elsewhere/older");
    // one place has several spellings
    let azure = |secret: &str| json!({"s3": Value::Null, "abs": {"path": "b/k", "absSecret": secret}});
    let at = |kind: &str, endpoint: &str| json!({"s3": Value::Null, kind: {"path": "b/k", "endpoint": endpoint}});
    let unset = |kind: &str| json!({"s3": Value::Null, kind: {"path": "b/k"}});
    for (one, other) in [
        (unset("s3"), at("s3", "https://s3.eu-central-1.amazonaws.com")),
        (unset("gcs"), at("gcs", "https://storage.googleapis.com/")),
        (unset("oss"), at("oss", "http://oss-cn-hangzhou.aliyuncs.com")),
        (at("s3", "http://store.example"), at("s3", "store.example")),
        (at("s3", "https://store.example:443"), at("s3", "https://Store.Example")),
        (
            at("s3", "http://minio:9000"),
            at("s3", "http://minio.n.svc.cluster.local:9000"),
        ),
        (unset("s3"), json!({"s3": {"path": "b//k"}})),
        (azure("one"), azure("another")),
    ] {
        let (older, younger) = (
            periodic("older", CREATED, one.clone()),
            periodic("younger", "2026-01-02T00:00:00Z", other.clone()),
        );
        let found = of(&younger, &[&older]);
        assert!(found.is_some_and(|found| found.is_older), "{one} and {other}");
    }
    // but accounts of another namespace and other ports are other places
    let mut elsewhere = periodic("older", CREATED, azure("one"));
    elsewhere.metadata.namespace = Some("elsewhere".into());
    assert_eq!(of(&periodic("younger", CREATED, azure("one")), &[&elsewhere]), None);
    let ports = (at("s3", "http://minio:9000"), at("s3", "http://minio:9001"));
    let other = periodic("older", CREATED, ports.0);
    assert_eq!(of(&periodic("younger", CREATED, ports.1), &[&other]), None);
    // created in the same second: the name decides
    assert!(
        of(&periodic("younger", CREATED, json!({})), &[&older])
            .unwrap()
            .is_older
    );
    assert!(!of(&periodic("a", CREATED, json!({})), &[&older]).unwrap().is_older);
    // given the younger already works
    let mut stage = Stage::new(json!({}));
    stage.backup = younger.clone();
    stage.round();
    assert_eq!(stage.pods, 1);
    // when the older is there, then it stops, with a reason that names it, and nothing starts
    stage.world.sharer = of(&younger, &[&older]);
    for _ in 0..3 {
        stage.now += SignedDuration::from_secs(3600);
        stage.round();
    }
    let status = stage.status();
    assert!(stage.world.agents.is_empty() && stage.pods == 1);
    assert!(status.reason.contains("EtcdBackup n/older"), "{}", status.reason);
    assert!(is_true(&status.conditions, types::DEGRADED));
    // when it is deleted, then only its own files go
    let mut going = Stage::new(json!({}));
    going.backup = stage.backup.clone();
    going.world.sharer = stage.world.sharer.clone();
    going.backup.metadata.deletion_timestamp = Some(super::stamp(start()));
    going.now = stage.now;
    let Task::Delete(delete) = task(&going.round()) else {
        panic!()
    };
    assert!(!delete.all_of_path);
    // when the older is gone, then it goes on
    stage.world.sharer = None;
    stage.round();
    stage.now += SignedDuration::from_secs(3600);
    stage.round();
    stage.backed_up("b/k_1");
    assert!(stage.status().succeeded && stage.status().reason.is_empty());
}

#[test]
fn pods_on_a_dead_node_are_not_waited_for_for_ever() {
    let policy = json!({"continuous": true, "backupPolicy": {"backupIntervalInSecond": 3600}});
    let mut stage = Stage::new(policy);
    stage.round();
    stage.backed_up("b/k_1");
    stage.round();
    // given the pod that streams changes and one that takes a backup, on a node that dies
    stage.now = after(3601);
    stage.round();
    let (pod, follower) = (stage.current(), stage.world.agents["nightly-follow"].uid.clone());
    for agent in stage.world.agents.values_mut() {
        agent.node_dead = Some(stage.now);
    }
    let early = stage.round();
    assert!(early.status.current.is_some() && stage.world.agents["nightly-follow"].uid == follower);
    // when it stays dead, then others do their work
    stage.now += SignedDuration::from_secs(601);
    let late = stage.round();
    assert!(
        late.status.reason.contains("node that does not answer"),
        "{}",
        late.status.reason
    );
    stage.now += SignedDuration::from_secs(6);
    stage.round();
    assert_ne!(stage.current(), pod);
    assert_ne!(stage.world.agents["nightly-follow"].uid, follower);
}
