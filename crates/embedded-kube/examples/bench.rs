//! Benchmarks the API server: `cargo run --release -p embedded-kube --example bench`.

use std::time::{Duration, Instant};

use embedded_kube::Cluster;
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams, WatchEvent, WatchParams};
use serde_json::json;

const IN_FLIGHT: usize = 16;
const WATCHES: usize = 4;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
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
            Ok::<usize, Box<dyn std::error::Error + Send + Sync>>(made)
        }));
    }
    let mut made = 0;
    for writer in writers {
        made += writer.await?.map_err(|e| e.to_string())?;
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
