//! The scheduler: binds pending pods to nodes. The decision itself is [`super::scheduling`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Error;
use super::events::Recorder;
use super::scheduling::{Scene, place};
use super::world::{World, full_name, lock, passes, unless_moved_on};

/// The scheduler name of pods that name no other one.
const NAME: &str = "default-scheduler";

pub(crate) async fn run(world: Arc<World>, stop: CancellationToken) {
    let wake = Arc::new(Notify::new());
    world.pods.wakes(&wake);
    world.nodes.wakes(&wake);
    world.claims.wakes(&wake);
    world.volumes.wakes(&wake);
    world.namespaces.wakes(&wake);
    let scheduler = Scheduler {
        recorder: Recorder::new(world.client.clone(), NAME),
        world,
        assumed: Mutex::default(),
    };
    passes("scheduler", wake, stop, || scheduler.pass()).await;
}

struct Scheduler {
    world: Arc<World>,
    recorder: Recorder,
    /// Bindings that the API has accepted and that are not in the cache yet, by pod UID. Without them two pods with
    /// anti-affinity could be placed together.
    assumed: Mutex<HashMap<String, String>>,
}

impl Scheduler {
    async fn pass(&self) -> Result<Option<Duration>, Error> {
        let pods = self.world.pods.all();
        let mut waiting: Vec<&Arc<Pod>> = pods.iter().filter(|pod| is_waiting(pod)).collect();
        {
            let mut assumed = lock(&self.assumed);
            assumed.retain(|uid, _| waiting.iter().any(|pod| pod.uid().as_ref() == Some(uid)));
            waiting.retain(|pod| !assumed.contains_key(&pod.uid().unwrap_or_default()));
        }
        if waiting.is_empty() {
            return Ok(None);
        }
        waiting.sort_by_key(|pod| (pod.creation_timestamp(), full_name(&***pod)));
        let mut scene = self.scene(&pods);
        for pod in waiting {
            match place(pod, &scene) {
                Ok(node) => {
                    if self.bind(pod, &node).await? {
                        scene.placed.push((pod.clone(), node));
                    }
                }
                Err(message) => self.explain(pod, &message).await?,
            }
        }
        Ok(None)
    }

    fn scene(&self, pods: &[Arc<Pod>]) -> Scene {
        let assumed = lock(&self.assumed);
        let placed = pods.iter().filter(|pod| !is_over(pod)).filter_map(|pod| {
            let bound = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            let node = bound.or_else(|| assumed.get(&pod.uid().unwrap_or_default()).cloned())?;
            Some((pod.clone(), node))
        });
        let mut nodes = self.world.nodes.all();
        nodes.retain(|node| node.metadata.deletion_timestamp.is_none());
        nodes.sort_by_key(|node| node.name_any());
        Scene {
            nodes,
            placed: placed.collect(),
            claims: (self.world.claims.all().into_iter())
                .map(|claim| ((claim.namespace().unwrap_or_default(), claim.name_any()), claim))
                .collect(),
            volumes: self
                .world
                .volumes
                .all()
                .into_iter()
                .map(|volume| (volume.name_any(), volume))
                .collect(),
            namespaces: (self.world.namespaces.all().iter())
                .map(|namespace| (namespace.name_any(), namespace.labels().clone()))
                .collect(),
        }
    }

    /// Whether the pod now has this node.
    async fn bind(&self, pod: &Pod, node: &str) -> Result<bool, Error> {
        let namespace = pod.namespace().unwrap_or_default();
        let api: Api<Pod> = Api::namespaced(self.world.client.clone(), &namespace);
        let binding = Binding {
            metadata: ObjectMeta {
                name: pod.metadata.name.clone(),
                namespace: pod.metadata.namespace.clone(),
                uid: pod.metadata.uid.clone(),
                ..ObjectMeta::default()
            },
            target: ObjectReference {
                kind: Some("Node".to_owned()),
                name: Some(node.to_owned()),
                ..ObjectReference::default()
            },
        };
        let name = pod.name_any();
        let answer: Result<serde_json::Value, kube::Error> = api
            .create_subresource("binding", &name, &PostParams::default(), &binding)
            .await;
        if unless_moved_on(answer)?.is_none() {
            return Ok(false);
        }
        lock(&self.assumed).insert(pod.uid().unwrap_or_default(), node.to_owned());
        let message = format!("Successfully assigned {namespace}/{name} to {node}");
        self.recorder.normal(pod, "Scheduled", &message);
        Ok(true)
    }

    /// Writes why the pod waits, once for each reason.
    async fn explain(&self, pod: &Pod, message: &str) -> Result<(), Error> {
        let status = pod.status.as_ref();
        let old = status.and_then(|status| status.conditions.iter().flatten().find(|c| c.type_ == "PodScheduled"));
        if old.is_some_and(|old| old.status == "False" && old.message.as_deref() == Some(message)) {
            return Ok(());
        }
        let now = Time(Timestamp::now());
        let since = old
            .filter(|old| old.status == "False")
            .and_then(|old| old.last_transition_time.clone());
        let condition = PodCondition {
            type_: "PodScheduled".to_owned(),
            status: "False".to_owned(),
            reason: Some("Unschedulable".to_owned()),
            message: Some(message.to_owned()),
            last_transition_time: Some(since.unwrap_or(now)),
            ..PodCondition::default()
        };
        let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}});
        let api: Api<Pod> = Api::namespaced(self.world.client.clone(), &pod.namespace().unwrap_or_default());
        let patched = api
            .patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(&patch))
            .await;
        if unless_moved_on(patched)?.is_some() {
            self.recorder.warning(pod, "FailedScheduling", message);
        }
        Ok(())
    }
}

fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn is_waiting(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    spec.node_name.as_deref().unwrap_or_default().is_empty()
        && pod.metadata.deletion_timestamp.is_none()
        && spec.scheduler_name.as_deref().unwrap_or(NAME) == NAME
        && spec.scheduling_gates.as_deref().unwrap_or_default().is_empty()
        && !is_over(pod)
}
