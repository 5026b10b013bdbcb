//! Where an annotation may make the operator connect to.

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::test::Test;
use crate::wait::until;

/// An EtcdCluster in one namespace names a cluster in another: the other one receives no request, and nothing joins it.
pub(crate) async fn a_cluster_of_another_namespace_is_not_adopted(test: &Test) -> Result<String> {
    // given a cluster in another namespace
    let theirs = Test::new(test.environment.clone(), "adopt_theirs").await?;
    let result = not_adopted(test, &theirs).await;
    let cleaned = theirs.clean_up().await;
    let message = result?;
    cleaned?;
    Ok(message)
}

async fn not_adopted(test: &Test, theirs: &Test) -> Result<String> {
    theirs.created("theirs", json!({"size": 1})).await?;
    let pods = theirs.pods_of("theirs").await?;
    let status = pods.first().and_then(|pod| pod.status.clone());
    let address = status
        .and_then(|status| status.pod_ip)
        .context("the pod has no address")?;
    let before = theirs.list("theirs").await?;
    // when an EtcdCluster is to adopt it by address, by name, and by a name that points there
    let away = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "away"},
        "spec": {"type": "ExternalName", "externalName": format!("theirs-client.{}.svc.cluster.local", theirs.namespace)},
    });
    let services: kube::Api<k8s_openapi::api::core::v1::Service> =
        kube::Api::namespaced(test.client.clone(), &test.namespace);
    services
        .create(&kube::api::PostParams::default(), &serde_json::from_value(away)?)
        .await?;
    let mut said = String::new();
    for (name, host, word) in [
        ("by-address", address, "--adopt-allow"),
        (
            "by-name",
            format!("theirs-client.{}.svc", theirs.namespace),
            "--adopt-allow",
        ),
        // An operator that runs outside the cluster cannot resolve such names.
        ("by-alias", format!("away.{}.svc", test.namespace), "http://away."),
    ] {
        let cluster = json!({
            "apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdCluster",
            "metadata": {"name": name, "annotations": {"stateward.dev/adopt-endpoints": format!("http://{host}:2379")}},
            "spec": {"size": 1, "version": test.usual},
        });
        test.clusters()
            .create(&kube::api::PostParams::default(), &serde_json::from_value(cluster)?)
            .await?;
        said = until(&format!("{name} to say why it waits"), 60, async || {
            let status = test.get(name).await?.status.unwrap_or_default();
            if !status.waiting.contains(word) {
                bail!("the status says \"{}\"", status.waiting);
            }
            Ok(Some(status.waiting))
        })
        .await?;
        ensure!(test.pods_of(name).await?.is_empty(), "a pod was made");
    }
    // then the other cluster still has the same members
    let after = theirs.list("theirs").await?;
    ensure!(
        after.len() == before.len() && after.iter().zip(&before).all(|(now, was)| now.id == was.id),
        "its member list changed: {after:?}"
    );
    Ok(said)
}
