//! Backups as users request them: once, on a schedule, of TLS clusters, with missing stores, through the spec of an
//! EtcdCluster, and with an operator that crashes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use stateward_etcd::api::EtcdBackup;
use stateward_etcd::api::etcd_backup::{EtcdBackupStatus, Verify};

use crate::test::Test;
use crate::wait::until;

/// A claim for backup files, as users create it.
pub(crate) async fn claim(test: &Test, name: &str) -> Result<()> {
    let claim = json!({"metadata": {"name": name}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let claim: PersistentVolumeClaim = serde_json::from_value(claim)?;
    test.claims().create(&PostParams::default(), &claim).await?;
    Ok(())
}

pub(crate) async fn create(test: &Test, name: &str, spec: Value) -> Result<()> {
    let object = json!({"apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdBackup", "metadata": {"name": name}, "spec": spec});
    test.backups()
        .create(&PostParams::default(), &serde_json::from_value(object)?)
        .await
        .with_context(|| format!("cannot create EtcdBackup {name}"))?;
    Ok(())
}

pub(crate) async fn status(test: &Test, name: &str) -> Result<EtcdBackupStatus> {
    Ok(test.backups().get(name).await?.status.unwrap_or_default())
}

/// Waits until it has succeeded.
pub(crate) async fn succeeded(test: &Test, name: &str, seconds: u64) -> Result<EtcdBackupStatus> {
    until(&format!("EtcdBackup {name} to succeed"), seconds, async || {
        let status = status(test, name).await?;
        if !status.succeeded {
            bail!("{}; {}", status.reason, status.waiting);
        }
        Ok(Some(status))
    })
    .await
}

/// Waits until a continuous backup has streamed everything up to a revision.
pub(crate) async fn streamed(test: &Test, name: &str, revision: i64, seconds: u64) -> Result<EtcdBackupStatus> {
    until("the changes to be in the store", seconds, async || {
        let status = status(test, name).await?;
        let reached = status.latest_restorable.as_ref().map_or(0, |point| point.revision);
        ensure!(
            reached >= revision,
            "revision {reached} of {revision}: {}",
            status.waiting
        );
        Ok(Some(status))
    })
    .await
}

pub(crate) async fn says(test: &Test, name: &str, message: &str, seconds: u64) -> Result<EtcdBackupStatus> {
    until(
        &format!("EtcdBackup {name} to say \"{message}\""),
        seconds,
        async || {
            let status = status(test, name).await?;
            if !status.reason.contains(message) && !status.waiting.contains(message) {
                bail!("the status says \"{}\" and \"{}\"", status.reason, status.waiting);
            }
            Ok(Some(status))
        },
    )
    .await
}

pub(crate) fn to_file(path: &str) -> Value {
    json!({"clusterRef": {"name": "c"}, "storageType": "File", "file": {"claimName": "backups", "path": path}})
}

pub(crate) fn with(mut spec: Value, more: Value) -> Value {
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    spec
}

/// Writes some keys, and returns the revision after them.
async fn keys(test: &Test, name: &str) -> Result<i64> {
    let client = test.endpoint(name).await?.client()?;
    let mut revision = 0;
    for number in 0..50 {
        revision = client
            .put(format!("k/{number}"), "value")
            .await?
            .header
            .unwrap_or_default()
            .revision;
    }
    Ok(revision)
}

/// The manifest of the original documents, with a claim for the bucket.
pub(super) const BACKUP_OF_THE_SEEDS: &str = "apiVersion: etcd.database.coreos.com/v1beta2
kind: EtcdBackup
metadata:
  name: example-etcd-cluster-backup
spec:
  etcdEndpoints: [\"http://example-etcd-cluster-client:2379\"]
  storageType: File
  file:
    claimName: backups
    path: etcd.backup
";

pub(crate) async fn backup_with_kubectl(test: &Test) -> Result<String> {
    test.created("example-etcd-cluster", json!({"size": 3})).await?;
    let revision = keys(test, "example-etcd-cluster").await?;
    claim(test, "backups").await?;
    let began = Instant::now();
    test.apply(BACKUP_OF_THE_SEEDS).await?;
    let status = succeeded(test, "example-etcd-cluster-backup", 60).await?;
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(20), "it took {took:?}");
    ensure!(
        status.etcd_revision >= revision,
        "revision {} of {revision}",
        status.etcd_revision
    );
    let record = status.backups.first().context("no record")?;
    ensure!(
        record.location == "etcd.backup" && record.sha256.len() == 64 && record.size_bytes > 0,
        "{record:?}"
    );
    let shown = test.kubectl(&["get", "etcdbackups", "-o", "wide"]).await?;
    ensure!(
        shown.contains("true") && shown.contains(&status.etcd_revision.to_string()),
        "{shown}"
    );
    let message = test
        .kubectl(&[
            "get",
            "etcdbackup/example-etcd-cluster-backup",
            "-o",
            "jsonpath={.status.succeeded} {.status.etcdVersion}",
        ])
        .await?;
    ensure!(message == format!("true {}", test.usual), "{message}");
    test.kubectl(&["delete", "etcdbackup", "example-etcd-cluster-backup"])
        .await?;
    Ok(format!("succeeded {:.1} s after kubectl create", took.as_secs_f64()))
}

pub(crate) async fn backup_schedule_and_retention(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 1})).await?;
    claim(test, "backups").await?;
    let policy = json!({"backupIntervalInSecond": 3, "maxBackups": 2});
    create(
        test,
        "often",
        with(
            to_file("often/etcd.backup"),
            json!({"backupPolicy": policy, "deletionPolicy": "Delete"}),
        ),
    )
    .await?;
    let mut seen = BTreeSet::new();
    until("six backups", 120, async || {
        let status = status(test, "often").await?;
        ensure!(status.backups.len() <= 2, "{} records", status.backups.len());
        ensure!(status.consecutive_failures == 0, "{}", status.reason);
        Ok((status.attempts >= 6).then_some(()))
    })
    .await?;
    let now = status(test, "often").await?;
    seen.extend(now.backups.iter().map(|record| record.location.clone()));
    ensure!(
        seen.iter().all(|location| location.starts_with("often/etcd.backup_v")),
        "{seen:?}"
    );
    let object = test.backups().get("often").await?;
    ensure!(
        object
            .finalizers()
            .iter()
            .any(|finalizer| finalizer == "backup-operator-periodic"),
        "{:?}",
        object.finalizers()
    );
    test.backups()
        .patch(
            "often",
            &PatchParams::default(),
            &Patch::Merge(json!({"spec": {"suspend": true}})),
        )
        .await?;
    says(test, "often", "spec.suspend is true", 30).await?;
    let attempts = status(test, "often").await?.attempts;
    tokio::time::sleep(Duration::from_secs(4)).await;
    ensure!(
        status(test, "often").await?.attempts == attempts,
        "it continued while suspended"
    );
    test.backups().delete("often", &DeleteParams::default()).await?;
    until("the object and its files to be deleted", 90, async || {
        Ok(test.backups().get_opt("often").await?.is_none().then_some(()))
    })
    .await?;
    Ok(format!("{attempts} backups, 2 kept"))
}

