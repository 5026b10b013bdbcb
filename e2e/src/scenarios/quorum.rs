//! A majority is lost for good.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::backup_kept::{cordon, to_s3};
use super::install::HOME;
use super::{backup, restore};
use crate::environment::Fault;
use crate::s3::{S3, secret};
use crate::servers::PASSWORD;
use crate::test::Test;
use crate::wait::until;

/// Loses two of three members with their data, and returns the one that is left.
async fn lose_two(test: &Test) -> Result<String> {
    let mut pods = test.pods_of("c").await?;
    let survivor = pods.pop().map(|pod| pod.name_any()).unwrap_or_default();
    for pod in &pods {
        test.claims().delete(&pod.name_any(), &DeleteParams::default()).await?;
    }
    for pod in &pods {
        test.delete_pod(&pod.name_any()).await?;
    }
    Ok(survivor)
}

pub(crate) async fn lost_without_consent(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let survivor = lose_two(test).await?;
    let message = test.condition("c", "Degraded", "QuorumLost", 120).await?;
    ensure!(
        message.contains(&survivor) && message.contains("onQuorumLoss"),
        "the message names neither the survivor nor the way out: {message}"
    );
    ensure!(
        test.claims_of("c")
            .await?
            .iter()
            .any(|claim| claim.name_any() == survivor),
        "the survivor's claim was touched"
    );
    Ok(message)
}

pub(crate) async fn recovered_from_survivor(test: &Test) -> Result<String> {
    test.created(
        "c",
        json!({"size": 3, "recovery": {"onQuorumLoss": "FromSurvivor", "delaySeconds": 1}}),
    )
    .await?;
    let writer = test.writer("c").await?;
    writer.writes_more(50, 30).await?;
    // What is acknowledged here is on all three: nothing is written between catching up and the loss.
    let written = writer.finish().await?;
    let survivor = lose_two(test).await?;
    test.settled("c", 180).await?;
    ensure!(
        test.list("c").await?.iter().any(|member| member.name == survivor),
        "the survivor is not in the cluster"
    );
    let client = test.endpoint("c").await?.client()?;
    let found = client.get(format!("e2e/{:010}", 0)).await?;
    ensure!(found.is_some(), "what the survivor had is gone");
    Ok(format!(
        "{survivor} became the cluster; {} writes before",
        written.acknowledged
    ))
}

fn node_of(pod: &Pod) -> Option<String> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone())
}

/// The members of c: one on the operator's node, if it has one, and the others.
async fn one_and_the_others(test: &Test) -> Result<(Pod, Vec<Pod>)> {
    let operators: Api<Pod> = Api::namespaced(test.client.clone(), HOME);
    let operators = operators.list(&ListParams::default()).await?;
    let home = operators.items.iter().find_map(node_of);
    let mut pods = test.pods_of("c").await?;
    let at_home = pods.iter().position(|pod| home.is_some() && node_of(pod) == home);
    let one = pods.remove(at_home.unwrap_or(0));
    ensure!(
        pods.iter().all(|other| node_of(other) != node_of(&one)),
        "members share a node"
    );
    Ok((one, pods))
}

/// Two of three members are on nodes that are only cut off from the API server. They keep serving and nothing is
/// touched; the status says what to do. When the nodes are really gone and the user confirms it, the third becomes the
/// cluster, and the claims of the others are kept.
pub(crate) async fn cut_off_majority_is_given_up_only_on_proof(test: &Test) -> Result<String> {
    let recovery = json!({"onQuorumLoss": "FromSurvivor", "delaySeconds": 1, "nodeLossSeconds": 1});
    test.created("c", json!({"size": 3, "recovery": recovery})).await?;
    let client = test.endpoint("c").await?.client()?;
    client.put("before".to_owned(), "value").await?;
    let (one, others) = one_and_the_others(test).await?;
    let names: Vec<String> = others.iter().map(ResourceExt::name_any).collect();
    let nodes: Vec<String> = others.iter().filter_map(node_of).collect();
    test.fault(Fault::Freeze(test.namespace.clone(), one.name_any()))
        .await?;
    for (name, node) in names.iter().zip(&nodes) {
        test.fault(Fault::CutOperator(test.namespace.clone(), name.clone()))
            .await?;
        test.fault(Fault::CutNode(node.clone())).await?;
    }
    let result = serve_on_while_cut_off(test, &others, &names, &nodes).await;
    // from here on the nodes are really gone
    for node in &nodes {
        test.fault(Fault::StopNode(node.clone())).await?;
    }
    test.fault(Fault::Heal).await?;
    test.fault(Fault::Thaw(test.namespace.clone(), one.name_any())).await?;
    let recovered = match result {
        Ok(message) => recovered_on_consent(test, &one.name_any(), &names)
            .await
            .map(|()| message),
        Err(error) => Err(error),
    };
    for node in nodes {
        test.fault(Fault::StartNode(node)).await?;
    }
    let message = recovered?;
    test.settled("c", 300).await?;
    let kept: Vec<String> = test.claims_of("c").await?.iter().map(ResourceExt::name_any).collect();
    ensure!(
        names.iter().all(|name| kept.contains(name)),
        "old claims are gone: {kept:?}"
    );
    let old = test.get("c").await?.status.unwrap_or_default().old_claims;
    ensure!(
        old.is_some_and(|old| old.claims.len() == 2),
        "the status does not list old claims"
    );
    let found = test.endpoint("c").await?.client()?.get("before".to_owned()).await?;
    ensure!(found.is_some(), "what the survivor had is gone");
    Ok(message)
}

