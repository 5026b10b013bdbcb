//! Labels and annotations of running pods, on an embedded Kubernetes: what the user removes from the spec is removed from the pod,
//! whichever release set it, and nothing else is.

use embedded_kube::Cluster;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use stateward_etcd::api::EtcdCluster;
use stateward_etcd::cluster::manifests;
use stateward_etcd::cluster::{Intent, Launch, MemberName, TlsStage, Uid};
use stateward_runtime::{Index, Leadership, Runtime, cache, objects};
use tokio_util::sync::CancellationToken;

/// Who creates and seals pods, in this release and in the previous one.
const OPERATOR: &str = "stateward";

fn cluster(pod: Value) -> EtcdCluster {
    let text = json!({
        "metadata": {"name": "c", "namespace": "default", "uid": "u"},
        "spec": {"size": 1, "pod": pod},
    });
    serde_json::from_value(text).expect("an EtcdCluster")
}

/// A runtime and the cache of pods.
fn runtime(client: Client) -> (Runtime, Index<Pod>) {
    let runtime = Runtime::new(client, None, Leadership::alone(), CancellationToken::new());
    (runtime, Index::new(cache::own_key))
}

async fn created(api: &Api<Pod>, cluster: &EtcdCluster) -> Pod {
    let intent = Intent::of(cluster, false).expect("a good spec");
    let launch = Launch::Seed { token: "token".into() };
    let (member, version) = (MemberName::from("c-a"), cluster.version().expect("a version"));
    let pod = manifests::pod(&intent, &member, &launch, &version, TlsStage::Off, None);
    let by_operator = PostParams {
        field_manager: Some(OPERATOR.into()),
        ..PostParams::default()
    };
    api.create(&by_operator, &pod).await.expect("created")
}

async fn relabel((runtime, index): &(Runtime, Index<Pod>), cluster: &EtcdCluster, pod: &Pod) {
    let intent = Intent::of(cluster, false).expect("a good spec");
    let uid = Uid(pod.uid().expect("a UID"));
    let metadata = manifests::pod_metadata(&intent, &MemberName::from("c-a"), &uid);
    let applied = objects::apply_metadata(runtime, &metadata, index, manifests::stays_on_pod).await;
    applied.expect("applied");
}

async fn merge(api: &Api<Pod>, manager: &str, patch: Value) {
    let params = PatchParams {
        field_manager: Some(manager.into()),
        ..PatchParams::default()
    };
    api.patch("c-a", &params, &Patch::Merge(&patch)).await.expect("patched");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_spec_no_longer_says_goes_and_nothing_else() {
    let kube = Cluster::start().await.expect("an embedded Kubernetes");
    let api: Api<Pod> = Api::namespaced(kube.client(), "default");
    let runtime = runtime(kube.client());
    // given a pod that was created with labels and annotations of the user, sealed since then, and labelled by somebody else
    let spec = cluster(json!({"labels": {"team": "a", "old": "yes"}, "annotations": {"note": "hello"}}));
    let pod = created(&api, &spec).await;
    let sealed = json!({"metadata": {"annotations": {"stateward.dev/launch": "Sealed", "stateward.dev/initial-cluster": "c-a=x"}}});
    merge(&api, OPERATOR, sealed).await;
    merge(&api, "kubectl", json!({"metadata": {"labels": {"theirs": "yes"}}})).await;

    // when the spec has others
    let spec = cluster(json!({"labels": {"team": "b", "new": "yes"}, "annotations": {"other": "hello"}}));
    relabel(&runtime, &spec, &pod).await;

    // then the pod has those, and no more those that it was created with
    let now = api.get("c-a").await.expect("the pod");
    let label = |pod: &Pod, key: &str| pod.labels().get(key).cloned().unwrap_or_default();
    assert_eq!((label(&now, "team"), label(&now, "new")), ("b".into(), "yes".into()));
    assert!(!now.labels().contains_key("old") && !now.annotations().contains_key("note"));
    assert!(now.annotations().contains_key("other"));
    // and how it starts, what it is and what somebody else set are as before
    let before = |key: &str| pod.annotations().get(key).cloned();
    for key in ["etcd.version", "stateward.dev/pod-hash", "stateward.dev/peer-tls"] {
        assert_eq!(now.annotations().get(key).cloned(), before(key), "{key}");
    }
    assert_eq!(now.annotations()["stateward.dev/launch"], "Sealed");
    assert_eq!(now.annotations()["stateward.dev/initial-cluster"], "c-a=x");
    assert_eq!(
        (label(&now, "theirs"), label(&now, "etcd_cluster")),
        ("yes".into(), "c".into())
    );

    // and what this apply set goes with the next one
    let spec = cluster(json!({"labels": {"team": "b"}}));
    relabel(&runtime, &spec, &pod).await;
    let now = api.get("c-a").await.expect("the pod");
    assert!(!now.labels().contains_key("new") && !now.annotations().contains_key("other"));
    assert_eq!(label(&now, "team"), "b");
    assert_eq!(now.annotations()["stateward.dev/launch"], "Sealed");
    kube.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_previous_release_set_goes_too() {
    let kube = Cluster::start().await.expect("an embedded Kubernetes");
    let api: Api<Pod> = Api::namespaced(kube.client(), "default");
    let runtime = runtime(kube.client());
    let spec = cluster(json!({"labels": {"team": "a"}}));
    let pod = created(&api, &spec).await;
    // given a pod that the previous release has relabelled with a merge patch
    let by_previous = json!({"metadata": {
        "labels": {"team": "a", "later": "yes"},
        "annotations": {"stateward.dev/metadata": "older", "stateward.dev/user-keys": "l:team,l:later"},
    }});
    merge(&api, OPERATOR, by_previous).await;
    // when this release takes it over with another spec
    relabel(&runtime, &cluster(json!({"labels": {"mine": "yes"}})), &pod).await;
    // then what the previous release set is gone, and what it needs to do the same is there
    let now = api.get("c-a").await.expect("the pod");
    assert!(!now.labels().contains_key("team") && !now.labels().contains_key("later"));
    assert_eq!(now.annotations()["stateward.dev/user-keys"], "l:mine");
    // and when the previous release removes a label that this one set, it stays removed
    merge(&api, OPERATOR, json!({"metadata": {"labels": {"mine": null}}})).await;
    relabel(&runtime, &cluster(json!({})), &pod).await;
    let now = api.get("c-a").await.expect("the pod");
    assert!(!now.labels().contains_key("mine"));
    kube.stop().await;
}
