//! Benchmarks the API server and pods: `cargo run --release -p embedded-kube --example bench [SECONDS] [CREATES]`.

use std::time::{Duration, Instant};

use embedded_kube::Cluster;
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::api::{Api, DeleteParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::wait::{await_condition, conditions};
use serde_json::json;

const IN_FLIGHT: usize = 16;
const WATCHES: usize = 4;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Outcome {
    embedded_kube::enter_network()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        nodes().await?;
        server().await
    })
}

/// How often a thing is measured whose median counts.
const ROUNDS: usize = 21;
/// Pods at once.
const MANY: usize = 30;

/// Starts nodes, and pods on them.
async fn nodes() -> Outcome {
    let mut starts = Vec::new();
    for _ in 0..5 {
        let folder = tempfile::tempdir()?;
        let began = Instant::now();
        let cluster = Cluster::builder().folder(folder.path()).nodes(3).start().await?;
        starts.push(began.elapsed());
        cluster.stop().await;
    }
    println!("start with three nodes: ready after {:?}", median(&mut starts));
    let cluster = Cluster::builder().nodes(3).start().await?;
    let pods: Api<Pod> = Api::default_namespaced(cluster.client());
    let pod = |name: &str| -> Pod {
        serde_json::from_value(json!({"metadata": {"name": name, "labels": {"app": "bench"}}, "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "busybox", "command": ["sleep", "1000"]}]}}))
        .unwrap_or_default()
    };
    // A service whose endpoints they become, as the pods of most workloads
    let service =
        json!({"metadata": {"name": "bench"}, "spec": {"selector": {"app": "bench"}, "ports": [{"port": 80}]}});
    Api::<Service>::default_namespaced(cluster.client())
        .create(&PostParams::default(), &serde_json::from_value(service)?)
        .await?;
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("one-{round}");
        let began = Instant::now();
        pods.create(&PostParams::default(), &pod(&name)).await?;
        await_condition(pods.clone(), &name, conditions::is_pod_running()).await?;
        times.push(began.elapsed());
        pods.delete(&name, &DeleteParams::default()).await?;
        await_condition(pods.clone(), &name, |pod: Option<&Pod>| pod.is_none()).await?;
    }
    println!("one pod: running after {:?}", median(&mut times));
    let began = Instant::now();
    let names: Vec<String> = (0..MANY).map(|number| format!("many-{number}")).collect();
    for name in &names {
        pods.create(&PostParams::default(), &pod(name)).await?;
    }
    for name in &names {
        await_condition(pods.clone(), name, conditions::is_pod_running()).await?;
    }
    println!("{MANY} pods at once: running after {:?}", began.elapsed());
    cluster.stop().await;
    Ok(())
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

async fn server() -> Outcome {
    let folder = tempfile::tempdir()?;
    let began = Instant::now();
    let cluster = Cluster::builder().folder(folder.path()).start().await?;
    println!("first start: ready after {:?}", began.elapsed());
    cluster.stop().await;
    let began = Instant::now();
    let cluster = Cluster::builder().folder(folder.path()).start().await?;
    println!("second start: ready after {:?}", began.elapsed());
    tokio::time::sleep(Duration::from_secs(2)).await;
    println!("idle memory: {} MB", memory());
    let seconds = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(5);
    let count: usize = std::env::args()
        .nth(2)
        .and_then(|s| s.parse().ok())
        .unwrap_or(usize::MAX);

    let mut watches = Vec::new();
    for _ in 0..WATCHES {
        let api: Api<ConfigMap> = Api::namespaced(cluster.https_client().await?, "default");
        watches.push(tokio::spawn(async move {
            let mut seen = 0usize;
            let mut version = "0".to_owned();
            loop {
                let Ok(stream) = api.watch(&WatchParams::default(), &version).await else {
                    return seen;
                };
                let mut stream = Box::pin(stream);
                while let Ok(Some(event)) = stream.try_next().await {
                    if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event {
                        seen += 1;
                        version = object.metadata.resource_version.unwrap_or_default();
                        if object.metadata.name.as_deref() == Some("last") {
                            return seen;
                        }
                    }
                }
            }
        }));
    }
    let began = Instant::now();
    let end = began + Duration::from_secs(seconds);
    let mut writers = Vec::new();
    for writer in 0..IN_FLIGHT {
        let api: Api<ConfigMap> = Api::namespaced(cluster.https_client().await?, "default");
        writers.push(tokio::spawn(async move {
            let mut made = 0usize;
            while Instant::now() < end && made < count / IN_FLIGHT {
                let object: ConfigMap = serde_json::from_value(
                    json!({"metadata": {"name": format!("c-{writer}-{made}")}, "data": {"key": "a small value"}}),
                )?;
                api.create(&PostParams::default(), &object).await?;
                made += 1;
            }
            Outcome::Ok(made)
        }));
    }
    let mut made = 0;
    for writer in writers {
        made += writer.await??;
    }
    let took = began.elapsed();
    println!(
        "{made} durable creates in {took:?}: {:.0}/s over TLS, {IN_FLIGHT} in flight, {WATCHES} watches",
        made as f64 / took.as_secs_f64()
    );
    let last: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "last"}}))?;
    Api::namespaced(cluster.client(), "default")
        .create(&PostParams::default(), &last)
        .await?;
    for watch in watches {
        println!("a watch saw {} objects", watch.await?);
    }
    println!("memory with {made} objects: {} MB", memory());
    cluster.stop().await;
    Ok(())
}

/// Resident memory of this process.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|kb| kb.parse::<u64>().ok())
        .unwrap_or(0)
        / 1024
}
