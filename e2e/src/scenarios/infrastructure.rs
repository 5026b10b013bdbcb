//! Everyday events in a Kubernetes cluster: draining and losing nodes, including the operator's own, losing the API
//! server, deleting a namespace, renewing certificates.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::install::{CHART, HOME, acting, pods, without_the_shipped_operator};
use crate::environment::Fault;
use crate::test::Test;
use crate::wait::until;

async fn node_of(test: &Test, namespace: &str, pod: &str) -> Result<String> {
    let pods: Api<Pod> = Api::namespaced(test.client.clone(), namespace);
    let spec = pods.get(pod).await?.spec;
    spec.and_then(|spec| spec.node_name).context("the pod has no node")
}

/// One replica, as in the shipped manifests: its pod is evicted 30 s after its node is lost, and created again on
/// another node.
pub(crate) async fn node_of_the_operator_lost(test: &Test) -> Result<String> {
    let acts = acting(test, HOME).await?;
    let node = node_of(test, HOME, &acts).await?;
    let (took, healed) = lose_the_node(test, HOME, &acts, &node).await?;
    test.environment.start_operator().await?;
    Ok(format!(
        "another acts after {took} s, the member is replaced after {healed} s"
    ))
}

/// Two replicas, as in the chart: the standby already runs and only needs the lease.
pub(crate) async fn node_of_one_of_two_operators_lost(test: &Test) -> Result<String> {
    without_the_shipped_operator(test).await?;
    let install = [
        "install",
        "stateward",
        CHART,
        "--take-ownership",
        "--force-conflicts",
        "--wait",
        "--timeout=90s",
    ];
    test.helm(&install).await?;
    let acts = acting(test, &test.namespace).await?;
    let node = node_of(test, &test.namespace, &acts).await?;
    let (took, healed) = lose_the_node(test, &test.namespace, &acts, &node).await?;
    ensure!(took < 60, "the other replica took {took} s");
    test.helm(&["uninstall", "stateward", "--wait"]).await?;
    Ok(format!(
        "the other acts after {took} s, the member is replaced after {healed} s"
    ))
}

/// Stops the node of the active operator, with a member of a cluster on it. Returns after how many seconds another
/// operator is active and the member is replaced.
async fn lose_the_node(test: &Test, home: &str, acts: &str, node: &str) -> Result<(u64, u64)> {
    test.created("c", json!({"size": 3, "recovery": {"nodeLossSeconds": 10}}))
        .await?;
    let writer = test.writer("c").await?;
    let mut there = Vec::new();
    for pod in test.pods_of("c").await? {
        if pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node) {
            there.push(pod.name_any());
        }
    }
    let [member] = there.as_slice() else {
        bail!("{} members on {node}, where one was expected", there.len());
    };
    let started = std::time::Instant::now();
    test.fault(Fault::StopNode(node.to_owned())).await?;
    let lost = async {
        until("another operator to be active", 240, async || {
            let now = acting(test, home).await?;
            Ok((!now.is_empty() && now != acts).then_some(()))
        })
        .await?;
        let took = started.elapsed().as_secs();
        until("the member to be replaced", 240, async || {
            let ready = test.get("c").await?.status.unwrap_or_default().members.ready;
            Ok((ready.len() == 3 && !ready.contains(member)).then_some(()))
        })
        .await?;
        anyhow::Ok((took, started.elapsed().as_secs()))
    };
    let lost = lost.await;
    test.fault(Fault::StartNode(node.to_owned())).await?;
    let lost = lost?;
    test.settled("c", 180).await?;
    writer.finish().await?;
    Ok(lost)
}

pub(crate) async fn drain_every_node(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let writer = test.writer("c").await?;
    let mut slowest = Duration::ZERO;
    let nodes: Api<Node> = Api::all(test.client.clone());
    for node in nodes
        .list(&ListParams::default())
        .await?
        .iter()
        .map(ResourceExt::name_any)
    {
        let node = node.as_str();
        let started = std::time::Instant::now();
        let drain = [
            "drain",
            node,
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            "--timeout=120s",
        ];
        let drained = test.kubectl(&drain).await;
        let writes_more = writer.writes_more(50, 60).await;
        test.kubectl(&["uncordon", node]).await?;
        drained?;
        writes_more?;
        slowest = slowest.max(started.elapsed());
        test.settled("c", 120).await?;
    }
    let written = writer.finish().await?;
    Ok(format!("slowest node {:.1} s; {written}", slowest.as_secs_f64(),))
}

