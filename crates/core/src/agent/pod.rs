//! The pods that Stateward works with (`stateward agent run`): how they are made, and what is read from them. Pure.
//!
//! An agent's pod is in the namespace of the object it works for and is owned by it. It meets the "restricted" pod security
//! standard, has no service account token unless the user names an account, and mounts by name only what its task needs.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, LocalObjectReference, Pod, PodSpec,
    ResourceRequirements, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{LISTEN, Mounts, PROGRESS_PORT, StoreMounts, TASK, mount};
use crate::manifests::{hash, restricted};
use crate::store::{Encryption, Store};
use crate::{Uid, names};

/// Label with the kind of work.
pub const LABEL_COMPONENT: &str = "app.kubernetes.io/component";
/// Annotation: hash of the task, to see whether the spec has moved on.
pub const ANNOTATION_TASK: &str = "stateward.dev/task";
/// The container that does the work.
pub const CONTAINER: &str = "agent";

/// What an agent's pod is made from. `T` is the task.
pub struct AgentPod<'a, T> {
    /// The namespace of the object it works for.
    pub namespace: &'a str,
    /// Its name.
    pub name: String,
    /// The object it works for.
    pub owner: OwnerReference,
    /// The kind of work, in one word.
    pub component: &'static str,
    /// The image with the `stateward` program.
    pub image: &'a str,
    /// An image of the engine in which the task runs, when it needs the engine's own programs.
    pub engine_image: Option<String>,
    /// What to do.
    pub task: T,
    /// What of the task counts when it is compared; the whole of it unless given.
    pub task_hash: Option<String>,
    /// The store that is used: its secret or claim is mounted.
    pub store: Option<Store<'a>>,
    /// The secret with the client's certificate for the engine.
    pub client_tls: Option<&'a str>,
    /// The key for encryption.
    pub encryption: Option<&'a Encryption>,
    /// The user's service account, for workload identity.
    pub service_account: Option<&'a str>,
    /// The Secrets to pull its images with.
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Seconds after which Kubernetes ends it.
    pub deadline: Option<i64>,
    /// It works until it is stopped, and Kubernetes starts it again when it ends.
    pub keeps_running: bool,
}

