//! Members fail and come back, or are replaced.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;

use crate::environment::Fault;
use crate::test::Test;
use crate::wait::until;

async fn follower(test: &Test, name: &str) -> Result<String> {
    let leader = test.leader(name).await?;
    let pods = test.pods_of(name).await?;
    pods.iter()
        .map(ResourceExt::name_any)
        .find(|pod| *pod != leader)
        .context("no follower")
}

async fn ids(test: &Test, name: &str) -> Result<Vec<u64>> {
    let mut ids: Vec<_> = test.list(name).await?.iter().map(|member| member.id).collect();
    ids.sort_unstable();
    Ok(ids)
}

pub(crate) async fn kill_the_leader(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let before = ids(test, "c").await?;
    let writer = test.writer("c").await?;
    writer.measure_from_here();
    let leader = test.leader("c").await?;
    test.fault(Fault::Kill(test.namespace.clone(), leader)).await?;
    writer.writes_more(50, 60).await?;
    test.settled("c", 90).await?;
    ensure!(ids(test, "c").await? == before, "a crash changed the member list");
    let written = writer.finish().await?;
    Ok(format!(
        "longest gap {:.1} s, {} writes",
        written.longest_gap.as_secs_f64(),
        written.acknowledged
    ))
}

pub(crate) async fn delete_a_pod(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let before = ids(test, "c").await?;
    let writer = test.writer("c").await?;
    let pod = follower(test, "c").await?;
    let uid = test.pods().get(&pod).await?.uid();
    let started = std::time::Instant::now();
    test.delete_pod(&pod).await?;
    until("the same member in a new pod", 60, async || {
        let now = test.pods().get_opt(&pod).await?;
        Ok(now.filter(|now| now.uid() != uid && crate::test::is_ready(now)))
    })
    .await?;
    let time = started.elapsed().as_secs_f64();
    test.settled("c", 60).await?;
    ensure!(ids(test, "c").await? == before, "a deleted pod changed the member list");
    let written = writer.finish().await?;
    Ok(format!("back after {time:.1} s; {} writes", written.acknowledged))
}

pub(crate) async fn delete_pod_and_claim(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let writer = test.writer("c").await?;
    let victim = follower(test, "c").await?;
    let started = std::time::Instant::now();
    test.claims().delete(&victim, &DeleteParams::default()).await?;
    test.delete_pod(&victim).await?;
    replaced(test, "c", &victim, 120).await?;
    let time = started.elapsed().as_secs_f64();
    let written = writer.finish().await?;
    Ok(format!("replaced after {time:.1} s; {} writes", written.acknowledged))
}

/// Waits until a member is removed and the cluster matches its spec again.
async fn replaced(test: &Test, name: &str, victim: &str, seconds: u64) -> Result<()> {
    until(&format!("{victim} to be replaced"), seconds, async || {
        let list = test.list(name).await?;
        ensure!(
            list.iter().all(|member| member.name != victim),
            "it is still in the list"
        );
        Ok(Some(()))
    })
    .await?;
    test.settled(name, seconds).await.map(drop)
}

pub(crate) async fn delete_all_pods(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let (before, cluster) = (ids(test, "c").await?, test.cluster_id("c").await?);
    let writer = test.writer("c").await?;
    for pod in test.pods_of("c").await? {
        test.delete_pod(&pod.name_any()).await?;
    }
    test.settled("c", 120).await?;
    ensure!(ids(test, "c").await? == before, "the member list changed");
    ensure!(test.cluster_id("c").await? == cluster, "it is another cluster");
    writer.writes_more(20, 60).await?;
    let written = writer.finish().await?;
    Ok(format!(
        "longest gap {:.1} s, {} writes",
        written.longest_gap.as_secs_f64(),
        written.acknowledged
    ))
}

pub(crate) async fn lose_a_volume(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let writer = test.writer("c").await?;
    let victim = follower(test, "c").await?;
    let started = std::time::Instant::now();
    test.fault(Fault::LoseVolume(test.namespace.clone(), victim.clone()))
        .await?;
    replaced(test, "c", &victim, 120).await?;
    let time = started.elapsed().as_secs_f64();
    let written = writer.finish().await?;
    Ok(format!(
        "replaced after {time:.1} s; longest gap {:.1} s",
        written.longest_gap.as_secs_f64()
    ))
}

pub(crate) async fn corrupt_a_volume(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let writer = test.writer("c").await?;
    writer.writes_more(100, 60).await?;
    let victim = follower(test, "c").await?;
    test.fault(Fault::CorruptVolume(test.namespace.clone(), victim.clone()))
        .await?;
    // It either survives the damage (a page that was not in use) or is replaced. In both cases, acknowledged writes are
    // kept.
    test.settled("c", 240).await?;
    let stayed = test.list("c").await?.iter().any(|member| member.name == victim);
    let written = writer.finish().await?;
    Ok(format!(
        "{}; {} writes",
        if stayed { "survived" } else { "replaced" },
        written.acknowledged
    ))
}

pub(crate) async fn freeze_a_member(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let before = ids(test, "c").await?;
    let writer = test.writer("c").await?;
    let leader = test.leader("c").await?;
    test.fault(Fault::Freeze(test.namespace.clone(), leader.clone()))
        .await?;
    test.condition("c", "Degraded", "MembersUnhealthy", 60).await?;
    writer.writes_more(50, 90).await?;
    test.fault(Fault::Thaw(test.namespace.clone(), leader)).await?;
    test.settled("c", 120).await?;
    ensure!(
        ids(test, "c").await? == before,
        "a missing reply changed the member list"
    );
    let written = writer.finish().await?;
    Ok(format!("longest gap {:.1} s", written.longest_gap.as_secs_f64()))
}

