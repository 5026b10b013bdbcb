//! Clusters grow and shrink under load.

use anyhow::{Result, ensure};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::test::Test;

pub(crate) async fn out_and_in(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let writer = test.writer("c").await?;
    for size in [5, 3, 1] {
        test.edit("c", json!({"size": size})).await?;
        test.settled("c", 90).await?;
        writer.writes_more(20, 30).await?;
    }
    ensure!(
        test.claims_of("c")
            .await?
            .iter()
            .filter(|claim| claim.metadata.deletion_timestamp.is_none())
            .count()
            == 1,
        "claims of removed members were not deleted"
    );
    let written = writer.finish().await?;
    Ok(written.to_string())
}

pub(crate) async fn change_of_mind(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let writer = test.writer("c").await?;
    for size in [5, 1, 3] {
        test.edit("c", json!({"size": size})).await?;
        writer.writes_more(30, 60).await?;
    }
    test.settled("c", 120).await?;
    ensure!(test.list("c").await?.len() == 3, "a member is stranded");
    let written = writer.finish().await?;
    Ok(format!("{} writes", written.acknowledged))
}

pub(crate) async fn chosen_member_leaves_first(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let chosen = test.leader("c").await?;
    let writer = test.writer("c").await?;
    let mark = json!({"metadata": {"annotations": {"stateward.dev/remove-first": "true"}}});
    test.pods()
        .patch(&chosen, &PatchParams::default(), &Patch::Merge(&mark))
        .await?;
    crate::wait::until("the chosen member to be replaced", 90, async || {
        let list = test.list("c").await?;
        ensure!(
            list.len() == 3 && list.iter().all(|member| member.name != chosen),
            "{list:?}"
        );
        Ok(Some(()))
    })
    .await?;
    test.settled("c", 90).await?;
    let written = writer.finish().await?;
    Ok(format!(
        "leader {chosen} left; longest gap {:.1} s",
        written.longest_gap.as_secs_f64()
    ))
}

pub(crate) async fn with_kubectl_scale_subresource(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 1})).await?;
    let scale = test.clusters().get_scale("c").await?;
    ensure!(
        scale.spec.and_then(|spec| spec.replicas) == Some(1),
        "the scale subresource does not show the size"
    );
    test.clusters()
        .patch_scale(
            "c",
            &PatchParams::default(),
            &Patch::Merge(json!({"spec": {"replicas": 3}})),
        )
        .await?;
    test.settled("c", 90).await?;
    let pods = test
        .pods_of("c")
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .collect::<Vec<_>>();
    Ok(pods.join(", "))
}
