//! The API server: one EtcdBackup and its pods, edits by users, and faults.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use stateward_etcd::agent::{Agent, State};
use stateward_etcd::api::EtcdBackup;
use stateward_etcd::api::agent::{BackedUp, Failure, FailureReason, Outcome, Proven, TASK, Task};
use stateward_etcd::api::etcd_backup::{BackupRecord, DeletionPolicy, EtcdBackupStatus, Verify};

use super::rules::Truth;
use super::time;
use crate::rng::Rng;

/// How a pod runs and ends, drawn when it is created.
#[derive(Clone, Copy, Debug)]
pub(super) struct Script {
    starts_after: i64,
    /// `None`: it hangs.
    works_for: Option<i64>,
    end: End,
    /// Its node becomes unavailable.
    node_fails: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Good,
    Fails,
    Crashes,
}

impl Script {
    pub(super) fn good() -> Self {
        Self {
            starts_after: 500,
            works_for: Some(2000),
            end: End::Good,
            node_fails: false,
        }
    }

    pub(super) fn draw(rng: &mut Rng, nodes_fail: bool) -> Self {
        let ms = |rng: &mut Rng, most: u64| i64::try_from(rng.between(50, most)).unwrap_or(50);
        let starts_after = if rng.per_mille(30) { i64::MAX } else { ms(rng, 8000) };
        let end = match rng.between(0, 9) {
            0..=5 => End::Good,
            6..=7 => End::Fails,
            _ => End::Crashes,
        };
        Self {
            starts_after,
            works_for: if rng.per_mille(40) { None } else { Some(ms(rng, 30_000)) },
            end,
            node_fails: nodes_fail && rng.per_mille(20),
        }
    }
}

/// A pod.
struct Body {
    pod: Pod,
    /// The proof that the spec asked for that it was planned with.
    asked: Verify,
    created: i64,
    state: State,
    terminating: Option<i64>,
    /// When its object disappears after that.
    gone_at: i64,
    script: Script,
}

/// The API server.
pub(super) struct Kube {
    pub(super) object: Option<EtcdBackup>,
    bodies: BTreeMap<String, Body>,
    version: u64,
    pods: u64,
    /// The version of the secrets.
    pub(super) secret: u64,
    pub(super) deleted_at: Option<i64>,
    /// An older EtcdBackup with the same path.
    pub(super) neighbour: Option<EtcdBackup>,
    good: Value,
    wanted_deletion: bool,
}

