//! Scenarios as a user would write them, and the decisions of the scheduler.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Scene, place};

fn decode<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn node(name: &str, zone: &str, extra: Value) -> Value {
    let mut node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "zone": zone}},
        "status": {"allocatable": {"cpu": "2", "memory": "4Gi", "pods": "10"}},
    });
    json_patch::merge(&mut node, &extra);
    node
}

fn three_nodes() -> Scene {
    let nodes = [("a", "east"), ("b", "east"), ("c", "west")];
    Scene {
        nodes: nodes
            .iter()
            .map(|(name, zone)| Arc::new(decode(node(name, zone, json!({})))))
            .collect(),
        ..Scene::default()
    }
}

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "db"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    json_patch::merge(&mut pod["spec"], &spec);
    pod
}

fn put(scene: &mut Scene, pod: Value, node: &str) {
    scene.placed.push((Arc::new(decode(pod)), node.to_owned()));
}

fn anti_affinity(key: &str) -> Value {
    json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "db"}}}]}}})
}

#[test]
fn an_empty_cluster_says_so() {
    let answer = place(&decode(pod("p", json!({}))), &Scene::default());
    assert_eq!(answer.unwrap_err(), "no nodes available to schedule pods");
}

#[test]
fn a_node_selector_that_matches_nothing_is_explained_by_the_schedulers_message() {
    let answer = place(
        &decode(pod("p", json!({"nodeSelector": {"disk": "ssd"}}))),
        &three_nodes(),
    );
    assert_eq!(
        answer.unwrap_err(),
        "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. \
         preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
    );
}

#[test]
fn reasons_are_counted_by_node_and_sorted() {
    let mut scene = three_nodes();
    scene.nodes[0] = Arc::new(decode(node("a", "east", json!({"spec": {"unschedulable": true}}))));
    scene.nodes[1] = Arc::new(decode(node(
        "b",
        "east",
        json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}}),
    )));
    let spec = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "3", "memory": "1Gi"}}}]});
    assert_eq!(
        place(&decode(pod("p", spec)), &scene).unwrap_err(),
        "0/3 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {k: v}, 1 node(s) were unschedulable. \
         preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod, \
         2 Preemption is not helpful for scheduling."
    );
}

#[test]
fn requests_of_placed_pods_take_room() {
    let mut scene = three_nodes();
    let big = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "1500m"}}}]});
    for name in ["a", "b"] {
        put(&mut scene, pod(name, big.clone()), name);
    }
    assert_eq!(place(&decode(pod("p", big.clone())), &scene).unwrap(), "c");
    put(&mut scene, pod("c", big.clone()), "c");
    assert!(
        place(&decode(pod("p", big)), &scene)
            .unwrap_err()
            .contains("3 Insufficient cpu")
    );
}

#[test]
fn anti_affinity_puts_each_on_its_own_node_and_then_waits() {
    let mut scene = three_nodes();
    let spec = anti_affinity("kubernetes.io/hostname");
    for expected in ["a", "b", "c"] {
        let node = place(&decode(pod("p", spec.clone())), &scene).unwrap();
        assert_eq!(node, expected);
        put(&mut scene, pod(expected, spec.clone()), &node);
    }
    assert_eq!(
        place(&decode(pod("p", spec)), &scene).unwrap_err(),
        "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules. \
         preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."
    );
}

#[test]
fn anti_affinity_of_placed_pods_holds_against_newcomers() {
    let mut scene = three_nodes();
    put(&mut scene, pod("first", anti_affinity("zone")), "a");
    assert_eq!(place(&decode(pod("p", json!({}))), &scene).unwrap(), "c");
}

#[test]
fn required_affinity_follows_and_the_first_of_its_kind_goes_anywhere() {
    let mut scene = three_nodes();
    let together = json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "db"}}}]}}});
    assert_eq!(place(&decode(pod("p", together.clone())), &scene).unwrap(), "a");
    put(&mut scene, pod("first", json!({})), "c");
    assert_eq!(place(&decode(pod("p", together)), &scene).unwrap(), "c");
}

