//! Backups to a real S3 server and restores from it: the walkthrough that users of the old operator know, a store that
//! rejects requests, is full, slow, interrupted or unavailable, and a large database.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use futures::{StreamExt, TryStreamExt};
use serde_json::{Value, json};
use stateward_core::conditions::{self, types};
use stateward_etcd_driver::client::messages::RangeRequest;

use super::backup::{create, status, succeeded};
use super::restore;
use crate::memory::Agents;
use crate::s3::{S3, secret};
use crate::servers::PASSWORD;
use crate::servers::proxy::Fault;
use crate::test::Test;
use crate::wait::until;

const NAME: &str = "example-etcd-cluster";

fn backup_manifest(url: &str) -> String {
    format!(
        "apiVersion: etcd.database.coreos.com/v1beta2
kind: EtcdBackup
metadata:
  name: example-etcd-cluster-backup
spec:
  etcdEndpoints: [\"http://example-etcd-cluster-client:2379\"]
  storageType: S3
  s3:
    path: mybucket/etcd.backup
    awsSecret: aws
    endpoint: {url}
    forcePathStyle: true
"
    )
}

pub(crate) async fn backup_to_s3_step_by_step(test: &Test) -> Result<String> {
    let server = S3::start(test, "minio").await?;
    test.created(NAME, json!({"size": 3})).await?;
    secret(test, "aws", PASSWORD).await?;
    let began = Instant::now();
    test.apply(&backup_manifest(&server.url)).await?;
    let done = succeeded(test, "example-etcd-cluster-backup", 60).await?;
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(20), "it took {took:?}");
    ensure!(done.backups[0].location == "mybucket/etcd.backup", "{:?}", done.backups);
    ensure!(server.has("mybucket/etcd.backup").await?, "no file in the bucket");
    Ok(format!("succeeded {:.1} s after kubectl apply", took.as_secs_f64()))
}

/// Every member and volume is destroyed; only the bucket is left.
pub(crate) async fn restore_from_s3_step_by_step(test: &Test) -> Result<String> {
    let server = S3::start(test, "minio").await?;
    test.created(NAME, json!({"size": 3})).await?;
    restore::write(test, NAME, "before").await?;
    secret(test, "aws", PASSWORD).await?;
    test.apply(&backup_manifest(&server.url)).await?;
    succeeded(test, "example-etcd-cluster-backup", 60).await?;
    let seen = restore::write(test, NAME, "later").await?;
    restore::destroy_everything(test, NAME).await?;
    let began = Instant::now();
    test.apply(&format!(
        "apiVersion: etcd.database.coreos.com/v1beta2
kind: EtcdRestore
metadata:
  name: example-etcd-cluster
spec:
  etcdCluster:
    name: example-etcd-cluster
  backupStorageType: S3
  s3:
    path: mybucket/etcd.backup
    awsSecret: aws
    endpoint: {}
    forcePathStyle: true
",
        server.url
    ))
    .await?;
    restore::succeeded(test, NAME, 180).await?;
    let served = began.elapsed();
    test.settled(NAME, 120).await?;
    restore::has(test, NAME, "before", seen).await?;
    restore::has_not(test, NAME, "later").await?;
    Ok(format!("served {:.1} s after kubectl apply", served.as_secs_f64()))
}

/// Agents back up and restore a database of 1 GiB with less than 100 MiB of memory.
pub(crate) async fn a_gibibyte_to_s3_in_small_agents(test: &Test) -> Result<String> {
    const VALUE: usize = 1 << 20;
    let server = S3::start(test, "minio").await?;
    test.created("c", json!({"size": 1, "maintenance": {"quota": "4Gi"}}))
        .await?;
    secret(test, "aws", PASSWORD).await?;
    let client = test.endpoint("c").await?.client()?;
    let client = &client;
    let writes = futures::stream::iter(0..1024_u32).map(async |number| {
        let text = |at: u32| (at ^ number).wrapping_mul(2_654_435_761).to_le_bytes();
        let value: Vec<u8> = (0..VALUE as u32 / 4).flat_map(text).collect();
        // A busy disk may take longer than the client waits. Repeating the same write changes nothing.
        let write = async || Ok(Some(client.put(format!("large/{number}"), value.clone()).await?));
        until("a write", 60, write).await
    });
    writes.buffer_unordered(4).try_for_each(async |_| Ok(())).await?;
    let path = format!("mybucket/{}", test.namespace);
    let agents = Agents::that_name(&path);
    let s3 = json!({"path": path, "awsSecret": "aws", "endpoint": server.url, "forcePathStyle": true});
    create(test, "b", json!({"clusterRef": {"name": "c"}, "s3": s3})).await?;
    let done = succeeded(test, "b", 180).await?;
    let size = done.backups.first().map_or(0, |record| record.size_bytes);
    ensure!(size > 1 << 30, "only {size} bytes");
    let backup = agents.peak();
    let seen = restore::write(test, "c", "later").await?;
    let agents = Agents::that_name(&path);
    restore::create(test, json!({"s3": s3})).await?;
    restore::succeeded(test, "c", 240).await?;
    let restored = agents.peak();
    test.settled("c", 120).await?;
    restore::has_not(test, "c", "later").await?;
    let client = test.endpoint("c").await?.client()?;
    let answer = client.range(RangeRequest::count_of_all(0)).await?;
    let revision = answer.header.unwrap_or_default().revision;
    ensure!(answer.count == 1024, "{} keys", answer.count);
    ensure!(revision > seen, "revision {revision}, and {seen} was seen before");
    for peak in [backup, restored] {
        ensure!((1..100).contains(&peak), "{peak} MiB of memory");
    }
    let size = size >> 20;
    Ok(format!(
        "{size} MiB; {backup} MiB of memory for the backup, {restored} MiB for the restore"
    ))
}