async fn serve_on_while_cut_off(test: &Test, others: &[Pod], names: &[String], nodes: &[String]) -> Result<String> {
    let message = test.condition("c", "Degraded", "WaitingForProof", 240).await?;
    for (name, node) in names.iter().zip(nodes) {
        let taint = format!("kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute");
        ensure!(
            message.contains(name) && message.contains(&taint) && message.contains("stateward.dev/confirm-lost="),
            "it does not say what to do: {message}"
        );
    }
    let cluster = test.get("c").await?;
    for number in 0..20 {
        let client = test.etcd(&cluster, &others[number % others.len()]).await?;
        let put = until("a member that is cut off to serve", 20, async || {
            Ok(Some(client.put(format!("meanwhile/{number}"), "value").await?))
        });
        put.await?;
    }
    let claims = test.claims_of("c").await?.len();
    ensure!(claims == 3, "{claims} claims");
    let pods = test.pods_of("c").await?;
    let made = pods.iter().filter(|pod| !names.contains(&pod.name_any())).count();
    ensure!(made <= 1, "a member was created beside them");
    Ok(message)
}

async fn recovered_on_consent(test: &Test, survivor: &str, lost: &[String]) -> Result<()> {
    let consent = json!({"metadata": {"annotations": {"stateward.dev/confirm-lost": lost.join(",")}}});
    let clusters = test.clusters();
    clusters
        .patch("c", &PatchParams::default(), &Patch::Merge(&consent))
        .await?;
    until("the survivor to be the cluster", 180, async || {
        let list = test.list("c").await?;
        ensure!(
            list.iter().all(|member| !lost.contains(&member.name)),
            "the others are still in the list"
        );
        let is_there = list.iter().any(|member| member.name == survivor);
        Ok(is_there.then_some(()))
    })
    .await
    .context("after consent")
}

/// Two of three members without durable data are on nodes that lose power. That proves nothing until an administrator types
/// what the status says; then the cluster is restored from its backup.
pub(crate) async fn majority_on_nodes_out_of_service_is_given_up(test: &Test) -> Result<String> {
    // The store is on the operator's node, which stays.
    let operators: Api<Pod> = Api::namespaced(test.client.clone(), HOME);
    let home = operators.list(&ListParams::default()).await?;
    let home = home.items.iter().find_map(node_of);
    let all: Api<Node> = Api::all(test.client.clone());
    let away = all.list_metadata(&ListParams::default()).await?.items;
    let away = away.iter().map(ResourceExt::name_any);
    let away: Vec<String> = away
        .filter(|node| home.is_some() && home.as_ref() != Some(node))
        .collect();
    for node in &away {
        cordon(test, node, true).await?;
    }
    let server = S3::start(test, "minio").await;
    for node in &away {
        cordon(test, node, false).await?;
    }
    let server = server?;
    let recovery = json!({"onQuorumLoss": "FromBackup", "delaySeconds": 1, "nodeLossSeconds": 1});
    let spec = json!({"size": 3, "storage": {"ephemeral": true}, "recovery": recovery});
    test.created("c", spec).await?;
    let seen = restore::write(test, "c", "before").await?;
    secret(test, "aws", PASSWORD).await?;
    backup::create(test, "b", to_s3("mybucket/etcd.backup", &server.url, json!({}))).await?;
    backup::succeeded(test, "b", 120).await?;
    let (one, others) = one_and_the_others(test).await?;
    let nodes: Vec<String> = others.iter().filter_map(node_of).collect();
    for node in &nodes {
        test.fault(Fault::StopNode(node.clone())).await?;
    }
    let result = given_up_when_tainted(test, &one, &nodes, seen).await;
    for node in &nodes {
        let taint = "node.kubernetes.io/out-of-service-";
        let _untainted = test.kubectl(&["taint", "node", node, taint]).await;
        test.fault(Fault::StartNode(node.clone())).await?;
    }
    let message = result?;
    test.settled("c", 300).await?;
    Ok(message)
}

async fn given_up_when_tainted(test: &Test, one: &Pod, nodes: &[String], seen: i64) -> Result<String> {
    let message = test.condition("c", "Degraded", "WaitingForProof", 300).await?;
    // given that nothing was done
    let status = test.get("c").await?.status.unwrap_or_default();
    ensure!(status.restore.is_none(), "it was given up without proof");
    let still = test.pods().get(&one.name_any()).await?;
    ensure!(still.uid() == one.uid(), "the third member was replaced");
    // when an administrator types what the message says
    let commands: Vec<Vec<&str>> = message
        .split("kubectl taint node ")
        .skip(1)
        .map(|rest| {
            rest.split_whitespace()
                .take(2)
                .map(|word| word.trim_end_matches([';', '.']))
        })
        .map(Iterator::collect)
        .collect();
    ensure!(
        commands.len() == nodes.len()
            && nodes
                .iter()
                .all(|node| commands.iter().any(|command| command[0] == node)),
        "it does not say what to type: {message}"
    );
    for command in commands {
        test.kubectl(&[&["taint", "node"], command.as_slice()].concat()).await?;
    }
    // then the cluster is restored, without the user's confirmation for any member
    let restored = until("the restore", 300, async || {
        let status = test.get("c").await?.status.unwrap_or_default();
        let done = status.restore.filter(|restore| restore.recovery);
        ensure!(done.is_some(), "it waits for: {}", status.waiting);
        Ok(done)
    })
    .await?;
    test.settled("c", 300).await?;
    restore::has(test, "c", "before", seen).await?;
    Ok(restored.lost)
}