#[test]
fn preferred_affinity_and_anti_affinity_decide_between_fitting_nodes() {
    let mut scene = three_nodes();
    put(&mut scene, pod("first", json!({})), "a");
    let apart = json!({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 100, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "db"}}}}]}}});
    assert_eq!(place(&decode(pod("p", apart)), &scene).unwrap(), "c");
    let wanted = json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 50, "preference": {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]}}]}}});
    assert_eq!(place(&decode(pod("p", wanted)), &scene).unwrap(), "b");
}

#[test]
fn hard_spread_holds_the_skew_and_names_missing_labels() {
    let mut scene = three_nodes();
    let spread = json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "db"}}}]});
    put(&mut scene, pod("first", json!({})), "a");
    assert_eq!(place(&decode(pod("p", spread.clone())), &scene).unwrap(), "c");
    let nowhere = json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "rack",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "db"}}}]});
    assert!(
        place(&decode(pod("p", nowhere)), &scene)
            .unwrap_err()
            .contains("3 node(s) didn't match pod topology spread constraints (missing required label)")
    );
}

#[test]
fn soft_spread_prefers_the_emptier_domain_but_never_waits() {
    let mut scene = three_nodes();
    let spread = json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone",
        "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": "db"}}}]});
    put(&mut scene, pod("first", json!({})), "c");
    assert_eq!(place(&decode(pod("p", spread.clone())), &scene).unwrap(), "a");
    let only_c =
        json!({"nodeSelector": {"zone": "west"}, "topologySpreadConstraints": spread["topologySpreadConstraints"]});
    assert_eq!(place(&decode(pod("p", only_c)), &scene).unwrap(), "c");
}

#[test]
fn tolerations_open_tainted_nodes() {
    let mut scene = three_nodes();
    for index in 0..3 {
        let mut tainted = (*scene.nodes[index]).clone();
        tainted.spec = Some(decode(
            json!({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}),
        ));
        scene.nodes[index] = Arc::new(tainted);
    }
    assert!(place(&decode(pod("p", json!({}))), &scene).is_err());
    for toleration in [
        json!({"operator": "Exists"}),
        json!({"key": "k", "operator": "Exists"}),
        json!({"key": "k", "value": "v", "effect": "NoSchedule"}),
    ] {
        assert!(place(&decode(pod("p", json!({"tolerations": [toleration]}))), &scene).is_ok());
    }
    assert!(
        place(
            &decode(pod("p", json!({"tolerations": [{"key": "k", "value": "other"}]}))),
            &scene
        )
        .is_err()
    );
}

#[test]
fn a_pod_follows_its_volume_and_waits_for_an_unbound_claim() {
    let mut scene = three_nodes();
    let spec = json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-0"}}]});
    let key = ("default".to_owned(), "data-0".to_owned());
    assert!(
        place(&decode(pod("p", spec.clone())), &scene)
            .unwrap_err()
            .starts_with("0/3 nodes are available: persistentvolumeclaim \"data-0\" not found.")
    );
    scene.claims.insert(
        key.clone(),
        Arc::new(decode(json!({"metadata": {"name": "data-0"}, "spec": {}}))),
    );
    assert!(
        place(&decode(pod("p", spec.clone())), &scene)
            .unwrap_err()
            .starts_with("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.")
    );
    scene.claims.insert(
        key,
        Arc::new(decode(
            json!({"metadata": {"name": "data-0"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}),
        )),
    );
    let affinity = json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]}]}});
    scene.volumes.insert(
        "pv".to_owned(),
        Arc::new(decode(
            json!({"metadata": {"name": "pv"}, "spec": {"nodeAffinity": affinity}}),
        )),
    );
    assert_eq!(place(&decode(pod("p", spec)), &scene).unwrap(), "b");
}
