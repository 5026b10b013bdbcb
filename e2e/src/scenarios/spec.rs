//! The user makes valid and invalid changes to the spec.

use anyhow::{Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::test::Test;
use crate::wait::until;

pub(crate) async fn bad_image_then_revert(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let writer = test.writer("c").await?;
    test.edit("c", json!({"repository": "quay.io/nobody/has-this"})).await?;
    let message = halted(test).await?;
    test.edit("c", json!({"repository": Value::Null})).await?;
    test.settled("c", 120).await?;
    let written = writer.finish().await?;
    Ok(format!(
        "halted with \"{message}\"; {} writes, longest gap {:.1} s",
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

/// Waits until the rollout stops at its first member: never more than one is down.
async fn halted(test: &Test) -> Result<String> {
    let message = test.condition("c", "Progressing", "RollHalted", 90).await?;
    let ready = test
        .pods_of("c")
        .await?
        .iter()
        .filter(|pod| crate::test::is_ready(pod))
        .count();
    ensure!(ready >= 2, "only {ready} pods are ready: the rollout did not stop");
    Ok(message)
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

pub(crate) async fn labels_change_without_a_restart(test: &Test) -> Result<String> {
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
    writer.writes_more(100, 60).await?;
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
    writer.writes_more(50, 30).await?;
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
    ensure!(test.cluster_id("c").await? == id, "it came back as another cluster");
    let client = test.endpoint("c").await?.client()?;
    ensure!(
        client.get(format!("e2e/{:010}", 0)).await?.is_some(),
        "data is gone after hibernation"
    );
    Ok(format!("{} writes kept", written.acknowledged))
}

pub(crate) async fn invalid_specs_are_rejected(test: &Test) -> Result<String> {
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

/// What passes admission and cannot be done, or was stored before the rules existed: a message, an untouched cluster,
/// and reverting heals.
pub(crate) async fn invalid_specs_that_pass_admission(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let uids = async || -> Result<Vec<_>> {
        let mut uids: Vec<_> = test.pods_of("c").await?.iter().map(ResourceExt::uid).collect();
        uids.sort();
        Ok(uids)
    };
    let before = uids().await?;
    let writer = test.writer("c").await?;
    let mut said = Vec::new();
    let good = json!({"size": 3, "version": test.usual, "maintenance": Value::Null, "storage": Value::Null});
    let mut try_it = async |wrong: Value, word: &str| -> Result<()> {
        test.edit("c", wrong).await?;
        let message = test.condition("c", "Degraded", "InvalidSpec", 30).await?;
        ensure!(message.contains(word), "the message does not name {word}: {message}");
        writer.writes_more(20, 30).await?;
        ensure!(uids().await? == before, "a pod was touched");
        test.edit("c", good.clone()).await?;
        test.settled("c", 60).await?;
        ensure!(uids().await? == before, "a pod was touched when it was reverted");
        said.push(message);
        Ok(())
    };
    try_it(
        json!({"maintenance": {"defragmentation": {"schedule": "99 3 * * *"}}}),
        "schedule",
    )
    .await?;
    // As if the object were older than the rules.
    let definitions: kube::Api<CustomResourceDefinition> = kube::Api::all(test.client.clone());
    let name = "etcdclusters.etcd.database.coreos.com";
    let original = definitions.get(name).await?;
    let mut definition = serde_json::to_value(&original)?;
    without_rules(&mut definition);
    let put = async |mut definition: CustomResourceDefinition| -> Result<()> {
        definition.metadata.resource_version = definitions.get(name).await?.metadata.resource_version;
        definitions.replace(name, &PostParams::default(), &definition).await?;
        Ok(())
    };
    put(serde_json::from_value(definition)?).await?;
    let result = async {
        until("the rules to be gone", 30, async || {
            test.edit("c", json!({"size": 9})).await?;
            Ok(Some(()))
        })
        .await?;
        try_it(json!({"size": 9}), "spec.size").await?;
        try_it(json!({"version": "three"}), "spec.version").await?;
        try_it(json!({"storage": {"size": "much"}}), "spec.storage.size").await
    };
    let result = result.await;
    put(original).await?;
    result?;
    until("the rules to be back", 60, async || {
        ensure!(test.edit("c", json!({"size": 9})).await.is_err(), "size 9 was accepted");
        Ok(Some(()))
    })
    .await?;
    test.settled("c", 60).await?;
    writer.finish().await?;
    Ok(said.join("; "))
}

/// The schema without anything that rejects a value.
fn without_rules(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            for rule in ["x-kubernetes-validations", "minimum", "maximum", "pattern", "maxLength"] {
                if fields.get(rule).is_some_and(|rule| !rule.is_object()) {
                    fields.remove(rule);
                }
            }
            fields.values_mut().for_each(without_rules);
        }
        Value::Array(items) => items.iter_mut().for_each(without_rules),
        _ => {}
    }
}

/// The walkthrough of the original documents, with the same commands: create, inspect, resize, upgrade, delete.
pub(crate) async fn the_seeds_walk_through_with_kubectl(test: &Test) -> Result<String> {
    let manifest = |size: u8, version: &str| {
        format!(
            "apiVersion: \"etcd.database.coreos.com/v1beta2\"\nkind: \"EtcdCluster\"\nmetadata:\n  name: \"example-etcd-cluster\"\nspec:\n  size: {size}\n  version: \"{version}\"\n"
        )
    };
    let kubeconfig = test.environment.kubeconfig();
    let kubectl = async |arguments: &[&str], input: Option<String>| -> Result<String> {
        let mut all = vec!["-n", test.namespace.as_str()];
        all.extend(arguments);
        crate::tool::run("kubectl", &kubeconfig, &all, input.as_deref()).await
    };
    let cluster = "example-etcd-cluster";
    kubectl(&["apply", "-f", "-"], Some(manifest(3, "3.2.13"))).await?;
    test.settled(cluster, 120).await?;
    let pods = kubectl(&["get", "pods", "-l", "etcd_cluster=example-etcd-cluster"], None).await?;
    ensure!(pods.matches("Running").count() == 3, "kubectl get pods shows\n{pods}");
    let listed = kubectl(&["get", "etcd"], None).await?;
    ensure!(listed.contains(cluster), "kubectl get etcd shows\n{listed}");
    let described = kubectl(&["describe", "etcdcluster", cluster], None).await?;
    ensure!(described.contains("3.2.13"), "kubectl describe shows\n{described}");
    let services = kubectl(&["get", "services"], None).await?;
    ensure!(
        services.contains("example-etcd-cluster-client"),
        "kubectl get services shows\n{services}"
    );
    let writer = test.writer(cluster).await?;
    kubectl(&["apply", "-f", "-"], Some(manifest(5, "3.2.13"))).await?;
    test.settled(cluster, 180).await?;
    kubectl(&["apply", "-f", "-"], Some(manifest(3, "3.2.13"))).await?;
    test.settled(cluster, 180).await?;
    kubectl(&["apply", "-f", "-"], Some(manifest(3, "3.3.27"))).await?;
    until("etcd 3.3.27", 120, async || {
        let status = test.get(cluster).await?.status.unwrap_or_default();
        Ok((status.current_version == "3.3.27").then_some(()))
    })
    .await?;
    test.settled(cluster, 60).await?;
    let written = writer.finish().await?;
    kubectl(&["delete", "etcdcluster", cluster], None).await?;
    until("its pods to be deleted", 90, async || {
        Ok(test.pods_of(cluster).await?.is_empty().then_some(()))
    })
    .await?;
    Ok(format!("{} writes", written.acknowledged))
}