pub(crate) async fn backup_of_a_tls_cluster(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3, "TLS": {"auto": {}}})).await?;
    claim(test, "backups").await?;
    create(test, "by-reference", to_file("a.backup")).await?;
    succeeded(test, "by-reference", 60).await?;
    let endpoints = json!([format!("https://c-client.{}.svc:2379", test.namespace)]);
    let spec = json!({"etcdEndpoints": endpoints, "clientTLSSecret": "c-client-tls", "file": {"claimName": "backups", "path": "b.backup"}});
    let secret = stateward_etcd::cluster::manifests::tls_secrets(&test.get("c").await?)
        .client
        .context("no client secret")?;
    create(test, "by-endpoints", with(spec, json!({"clientTLSSecret": secret}))).await?;
    succeeded(test, "by-endpoints", 60).await?;
    let plain = json!({"etcdEndpoints": endpoints, "file": {"claimName": "backups", "path": "c.backup"}});
    create(test, "no-certificate", plain).await?;
    says(test, "no-certificate", "set clientTLSSecret", 30).await?;
    Ok("by clusterRef and by etcdEndpoints".into())
}

pub(crate) async fn backup_problems_are_reported(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 1})).await?;
    // a claim that does not exist yet
    create(test, "no-claim", to_file("a.backup")).await?;
    says(test, "no-claim", "backups", 60).await?;
    claim(test, "backups").await?;
    succeeded(test, "no-claim", 120).await?;
    // a Secret that does not exist, then a store that does not exist
    let s3 = json!({"path": "bucket/etcd.backup", "awsSecret": "aws", "endpoint": "http://127.0.0.1:9", "forcePathStyle": true});
    create(test, "no-store", json!({"clusterRef": {"name": "c"}, "s3": s3})).await?;
    says(
        test,
        "no-store",
        "the Secret aws does not exist: create it with credentials and config",
        30,
    )
    .await?;
    let files = [
        "--from-literal=credentials=[default]\naws_access_key_id = a\naws_secret_access_key = b\n",
        "--from-literal=config=[default]\nregion = us-east-1\n",
    ];
    test.kubectl(&["create", "secret", "generic", "aws", files[0], files[1]])
        .await?;
    let down = until("the store's failure", 120, async || {
        let status = status(test, "no-store").await?;
        Ok((status.consecutive_failures > 0).then_some(status))
    })
    .await?;
    ensure!(!down.reason.is_empty() && down.next_backup_time.is_some(), "{down:?}");
    // a cluster that does not exist
    create(
        test,
        "no-cluster",
        with(to_file("b.backup"), json!({"clusterRef": {"name": "nobody"}})),
    )
    .await?;
    says(test, "no-cluster", "EtcdCluster nobody does not exist", 30).await?;
    test.backups()
        .patch(
            "no-cluster",
            &PatchParams::default(),
            &Patch::Merge(json!({"spec": {"clusterRef": {"name": "c"}}})),
        )
        .await?;
    succeeded(test, "no-cluster", 60).await?;
    Ok(format!("\"{}\"", down.reason))
}