impl<T: Serialize> AgentPod<'_, T> {
    /// The manifest.
    pub fn build(self) -> Pod {
        let task = serde_json::to_string(&self.task).unwrap_or_default();
        let (mut volumes, mut mounts) = self.sources();
        let mut init = None;
        let mut command = None;
        let mut image = self.image.to_owned();
        if let Some(engine) = &self.engine_image {
            // An engine's image need not have a shell, and has no stateward: the program is copied in first.
            for (name, path) in [("tools", Mounts::TOOLS), ("scratch", Mounts::SCRATCH)] {
                volumes.push(Volume {
                    name: name.into(),
                    empty_dir: Some(EmptyDirVolumeSource::default()),
                    ..Volume::default()
                });
                mounts.push(mount(name, path, false));
            }
            init = Some(vec![Container {
                name: "install".into(),
                image: Some(self.image.to_owned()),
                image_pull_policy: Some("IfNotPresent".into()),
                args: Some(vec!["agent".into(), "install".into()]),
                resources: Some(small()),
                security_context: Some(no_privileges()),
                volume_mounts: Some(vec![mount("tools", Mounts::TOOLS, false)]),
                ..Container::default()
            }]);
            command = Some(vec![format!("{}/stateward", Mounts::TOOLS)]);
            image.clone_from(engine);
        }
        let port = ContainerPort {
            name: Some("progress".into()),
            container_port: i32::from(PROGRESS_PORT),
            ..ContainerPort::default()
        };
        let variable = |name: &str, value: String| EnvVar {
            name: name.into(),
            value: Some(value),
            value_from: None,
        };
        let mut environment = vec![variable(TASK, task.clone())];
        if self.keeps_running {
            environment.push(variable(LISTEN, format!("0.0.0.0:{PROGRESS_PORT}")));
        }
        let container = Container {
            name: CONTAINER.into(),
            image: Some(image),
            image_pull_policy: Some("IfNotPresent".into()),
            command,
            args: Some(vec!["agent".into(), "run".into()]),
            env: Some(environment),
            ports: self.keeps_running.then(|| vec![port]),
            // A scratch member needs what its data needs; everything else streams.
            resources: Some(if self.engine_image.is_some() {
                ResourceRequirements::default()
            } else {
                small()
            }),
            volume_mounts: (!mounts.is_empty()).then_some(mounts),
            termination_message_policy: Some("FallbackToLogsOnError".into()),
            security_context: Some(no_privileges()),
            ..Container::default()
        };
        let spec = PodSpec {
            containers: vec![container],
            init_containers: init,
            volumes: (!volumes.is_empty()).then_some(volumes),
            restart_policy: Some(if self.keeps_running { "Always" } else { "Never" }.into()),
            active_deadline_seconds: self.deadline,
            termination_grace_period_seconds: Some(10),
            automount_service_account_token: Some(self.service_account.is_some()),
            service_account_name: self.service_account.map(str::to_owned),
            image_pull_secrets: (!self.image_pull_secrets.is_empty()).then_some(self.image_pull_secrets),
            enable_service_links: Some(false),
            security_context: Some(restricted()),
            ..PodSpec::default()
        };
        let task_hash = self.task_hash.unwrap_or_else(|| hash(&task));
        Pod {
            metadata: ObjectMeta {
                name: Some(self.name),
                namespace: Some(self.namespace.to_owned()),
                labels: Some(labels(&self.owner, self.component)),
                annotations: Some([(ANNOTATION_TASK.to_owned(), task_hash)].into()),
                owner_references: Some(vec![self.owner]),
                ..ObjectMeta::default()
            },
            spec: Some(spec),
            status: None,
        }
    }

    /// What the task needs to read, by the names in [`Mounts`].
    fn sources(&self) -> (Vec<Volume>, Vec<VolumeMount>) {
        let mut sources = StoreMounts::default();
        sources.add(self.store, self.encryption);
        if let Some(name) = self.client_tls {
            sources.secret("client-tls", name, Mounts::CLIENT_TLS, None);
        }
        (sources.volumes, sources.mounts)
    }
}

fn labels(owner: &OwnerReference, component: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        ("app.kubernetes.io/name".to_owned(), names::APP_AGENT.to_owned()),
        (LABEL_COMPONENT.to_owned(), component.to_owned()),
        ("app.kubernetes.io/managed-by".to_owned(), names::MANAGER.to_owned()),
    ]);
    // A label takes 63 characters, a name has up to 253.
    if owner.name.len() <= 63 {
        labels.insert("app.kubernetes.io/instance".to_owned(), owner.name.clone());
    }
    labels
}

/// What a program needs that streams.
pub fn small() -> ResourceRequirements {
    let quantities = |pairs: &[(&str, &str)]| {
        let pairs = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), Quantity((*value).to_owned())));
        Some(pairs.collect())
    };
    ResourceRequirements {
        requests: quantities(&[("cpu", "50m"), ("memory", "64Mi")]),
        limits: quantities(&[("memory", "256Mi")]),
        claims: None,
    }
}

/// The security context of a container of the "restricted" pod security standard, with a root that cannot be written to.
pub fn no_privileges() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".into()]),
            add: None,
        }),
        read_only_root_filesystem: Some(true),
        ..SecurityContext::default()
    }
}

/// An agent's pod as Kubernetes shows it. `O` is what it may answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Agent<O> {
    /// Its UID: what a deletion is guarded by.
    pub uid: Uid,
    /// The kind of work.
    pub component: String,
    /// Hash of its task.
    pub task: String,
    /// When it was created.
    pub created: Timestamp,
    /// Since when it is being deleted.
    pub terminating: Option<Timestamp>,
    /// Its address, once it has one.
    pub address: Option<String>,
    /// Since when its node does not answer, where that can be seen. Nothing more is heard of the pod then.
    pub node_dead: Option<Timestamp>,
    /// How far it is.
    pub state: State<O>,
}

