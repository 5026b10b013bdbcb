//! Restores: with kubectl as in the old operator's documents, after a total loss, in place of a running cluster, from
//! bad backups, with an operator that crashes, and as a recovery.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use stateward_core::conditions::{self, types};
use stateward_etcd::api::EtcdRestore;
use stateward_etcd::api::etcd_restore::{EtcdRestoreStatus, RestorePhase};

use super::backup;
use crate::environment::Fault;
use crate::test::Test;
use crate::wait::until;

fn restores(test: &Test) -> Api<EtcdRestore> {
    Api::namespaced(test.client.clone(), &test.namespace)
}

/// Creates an EtcdRestore of cluster c.
pub(super) async fn create(test: &Test, spec: Value) -> Result<()> {
    let mut object = json!({"apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdRestore", "metadata": {"name": "c"}, "spec": spec});
    object["spec"]["etcdCluster"] = json!({"name": "c"});
    restores(test)
        .create(&PostParams::default(), &serde_json::from_value(object)?)
        .await
        .context("cannot create the EtcdRestore")?;
    Ok(())
}

pub(super) async fn status(test: &Test, name: &str) -> Result<EtcdRestoreStatus> {
    Ok(restores(test).get(name).await?.status.unwrap_or_default())
}

pub(super) async fn succeeded(test: &Test, name: &str, seconds: u64) -> Result<EtcdRestoreStatus> {
    until(&format!("EtcdRestore {name} to succeed"), seconds, async || {
        let status = status(test, name).await?;
        if !status.succeeded {
            bail!("phase {:?}, {}; {}", status.phase, status.reason, status.waiting);
        }
        Ok(Some(status))
    })
    .await
}

/// Writes numbered keys under a prefix, and returns the revision after them.
pub(super) async fn write(test: &Test, name: &str, prefix: &str) -> Result<i64> {
    let client = test.endpoint(name).await?.client()?;
    let mut revision = 0;
    for number in 0..50 {
        let put = client.put(format!("{prefix}/{number}"), "value").await?;
        revision = put.header.unwrap_or_default().revision;
    }
    Ok(revision)
}

/// Checks that every key of the prefix exists, and that the next revision is higher than any that a client has seen.
pub(super) async fn has(test: &Test, name: &str, prefix: &str, seen: i64) -> Result<()> {
    let client = test.endpoint(name).await?.client()?;
    for number in 0..50 {
        let key = format!("{prefix}/{number}");
        let found = until("a reply", 20, async || Ok(Some(client.get(key.clone()).await?))).await?;
        ensure!(found.is_some(), "{key} is gone");
    }
    let put = client.put("after".to_owned(), "value").await?;
    let revision = put.header.unwrap_or_default().revision;
    ensure!(revision > seen, "revision {revision}, and {seen} was seen before");
    Ok(())
}

pub(super) async fn has_not(test: &Test, name: &str, prefix: &str) -> Result<()> {
    let client = test.endpoint(name).await?.client()?;
    let found = client.get(format!("{prefix}/0")).await?;
    ensure!(found.is_none(), "{prefix}/0 was written after the backup but exists");
    Ok(())
}

/// Creates cluster c with keys `before`, backup b of it on a claim, and keys `later`. Returns the last revision.
async fn backed_up(test: &Test, spec: Value) -> Result<i64> {
    backup::claim(test, "backups").await?;
    test.created("c", spec).await?;
    write(test, "c", "before").await?;
    let to = json!({"clusterRef": {"name": "c"}, "file": {"claimName": "backups", "path": "c/backup"}});
    backup::create(test, "b", to).await?;
    backup::succeeded(test, "b", 60).await?;
    write(test, "c", "later").await
}

async fn pods(test: &Test, name: &str) -> Result<Vec<String>> {
    Ok(test.pods_of(name).await?.iter().map(ResourceExt::name_any).collect())
}

/// Destroys every member and its volume.
pub(super) async fn destroy_everything(test: &Test, name: &str) -> Result<()> {
    for claim in test.claims_of(name).await? {
        test.claims()
            .delete(&claim.name_any(), &DeleteParams::default())
            .await?;
    }
    for pod in pods(test, name).await? {
        test.delete_pod(&pod).await?;
    }
    Ok(())
}

