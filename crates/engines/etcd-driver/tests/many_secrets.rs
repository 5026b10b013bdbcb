//! The operator's memory beside 30,000 Secrets that are nobody's of it. `cargo test --release -p stateward-etcd-driver --test many_secrets --
//! --ignored --nocapture` prints it; the operator is a process of its own there, so that only its memory counts.

mod support;

use std::process::{Child, Command, Stdio};

use embedded_kube::Cluster;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{ListParams, PostParams};
use kube::{Client, Config};
use serde_json::json;
use support::{api, create, until};

const SECRETS: usize = 30_000;
/// Where the operator's process finds its kubeconfig.
const KUBECONFIG: &str = "STATEWARD_MANY_SECRETS";

/// Ends the operator with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(kubeconfig: &std::path::Path) -> Self {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "operator_process"])
            .env(KUBECONFIG, kubeconfig)
            .stdout(Stdio::null())
            .spawn();
        Self(child.expect("an operator"))
    }

    /// Its resident memory, in MiB.
    fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap_or_default();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .unwrap_or_default();
        let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse().expect("a number");
        kib / 1024
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the process of an operator, for the measurement below"]
async fn operator_process() {
    let Some(path) = std::env::var_os(KUBECONFIG) else {
        return;
    };
    let kubeconfig = kube::config::Kubeconfig::read_from(path).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await;
    let client = Client::try_from(config.expect("settings")).expect("a client");
    let stop = tokio_util::sync::CancellationToken::new();
    let _ = support::run(client, stop).await;
}

async fn at_work(client: &Client, cluster: &str) {
    create(client, cluster, json!({"size": 1, "TLS": {"auto": {}}})).await;
    until("its pod", async || {
        let ours = ListParams::default().labels(&format!("etcd_cluster={cluster}"));
        api::<Pod>(client).list(&ours).await.expect("pods").items.pop()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn thirty_thousand_foreign_secrets_cost_the_operator_nothing() {
    let kube = Cluster::start().await.expect("an embedded Kubernetes");
    let client = kube.client();
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, kube.kubeconfig_yaml()).expect("written");
    // Given an operator that has seen a cluster without them,
    let alone = {
        let operator = Process::start(&kubeconfig);
        at_work(&client, "before").await;
        operator.memory()
    };
    // when there are 30,000 Secrets as `kubectl apply` leaves them,
    let applied = "x".repeat(4 << 10);
    futures::stream::iter(0..SECRETS)
        .for_each_concurrent(16, async |number| {
            let secret: Secret = serde_json::from_value(json!({
                "metadata": {"name": format!("foreign-{number}"), "annotations": {
                    "kubectl.kubernetes.io/last-applied-configuration": applied,
                }},
                "stringData": {"key": "value"},
            }))
            .expect("a Secret");
            api(&client)
                .create(&PostParams::default(), &secret)
                .await
                .expect("made");
        })
        .await;
    // then one that starts beside them is as small.
    let operator = Process::start(&kubeconfig);
    at_work(&client, "after").await;
    let beside = operator.memory();
    println!("operator: {alone} MiB without, {beside} MiB beside {SECRETS} foreign Secrets");
    assert!(beside < alone + 16, "{alone} MiB became {beside} MiB");
    drop(operator);
    kube.stop().await;
}