/// Waits until a backup fails with a reason, and returns the message.
async fn failed_with(test: &Test, name: &str, reason: &str) -> Result<String> {
    until(&format!("EtcdBackup {name} to fail with {reason}"), 120, async || {
        let status = status(test, name).await?;
        match conditions::get(&status.conditions, types::DEGRADED) {
            Some(degraded) if degraded.reason == reason && status.consecutive_failures > 0 => Ok(Some(status.reason)),
            Some(degraded) => bail!("{}: {}", degraded.reason, degraded.message),
            None => bail!("no condition"),
        }
    })
    .await
}

pub(crate) async fn backup_when_s3_rejects_or_is_unavailable(test: &Test) -> Result<String> {
    let server = S3::start(test, "minio").await?;
    test.created("c", json!({"size": 1})).await?;
    // More than one part of an upload.
    let client = test.endpoint("c").await?.client()?;
    for number in 0..20_u8 {
        let value: Vec<u8> = (0..1_000_000_u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8 ^ number)
            .collect();
        client.put(format!("large-{number}"), value).await?;
    }
    let to = |path: &str, url: &str| {
        let s3 = json!({"path": path, "awsSecret": "aws", "endpoint": url, "forcePathStyle": true});
        json!({"clusterRef": {"name": "c"}, "s3": s3})
    };
    let mut messages = Vec::new();
    // wrong credentials are reported, and correct ones are used at once
    secret(test, "aws", "wrong-secret").await?;
    create(test, "refused", to("mybucket/refused", &server.url)).await?;
    messages.push(failed_with(test, "refused", "AccessDenied").await?);
    test.kubectl(&["delete", "secret", "aws"]).await?;
    secret(test, "aws", PASSWORD).await?;
    succeeded(test, "refused", 60).await?;
    // a bucket that does not exist
    create(test, "nowhere", to("nobucket/a", &server.url)).await?;
    messages.push(failed_with(test, "nowhere", "BucketMissing").await?);
    // a disk that is smaller than the backup
    let small = S3::small(test, "small", 12).await?;
    create(test, "full", to("mybucket/full", &small.url)).await?;
    messages.push(failed_with(test, "full", "StoreFull").await?);
    ensure!(!small.has("mybucket/full").await?, "part of a backup is there");
    // too slow for its time limit
    let (proxy, url) = server.proxied(Fault::Slow(1 << 20))?;
    let with = |mut spec: Value, seconds: i64| {
        spec["backupPolicy"] = json!({ "timeoutInSecond": seconds });
        spec
    };
    create(test, "slow", with(to("mybucket/slow", &url), 4)).await?;
    messages.push(failed_with(test, "slow", "TimedOut").await?);
    ensure!(!server.has("mybucket/slow").await?, "part of a backup is there");
    // interrupted half way, repeatedly; once repaired, the backup succeeds by itself
    proxy.set(Fault::CutAfter(10 << 20));
    create(test, "cut", to("mybucket/cut", &url)).await?;
    messages.push(failed_with(test, "cut", "StoreUnreachable").await?);
    ensure!(!server.has("mybucket/cut").await?, "part of a backup is there");
    proxy.set(Fault::None);
    succeeded(test, "cut", 120).await?;
    succeeded(test, "slow", 120).await?;
    ensure!(server.has("mybucket/cut").await?, "no file in the bucket");
    ensure!(
        status(test, "cut").await?.consecutive_failures == 0,
        "it succeeded and counts failures"
    );
    // unavailable
    drop(proxy);
    create(test, "down", to("mybucket/down", &url)).await?;
    messages.push(failed_with(test, "down", "StoreUnreachable").await?);
    let short = |message: String| message.chars().take(70).collect::<String>();
    Ok(messages.into_iter().map(short).collect::<Vec<_>>().join(" | "))
}
