//! The user changes the spec, rightly and wrongly.

use anyhow::{Result, ensure};
use kube::ResourceExt;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::test::Test;
use crate::wait::until;

pub(crate) async fn bad_image_then_revert(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let writer = test.writer("c").await?;
    test.edit("c", json!({"repository": "quay.io/nobody/has-this"})).await?;
    let words = halted(test).await?;
    test.edit("c", json!({"repository": Value::Null})).await?;
    test.settled("c", 120).await?;
    let written = writer.finish().await?;
    Ok(format!(
        "halted with \"{words}\"; {} writes, longest gap {:.1} s",
        written.acknowledged,
        written.longest_gap.as_secs_f64()
    ))
}

pub(crate) async fn unsatisfiable_node_selector_then_revert(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let writer = test.writer("c").await?;
    test.edit("c", json!({"pod": {"nodeSelector": {"no-node": "has-this"}}}))
        .await?;
    halted(test).await?;
    test.edit("c", json!({"pod": Value::Null})).await?;
    test.settled("c", 120).await?;
    let written = writer.finish().await?;
    Ok(format!("{} writes", written.acknowledged))
}

/// Waits until the roll halts at its first member: never more than one is down.
async fn halted(test: &Test) -> Result<String> {
    let words = test.condition("c", "Progressing", "RollHalted", 90).await?;
    let ready = test
        .pods_of("c")
        .await?
        .iter()
        .filter(|pod| crate::test::is_ready(pod))
        .count();
    ensure!(ready >= 2, "only {ready} pods are ready: the roll did not halt");
    Ok(words)
}

pub(crate) async fn edits_reach_running_pods(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let writer = test.writer("c").await?;
    test.edit(
        "c",
        json!({"etcdOptions": {"heartbeat-interval": "120"}, "pod": {"resources": {"requests": {"cpu": "10m"}}}}),
    )
    .await?;
    until("all pods to have the new settings", 120, async || {
        let pods = test.pods_of("c").await?;
        let new = pods.iter().filter(|pod| {
            let container = pod.spec.as_ref().map(|spec| &spec.containers[0]);
            container
                .and_then(|container| container.args.as_ref())
                .is_some_and(|args| args.iter().any(|arg| arg == "--heartbeat-interval=120"))
        });
        Ok((new.count() == 3).then_some(()))
    })
    .await?;
    test.settled("c", 90).await?;
    let written = writer.finish().await?;
    Ok(format!("longest gap {:.1} s", written.longest_gap.as_secs_f64()))
}

pub(crate) async fn labels_come_and_go_without_a_restart(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 1, "pod": {"labels": {"team": "a", "old": "yes"}}}))
        .await?;
    let uid = test.pods_of("c").await?[0].uid();
    test.edit(
        "c",
        json!({"pod": {"labels": {"team": "b", "old": Value::Null}, "annotations": {"note": "hello"}}}),
    )
    .await?;
    until("the pod to have the new labels and annotations", 60, async || {
        let pod = &test.pods_of("c").await?[0];
        let (labels, annotations) = (pod.labels(), pod.annotations());
        ensure!(
            labels.get("team").is_some_and(|team| team == "b")
                && !labels.contains_key("old")
                && annotations.contains_key("note"),
            "{labels:?} {annotations:?}"
        );
        Ok(Some(()))
    })
    .await?;
    ensure!(test.pods_of("c").await?[0].uid() == uid, "the pod was replaced");
    Ok(String::new())
}

pub(crate) async fn pause(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    test.edit("c", json!({"paused": true})).await?;
    until("the status to say paused", 30, async || {
        Ok(test
            .get("c")
            .await?
            .status
            .is_some_and(|status| status.control_paused)
            .then_some(()))
    })
    .await?;
    let pod = test.pods_of("c").await?[0].name_any();
    test.delete_pod(&pod).await?;
    until("the pod to be gone", 60, async || {
        Ok(test.pods().get_opt(&pod).await?.is_none().then_some(()))
    })
    .await?;
    let writer = test.writer("c").await?;
    writer.goes_on(100, 60).await?;
    ensure!(test.pods_of("c").await?.len() == 2, "a paused cluster was touched");
    test.edit("c", json!({"paused": false})).await?;
    test.settled("c", 60).await?;
    let written = writer.finish().await?;
    Ok(format!("{} writes", written.acknowledged))
}

pub(crate) async fn hibernate(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let id = test.cluster_id("c").await?;
    let writer = test.writer("c").await?;
    writer.goes_on(50, 30).await?;
    let written = writer.finish().await?;
    test.edit("c", json!({"hibernate": true})).await?;
    test.condition("c", "Available", "Hibernating", 30).await?;
    until("all pods to be gone", 60, async || {
        Ok(test.pods_of("c").await?.is_empty().then_some(()))
    })
    .await?;
    ensure!(test.claims_of("c").await?.len() == 3, "claims are gone");
    test.edit("c", json!({"hibernate": false})).await?;
    test.settled("c", 90).await?;
    ensure!(test.cluster_id("c").await? == id, "it woke as another cluster");
    let client = test.endpoint("c").await?.client()?;
    ensure!(
        client.get(format!("e2e/{:010}", 0)).await?.is_some(),
        "data is gone after sleep"
    );
    Ok(format!("{} writes kept", written.acknowledged))
}

pub(crate) async fn wrong_specs_are_refused(test: &Test) -> Result<String> {
    let wrong = [
        (json!({"size": 0}), "spec.size"),
        (json!({"size": 8}), "spec.size"),
        (json!({"size": 3, "version": "three"}), "version"),
        (
            json!({"size": 3, "TLS": {"static": {"member": {"serverSecret": "s"}}}}),
            "operatorSecret",
        ),
    ];
    for (spec, word) in &wrong {
        let object = json!({"apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdCluster", "metadata": {"name": "wrong"}, "spec": spec});
        let answer = test
            .clusters()
            .create(&PostParams::default(), &serde_json::from_value(object)?)
            .await;
        let Err(kube::Error::Api(status)) = answer else {
            anyhow::bail!("{spec} was accepted")
        };
        ensure!(
            status.code == 422 && status.message.contains(word),
            "{spec}: {}",
            status.message
        );
    }
    Ok(format!("{} refused at admission", wrong.len()))
}
