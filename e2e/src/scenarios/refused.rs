//! Settings that Kubernetes or Stateward rejects: no running member is stopped for them, and the status says what to
//! change.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::test::Test;
use crate::wait::until;

async fn uids(test: &Test, name: &str) -> Result<Vec<Option<String>>> {
    let mut uids: Vec<_> = test.pods_of(name).await?.iter().map(ResourceExt::uid).collect();
    uids.sort();
    Ok(uids)
}

pub(crate) async fn a_rejected_pod_stops_no_member(test: &Test) -> Result<String> {
    let mut said = Vec::new();
    for (name, storage) in [("c", json!({})), ("e", json!({"ephemeral": true}))] {
        // given a cluster that serves
        test.created(name, json!({"size": 3, "storage": storage})).await?;
        let (before, list) = (uids(test, name).await?, test.list(name).await?.len());
        let writer = test.writer(name).await?;
        // when its pod settings are such that no API server accepts the pod
        for (pod, field) in [
            (json!({"nodeSelector": {"a": "b c"}}), "spec.nodeSelector"),
            (json!({"serviceAccountName": "nobody-made-this"}), "nobody-made-this"),
        ] {
            test.edit(name, json!({"pod": pod})).await?;
            let message = test.condition(name, "Degraded", "PodRefused", 60).await?;
            // then the status says why and what to do, and all members keep serving
            ensure!(message.contains(field), "the message does not name {field}: {message}");
            ensure!(
                message.contains("revert or correct"),
                "the message does not say what to do: {message}"
            );
            writer.writes_more(20, 30).await?;
            ensure!(uids(test, name).await? == before, "a pod was touched");
            ensure!(test.list(name).await?.len() == list, "the member list changed");
            said.push(message);
            // and reverting the edit heals
            test.edit(name, json!({"pod": Value::Null})).await?;
            healed(test, name).await?;
            ensure!(
                uids(test, name).await? == before,
                "a pod was touched when it was reverted"
            );
        }
        writer.finish().await?.without_a_wait()?;
        // and a valid value reaches every pod
        test.edit(name, json!({"pod": {"resources": {"requests": {"cpu": "11m"}}}}))
            .await?;
        until("all pods to be new", 180, async || {
            let now = uids(test, name).await?;
            ensure!(now.iter().all(|uid| !before.contains(uid)), "{now:?}");
            Ok(Some(()))
        })
        .await?;
        test.settled(name, 120).await?;
    }
    Ok(said.swap_remove(0))
}

async fn healed(test: &Test, name: &str) -> Result<()> {
    test.condition(name, "Degraded", "AsExpected", 60).await?;
    test.settled(name, 60).await?;
    Ok(())
}

/// A dry run of the successor counts its predecessor, so a full quota rejects it. That says nothing about the pod.
pub(crate) async fn a_full_quota_does_not_block_a_rollout(test: &Test) -> Result<String> {
    // given a cluster in a namespace without room for another pod
    test.created("c", json!({"size": 3})).await?;
    let before = uids(test, "c").await?;
    let pods: Api<Pod> = test.pods();
    let count = pods.list(&kube::api::ListParams::default()).await?.items.len();
    let quotas: Api<ResourceQuota> = Api::namespaced(test.client.clone(), &test.namespace);
    let quota = json!({"metadata": {"name": "full"}, "spec": {"hard": {"pods": count.to_string()}}});
    quotas
        .create(&PostParams::default(), &serde_json::from_value(quota)?)
        .await?;
    let one_more = serde_json::from_value::<Pod>(json!({
        "metadata": {"name": "one-more"},
        "spec": {
            "containers": [{
                "name": "c", "image": "i",
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
            "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        },
    }))?;
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    until("the quota to be full", 60, async || {
        match pods.create(&dry, &one_more).await {
            Err(kube::Error::Api(status)) if status.message.contains("exceeded quota") => Ok(Some(())),
            Err(error) => Err(error.into()),
            Ok(_) => anyhow::bail!("one more pod would be accepted"),
        }
    })
    .await?;
    // when a setting changes
    let writer = test.writer("c").await?;
    test.edit("c", json!({"etcdOptions": {"heartbeat-interval": "120"}}))
        .await?;
    // then every member is restarted with it
    until("all pods to be new", 180, async || {
        let now = uids(test, "c").await?;
        ensure!(now.len() == 3 && now.iter().all(|uid| !before.contains(uid)), "{now:?}");
        Ok(Some(()))
    })
    .await?;
    test.settled("c", 120).await?;
    let written = writer.finish().await?;
    quotas.delete("full", &kube::api::DeleteParams::default()).await?;
    Ok(format!("longest gap {:.1} s", written.longest_gap.as_secs_f64()))
}

/// Labels that pods are selected by are rejected as by the old operator; a running cluster reports them and continues.
pub(crate) async fn reserved_labels_are_rejected(test: &Test) -> Result<String> {
    // given a new cluster with such a label
    test.create("new", json!({"size": 1, "pod": {"labels": {"app": "mine"}}}))
        .await?;
    let message = test.condition("new", "Degraded", "InvalidSpec", 30).await?;
    ensure!(
        message.contains("spec.pod.labels[app]"),
        "the field is not named: {message}"
    );
    ensure!(test.pods_of("new").await?.is_empty(), "it was started");
    // when the label is removed, then the cluster starts
    test.edit("new", json!({"pod": Value::Null})).await?;
    test.settled("new", 90).await?;
    // given a running cluster, when it gets such a label
    let before = uids(test, "new").await?;
    test.edit(
        "new",
        json!({"pod": {"labels": {"etcd_cluster": "other", "team": "a"}}}),
    )
    .await?;
    let message = test.condition("new", "Degraded", "InvalidSpec", 30).await?;
    ensure!(
        message.contains("spec.pod.labels[etcd_cluster]"),
        "the field is not named: {message}"
    );
    // then it is managed as usual, including the other label
    until("the pod to have the other label", 30, async || {
        let pods = test.pods_of("new").await?;
        let labels = pods.first().map(|pod| pod.labels().clone()).unwrap_or_default();
        ensure!(labels.get("team").is_some_and(|team| team == "a"), "{labels:?}");
        Ok(Some(()))
    })
    .await?;
    ensure!(uids(test, "new").await? == before, "the pod was touched");
    test.edit("new", json!({"pod": Value::Null})).await?;
    healed(test, "new").await?;
    Ok(message)
}
