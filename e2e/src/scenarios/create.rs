//! Clusters are created and deleted.

use anyhow::{Result, ensure};
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

use crate::test::Test;
use crate::wait::until;

pub(crate) async fn one_member(test: &Test) -> Result<String> {
    test.created("one", json!({"size": 1})).await?;
    let writer = test.writer("one").await?;
    writer.writes_more(50, 30).await?;
    let written = writer.finish().await?;
    Ok(format!("{} writes", written.acknowledged))
}

pub(crate) async fn three_members(test: &Test) -> Result<String> {
    created_with(test, 3, "SeedThenJoin").await
}

pub(crate) async fn three_members_parallel(test: &Test) -> Result<String> {
    created_with(test, 3, "Parallel").await
}

pub(crate) async fn five_members(test: &Test) -> Result<String> {
    created_with(test, 5, "SeedThenJoin").await
}

async fn created_with(test: &Test, size: i32, bootstrap: &str) -> Result<String> {
    let started = std::time::Instant::now();
    test.created("c", json!({"size": size, "bootstrap": bootstrap})).await?;
    let time = started.elapsed().as_secs_f64();
    // Names, labels and services are those of the old operator.
    for pod in test.pods_of("c").await? {
        let name = pod.metadata.name.clone().unwrap_or_default();
        ensure!(name.starts_with("c-"), "pod name {name}");
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        ensure!(
            labels.get("app").is_some_and(|app| app == "etcd") && labels.get("etcd_node") == Some(&name),
            "labels {labels:?}"
        );
        let spec = pod.spec.unwrap_or_default();
        ensure!(
            spec.hostname.as_ref() == Some(&name) && spec.subdomain.as_deref() == Some("c"),
            "hostname and subdomain"
        );
    }
    let writer = test.writer("c").await?;
    writer.writes_more(50, 30).await?;
    let written = writer.finish().await?;
    Ok(format!(
        "served {size} members after {time:.1} s; {} writes",
        written.acknowledged
    ))
}

pub(crate) async fn recreate_under_the_same_name(test: &Test) -> Result<String> {
    test.created("again", json!({"size": 3})).await?;
    let first = test.cluster_id("again").await?;
    test.clusters().delete("again", &DeleteParams::default()).await?;
    until("the old cluster to be gone", 60, async || {
        Ok(test.clusters().get_opt("again").await?.is_none().then_some(()))
    })
    .await?;
    test.created("again", json!({"size": 3})).await?;
    let second = test.cluster_id("again").await?;
    ensure!(first != second, "the new cluster has the old one's ID {first}");
    let written = {
        let writer = test.writer("again").await?;
        writer.writes_more(20, 30).await?;
        writer.finish().await?
    };
    Ok(format!("{} writes", written.acknowledged))
}

pub(crate) async fn deleting_removes_everything(test: &Test) -> Result<String> {
    test.created("gone", json!({"size": 3})).await?;
    let started = std::time::Instant::now();
    test.clusters().delete("gone", &DeleteParams::default()).await?;
    until("pods, claims and services to be gone", 60, async || {
        let pods = test.pods().list(&ListParams::default()).await?.items.len();
        let claims = test.claims_of("gone").await?.len();
        let services: kube::Api<k8s_openapi::api::core::v1::Service> =
            kube::Api::namespaced(test.client.clone(), &test.namespace);
        let services = services
            .list(&ListParams::default().labels("etcd_cluster=gone"))
            .await?
            .items
            .len();
        ensure!(
            pods + claims + services == 0,
            "{pods} pods, {claims} claims, {services} services are left"
        );
        Ok(Some(()))
    })
    .await?;
    Ok(format!("gone after {:.1} s", started.elapsed().as_secs_f64()))
}

pub(crate) async fn twenty_clusters_at_once(test: &Test) -> Result<String> {
    let started = std::time::Instant::now();
    for number in 0..20 {
        test.create(&format!("many-{number}"), json!({"size": 1})).await?;
    }
    for number in 0..20 {
        test.settled(&format!("many-{number}"), 300).await?;
    }
    Ok(format!(
        "20 clusters serve after {:.1} s",
        started.elapsed().as_secs_f64()
    ))
}
