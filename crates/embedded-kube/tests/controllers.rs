//! The controllers through the API, with kubelets that run nothing.

mod support;

use std::time::Duration;

use embedded_kube::Cluster;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Service,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use support::kubelet::Kubelet;
use support::{eventually, is, object};

const MERGE: fn(Value) -> Patch<Value> = Patch::Merge;

fn ours<K>(client: &Client) -> Api<K>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    K::DynamicType: Default,
{
    Api::namespaced(client.clone(), "default")
}

fn pod(name: &str, spec: Value) -> Pod {
    let mut pod = json!({
        "metadata": {"name": name, "labels": {"app": "db"}},
        "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"name": "client", "containerPort": 2379}]}]},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        pod["spec"][key] = value.clone();
    }
    object(pod)
}

fn set(replicas: i32) -> StatefulSet {
    object(json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas, "serviceName": "web", "selector": {"matchLabels": {"app": "db"}},
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}},
            "volumeClaimTemplates": [{"metadata": {"name": "www"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}],
        },
    }))
}

fn images(pods: &[Pod]) -> Vec<String> {
    pods.iter()
        .map(|pod| pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap())
        .collect()
}

#[tokio::test]
async fn a_stateful_set_lives_through_growth_update_canary_failure_and_removal() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.client();
    let _kubelet = Kubelet::start(client.clone(), "a").await;
    let (sets, pods): (Api<StatefulSet>, Api<Pod>) = (ours(&client), ours(&client));
    let claims: Api<PersistentVolumeClaim> = ours(&client);
    let params = PatchParams::default();
    sets.create(&PostParams::default(), &set(3)).await.unwrap();
    let ready = async |wanted: i32| {
        eventually("ready replicas", || async {
            let status = sets.get("web").await.unwrap().status.unwrap_or_default();
            is((status.ready_replicas.unwrap_or(0), status.replicas), (wanted, wanted))
        })
        .await;
    };
    ready(3).await;
    let all = pods.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(
        all.iter().map(ResourceExt::name_any).collect::<Vec<_>>(),
        ["web-0", "web-1", "web-2"]
    );
    let first = claims.get("www-web-0").await.unwrap().uid();

    // Canary: only the highest.
    let update = |image: &str, partition: i32| {
        MERGE(json!({"spec": {
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}},
            "template": {"spec": {"containers": [{"name": "c", "image": image}]}}}}))
    };
    sets.patch("web", &params, &update("i:2", 2)).await.unwrap();
    let images_are = async |wanted: [&str; 3]| {
        eventually("images", || async {
            let all = pods.list(&ListParams::default()).await.unwrap().items;
            is(images(&all), wanted.map(str::to_owned).to_vec())
        })
        .await;
    };
    images_are(["i:1", "i:1", "i:2"]).await;
    ready(3).await;
    sets.patch("web", &params, &update("i:2", 0)).await.unwrap();
    images_are(["i:2", "i:2", "i:2"]).await;
    eventually("the update is complete", || async {
        let status = sets.get("web").await.unwrap().status.unwrap_or_default();
        is(
            (
                status.current_revision == status.update_revision,
                status.updated_replicas,
            ),
            (true, Some(3)),
        )
    })
    .await;

    // An update that breaks stops at the first pod.
    sets.patch("web", &params, &update("broken", 0)).await.unwrap();
    images_are(["i:2", "i:2", "broken"]).await;
    eventually("the controller has counted it and goes no further", || async {
        let set = sets.get("web").await.unwrap();
        let status = set.status.unwrap_or_default();
        let seen = status.observed_generation == set.metadata.generation;
        is((seen, status.updated_replicas), (true, Some(1)))
    })
    .await;
    images_are(["i:2", "i:2", "broken"]).await;
    // After the rollback, the broken pod has to be deleted by hand (Kubernetes' documented rule for OrderedReady).
    sets.patch("web", &params, &update("i:2", 0)).await.unwrap();
    pods.delete("web-2", &DeleteParams::default()).await.unwrap();
    images_are(["i:2", "i:2", "i:2"]).await;
    ready(3).await;

    // Shrinking keeps the claims, and the same claim is used again.
    sets.patch("web", &params, &MERGE(json!({"spec": {"replicas": 0}})))
        .await
        .unwrap();
    ready(0).await;
    assert_eq!(claims.list(&ListParams::default()).await.unwrap().items.len(), 3);
    sets.patch("web", &params, &MERGE(json!({"spec": {"replicas": 1}})))
        .await
        .unwrap();
    ready(1).await;
    assert_eq!(claims.get("www-web-0").await.unwrap().uid(), first);

    // Removing the set removes its pods and history, not its claims.
    sets.delete("web", &DeleteParams::background()).await.unwrap();
    eventually("no pods", || async {
        is(pods.list(&ListParams::default()).await.unwrap().items.len(), 0)
    })
    .await;
    assert_eq!(claims.list(&ListParams::default()).await.unwrap().items.len(), 3);
    cluster.stop().await;
}

