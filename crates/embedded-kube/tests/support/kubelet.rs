//! A kubelet that runs nothing: its pods are ready as soon as they are bound, unless their image is `broken`, and
//! disappear as soon as they are deleted. For tests of the controllers alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{StreamExt, pin_mut};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::task::JoinHandle;

use super::object;

pub(crate) struct Kubelet {
    alive: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Kubelet {
    pub(crate) async fn start(client: Client, name: &str) -> Self {
        let nodes: Api<Node> = Api::all(client.clone());
        let node = object(json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {
                "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }));
        nodes.create(&PostParams::default(), &node).await.expect("a node");
        let status = json!({"status": node.status});
        nodes
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
            .await
            .expect("a node's status");
        let alive = Arc::new(AtomicBool::new(true));
        let tasks = vec![
            tokio::spawn(renew(client.clone(), name.to_owned(), alive.clone())),
            tokio::spawn(follow(client, name.to_owned(), alive.clone())),
        ];
        Kubelet { alive, tasks }
    }

    /// Stops or resumes its heartbeats.
    pub(crate) fn set_alive(&self, alive: bool) {
        self.alive.store(alive, Ordering::SeqCst);
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn renew(client: Client, name: String, alive: Arc<AtomicBool>) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let nodes: Api<Node> = Api::all(client);
    loop {
        if alive.load(Ordering::SeqCst) {
            let now = MicroTime(jiff::Timestamp::now());
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
                "spec": {"holderIdentity": name, "renewTime": now},
            });
            let _ = leases
                .patch(&name, &PatchParams::apply("kubelet").force(), &Patch::Apply(&lease))
                .await;
            if let Ok(node) = nodes.get(&name).await {
                let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
                if conditions
                    .iter()
                    .any(|condition| condition.type_ == "Ready" && condition.status != "True")
                {
                    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
                    let _ = nodes
                        .patch_status(&name, &PatchParams::default(), &Patch::Strategic(&ready))
                        .await;
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn follow(client: Client, node: String, alive: Arc<AtomicBool>) {
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
    let stream = watcher(Api::<Pod>::all(client.clone()), config)
        .default_backoff()
        .applied_objects();
    pin_mut!(stream);
    while let Some(event) = stream.next().await {
        let Ok(pod) = event else { continue };
        if !alive.load(Ordering::SeqCst) {
            continue;
        }
        let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        if pod.metadata.deletion_timestamp.is_some() {
            let _ = api
                .delete(
                    &pod.name_any(),
                    &DeleteParams {
                        grace_period_seconds: Some(0),
                        ..DeleteParams::default()
                    },
                )
                .await;
            continue;
        }
        let status = pod.status.clone().unwrap_or_default();
        if status.phase.as_deref() == Some("Running") {
            continue;
        }
        let image = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.containers[0].image.clone())
            .unwrap_or_default();
        let ready = if image.contains("broken") { "False" } else { "True" };
        let status = json!({"status": {
            "phase": "Running", "podIP": "127.99.0.9",
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": jiff::Timestamp::now()}],
        }});
        let _ = api
            .patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(&status))
            .await;
    }
}
