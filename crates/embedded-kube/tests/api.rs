//! The API server as clients see it.

use embedded_kube::Cluster;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;

fn config(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": "v"}})).unwrap()
}

fn pod(name: &str) -> Pod {
    serde_json::from_value(
        json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "busybox"}]}}),
    )
    .unwrap()
}

#[tokio::test]
async fn objects_are_created_read_changed_listed_and_deleted_over_tls_and_in_memory() {
    let cluster = Cluster::start().await.unwrap();
    for client in [cluster.client(), cluster.https_client().await.unwrap()] {
        let api: Api<ConfigMap> = Api::default_namespaced(client);
        let made = api.create(&PostParams::default(), &config("a")).await.unwrap();
        assert!(made.metadata.uid.is_some() && made.metadata.creation_timestamp.is_some());
        let again = api.create(&PostParams::default(), &config("a")).await.unwrap_err();
        assert!(
            matches!(&again, kube::Error::Api(s) if s.reason == "AlreadyExists" && s.code == 409),
            "{again}"
        );
        let patch = Patch::Merge(json!({"data": {"k": "w"}}));
        let changed = api.patch("a", &PatchParams::default(), &patch).await.unwrap();
        assert_eq!(changed.data.as_ref().unwrap()["k"], "w");
        let stale = api.replace("a", &PostParams::default(), &made).await.unwrap_err();
        assert!(
            matches!(&stale, kube::Error::Api(s) if s.reason == "Conflict"),
            "{stale}"
        );
        let list = api
            .list(&ListParams::default().fields("metadata.name=a"))
            .await
            .unwrap();
        assert_eq!(list.items.len(), 1);
        api.delete("a", &DeleteParams::default()).await.unwrap();
        assert!(api.get_opt("a").await.unwrap().is_none());
    }
    cluster.stop().await;
}

#[tokio::test]
async fn a_watch_sees_every_change_in_order() {
    let cluster = Cluster::start().await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(cluster.https_client().await.unwrap(), "default");
    let start = api
        .list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    let mut watch = api.watch(&WatchParams::default(), &start).await.unwrap().boxed();
    api.create(&PostParams::default(), &config("a")).await.unwrap();
    api.patch("a", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": "w"}})))
        .await
        .unwrap();
    api.delete("a", &DeleteParams::default()).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        match watch.try_next().await.unwrap().unwrap() {
            WatchEvent::Added(o) => seen.push(format!("added {}", o.metadata.name.unwrap())),
            WatchEvent::Modified(o) => seen.push(format!("modified {}", o.data.unwrap()["k"])),
            WatchEvent::Deleted(o) => seen.push(format!("deleted {}", o.metadata.name.unwrap())),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, ["added a", "modified w", "deleted a"]);
}

#[tokio::test]
async fn finalizers_and_grace_periods_hold_an_object() {
    let cluster = Cluster::start().await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(cluster.client());
    // An unscheduled pod is deleted immediately.
    pods.create(&PostParams::default(), &pod("unscheduled")).await.unwrap();
    pods.delete("unscheduled", &DeleteParams::default()).await.unwrap();
    assert!(pods.get_opt("unscheduled").await.unwrap().is_none());
    // A running one waits for its node.
    let mut bound = pod("bound");
    bound.spec.as_mut().unwrap().node_name = Some("n".into());
    bound.metadata.finalizers = Some(vec!["example.com/x".into()]);
    pods.create(&PostParams::default(), &bound).await.unwrap();
    pods.delete("bound", &DeleteParams::default()).await.unwrap();
    let waiting = pods.get("bound").await.unwrap();
    assert_eq!(waiting.metadata.deletion_grace_period_seconds, Some(30));
    // The node has finished, but the finalizer remains.
    pods.delete("bound", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    assert!(pods.get_opt("bound").await.unwrap().is_some());
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    pods.patch("bound", &PatchParams::default(), &free).await.unwrap();
    assert!(pods.get_opt("bound").await.unwrap().is_none());
}

#[tokio::test]
async fn state_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::builder().folder(folder.path()).start().await.unwrap();
    let (port, before) = (cluster.address().port(), cluster.kubeconfig_yaml());
    let client = cluster.client();
    let namespace = serde_json::from_value(json!({"metadata": {"name": "mine"}})).unwrap();
    Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let made = Api::<ConfigMap>::namespaced(client, "mine")
        .create(&PostParams::default(), &config("a"))
        .await
        .unwrap();
    cluster.stop().await;
    let cluster = Cluster::builder().folder(folder.path()).start().await.unwrap();
    assert_eq!((cluster.address().port(), cluster.kubeconfig_yaml()), (port, before));
    let found = Api::<ConfigMap>::namespaced(cluster.client(), "mine")
        .get("a")
        .await
        .unwrap();
    assert_eq!(found, made);
}