/// How far an agent is.
#[derive(Clone, Debug, PartialEq)]
pub enum State<O> {
    /// It has not started; why, when Kubernetes says.
    Waiting(Option<String>),
    /// It works.
    Running,
    /// It ended and said how it went.
    Said(Box<O>),
    /// It ended without a word of its own; what Kubernetes says.
    Died(String),
    /// Kubernetes ended it after its deadline; what Kubernetes says.
    TimedOut(String),
}

impl<O: DeserializeOwned> Agent<O> {
    /// It does not work any more.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Said(_) | State::Died(_) | State::TimedOut(_))
    }

    /// Reads a pod.
    pub fn of(pod: &Pod) -> Self {
        let meta = &pod.metadata;
        let text = |map: &Option<BTreeMap<String, String>>, key: &str| {
            map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default()
        };
        Self {
            uid: Uid(meta.uid.clone().unwrap_or_default()),
            component: text(&meta.labels, LABEL_COMPONENT),
            task: text(&meta.annotations, ANNOTATION_TASK),
            created: meta
                .creation_timestamp
                .as_ref()
                .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            terminating: meta.deletion_timestamp.as_ref().map(|time| time.0),
            address: pod.status.as_ref().and_then(|status| status.pod_ip.clone()),
            node_dead: None,
            state: state(pod),
        }
    }
}

fn state<O: DeserializeOwned>(pod: &Pod) -> State<O> {
    let status = pod.status.clone().unwrap_or_default();
    let containers = status.container_statuses.unwrap_or_default();
    let agent = containers.iter().find(|container| container.name == CONTAINER);
    let now = agent.and_then(|agent| agent.state.as_ref());
    let again = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) == Some("Always");
    let ended = now.and_then(|state| state.terminated.as_ref());
    let over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    if over || (ended.is_some() && !again) {
        let said = ended.and_then(|end| end.message.as_deref()).unwrap_or_default();
        if let Ok(outcome) = serde_json::from_str(said.trim()) {
            return State::Said(Box::new(outcome));
        }
        let exit = ended.map(|end| {
            let reason = end.reason.as_deref().unwrap_or("Error");
            let tail: String = said
                .trim()
                .lines()
                .last()
                .unwrap_or_default()
                .chars()
                .take(300)
                .collect();
            format!("its container ended with code {} ({reason}) {tail}", end.exit_code)
        });
        let failed_before = status.init_container_statuses.iter().flatten().find_map(|container| {
            let end = container.state.as_ref()?.terminated.as_ref()?;
            (end.exit_code != 0).then(|| format!("its container {} ended with code {}", container.name, end.exit_code))
        });
        let timed_out = status.reason.as_deref() == Some("DeadlineExceeded");
        let kubernetes = [status.reason, status.message]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>();
        let words = [Some(kubernetes.join(": ")), exit, failed_before];
        let words: Vec<String> = words.into_iter().flatten().filter(|text| !text.is_empty()).collect();
        let words = match words.join("; ").trim() {
            "" => "the pod ended without a word".to_owned(),
            words => words.to_owned(),
        };
        return if timed_out {
            State::TimedOut(words)
        } else {
            State::Died(words)
        };
    }
    if now.is_some_and(|state| state.running.is_some()) {
        return State::Running;
    }
    let starting = |reason: &str| matches!(reason, "ContainerCreating" | "PodInitializing");
    let blocked = status
        .init_container_statuses
        .iter()
        .flatten()
        .chain(&containers)
        .filter_map(|container| container.state.as_ref()?.waiting.as_ref())
        .find(|waiting| waiting.reason.as_deref().is_some_and(|reason| !starting(reason)))
        .map(|waiting| (waiting.reason.clone(), waiting.message.clone()));
    let unscheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .map(|condition| (condition.reason.clone(), condition.message.clone()));
    State::Waiting(
        blocked
            .or(unscheduled)
            .map(|(reason, message)| format!("{}: {}", reason.unwrap_or_default(), message.unwrap_or_default())),
    )
}
