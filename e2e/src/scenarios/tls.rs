//! Certificates: issued, switched on and off while the cluster runs.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::test::Test;

pub(crate) async fn tls_auto(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3, "TLS": {"auto": {}}})).await?;
    let endpoint = test.endpoint("c").await?;
    ensure!(endpoint.tls.is_some(), "the cluster has no client certificate");
    // Without a certificate nothing is answered.
    let mut plain = endpoint.clone();
    plain.tls = None;
    ensure!(
        plain.client()?.get("x").await.is_err(),
        "a client without a certificate was served"
    );
    for member in test.get("c").await?.status.unwrap_or_default().member_statuses {
        ensure!(
            member.peer_url.starts_with("https://"),
            "peers reach {} at {}",
            member.name,
            member.peer_url
        );
    }
    let writer = test.writer("c").await?;
    writer.goes_on(30, 30).await?;
    let written = writer.finish().await?;
    Ok(format!("{} writes", written.acknowledged))
}

pub(crate) async fn tls_switched_on_and_off(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let id = test.cluster_id("c").await?;
    let writer = test.writer("c").await?;
    writer.goes_on(50, 30).await?;
    let written = writer.finish().await?;
    for (tls, scheme) in [(json!({"auto": {}}), "https://"), (Value::Null, "http://")] {
        test.edit("c", json!({ "TLS": tls })).await?;
        test.settled("c", 150).await?;
        ensure!(test.cluster_id("c").await? == id, "it is another cluster");
        for member in test.get("c").await?.status.unwrap_or_default().member_statuses {
            ensure!(
                member.peer_url.starts_with(scheme),
                "peers reach {} at {}",
                member.name,
                member.peer_url
            );
        }
        let found = test
            .endpoint("c")
            .await?
            .client()?
            .get(format!("e2e/{:010}", 0))
            .await?;
        ensure!(found.is_some(), "what was written before is gone");
    }
    Ok(format!("{} writes kept", written.acknowledged))
}