pub(crate) async fn restore_with_kubectl(test: &Test) -> Result<String> {
    let name = "example-etcd-cluster";
    backup::claim(test, "backups").await?;
    test.created(name, json!({"size": 3})).await?;
    write(test, name, "before").await?;
    test.apply(backup::BACKUP_OF_THE_SEEDS).await?;
    backup::succeeded(test, "example-etcd-cluster-backup", 60).await?;
    let seen = write(test, name, "later").await?;
    let old = pods(test, name).await?;
    let restore = "apiVersion: etcd.database.coreos.com/v1beta2
kind: EtcdRestore
metadata:
  name: example-etcd-cluster
spec:
  etcdCluster:
    name: example-etcd-cluster
  backupStorageType: File
  file:
    claimName: backups
    path: etcd.backup
";
    let began = Instant::now();
    test.apply(restore).await?;
    succeeded(test, name, 120).await?;
    let served = began.elapsed();
    test.settled(name, 120).await?;
    let ready = began.elapsed();
    has(test, name, "before", seen).await?;
    has_not(test, name, "later").await?;
    let new = pods(test, name).await?;
    ensure!(
        new.iter().all(|pod| !old.contains(pod)),
        "old members are there: {new:?}"
    );
    let claims = test.claims_of(name).await?.len();
    ensure!(claims == 3, "{claims} claims");
    let shown = test.kubectl(&["get", "etcdrestores"]).await?;
    ensure!(shown.contains("Complete") && shown.contains("true"), "{shown}");
    test.kubectl(&["delete", "etcdrestore", name]).await?;
    test.settled(name, 60).await?;
    ensure!(
        pods(test, name).await? == new,
        "deleting the EtcdRestore touched the cluster"
    );
    Ok(format!(
        "served {:.1} s, three ready {:.1} s after kubectl apply",
        served.as_secs_f64(),
        ready.as_secs_f64()
    ))
}

pub(crate) async fn destroyed_and_restored(test: &Test) -> Result<String> {
    let seen = backed_up(test, json!({"size": 3})).await?;
    destroy_everything(test, "c").await?;
    test.condition("c", "Degraded", "QuorumLost", 120).await?;
    create(test, json!({"backupRef": {"name": "b"}})).await?;
    succeeded(test, "c", 120).await?;
    test.settled("c", 120).await?;
    has(test, "c", "before", seen).await?;
    has_not(test, "c", "later").await?;
    Ok("every key of the backup exists".into())
}

/// Backups that are missing, truncated, damaged, or too new for the cluster are rejected with a message, and the
/// cluster is not touched.
pub(crate) async fn bad_backups_are_rejected(test: &Test) -> Result<String> {
    backed_up(test, json!({"size": 3})).await?;
    // a cluster of the newest version that is available
    let newest = test.environment.versions().last().map(ToString::to_string);
    test.created("newer", json!({"size": 1, "version": newest})).await?;
    backup::claim(test, "newer").await?;
    let to = json!({"clusterRef": {"name": "newer"}, "file": {"claimName": "newer", "path": "backup"}});
    backup::create(test, "newer", to).await?;
    backup::succeeded(test, "newer", 60).await?;
    let writer = test.writer("c").await?;
    let before = pods(test, "c").await?;
    let cluster = test.cluster_id("c").await?;
    let place = |claim: &str| (test.namespace.clone(), claim.to_owned());
    let truncated = |(namespace, claim)| Fault::TruncateVolume(namespace, claim);
    let damaged = |(namespace, claim)| Fault::CorruptVolume(namespace, claim);
    let bad = [
        ("backups", "c/no-such-backup", "BackupMissing", None),
        ("newer", "backup", "BackupTooNew", None),
        ("newer", "backup", "BackupCorrupt", Some(truncated(place("newer")))),
        ("backups", "c/backup", "BackupCorrupt", Some(damaged(place("backups")))),
    ];
    let mut messages = Vec::new();
    for (claim, path, reason, fault) in bad {
        if let Some(fault) = fault {
            test.fault(fault).await?;
        }
        create(test, json!({"file": {"claimName": claim, "path": path}})).await?;
        let failed = until("the backup to be rejected", 60, async || {
            let status = status(test, "c").await?;
            Ok((status.phase == Some(RestorePhase::Failed)).then_some(status))
        })
        .await?;
        let degraded = conditions::get(&failed.conditions, types::DEGRADED).map(|degraded| degraded.reason.as_str());
        ensure!(
            degraded == Some(reason) && !failed.succeeded,
            "{path}: {degraded:?}: {}",
            failed.reason
        );
        messages.push(failed.reason);
        restores(test).delete("c", &DeleteParams::default()).await?;
        until("the EtcdRestore to be gone", 30, async || {
            Ok(restores(test).get_opt("c").await?.is_none().then_some(()))
        })
        .await?;
    }
    writer.writes_more(20, 30).await?;
    writer.finish().await?;
    ensure!(pods(test, "c").await? == before, "members were touched");
    ensure!(test.cluster_id("c").await? == cluster, "it is another cluster");
    Ok(messages.join(" | "))
}