impl Kube {
    pub(super) fn new(rng: &mut Rng) -> Self {
        let mut spec = json!({"clusterRef": {"name": "c"}, "s3": {"path": "b/k", "awsSecret": "aws"}});
        match rng.between(0, 3) {
            0 => {}
            1 => spec["schedule"] = json!("*/10 * * * *"),
            _ => spec["backupPolicy"] = json!({"backupIntervalInSecond": 300, "timeoutInSecond": 120}),
        }
        if rng.per_mille(300) {
            spec["verify"] = json!("Restore");
        }
        if rng.per_mille(400) {
            spec["deletionPolicy"] = json!("Delete");
        }
        if rng.per_mille(300) && (spec["schedule"].is_string() || spec["backupPolicy"].is_object()) {
            spec["continuous"] = json!(true);
        }
        if rng.per_mille(500) && spec["backupPolicy"].is_object() {
            spec["backupPolicy"]["maxBackups"] = json!(3);
        }
        let metadata = json!({"name": "nightly", "namespace": "n", "uid": "u", "generation": 1, "resourceVersion": "1",
            "creationTimestamp": time(0).to_string()});
        let object: Option<EtcdBackup> = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).ok();
        let neighbour = object
            .clone()
            .filter(|object| object.spec.plan.is_periodic() && rng.per_mille(250));
        let neighbour = neighbour.map(|mut neighbour| {
            neighbour.metadata.name = Some("earlier".into());
            neighbour.metadata.uid = Some("n".into());
            neighbour.metadata.creation_timestamp = Some(Time(time(-1000)));
            neighbour
        });
        Self {
            neighbour,
            object,
            bodies: BTreeMap::new(),
            version: 1,
            pods: 0,
            secret: 1,
            deleted_at: None,
            good: spec,
            wanted_deletion: false,
        }
    }

    /// The spec said so when the object last existed.
    pub(super) fn wants_deletion(&self) -> bool {
        self.wanted_deletion
    }

    fn touch(&mut self) {
        self.version += 1;
        if let Some(object) = &mut self.object {
            object.metadata.resource_version = Some(self.version.to_string());
        }
    }

    pub(super) fn is_newest(&self, seen: &EtcdBackup) -> bool {
        let now = self.object.as_ref().map(|object| &object.metadata.resource_version);
        now == Some(&seen.metadata.resource_version)
    }

    pub(super) fn agents(&self) -> Vec<(String, Agent)> {
        let agent = |body: &Body| Agent {
            created: time(body.created),
            terminating: body.terminating.map(time),
            state: body.state.clone(),
            ..Agent::of(&body.pod)
        };
        self.bodies
            .iter()
            .map(|(name, body)| (name.clone(), agent(body)))
            .collect()
    }

    /// The status before and the object after; `None`: the object changed since it was read.
    pub(super) fn write_status(
        &mut self,
        seen: &EtcdBackup,
        status: &EtcdBackupStatus,
        guards: bool,
    ) -> Option<(EtcdBackup, EtcdBackup)> {
        if guards && !self.is_newest(seen) {
            return None;
        }
        let old = self.object.clone()?;
        // Stored times have whole seconds.
        let text = serde_json::to_string(status).ok()?;
        self.object.as_mut()?.status = serde_json::from_str(&text).ok();
        self.touch();
        Some((old, self.object.clone()?))
    }

    pub(super) fn set_finalizers(&mut self, seen: &EtcdBackup, finalizers: Vec<String>, guards: bool) -> bool {
        if guards && !self.is_newest(seen) {
            return false;
        }
        let Some(object) = &mut self.object else { return false };
        let gone = finalizers.is_empty() && object.metadata.deletion_timestamp.is_some();
        object.metadata.finalizers = Some(finalizers);
        self.touch();
        if gone && let Some(object) = self.object.take() {
            let files = object.status.is_some_and(|status| !status.backups.is_empty());
            self.wanted_deletion = files && object.spec.plan.deletion_policy == Some(DeletionPolicy::Delete);
        }
        true
    }

    pub(super) fn create(&mut self, mut pod: Pod, asked: Verify, now: i64, script: Script) -> bool {
        let name = pod.metadata.name.clone().unwrap_or_default();
        if self.bodies.contains_key(&name) {
            return false;
        }
        self.pods += 1;
        pod.metadata.uid = Some(format!("pod-{}", self.pods));
        let body = Body {
            pod,
            asked,
            created: now,
            state: State::Waiting(None),
            terminating: None,
            gone_at: i64::MAX,
            script,
        };
        self.bodies.insert(name, body);
        true
    }

    pub(super) fn delete(&mut self, name: &str, uid: &str, now: i64, rng: &mut Rng) -> bool {
        let Some(body) = self.bodies.get_mut(name) else {
            return true;
        };
        if body.pod.metadata.uid.as_deref() != Some(uid) {
            return false;
        }
        if matches!(body.state, State::Said(_) | State::Died(_) | State::TimedOut(_)) {
            self.bodies.remove(name);
            return true;
        }
        if body.terminating.is_none() {
            body.terminating = Some(now);
            let takes = i64::try_from(rng.between(10, 10_000)).unwrap_or(10);
            body.gone_at = if body.script.node_fails { i64::MAX } else { now + takes };
        }
        true
    }

    /// Deletes the object of a pod whose node does not respond. The pod may continue to run, unobserved.
    pub(super) fn forget(&mut self, name: &str, uid: &str) -> bool {
        let same = |body: &Body| body.pod.metadata.uid.as_deref() == Some(uid);
        if self.bodies.get(name).is_some_and(same) {
            self.bodies.remove(name);
        }
        true
    }

    /// When the next event happens by itself.
    pub(super) fn next_event(&self) -> Option<i64> {
        self.bodies.values().map(Self::due).min().filter(|due| *due < i64::MAX)
    }

    fn due(body: &Body) -> i64 {
        let starts = body.created.saturating_add(body.script.starts_after);
        let work = match body.state {
            State::Waiting(_) => starts,
            State::Running if follows(&body.pod) => i64::MAX,
            State::Running => starts
                .saturating_add(body.script.works_for.unwrap_or(i64::MAX))
                .min(deadline(body)),
            State::Said(_) | State::Died(_) | State::TimedOut(_) => i64::MAX,
        };
        work.min(body.gone_at)
    }

    /// Advances the pods. Returns what happened.
    pub(super) fn advance(&mut self, now: i64, truth: &mut Truth) -> Vec<String> {
        let mut lines = Vec::new();
        let mut gone = Vec::new();
        for (name, body) in &mut self.bodies {
            if body.gone_at <= now {
                lines.push(format!("pod {name} has stopped"));
                gone.push(name.clone());
                continue;
            }
            if body.script.node_fails && body.terminating.is_some() {
                continue;
            }
            let starts = body.created.saturating_add(body.script.starts_after);
            match body.state {
                State::Waiting(_) if starts <= now => {
                    body.state = State::Running;
                    lines.push(format!("pod {name} runs"));
                }
                State::Running if !follows(&body.pod) => {
                    let ends = starts.saturating_add(body.script.works_for.unwrap_or(i64::MAX));
                    if body.script.node_fails {
                        // nothing is reported about it again
                    } else if ends <= now {
                        truth.store.asked = body.asked;
                        body.state = end(&body.pod, body.script.end, now, truth);
                        lines.push(format!("pod {name} ends: {:?}", body.state));
                    } else if deadline(body) <= now {
                        body.state = State::TimedOut("DeadlineExceeded: Pod was active longer than specified".into());
                        lines.push(format!("pod {name} is ended by its deadline"));
                    }
                }
                _ => {}
            }
        }
        for name in gone {
            self.bodies.remove(&name);
        }
        lines
    }

    /// An action of the user.
    pub(super) fn user(&mut self, now: i64, rng: &mut Rng) -> Option<String> {
        if !rng.per_mille(8) || self.object.is_none() {
            return None;
        }
        if rng.per_mille(15) && self.deleted_at.is_none() {
            self.deleted_at = Some(now);
            let object = self.object.as_mut()?;
            object.metadata.deletion_timestamp = Some(Time(time(now)));
            let free = object.metadata.finalizers.iter().flatten().next().is_none();
            self.touch();
            if free {
                self.object = None;
            }
            return Some("the user deletes the object".into());
        }
        if rng.per_mille(200) {
            self.secret += 1;
            return Some("the user changes the secret".into());
        }
        let mut spec = serde_json::to_value(&self.object.as_ref()?.spec).ok()?;
        let what = match rng.between(0, 5) {
            0 => {
                spec["suspend"] = json!(!spec["suspend"].as_bool().unwrap_or(false));
                "suspend"
            }
            1 => {
                spec["s3"] = Value::Null;
                "no store"
            }
            2 if spec["backupPolicy"].is_object() => {
                spec["backupPolicy"]["backupIntervalInSecond"] = json!(rng.between(1, 10) * 60);
                "another interval"
            }
            3 if spec["backupPolicy"].is_object() => {
                spec["backupPolicy"]["maxBackups"] = json!(rng.between(1, 30));
                "another retention"
            }
            4 => {
                let restores = spec["verify"] == json!("Restore");
                spec["verify"] = json!(if restores { "Check" } else { "Restore" });
                "another verify"
            }
            _ => {
                spec = self.good.clone();
                "back to the first spec"
            }
        };
        self.edit(spec)?;
        Some(format!("the user edits: {what}"))
    }

    fn edit(&mut self, spec: Value) -> Option<()> {
        let object = self.object.as_mut()?;
        object.spec = serde_json::from_value(spec).ok()?;
        object.metadata.generation = object.metadata.generation.map(|generation| generation + 1);
        self.touch();
        Some(())
    }

    /// The user's last spec can be satisfied.
    pub(super) fn heal(&mut self) {
        let _nothing_to_edit = self.edit(self.good.clone());
    }

    /// Nodes come back or are removed, and their pods with them.
    pub(super) fn revive(&mut self) {
        self.bodies.retain(|_, body| !body.script.node_fails);
        for body in self.bodies.values_mut() {
            body.script = Script {
                starts_after: body.script.starts_after.min(60_000),
                ..body.script
            };
        }
    }

    /// A pod disappears without an outcome.
    pub(super) fn fault(&mut self, _now: i64, rng: &mut Rng, nodes: bool, truth: &mut Truth) -> Option<String> {
        if !rng.per_mille(3) {
            return None;
        }
        let names: Vec<String> = self.bodies.keys().cloned().collect();
        let name = rng.pick(&names)?.clone();
        let body = self.bodies.get(&name)?;
        // The pod of a lost node continues to run, unobserved, until its node is removed.
        if body.script.node_fails && !nodes {
            return None;
        }
        self.bodies.remove(&name);
        truth.vanished();
        Some(format!("pod {name} is removed"))
    }
}