pub(crate) async fn backup_operator_killed(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 1})).await?;
    claim(test, "backups").await?;
    let delays = [0, 20, 60, 120, 250, 500, 1000];
    for (number, delay) in delays.iter().enumerate() {
        let name = format!("once-{number}");
        create(test, &name, to_file(&format!("{name}.backup"))).await?;
        tokio::time::sleep(Duration::from_millis(*delay)).await;
        test.environment.kill_operator().await?;
        test.environment.start_operator().await?;
        until(&format!("{name} to succeed, one pod at a time"), 90, async || {
            let pods = test
                .pods()
                .list(&ListParams::default().labels("app.kubernetes.io/name=stateward-agent"))
                .await?;
            let mine = pods
                .items
                .iter()
                .filter(|pod| pod.name_any().starts_with(&format!("{name}-")));
            let at_work = mine.filter(|pod| {
                let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
                matches!(phase, Some("Pending" | "Running"))
            });
            let count = at_work.count();
            ensure!(count <= 1, "{count} pods at once");
            Ok(status(test, &name).await?.succeeded.then_some(()))
        })
        .await?;
        let status = status(test, &name).await?;
        ensure!(
            status.attempts == 1 && status.consecutive_failures == 0,
            "{name}: {} attempts",
            status.attempts
        );
    }
    Ok(format!("killed {} times, one attempt each", delays.len()))
}

