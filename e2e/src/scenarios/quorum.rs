//! A majority is lost for good.

use anyhow::{Result, ensure};
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;

use crate::test::Test;

/// Loses two of three members with their data, and gives the one that is left.
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
    let words = test.condition("c", "Degraded", "QuorumLost", 120).await?;
    ensure!(
        words.contains(&survivor) && words.contains("onQuorumLoss"),
        "the message names neither the survivor nor the way out: {words}"
    );
    ensure!(
        test.claims_of("c")
            .await?
            .iter()
            .any(|claim| claim.name_any() == survivor),
        "the survivor's claim was touched"
    );
    Ok(words)
}

pub(crate) async fn recovered_from_survivor(test: &Test) -> Result<String> {
    test.created(
        "c",
        json!({"size": 3, "recovery": {"onQuorumLoss": "FromSurvivor", "delaySeconds": 1}}),
    )
    .await?;
    let writer = test.writer("c").await?;
    writer.goes_on(50, 30).await?;
    // What is acknowledged here is on all three: nothing is written while they are caught up and then lost.
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
