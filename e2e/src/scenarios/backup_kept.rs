//! Proven backups are kept: proofs that fail, backups that are interrupted over a good one, and two objects with one
//! path. And a restore whose pod is lost with its node.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use stateward_etcd::api::etcd_backup::Verify;

use super::backup::{claim, create, says, status, succeeded, to_file, with};
use super::restore;
use crate::s3::{S3, secret};
use crate::servers::PASSWORD;
use crate::servers::proxy::Fault;
use crate::test::Test;
use crate::wait::until;

fn to_s3(path: &str, url: &str, more: Value) -> Value {
    let s3 = json!({"path": path, "awsSecret": "aws", "endpoint": url, "forcePathStyle": true});
    with(json!({"clusterRef": {"name": "c"}, "s3": s3}), more)
}

pub(crate) async fn backup_proofs_that_fail_delete_nothing(test: &Test) -> Result<String> {
    let server = S3::start(test, "minio").await?;
    test.created("c", json!({"size": 1})).await?;
    secret(test, "aws", PASSWORD).await?;
    // given a proven backup, the only one that is to be kept
    let policy = json!({"verify": "Restore", "backupPolicy": {"backupIntervalInSecond": 15, "maxBackups": 1}});
    create(test, "kept", to_s3("mybucket/kept", &server.url, policy)).await?;
    let first = succeeded(test, "kept", 120).await?;
    let good = first.backups.first().context("no record")?.location.clone();
    // when every pod that is to prove another one is deleted
    let failing = until("three proofs in a row to fail", 240, async || {
        let pods = test.pods().list(&ListParams::default()).await?;
        for pod in pods.iter().filter(|pod| pod.name_any().starts_with("kept-prove-")) {
            let _gone = test
                .pods()
                .delete(&pod.name_any(), &DeleteParams::default().grace_period(0))
                .await;
        }
        let status = status(test, "kept").await?;
        ensure!(
            status.consecutive_failures >= 3,
            "{} failures",
            status.consecutive_failures
        );
        Ok(Some(status))
    })
    .await;
    // A proof that finished before this test deleted its pod rightly replaces the first backup.
    let failing = failing?;
    let proven = failing
        .backups
        .iter()
        .find(|record| record.verified == Some(Verify::Restore));
    let proven = proven.context("no proven backup is left in the status")?;
    // then the last proven one is in the store, with few of the others
    ensure!(
        server.has(&proven.location).await?,
        "{} is not in the store",
        proven.location
    );
    let unproven: Vec<_> = failing
        .backups
        .iter()
        .filter(|record| record.verified.is_none())
        .collect();
    ensure!(unproven.len() <= 1, "{} unproven ones are kept", unproven.len());
    // and when proofs work again, the next one replaces it
    let done = until("another proven backup", 240, async || {
        let status = status(test, "kept").await?;
        ensure!(status.consecutive_failures == 0, "{}", status.reason);
        Ok(status
            .backups
            .first()
            .filter(|record| record.verified == Some(Verify::Restore))
            .cloned())
    })
    .await?;
    ensure!(done.location != proven.location, "no new backup");
    until("the old one to be deleted", 60, async || {
        ensure!(
            !server.has(&proven.location).await?,
            "{} is still there",
            proven.location
        );
        Ok(Some(()))
    })
    .await?;
    Ok(format!(
        "{good} was followed by {} after three failed proofs",
        done.location
    ))
}

pub(crate) async fn interrupted_backup_keeps_the_previous_one(test: &Test) -> Result<String> {
    const PATH: &str = "mybucket/single";
    let server = S3::start(test, "minio").await?;
    test.created("c", json!({"size": 1})).await?;
    secret(test, "aws", PASSWORD).await?;
    // given a good backup
    create(test, "first", to_s3(PATH, &server.url, json!({}))).await?;
    succeeded(test, "first", 60).await?;
    // when another one to the same path cannot be read back
    let (proxy, url) = server.proxied(Fault::NoReads)?;
    create(test, "second", to_s3(PATH, &url, json!({}))).await?;
    let failed = until("the second one to fail twice", 240, async || {
        let status = status(test, "second").await?;
        if status.consecutive_failures < 2 {
            bail!("{}; {}", status.reason, status.waiting);
        }
        Ok(Some(status))
    })
    .await?;
    // then the first one is still there, and nothing else
    ensure!(server.has(PATH).await?, "the good backup is gone");
    // and when it can be read back, the second one replaces it
    proxy.set(Fault::None);
    succeeded(test, "second", 120).await?;
    ensure!(server.has(PATH).await?, "no file in the bucket");
    Ok(failed.reason.chars().take(100).collect())
}

