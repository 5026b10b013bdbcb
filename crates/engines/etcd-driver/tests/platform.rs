//! A Kubernetes that gives each namespace its own user IDs, as OpenShift does.

mod support;

use embedded_kube::Cluster;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use support::{Operator, api, create, until};

/// The user, group and group of files that the first pod asks for.
async fn ids(client: &Client) -> [Option<i64>; 3] {
    let operator = Operator::start(client.clone());
    create(client, "c", json!({"size": 1})).await;
    let pod = until("the first pod", async || {
        let ours = ListParams::default().labels("app=etcd,etcd_cluster");
        api::<Pod>(client).list(&ours).await.expect("pods").items.pop()
    })
    .await;
    operator.stop().await;
    let context = pod.spec.and_then(|spec| spec.security_context).expect("a context");
    assert_eq!(context.run_as_non_root, Some(true));
    [context.run_as_user, context.run_as_group, context.fs_group]
}

#[tokio::test(flavor = "multi_thread")]
async fn user_ids_are_fixed_where_kubernetes_does_not_choose_them() {
    let kube = Cluster::start().await.expect("an embedded Kubernetes");
    assert_eq!(ids(&kube.client()).await, [Some(65532); 3]);
    kube.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn user_ids_are_left_out_where_security_openshift_io_is_served() {
    let kube = Cluster::start().await.expect("an embedded Kubernetes");
    let client = kube.client();
    let definition: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": {"name": "securitycontextconstraints.security.openshift.io"},
        "spec": {
            "group": "security.openshift.io", "scope": "Cluster",
            "names": {"kind": "SecurityContextConstraints", "plural": "securitycontextconstraints"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
        },
    }))
    .expect("a definition");
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions
        .create(&PostParams::default(), &definition)
        .await
        .expect("made");
    until("the group to be served", async || {
        let groups = client.list_api_groups().await.ok()?.groups;
        groups
            .iter()
            .any(|group| group.name == "security.openshift.io")
            .then_some(())
    })
    .await;
    assert_eq!(ids(&client).await, [None; 3]);
    kube.stop().await;
}