/// The operator crashes when each step is first seen, and once more in the middle.
pub(crate) async fn restore_operator_killed(test: &Test) -> Result<String> {
    let seen = backed_up(test, json!({"size": 3})).await?;
    create(test, json!({"backupRef": {"name": "b"}})).await?;
    let mut met = Vec::new();
    let end = Instant::now() + Duration::from_secs(180);
    while Instant::now() < end {
        let phase = status(test, "c").await?.phase;
        if let Some(phase) = phase
            && !met.contains(&phase)
        {
            met.push(phase);
            test.environment.kill_operator().await?;
            test.environment.start_operator().await?;
        }
        if phase == Some(RestorePhase::Complete) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    succeeded(test, "c", 60).await?;
    test.settled("c", 120).await?;
    has(test, "c", "before", seen).await?;
    has_not(test, "c", "later").await?;
    Ok(format!("killed at {met:?}"))
}

pub(crate) async fn recovered_from_backup(test: &Test) -> Result<String> {
    let seen = backed_up(
        test,
        json!({"size": 3, "recovery": {"onQuorumLoss": "FromBackup", "delaySeconds": 1}}),
    )
    .await?;
    destroy_everything(test, "c").await?;
    test.settled("c", 240).await?;
    has(test, "c", "before", seen).await?;
    let record = test.get("c").await?.status.unwrap_or_default().restore;
    let record = record.context("the status has no record of it")?;
    ensure!(record.recovery && record.lost.contains("revision"), "{record:?}");
    let made = restores(test).list(&ListParams::default()).await?.items.len();
    ensure!(made == 1, "{made} EtcdRestores");
    Ok(record.lost)
}

pub(crate) async fn tls_cluster_restored(test: &Test) -> Result<String> {
    let seen = backed_up(test, json!({"size": 3, "TLS": {"auto": {}}})).await?;
    create(test, json!({"backupRef": {"name": "b"}})).await?;
    succeeded(test, "c", 120).await?;
    test.settled("c", 120).await?;
    has(test, "c", "before", seen).await?;
    Ok("with TLS between peers and to clients".into())
}

pub(crate) async fn ephemeral_cluster_restored(test: &Test) -> Result<String> {
    let seen = backed_up(test, json!({"size": 3, "storage": {"ephemeral": true}})).await?;
    create(test, json!({"backupRef": {"name": "b"}})).await?;
    succeeded(test, "c", 120).await?;
    test.settled("c", 120).await?;
    has(test, "c", "before", seen).await?;
    Ok("from an emptyDir to an emptyDir".into())
}

/// An EtcdCluster that is created while its EtcdRestore waits starts from the backup, never empty.
pub(crate) async fn created_from_a_backup(test: &Test) -> Result<String> {
    let seen = backed_up(test, json!({"size": 1})).await?;
    test.clusters().delete("c", &DeleteParams::default()).await?;
    until("the pods to be deleted", 60, async || {
        Ok(test.pods_of("c").await?.is_empty().then_some(()))
    })
    .await?;
    create(test, json!({"file": {"claimName": "backups", "path": "c/backup"}})).await?;
    until("the status to say what to do", 60, async || {
        let status = status(test, "c").await?;
        Ok(status.waiting.contains("create it").then_some(()))
    })
    .await?;
    test.create("c", json!({"size": 3})).await?;
    succeeded(test, "c", 120).await?;
    test.settled("c", 120).await?;
    has(test, "c", "before", seen).await?;
    Ok("the cluster was deleted, and created from the backup".into())
}

pub(crate) async fn restored_to_a_revision(test: &Test) -> Result<String> {
    backup::claim(test, "backups").await?;
    test.created("c", json!({"size": 3})).await?;
    write(test, "c", "before").await?;
    let to = json!({"clusterRef": {"name": "c"}, "file": {"claimName": "backups", "path": "c/backup"},
        "backupPolicy": {"backupIntervalInSecond": 3600}, "continuous": true});
    backup::create(test, "b", to).await?;
    backup::succeeded(test, "b", 60).await?;
    let point = write(test, "c", "between").await?;
    let seen = write(test, "c", "later").await?;
    backup::streamed(test, "b", seen, 90).await?;
    create(
        test,
        json!({"backupRef": {"name": "b"}, "restoreTo": {"revision": point}}),
    )
    .await?;
    succeeded(test, "c", 120).await?;
    test.settled("c", 120).await?;
    has(test, "c", "before", seen).await?;
    has(test, "c", "between", seen).await?;
    has_not(test, "c", "later").await?;
    Ok(format!("revision {point}, between two snapshots"))
}

/// Every minor version, one member each.
pub(crate) async fn restored_in_every_version(test: &Test) -> Result<String> {
    backup::claim(test, "backups").await?;
    let mut done = Vec::new();
    for version in test.environment.versions() {
        let version = version.to_string();
        let name = format!("v{}", version.replace('.', "-"));
        test.created(&name, json!({"size": 1, "version": version})).await?;
        let seen = write(test, &name, "before").await?;
        let to =
            json!({"clusterRef": {"name": name}, "file": {"claimName": "backups", "path": format!("{name}/backup")}});
        backup::create(test, &name, to).await?;
        backup::succeeded(test, &name, 60).await?;
        let object = json!({"apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdRestore",
            "metadata": {"name": name}, "spec": {"backupRef": {"name": name}}});
        restores(test)
            .create(&PostParams::default(), &serde_json::from_value(object)?)
            .await?;
        succeeded(test, &name, 120).await?;
        test.settled(&name, 60).await?;
        has(test, &name, "before", seen).await?;
        test.clusters().delete(&name, &DeleteParams::default()).await?;
        done.push(version);
    }
    Ok(done.join(" "))
}