fn follows(pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get("app.kubernetes.io/component"))
        .map(String::as_str)
        == Some("follow")
}

fn deadline(body: &Body) -> i64 {
    let seconds = body.pod.spec.as_ref().and_then(|spec| spec.active_deadline_seconds);
    let starts = body.created.saturating_add(body.script.starts_after);
    seconds.map_or(i64::MAX, |seconds| starts.saturating_add(seconds * 1000))
}

/// The task of a pod.
pub(super) fn task(pod: &Pod) -> Option<Task> {
    let env = pod.spec.as_ref()?.containers.first()?.env.as_ref()?;
    let text = env.iter().find(|env| env.name == TASK)?.value.as_ref()?;
    serde_json::from_str(text).ok()
}

fn end(pod: &Pod, end: End, now: i64, truth: &mut Truth) -> State {
    let content = pod.metadata.name.clone().unwrap_or_default();
    let outcome = match (end, task(pod)) {
        (End::Crashes, Some(Task::Backup(task))) if now % 2 == 0 => {
            let (_, _, broken) = truth.store.back_up(&task, (now, &content), None);
            truth.did(broken);
            return State::Died("its container ended with code 137 (OOMKilled)".into());
        }
        (End::Crashes, _) | (_, None) => {
            // It may have been done nevertheless.
            return State::Died("its container ended with code 137 (OOMKilled)".into());
        }
        (End::Fails, Some(Task::Backup(task))) => {
            let (_, _, broken) = truth.store.back_up(&task, (now, &content), Some(false));
            truth.did(broken);
            Outcome::Failed(Failure {
                reason: FailureReason::BackupCorrupt,
                message: "what is read back is not what was sent".into(),
                retry: true,
            })
        }
        (End::Fails, _) => Outcome::Failed(Failure {
            reason: FailureReason::StoreUnreachable,
            message: "the store does not respond".into(),
            retry: true,
        }),
        (End::Good, Some(Task::Backup(task))) => {
            let (record, deleted, broken) = truth.store.back_up(&task, (now, &content), Some(true));
            truth.did(broken);
            truth.backed_up(&record.location);
            Outcome::BackedUp(BackedUp {
                record: BackupRecord {
                    revision: now,
                    etcd_version: "3.5.35".into(),
                    completed_at: Some(Time(time(now))),
                    ..record
                },
                deleted,
                ..BackedUp::default()
            })
        }
        (End::Good, Some(Task::Prove(task))) => {
            let (deleted, broken) = truth.store.prove(&task, now);
            truth.did(broken);
            truth.proven(&task.record.location);
            Outcome::Proven(Proven {
                verified: Verify::Restore,
                keys: 1,
                key_hash: "00".into(),
                deleted,
                ..Proven::default()
            })
        }
        (End::Good, Some(Task::Delete(task))) => {
            let broken = truth.store.delete(&task);
            truth.did(broken);
            truth.files_deleted();
            Outcome::Deleted
        }
        (End::Good, Some(_)) => {
            truth.files_deleted();
            Outcome::Deleted
        }
    };
    State::Said(Box::new(outcome))
}
