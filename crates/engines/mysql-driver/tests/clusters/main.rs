//! MySQLClusters on an embedded Kubernetes: the driver, real servers, and a writer that finds every acknowledged row.

mod environment;
mod writer;

use std::time::Instant;

use environment::{Environment, NAMESPACE};
use serde_json::json;
use stateward_mysql::api::{MemberRole, MySQLClusterStatus};
use writer::Writer;

fn is_whole(status: &MySQLClusterStatus, size: i32) -> bool {
    let settled = status.failover.is_none() && status.switchover.is_none() && status.waiting.is_empty();
    settled && status.ready_members == size && status.members.iter().all(|one| one.role != MemberRole::Joining)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_outlives_its_primary() {
    let environment = Environment::start().await;
    // given a cluster of three
    let began = Instant::now();
    environment
        .create(
            "orders",
            json!({"size": 3, "repository": "stateward.local/mysql", "storage": {"size": "1Gi"}}),
        )
        .await;
    let status = environment
        .until("orders", "three members", |status| is_whole(status, 3))
        .await;
    println!("created in {:?}", began.elapsed());
    assert_eq!(status.acks, 1);
    let old = status.primary.clone();
    // and an application that writes through the Service
    let writer = Writer::start(&environment, "orders").await;
    writer.acknowledged(50).await;
    // then a replica serves its rows
    environment
        .wait_for("a row on a replica", async || {
            let rows = environment
                .rows("orders", &environment.service("orders-read").await)
                .await;
            rows.filter(|rows| !rows.is_empty())
        })
        .await;
    // when the primary is killed
    let faults = environment.kube.faults().expect("nodes");
    let killed = Instant::now();
    faults.kill(NAMESPACE, &old, Some("mysqld"), 9).await.expect("killed");
    // then another one takes writes
    let status = environment
        .until("orders", "another primary", |status| {
            !status.primary.is_empty() && status.primary != old
        })
        .await;
    let before = writer.count();
    writer.acknowledged(before + 50).await;
    println!(
        "failover: {:?} until written again, longest gap {:?}",
        killed.elapsed(),
        writer.longest_gap()
    );
    assert_ne!(status.primary, old);
    // and the old one joins again
    environment
        .until("orders", "three members again", |status| is_whole(status, 3))
        .await;
    // and no acknowledged row is lost, on no member
    let acknowledged = writer.stop().await;
    for member in 0..3 {
        let address = environment.pod(&format!("orders-{member}")).await;
        environment
            .wait_for("every acknowledged row", async || {
                let rows = environment.rows("orders", &address).await?;
                acknowledged.iter().all(|id| rows.contains(id)).then_some(())
            })
            .await;
    }
    environment.stop().await;
}
