//! The operator crashes in the middle of things.

use anyhow::{Result, ensure};
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;

use crate::test::Test;
use crate::wait::until;

async fn crash(test: &Test) -> Result<()> {
    test.ground.kill_operator().await?;
    test.ground.start_operator().await
}

pub(crate) async fn killed_during_create(test: &Test) -> Result<String> {
    test.create("c", json!({"size": 3})).await?;
    for pods in 1..=3 {
        until(&format!("pod {pods}"), 60, async || {
            Ok((test.pods_of("c").await?.len() >= pods).then_some(()))
        })
        .await?;
        crash(test).await?;
    }
    test.settled("c", 120).await?;
    let writer = test.writer("c").await?;
    writer.goes_on(20, 30).await?;
    let written = writer.finish().await?;
    Ok(format!("{} writes", written.acknowledged))
}

pub(crate) async fn killed_during_scale(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 1})).await?;
    let writer = test.writer("c").await?;
    test.edit("c", json!({"size": 3})).await?;
    until("the second pod", 60, async || {
        Ok((test.pods_of("c").await?.len() >= 2).then_some(()))
    })
    .await?;
    crash(test).await?;
    test.settled("c", 120).await?;
    test.edit("c", json!({"size": 1})).await?;
    crash(test).await?;
    test.settled("c", 120).await?;
    ensure!(test.list("c").await?.len() == 1, "a member is stranded");
    let written = writer.finish().await?;
    Ok(format!("{} writes", written.acknowledged))
}

pub(crate) async fn killed_during_replacement(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let writer = test.writer("c").await?;
    let leader = test.leader("c").await?;
    let pods = test.pods_of("c").await?;
    let victim = pods
        .iter()
        .map(ResourceExt::name_any)
        .find(|pod| *pod != leader)
        .unwrap_or_default();
    test.claims().delete(&victim, &DeleteParams::default()).await?;
    test.delete_pod(&victim).await?;
    until("the lost member to leave the list", 60, async || {
        Ok(test
            .list("c")
            .await?
            .iter()
            .all(|member| member.name != victim)
            .then_some(()))
    })
    .await?;
    crash(test).await?;
    test.settled("c", 120).await?;
    let written = writer.finish().await?;
    Ok(format!("{} writes", written.acknowledged))
}

pub(crate) async fn restart_touches_no_pod(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let facts = async || -> Result<Vec<_>> {
        let pods = test.pods_of("c").await?;
        let mut facts: Vec<_> = pods
            .iter()
            .map(|pod| (pod.name_any(), pod.uid(), pod.metadata.resource_version.clone()))
            .collect();
        facts.sort();
        Ok(facts)
    };
    let before = facts().await?;
    let version = test.get("c").await?.metadata.resource_version;
    crash(test).await?;
    test.settled("c", 60).await?;
    let writer = test.writer("c").await?;
    writer.goes_on(50, 30).await?;
    ensure!(facts().await? == before, "the operator's restart changed a pod");
    ensure!(
        test.get("c").await?.metadata.resource_version == version,
        "the operator's restart wrote to the cluster"
    );
    writer.finish().await?;
    Ok("not one write".into())
}