pub(crate) async fn backups_are_isolated_by_namespace(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 1})).await?;
    claim(test, "backups").await?;
    create(test, "own", to_file("a.backup")).await?;
    succeeded(test, "own", 60).await?;
    // another namespace names the same cluster, claim and Secret, and reaches none of them
    let namespaces: Api<Namespace> = Api::all(test.client.clone());
    let other = format!("{}-b", test.namespace);
    let object = json!({"metadata": {"name": other, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    namespaces
        .create(&PostParams::default(), &serde_json::from_value(object)?)
        .await?;
    let backups: Api<EtcdBackup> = Api::namespaced(test.client.clone(), &other);
    let make = async |name: &str, spec: Value| -> Result<()> {
        let object = json!({"apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdBackup", "metadata": {"name": name}, "spec": spec});
        backups
            .create(&PostParams::default(), &serde_json::from_value(object)?)
            .await?;
        Ok(())
    };
    make("by-reference", to_file("a.backup")).await?;
    let endpoints = json!([format!("http://c-client.{}.svc:2379", test.namespace)]);
    make(
        "by-claim",
        json!({"etcdEndpoints": endpoints, "file": {"claimName": "backups", "path": "a.backup"}}),
    )
    .await?;
    let said = async |name: &'static str, message: &'static str| -> Result<()> {
        until(&format!("{name} to say \"{message}\""), 60, async || {
            let status = backups.get(name).await?.status.unwrap_or_default();
            ensure!(!status.succeeded, "{name} succeeded");
            if !status.reason.contains(message) && !status.waiting.contains(message) {
                bail!("the status says \"{}\" and \"{}\"", status.reason, status.waiting);
            }
            Ok(Some(()))
        })
        .await
    };
    said("by-reference", "EtcdCluster c does not exist").await?;
    said("by-claim", "persistentvolumeclaim").await?;
    let ended = namespaces.delete(&other, &DeleteParams::default()).await;
    until("the other namespace to be deleted", 120, async || {
        Ok(namespaces.get_opt(&other).await?.is_none().then_some(()))
    })
    .await?;
    ended
        .map(|_| "neither the cluster nor the claim could be reached".into())
        .map_err(Into::into)
}

pub(crate) async fn backup_by_the_cluster_itself(test: &Test) -> Result<String> {
    claim(test, "backups").await?;
    let plan = |seconds: i64| json!({"file": {"claimName": "backups", "path": "c/etcd.backup"}, "backupPolicy": {"backupIntervalInSecond": seconds, "maxBackups": 2}});
    test.created("c", json!({"size": 1, "backup": plan(2)})).await?;
    succeeded(test, "c-backups", 60).await?;
    // an edit of the cluster changes it
    test.edit("c", json!({"backup": plan(3600)})).await?;
    until("the EtcdBackup to follow the edit", 30, async || {
        let kept = test.backups().get("c-backups").await?;
        Ok((kept.spec.plan.interval_seconds() == Some(3600)).then_some(()))
    })
    .await?;
    // removed from the spec, it is deleted
    test.edit("c", json!({"backup": Value::Null})).await?;
    until("the EtcdBackup to be deleted", 60, async || {
        Ok(test.backups().get_opt("c-backups").await?.is_none().then_some(()))
    })
    .await?;
    // a name that is already taken is reported and left alone
    create(test, "c-backups", to_file("other.backup")).await?;
    succeeded(test, "c-backups", 60).await?;
    test.edit("c", json!({"backup": plan(3600)})).await?;
    until("the name conflict to be reported", 60, async || {
        let waiting = test.get("c").await?.status.unwrap_or_default().waiting;
        ensure!(
            waiting.contains("EtcdBackup c-backups exists and is not this cluster's"),
            "the status says \"{waiting}\""
        );
        Ok(Some(()))
    })
    .await?;
    let theirs = test.backups().get("c-backups").await?;
    ensure!(theirs.spec.plan.interval_seconds().is_none(), "it was overwritten");
    Ok("created, edited, deleted; a name conflict is reported".into())
}

pub(crate) async fn backup_before_an_upgrade(test: &Test) -> Result<String> {
    let versions = test.environment.versions();
    let newest = |minor: u64| versions.iter().rfind(|version| version.minor() == minor);
    let (from, to) = (newest(4).context("no etcd 3.4")?, newest(5).context("no etcd 3.5")?);
    // the claim does not exist yet: the backup cannot be taken, and the upgrade waits
    let plan = json!({"file": {"claimName": "backups", "path": "c/etcd.backup"}, "backupPolicy": {"backupIntervalInSecond": 3600}});
    test.created("c", json!({"size": 3, "version": from.to_string(), "backup": plan}))
        .await?;
    let writer = test.writer("c").await?;
    test.edit("c", json!({"version": to.to_string()})).await?;
    let held = until("the upgrade to wait", 60, async || {
        let status = test.get("c").await?.status.unwrap_or_default();
        let name = status.upgrade.map(|upgrade| upgrade.backup).unwrap_or_default();
        ensure!(!name.is_empty(), "{}", status.waiting);
        let backup = test.backups().get(&name).await?;
        ensure!(
            !backup.status.unwrap_or_default().succeeded,
            "it succeeded without a claim"
        );
        Ok(Some(name))
    })
    .await?;
    let current = test.get("c").await?.status.unwrap_or_default().current_version;
    ensure!(current == from.to_string(), "{current} runs before the backup");
    claim(test, "backups").await?;
    until("the upgrade", 240, async || {
        let status = test.get("c").await?.status.unwrap_or_default();
        ensure!(status.current_version == to.to_string(), "{}", status.waiting);
        Ok(Some(()))
    })
    .await?;
    test.settled("c", 120).await?;
    let taken = status(test, &held).await?;
    ensure!(
        taken.succeeded && taken.etcd_version == from.to_string(),
        "{} of {}",
        held,
        taken.etcd_version
    );
    let written = writer.finish().await?;
    Ok(format!(
        "{held} of etcd {}; {} writes",
        taken.etcd_version, written.acknowledged
    ))
}

pub(crate) async fn backup_proven_and_followed(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 1})).await?;
    keys(test, "c").await?;
    claim(test, "backups").await?;
    let policy = json!({"backupPolicy": {"backupIntervalInSecond": 3600}, "verify": "Restore", "continuous": true});
    create(test, "all", with(to_file("all/etcd.backup"), policy)).await?;
    let done = succeeded(test, "all", 120).await?;
    let record = done.backups.first().context("no record")?;
    ensure!(
        record.verified == Some(Verify::Restore) && record.keys == Some(50) && !record.key_hash.is_empty(),
        "{record:?}"
    );
    // what is written after the snapshot can soon be restored too
    let revision = keys(test, "c").await?;
    streamed(test, "all", revision, 60).await?;
    // the streaming pod comes back after it is deleted
    let name = "all-follow";
    let uid = test.pods().get(name).await?.uid();
    test.delete_pod(name).await?;
    let revision = keys(test, "c").await?;
    streamed(test, "all", revision, 90).await?;
    ensure!(test.pods().get(name).await?.uid() != uid, "the same pod");
    Ok(format!("proven with 50 keys; restorable up to revision {revision}"))
}