pub(crate) async fn backup_path_conflict_is_rejected(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 1})).await?;
    claim(test, "backups").await?;
    // given a periodic backup
    let policy = json!({"backupPolicy": {"backupIntervalInSecond": 5, "maxBackups": 1}, "deletionPolicy": "Delete"});
    create(test, "a-first", with(to_file("shared/etcd.backup"), policy.clone())).await?;
    succeeded(test, "a-first", 60).await?;
    // when another one names its path, then it is rejected, but one-shot backups are not
    create(test, "b-second", with(to_file("shared/etcd.backup"), policy)).await?;
    let refused = says(test, "b-second", "/a-first has been writing periodic backups", 30).await?;
    ensure!(refused.attempts == 0, "{} attempts", refused.attempts);
    create(test, "once", to_file("shared/etcd.backup")).await?;
    succeeded(test, "once", 60).await?;
    // and when the first one is gone, the second one runs
    test.backups().delete("a-first", &DeleteParams::default()).await?;
    succeeded(test, "b-second", 120).await?;
    Ok(refused.reason.chars().take(100).collect())
}

/// Cordons or uncordons a node.
async fn cordon(test: &Test, node: &str, closed: bool) -> Result<()> {
    let nodes: Api<Node> = Api::all(test.client.clone());
    let patch = json!({"spec": {"unschedulable": closed}});
    nodes
        .patch(node, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

async fn node_of(test: &Test, pod: &str) -> Result<Option<String>> {
    let pod = test.pods().get_opt(pod).await?;
    Ok(pod.and_then(|pod| pod.spec).and_then(|spec| spec.node_name))
}

pub(crate) async fn restore_whose_inspecting_node_dies(test: &Test) -> Result<String> {
    const PATH: &str = "mybucket/etcd.backup";
    let server = S3::start(test, "minio").await?;
    // The store must outlive the node.
    let home = node_of(test, "minio").await?;
    if let Some(home) = &home {
        cordon(test, home, true).await?;
    }
    let result = inspecting_node_dies(test, &server, PATH).await;
    if let Some(home) = &home {
        cordon(test, home, false).await?;
    }
    result
}

async fn inspecting_node_dies(test: &Test, server: &S3, path: &str) -> Result<String> {
    test.created("c", json!({"size": 1})).await?;
    secret(test, "aws", PASSWORD).await?;
    create(test, "backup", to_s3(path, &server.url, json!({}))).await?;
    succeeded(test, "backup", 60).await?;
    // given a restore whose pod reads from a store that does not respond
    let (proxy, url) = server.proxied(Fault::Slow(1))?;
    let s3 = json!({"path": path, "awsSecret": "aws", "endpoint": url, "forcePathStyle": true});
    restore::create(test, json!({"etcdCluster": {"name": "c"}, "s3": s3})).await?;
    let (pod, node) = until("a pod that inspects the backup", 120, async || {
        let agent = restore::status(test, "c").await?.agent;
        let pod = test.pods().get_opt(&agent).await?.context("no pod")?;
        let status = pod.status.clone().unwrap_or_default();
        ensure!(
            status.phase.as_deref() == Some("Running"),
            "{agent} is {:?}",
            status.phase
        );
        Ok(pod.spec.and_then(|spec| spec.node_name).map(|node| (agent, node)))
    })
    .await?;
    // when its node dies, then another pod does its work
    test.fault(crate::environment::Fault::StopNode(node.clone())).await?;
    proxy.set(Fault::None);
    let proven = until("another pod to prove the backup", 360, async || {
        let status = restore::status(test, "c").await?;
        ensure!(
            status.sha256.len() == 64,
            "{:?} by {}: {}",
            status.phase,
            status.agent,
            status.waiting
        );
        Ok(Some(()))
    })
    .await;
    test.fault(crate::environment::Fault::StartNode(node.clone())).await?;
    proven?;
    Ok(format!("{pod} was on {node} and was replaced"))
}