/// Where volumes exist on one node only, the first of two members there cannot come back while the node is cordoned,
/// and the budget protects the second one. The drain still ends: the first is replaced elsewhere, then the second.
pub(crate) async fn drain_a_node_with_two_members(test: &Test) -> Result<String> {
    let nodes: Api<Node> = Api::all(test.client.clone());
    let nodes: Vec<String> = nodes
        .list(&ListParams::default())
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    let [crowded, second, third] = nodes.as_slice() else {
        bail!("{} nodes, three are needed", nodes.len());
    };
    // given two members on one node, because another node was cordoned
    test.kubectl(&["cordon", second]).await?;
    let created = test
        .created("c", json!({"size": 3, "recovery": {"nodeLossSeconds": 10}}))
        .await;
    test.kubectl(&["uncordon", second]).await?;
    created?;
    let on = async |node: &str| -> Result<usize> {
        let pods = test.pods_of("c").await?;
        let there = |pod: &&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
        Ok(pods.iter().filter(there).count())
    };
    let crowded = if on(crowded).await? == 2 { crowded } else { third };
    ensure!(on(crowded).await? == 2, "no node has two members");
    let writer = test.writer("c").await?;
    // when it is drained
    let started = std::time::Instant::now();
    let drain = [
        "drain",
        crowded,
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--timeout=240s",
    ];
    let drained = test.kubectl(&drain).await;
    let took = started.elapsed();
    // then both are replaced elsewhere, and no write is lost
    let settled = match drained {
        Ok(_) => test.settled("c", 120).await.map(drop),
        Err(error) => Err(error),
    };
    let left = on(crowded).await;
    test.kubectl(&["uncordon", crowded]).await?;
    settled?;
    ensure!(left? == 0, "members are left on {crowded}");
    let written = writer.finish().await?;
    Ok(format!("drained after {:.1} s; {written}", took.as_secs_f64(),))
}

pub(crate) async fn namespace_deleted_with_a_cluster(test: &Test) -> Result<String> {
    let name = format!("{}-x", test.namespace);
    let namespaces: Api<Namespace> = Api::all(test.client.clone());
    let object = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    namespaces.create(&PostParams::default(), &object).await?;
    let inner = Test {
        environment: test.environment.clone(),
        namespace: name.clone(),
        client: test.client.clone(),
        usual: test.usual.clone(),
    };
    inner.created("c", json!({"size": 3})).await?;
    let started = std::time::Instant::now();
    namespaces.delete(&name, &DeleteParams::default()).await?;
    until("the namespace to be gone", 120, async || {
        Ok(namespaces.get_opt(&name).await?.is_none().then_some(()))
    })
    .await?;
    Ok(format!("gone after {:.1} s", started.elapsed().as_secs_f64()))
}

pub(crate) async fn api_server_down_for_a_minute(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let writer = test.writer("c").await?;
    let before = pods(test, "c").await?;
    test.fault(Fault::StopApi).await?;
    let down = async {
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while std::time::Instant::now() < until {
            writer.writes_more(20, 60).await?; // the load is steady, so this also measures time
        }
        anyhow::Ok(())
    };
    let down = down.await;
    test.fault(Fault::StartApi).await?;
    down?;
    test.settled("c", 120).await?;
    ensure!(pods(test, "c").await? == before, "a pod was touched");
    // and the operator works again
    test.edit("c", json!({"size": 4})).await?;
    test.settled("c", 120).await?;
    let written = writer.finish().await?;
    Ok(written.to_string())
}

pub(crate) async fn certificates_are_renewed(test: &Test) -> Result<String> {
    const RENEW_AFTER: &str = "stateward.dev/renew-after";
    test.created("c", json!({"size": 3, "TLS": {"auto": {}}})).await?;
    let writer = test.writer("c").await?;
    let before = pods(test, "c").await?;
    let secrets: Api<Secret> = Api::namespaced(test.client.clone(), &test.namespace);
    let due = async || -> Result<Vec<Secret>> {
        let all = secrets.list(&ListParams::default()).await?.items;
        Ok(all
            .into_iter()
            .filter(|secret| secret.annotations().contains_key("stateward.dev/certificate-names"))
            .collect())
    };
    // when the renewal time has come
    let old = due().await?;
    ensure!(!old.is_empty(), "no Secret says when it is to be renewed");
    let patch = json!({"metadata": {"annotations": {RENEW_AFTER: "2020-01-01T00:00:00Z"}}});
    for secret in &old {
        secrets
            .patch(&secret.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
    }
    // then there are new certificates, and no pod is restarted for them
    until("all certificates to be new", 60, async || {
        let now = due().await?;
        let renewed = now.len() == old.len() && now.iter().zip(&old).all(|(now, old)| now.data != old.data);
        Ok(renewed.then_some(()))
    })
    .await?;
    writer.writes_more(50, 60).await?;
    test.writer("c").await?.finish().await?; // a client with the new certificate
    ensure!(pods(test, "c").await? == before, "a renewal restarted a pod");
    let written = writer.finish().await?;
    Ok(format!("{} certificates, {} writes", old.len(), written.acknowledged))
}
