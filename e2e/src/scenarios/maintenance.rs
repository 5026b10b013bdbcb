//! Space runs out, and claims grow.

use anyhow::{Result, ensure};
use serde_json::json;
use stateward_etcd_driver::client::Error;

use crate::test::Test;
use crate::wait::until;

pub(crate) async fn fill_the_quota(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3, "maintenance": {"quota": "16Mi"}}))
        .await?;
    let client = test.endpoint("c").await?.client()?;
    let value = vec![b'x'; 256 << 10];
    let mut written = 0;
    // The same key each time, so that history fills the space, which compaction can free.
    let refused = loop {
        match client.put("filler", value.clone()).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        ensure!(written < 1000, "250 MiB went into a quota of 16 MiB");
    };
    ensure!(matches!(refused, Error::NoSpace(_)), "rejected with {refused}");
    until("writes to be accepted again", 120, async || {
        client.put("after", "the alarm").await?;
        Ok(Some(()))
    })
    .await?;
    test.settled("c", 60).await?;
    Ok(format!("full after {written} writes of 256 KiB, cleared by itself"))
}

pub(crate) async fn claims_grow(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 1, "storage": {"size": "64Mi"}}))
        .await?;
    test.edit("c", json!({"storage": {"size": "128Mi"}})).await?;
    until("the claim to ask for 128Mi", 60, async || {
        let claim = &test.claims_of("c").await?[0];
        let requests = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.resources.as_ref())
            .and_then(|resources| resources.requests.as_ref());
        Ok(requests
            .and_then(|requests| requests.get("storage"))
            .filter(|size| size.0 == "128Mi" || size.0 == "134217728")
            .cloned())
    })
    .await?;
    test.settled("c", 60).await?;
    Ok(String::new())
}

pub(crate) async fn defragmented_by_schedule(test: &Test) -> Result<String> {
    test.created(
        "c",
        json!({"size": 3, "maintenance": {"defragmentation": {"schedule": "* * * * *", "minSize": "4Mi", "minFreePercent": 30}}}),
    )
    .await?;
    let client = test.endpoint("c").await?.client()?;
    for _ in 0..60 {
        client.put("filler", vec![b'x'; 256 << 10]).await?;
    }
    let revision = client.put("filler", "small").await?.header.unwrap_or_default().revision;
    client.compact(revision, true).await?;
    // Freed space counts as free after the next writes.
    let writer = test.writer("c").await?;
    let sizes = async || -> Result<Vec<i64>> {
        let cluster = test.get("c").await?;
        let mut sizes = Vec::new();
        for pod in test.pods_of("c").await? {
            sizes.push(test.etcd(&cluster, &pod).await?.status().await?.db_size);
        }
        Ok(sizes)
    };
    let before = sizes().await?;
    ensure!(before.iter().all(|size| *size > 8 << 20), "nothing to free: {before:?}");
    let after = until("every member to free its space", 150, async || {
        let now = sizes().await?;
        ensure!(now.iter().all(|size| *size < 4 << 20), "{now:?}");
        Ok(Some(now))
    })
    .await?;
    test.settled("c", 60).await?;
    let record = test.get("c").await?.status.unwrap_or_default().defragmentation;
    let turns = record.map_or(0, |record| record.members.len());
    ensure!((1..=3).contains(&turns), "the status reports {turns} turns");
    let written = writer.finish().await?;
    Ok(format!(
        "{before:?} bytes to {after:?}; {} writes, longest gap {:.1} s",
        written.acknowledged,
        written.longest_gap.as_secs_f64()
    ))
}