#[tokio::test]
async fn pods_are_placed_apart_and_the_one_too_many_has_a_reason() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.client();
    let _kubelets = [
        Kubelet::start(client.clone(), "a").await,
        Kubelet::start(client.clone(), "b").await,
    ];
    let apart = json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "db"}}}]}}});
    let pods: Api<Pod> = ours(&client);
    for name in ["p0", "p1", "p2"] {
        pods.create(&PostParams::default(), &pod(name, apart.clone()))
            .await
            .unwrap();
    }
    let message = "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules. preemption: 0/2 nodes are \
                   available: 2 No preemption victims found for incoming pod.";
    eventually("two nodes and one reason", || async {
        let all = pods.list(&ListParams::default()).await.unwrap().items;
        let mut nodes: Vec<_> = all
            .iter()
            .filter_map(|pod| pod.spec.as_ref()?.node_name.clone())
            .collect();
        nodes.sort();
        let reasons: Vec<_> = (all.iter())
            .flat_map(|pod| pod.status.iter().flat_map(|status| status.conditions.iter().flatten()))
            .filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
            .filter_map(|condition| condition.message.clone())
            .collect();
        is(
            (nodes, reasons),
            (vec!["a".to_owned(), "b".to_owned()], vec![message.to_owned()]),
        )
    })
    .await;
    let events: Api<Event> = ours(&client);
    eventually("an event", || async {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let failed = all
            .iter()
            .filter(|event| event.reason.as_deref() == Some("FailedScheduling"))
            .count();
        is(failed, 1)
    })
    .await;
    // Resources become free: the waiting pod gets them.
    let placed = pods.list(&ListParams::default()).await.unwrap().items;
    let placed = placed
        .iter()
        .find(|pod| pod.spec.as_ref().unwrap().node_name.is_some())
        .unwrap()
        .name_any();
    pods.delete(&placed, &DeleteParams::default()).await.unwrap();
    eventually("both run", || async {
        let all = pods.list(&ListParams::default()).await.unwrap().items;
        is(
            all.iter()
                .filter(|pod| pod.spec.as_ref().unwrap().node_name.is_some())
                .count(),
            2,
        )
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn services_get_endpoints_of_both_kinds() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.client();
    let _kubelet = Kubelet::start(client.clone(), "a").await;
    let services: Api<Service> = ours(&client);
    let service = object(json!({"metadata": {"name": "db"}, "spec": {
        "clusterIP": "None", "selector": {"app": "db"}, "ports": [{"name": "client", "port": 80, "targetPort": "client"}]}}));
    services.create(&PostParams::default(), &service).await.unwrap();
    let named = json!({"hostname": "db-0", "subdomain": "db"});
    let pods: Api<Pod> = ours(&client);
    pods.create(&PostParams::default(), &pod("db-0", named)).await.unwrap();
    let slices: Api<EndpointSlice> = ours(&client);
    let of_db = ListParams::default().labels("kubernetes.io/service-name=db");
    let seen = async |wanted: Vec<(String, bool, i32)>| {
        eventually("endpoints", || async {
            let found: Vec<_> = (slices.list(&of_db).await.unwrap().items.iter())
                .flat_map(|slice| {
                    let port = slice
                        .ports
                        .iter()
                        .flatten()
                        .next()
                        .and_then(|port| port.port)
                        .unwrap_or(0);
                    slice
                        .endpoints
                        .iter()
                        .flatten()
                        .map(move |endpoint| (endpoint.clone(), port))
                })
                .map(|(endpoint, port)| {
                    let ready = endpoint
                        .conditions
                        .and_then(|conditions| conditions.ready)
                        .unwrap_or(false);
                    (endpoint.hostname.unwrap_or_default(), ready, port)
                })
                .collect();
            is(found, wanted.clone())
        })
        .await;
    };
    seen(vec![("db-0".to_owned(), true, 2379)]).await;
    let old: Api<Endpoints> = ours(&client);
    eventually("old endpoints", || async {
        let subsets = old
            .get("db")
            .await
            .map_err(|error| error.to_string())?
            .subsets
            .unwrap_or_default();
        is(
            subsets
                .first()
                .and_then(|subset| subset.addresses.as_ref())
                .map(Vec::len),
            Some(1),
        )
    })
    .await;
    pods.delete("db-0", &DeleteParams::default()).await.unwrap();
    seen(vec![]).await;
    services.delete("db", &DeleteParams::default()).await.unwrap();
    eventually("slices go with their service", || async {
        is(slices.list(&of_db).await.unwrap().items.len(), 0)
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn claims_are_bound_grown_protected_and_their_folders_removed() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.client();
    let _kubelet = Kubelet::start(client.clone(), "a").await;
    let claims: Api<PersistentVolumeClaim> = ours(&client);
    let claim = |name: &str, class: Option<&str>| -> PersistentVolumeClaim {
        object(json!({"metadata": {"name": name}, "spec": {"storageClassName": class,
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}))
    };
    claims
        .create(&PostParams::default(), &claim("data", None))
        .await
        .unwrap();
    let bound = async |size: &str| {
        eventually("bound", || async {
            let status = claims.get("data").await.unwrap().status.unwrap_or_default();
            let capacity = status
                .capacity
                .and_then(|capacity| capacity.get("storage").map(|size| size.0.clone()));
            is(
                (status.phase, capacity),
                (Some("Bound".to_owned()), Some(size.to_owned())),
            )
        })
        .await;
    };
    bound("1Gi").await;
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let name = claims.get("data").await.unwrap().spec.unwrap().volume_name.unwrap();
    let volume = volumes.get(&name).await.unwrap().spec.unwrap();
    let folder = std::path::PathBuf::from(volume.host_path.unwrap().path);
    assert!(folder.is_dir() && folder.starts_with(cluster.folder()));
    let grow = MERGE(json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}));
    claims.patch("data", &PatchParams::default(), &grow).await.unwrap();
    bound("2Gi").await;

    // A deleted claim in use waits for its pod.
    let pods: Api<Pod> = ours(&client);
    let uses = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]});
    pods.create(&PostParams::default(), &pod("user", uses)).await.unwrap();
    eventually("placed", || async {
        is(pods.get("user").await.unwrap().spec.unwrap().node_name.is_some(), true)
    })
    .await;
    claims
        .create(&PostParams::default(), &claim("free", None))
        .await
        .unwrap();
    claims.delete("data", &DeleteParams::default()).await.unwrap();
    claims.delete("free", &DeleteParams::default()).await.unwrap();
    eventually("one that nobody uses is gone", || async {
        is(claims.get_opt("free").await.unwrap().is_some(), false)
    })
    .await;
    assert!(claims.get_opt("data").await.unwrap().is_some(), "still in use");
    pods.delete("user", &DeleteParams::default()).await.unwrap();
    eventually("claim, volume and folder gone", || async {
        let left = (
            claims.get_opt("data").await.unwrap().is_some(),
            volumes.get_opt(&name).await.unwrap().is_some(),
        );
        is((left, folder.exists()), ((false, false), false))
    })
    .await;

    // A claim with an unknown class waits, with an event.
    claims
        .create(&PostParams::default(), &claim("odd", Some("nowhere")))
        .await
        .unwrap();
    let events: Api<Event> = ours(&client);
    eventually("an event", || async {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let message = all
            .iter()
            .find(|event| event.reason.as_deref() == Some("ProvisioningFailed"));
        let message = message.and_then(|event| event.message.clone());
        is(
            message,
            Some("storageclass.storage.k8s.io \"nowhere\" not found".to_owned()),
        )
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_node_without_heartbeats_is_tainted_its_pods_move_and_it_recovers() {
    let cluster = Cluster::builder()
        .node_grace(Duration::from_secs(2))
        .start()
        .await
        .unwrap();
    let client = cluster.client();
    let kubelet = Kubelet::start(client.clone(), "a").await;
    let pods: Api<Pod> = ours(&client);
    let brief = json!({"tolerations": [
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}]});
    pods.create(&PostParams::default(), &pod("p", brief)).await.unwrap();
    let ready = |pod: &Pod| {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions
            .into_iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    eventually("ready", || async { is(ready(&pods.get("p").await.unwrap()), true) }).await;
    kubelet.set_alive(false);
    let nodes: Api<Node> = Api::all(client.clone());
    let taints = async || {
        let spec = nodes.get("a").await.unwrap().spec.unwrap_or_default();
        spec.taints
            .unwrap_or_default()
            .into_iter()
            .map(|taint| format!("{}:{}", taint.key, taint.effect))
            .collect::<Vec<_>>()
    };
    eventually("unreachable", || async {
        let found = taints().await;
        is(
            found.contains(&"node.kubernetes.io/unreachable:NoExecute".to_owned()),
            true,
        )
    })
    .await;
    eventually("the pod is being removed", || async {
        is(pods.get("p").await.unwrap().metadata.deletion_timestamp.is_some(), true)
    })
    .await;
    kubelet.set_alive(true);
    eventually("untainted", || async { is(taints().await, Vec::<String>::new()) }).await;
    // The pods of a removed node are removed too.
    pods.create(&PostParams::default(), &pod("q", json!({}))).await.unwrap();
    eventually("placed", || async {
        is(pods.get("q").await.unwrap().spec.unwrap().node_name.is_some(), true)
    })
    .await;
    drop(kubelet);
    nodes.delete("a", &DeleteParams::default()).await.unwrap();
    eventually("no pods", || async {
        is(pods.list(&ListParams::default()).await.unwrap().items.len(), 0)
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn owners_take_their_dependents_along_and_namespaces_their_content() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.client();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = object(json!({"metadata": {"name": "town"}}));
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "town");
    let owned = |name: &str, owner: Option<&ConfigMap>, block: bool| -> ConfigMap {
        let owners: Vec<Value> = (owner.into_iter())
            .map(|owner| {
                json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner.name_any(), "uid": owner.uid().unwrap(),
                       "blockOwnerDeletion": block})
            })
            .collect();
        object(json!({"metadata": {"name": name, "ownerReferences": owners}}))
    };
    let params = PostParams::default();
    let names = async || {
        let all = maps.list(&ListParams::default()).await.unwrap().items;
        all.iter()
            .map(ResourceExt::name_any)
            .filter(|name| name != "kube-root-ca.crt")
            .collect::<Vec<_>>()
    };
    for (policy, left) in [
        (DeleteParams::background(), vec![]),
        (DeleteParams::foreground(), vec![]),
        (DeleteParams::orphan(), vec!["child".to_owned()]),
    ] {
        let parent = maps.create(&params, &owned("parent", None, false)).await.unwrap();
        let child = maps
            .create(&params, &owned("child", Some(&parent), true))
            .await
            .unwrap();
        if left.is_empty() {
            maps.create(&params, &owned("grandchild", Some(&child), true))
                .await
                .unwrap();
        }
        maps.delete("parent", &policy).await.unwrap();
        eventually("what is left", || async { is(names().await, left.clone()) }).await;
    }
    assert!(maps.get("child").await.unwrap().owner_references().is_empty());
    // An owner that never existed.
    let mut ghost = owned("ghost", None, false);
    ghost.metadata.owner_references = Some(vec![object(
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "none"}),
    )]);
    maps.create(&params, &ghost).await.unwrap();
    eventually("the ghost goes", || async {
        is(names().await, vec!["child".to_owned()])
    })
    .await;

    namespaces.delete("town", &DeleteParams::default()).await.unwrap();
    eventually("the namespace goes", || async {
        is(namespaces.get_opt("town").await.unwrap().is_some(), false)
    })
    .await;
    assert!(maps.list(&ListParams::default()).await.unwrap().items.is_empty());
    cluster.stop().await;
}