pub(crate) async fn ephemeral_member_lost(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3, "storage": {"ephemeral": true}}))
        .await?;
    ensure!(test.claims_of("c").await?.is_empty(), "an ephemeral cluster has claims");
    let writer = test.writer("c").await?;
    let victim = follower(test, "c").await?;
    test.delete_pod(&victim).await?;
    replaced(test, "c", &victim, 120).await?;
    let written = writer.finish().await?;
    Ok(format!("{} writes", written.acknowledged))
}

pub(crate) async fn lose_a_node_for_good(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3, "recovery": {"nodeLossSeconds": 10}}))
        .await?;
    let writer = test.writer("c").await?;
    let victim = follower(test, "c").await?;
    let node = test
        .pods()
        .get(&victim)
        .await?
        .spec
        .and_then(|spec| spec.node_name)
        .context("no node")?;
    test.fault(Fault::StopNode(node.clone())).await?;
    let result = replaced(test, "c", &victim, 240).await;
    test.fault(Fault::StartNode(node)).await?;
    result?;
    test.settled("c", 120).await?;
    let written = writer.finish().await?;
    Ok(written.to_string())
}

pub(crate) async fn cut_a_member_off(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let before = ids(test, "c").await?;
    let writer = test.writer("c").await?;
    let leader = test.leader("c").await?;
    for pod in test.pods_of("c").await? {
        if pod.name_any() != leader {
            test.fault(Fault::Cut(test.namespace.clone(), leader.clone(), pod.name_any()))
                .await?;
        }
    }
    writer.writes_more(50, 90).await?;
    test.fault(Fault::Heal).await?;
    test.settled("c", 90).await?;
    ensure!(ids(test, "c").await? == before, "a cut changed the member list");
    let written = writer.finish().await?;
    Ok(format!("longest gap {:.1} s", written.longest_gap.as_secs_f64()))
}

pub(crate) async fn operator_cut_off_from_a_member(test: &Test) -> Result<String> {
    // If the node were dead, a longer interruption than this would count.
    test.created("c", json!({"size": 3, "recovery": {"nodeLossSeconds": 5}}))
        .await?;
    let before = ids(test, "c").await?;
    let uids = async || -> Result<Vec<_>> {
        let pods = test.pods_of("c").await?;
        let mut all: Vec<_> = pods.iter().map(|pod| (pod.uid(), restarts(pod))).collect();
        all.sort();
        Ok(all)
    };
    let pods = uids().await?;
    let writer = test.writer("c").await?;
    writer.measure_from_here();
    let leader = test.leader("c").await?;
    test.fault(Fault::CutOperator(test.namespace.clone(), leader.clone()))
        .await?;
    // the status names the unreachable member, and nothing else happens for as long as this lasts
    let message = test.condition("c", "Degraded", "MembersUnhealthy", 60).await?;
    ensure!(
        message.contains(&leader),
        "the status does not name the unreachable member: {message}"
    );
    until("half a minute without a reply", 90, async || {
        let status = test.get("c").await?.status.unwrap_or_default();
        let mut conditions = status.conditions.into_iter();
        let degraded = conditions.find(|condition| condition.reason == "MembersUnhealthy");
        let since = degraded.and_then(|condition| condition.last_transition_time);
        let age = jiff::Timestamp::now().duration_since(since.context("no longer degraded")?.0);
        Ok((age.as_secs() >= 30).then_some(()))
    })
    .await?;
    ensure!(ids(test, "c").await? == before, "the member list changed");
    ensure!(uids().await? == pods, "a pod was restarted or replaced");
    test.fault(Fault::Heal).await?;
    test.settled("c", 60).await?;
    ensure!(ids(test, "c").await? == before, "the member list changed");
    ensure!(uids().await? == pods, "a pod was restarted or replaced");
    let written = writer.finish().await?;
    Ok(written.to_string())
}

fn restarts(pod: &k8s_openapi::api::core::v1::Pod) -> i32 {
    let statuses = pod
        .status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten());
    statuses.map(|status| status.restart_count).sum()
}

/// Whether its etcd runs, according to the kubelet.
fn runs(pod: &Pod) -> bool {
    let containers = pod
        .status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten());
    containers
        .filter_map(|container| container.state.as_ref())
        .any(|state| state.running.is_some())
}

pub(crate) async fn crash_loop_that_replacing_does_not_end(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let before = ids(test, "c").await?;
    let writer = test.writer("c").await?;
    let first = follower(test, "c").await?;
    let well: Vec<_> = test.pods_of("c").await?.iter().map(ResourceExt::name_any).collect();
    let well: Vec<_> = well.into_iter().filter(|name| *name != first).collect();
    // every pod in its place crashes as soon as it runs
    let message = until("the operator to stop replacing it", 1300, async || {
        for pod in test.pods_of("c").await? {
            let name = pod.name_any();
            if !well.contains(&name) && runs(&pod) {
                // it may have exited by itself
                let _ended = test.fault(Fault::Kill(test.namespace.clone(), name)).await;
            }
        }
        let status = test.get("c").await?.status.unwrap_or_default();
        let mut conditions = status.conditions.into_iter();
        let found = conditions.find(|condition| condition.type_ == "Degraded" && condition.reason == "CrashesAgain");
        Ok(found.map(|condition| condition.message))
    })
    .await?;
    ensure!(
        message.contains("kubectl logs"),
        "the message does not say what to do: {message}"
    );
    let now = ids(test, "c").await?;
    let stayed = before.iter().filter(|id| now.contains(id)).count();
    ensure!(stayed == 2, "{stayed} of the first members are left");
    // when the crashes end, it comes back by itself
    test.settled("c", 400).await?;
    let written = writer.finish().await?;
    Ok(format!(
        "replaced once, then left alone; {} writes",
        written.acknowledged
    ))
}
