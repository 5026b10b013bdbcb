//! An operator in this process, beside an embedded Kubernetes that has no nodes.
#![allow(dead_code, reason = "each test program takes what it needs")]

use std::time::{Duration, Instant};

use kube::api::{Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde_json::{Value, json};
use stateward_etcd::api::EtcdCluster;
use stateward_etcd::api::etcd_cluster::EtcdClusterStatus;
use stateward_etcd_driver::{Config, Etcd};
use stateward_runtime::operator;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) struct Operator {
    stop: CancellationToken,
    task: JoinHandle<Result<(), operator::Error>>,
}

impl Operator {
    pub(crate) fn start(client: Client) -> Self {
        let stop = CancellationToken::new();
        let running = run(client, stop.clone());
        Self {
            stop,
            task: tokio::spawn(running),
        }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("it ends").expect("without an error");
    }
}

/// Runs an operator with the etcd engine.
pub(crate) async fn run(client: Client, stop: CancellationToken) -> Result<(), operator::Error> {
    operator::run(operator::Config::default(), client, stop, |runtime| {
        vec![Etcd::new(runtime, Config::default())]
    })
    .await
}

/// Waits for a condition, for a minute and a half at most.
pub(crate) async fn until<T, F: AsyncFnMut() -> Option<T>>(what: &str, mut condition: F) -> T {
    let deadline = Instant::now() + Duration::from_secs(90);
    loop {
        if let Some(found) = condition().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited 90 s for: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) fn api<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(client: &Client) -> Api<K> {
    Api::namespaced(client.clone(), "default")
}

/// Makes an EtcdCluster, as soon as the operator has made the definitions.
pub(crate) async fn create(client: &Client, name: &str, spec: Value) -> EtcdCluster {
    let text = json!({
        "apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdCluster",
        "metadata": {"name": name}, "spec": spec,
    });
    let cluster: EtcdCluster = serde_json::from_value(text).expect("an EtcdCluster");
    until("the EtcdCluster to be taken", async || {
        api(client).create(&PostParams::default(), &cluster).await.ok()
    })
    .await
}

pub(crate) async fn edit(client: &Client, name: &str, patch: Value) {
    let patched = api::<EtcdCluster>(client)
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    patched.expect("the edit is taken");
}

pub(crate) async fn status(client: &Client, name: &str) -> Option<EtcdClusterStatus> {
    api::<EtcdCluster>(client).get(name).await.ok()?.status
}

/// Waits until a cluster is degraded for a reason; returns the message.
pub(crate) async fn degraded(client: &Client, name: &str, reason: &str) -> String {
    until(&format!("{name} to be Degraded for {reason}"), async || {
        let conditions = status(client, name).await?.conditions;
        let degraded = conditions.into_iter().find(|condition| condition.type_ == "Degraded")?;
        (degraded.reason == reason).then_some(degraded.message)
    })
    .await
}