#[tokio::test]
async fn a_budget_counts_the_pods_of_a_stateful_set() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.client();
    let _kubelet = Kubelet::start(client.clone(), "a").await;
    let budgets: Api<PodDisruptionBudget> = ours(&client);
    let budget = object(json!({"metadata": {"name": "db"}, "spec": {
        "maxUnavailable": 1, "selector": {"matchLabels": {"app": "db"}}}}));
    budgets.create(&PostParams::default(), &budget).await.unwrap();
    ours::<StatefulSet>(&client)
        .create(&PostParams::default(), &set(2))
        .await
        .unwrap();
    eventually("one may go", || async {
        let status = budgets.get("db").await.unwrap().status.unwrap_or_default();
        is(
            (
                status.expected_pods,
                status.current_healthy,
                status.desired_healthy,
                status.disruptions_allowed,
            ),
            (Some(2), Some(2), Some(1), Some(1)),
        )
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_cluster_that_stands_still_is_written_nothing() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.client();
    let _kubelet = Kubelet::start(client.clone(), "a").await;
    let service =
        object(json!({"metadata": {"name": "db"}, "spec": {"selector": {"app": "db"}, "ports": [{"port": 80}]}}));
    ours::<Service>(&client)
        .create(&PostParams::default(), &service)
        .await
        .unwrap();
    let budget = object(json!({"metadata": {"name": "db"}, "spec": {
        "maxUnavailable": 1, "selector": {"matchLabels": {"app": "db"}}}}));
    ours::<PodDisruptionBudget>(&client)
        .create(&PostParams::default(), &budget)
        .await
        .unwrap();
    let sets: Api<StatefulSet> = ours(&client);
    sets.create(&PostParams::default(), &set(2)).await.unwrap();
    eventually("ready", || async {
        is(
            sets.get("web")
                .await
                .unwrap()
                .status
                .and_then(|status| status.ready_replicas),
            Some(2),
        )
    })
    .await;
    // Everything except the kubelet's own Lease.
    let versions = async || {
        [
            versions_of(sets.clone()).await,
            versions_of(ours::<Pod>(&client)).await,
            versions_of(ours::<Event>(&client)).await,
            versions_of(ours::<PersistentVolumeClaim>(&client)).await,
            versions_of(ours::<EndpointSlice>(&client)).await,
            versions_of(ours::<PodDisruptionBudget>(&client)).await,
            versions_of(Api::<Node>::all(client.clone())).await,
        ]
    };
    eventually("it stands still", || async {
        let before = versions().await;
        // that nothing happens can only be observed over time
        tokio::time::sleep(Duration::from_secs(1)).await;
        is(versions().await == before, true)
    })
    .await;
    cluster.stop().await;
}

async fn versions_of<K>(api: Api<K>) -> Vec<Option<String>>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let all = api.list(&ListParams::default()).await.unwrap().items;
    all.iter().map(kube::ResourceExt::resource_version).collect()
}
