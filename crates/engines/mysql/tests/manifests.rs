//! The objects that are made for a MySQLCluster, compared with the files in `manifests/`: a change of any of them is seen in
//! review.
//!
//! `UPDATE_SNAPSHOTS=1 cargo test -p stateward-mysql --test manifests` writes the files anew.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};
use stateward_mysql::world::Object;
use stateward_mysql::{Intent, Memory, MySQLCluster, manifests};

const IMAGE: &str = "stateward.example/stateward:1";

fn intent(spec: Value) -> Intent {
    let metadata = json!({"name": "orders", "namespace": "shop", "uid": "1b4e28ba-2fa1-11d2-883f-0016d3cca427",
        "generation": 1});
    let cluster: MySQLCluster = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a cluster");
    Intent::of(&cluster, &Memory::default()).expect("a good spec")
}

fn usual() -> Intent {
    let spec = r#"
        size: 3
        version: 9.7.4
        storage: {size: 10Gi}
        config:
          all: {max_connections: 500, innodb_buffer_pool_instances: 2, init-connect: "SET @a = '#'"}
          primary: {innodb_io_capacity: 2000}
    "#;
    intent(serde_yaml_ng::from_str(spec).expect("YAML"))
}

fn elaborate() -> Intent {
    let spec = r#"
        size: 2
        repository: registry.example/mysql
        serverIDBase: 7000
        storage: {size: 1Ti, storageClassName: fast, retain: Retain}
        TLS: {disabled: true}
        pod:
          labels: {team: shop, app.kubernetes.io/name: no}
          annotations: {note: hello}
          resources: {requests: {cpu: "2", memory: 4Gi}, limits: {memory: 4Gi}}
          nodeSelector: {disk: ssd}
          tolerations: [{key: databases, operator: Exists}]
          priorityClassName: important
          topologySpreadConstraints:
          - {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}
          imagePullSecrets: [{name: registry}]
          serviceAccountName: mysql
    "#;
    intent(serde_yaml_ng::from_str(spec).expect("YAML"))
}

fn snapshot(name: &str, object: &impl Serialize) {
    let is = serde_yaml_ng::to_string(object).expect("YAML");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/manifests");
    let file: PathBuf = folder.join(format!("{name}.yaml"));
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&file, is).expect("written");
        return;
    }
    let was = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = is.lines().zip(was.lines()).position(|(is, was)| is != was);
    assert!(
        is == was,
        "{name}.yaml differs at line {}; if that is wanted, write it anew with UPDATE_SNAPSHOTS=1. It is now:\n{is}",
        differs.unwrap_or(is.lines().count().min(was.lines().count())) + 1
    );
}

#[test]
fn stateful_sets() {
    snapshot("statefulset", &manifests::stateful_set(&usual(), 3, IMAGE, None));
    snapshot(
        "statefulset-elaborate",
        &manifests::stateful_set(&elaborate(), 2, IMAGE, None),
    );
}

#[test]
fn objects() {
    for (name, object) in [
        ("config", Object::Config),
        ("service", Object::Headless),
        ("service-primary", Object::PrimaryService),
        ("service-read", Object::ReadService),
        ("budget", Object::Budget),
        ("network-policy", Object::NetworkPolicy),
    ] {
        let intent = usual();
        let made = manifests::object(object, &intent).expect("an object");
        snapshot(name, &made);
        // What is compared with the annotation is what the annotation says.
        let annotations = made.metadata().annotations.clone().expect("annotations");
        assert_eq!(
            annotations["stateward.dev/metadata"],
            manifests::object_hash(object, &intent)
        );
    }
}

#[test]
fn what_its_claims_are_made_from_stays() {
    // given a StatefulSet
    let before = manifests::stateful_set(&usual(), 3, IMAGE, None);
    // when another size and class are wanted
    let after = manifests::stateful_set(&elaborate(), 2, IMAGE, Some(&before));
    // then its claims are made as before, and its pods are not
    assert_eq!(after.spec.volume_claim_templates, before.spec.volume_claim_templates);
    assert_ne!(after.spec.template, before.spec.template);
}

#[test]
fn only_what_needs_a_restart_restarts_pods() {
    let hash = |spec: Value| manifests::pod_hash(&intent(spec));
    let was = hash(json!({"size": 3, "version": "9.7.4"}));
    for same in [
        json!({"size": 5, "version": "9.7.4"}),
        json!({"size": 3, "version": "9.7.4", "config": {"all": {"max_connections": 7}}}),
        json!({"size": 3, "version": "9.7.4", "TLS": {"requireClients": true}}),
        json!({"size": 3, "version": "9.7.4", "pod": {"labels": {"a": "b"}}}),
    ] {
        assert_eq!(hash(same.clone()), was, "{same}");
    }
    for other in [
        json!({"size": 3, "version": "9.7.5"}),
        json!({"size": 3, "version": "9.7.4", "config": {"all": {"back-log": 7}}}),
        json!({"size": 3, "version": "9.7.4", "TLS": {"disabled": true}}),
        json!({"size": 3, "version": "9.7.4", "pod": {"resources": {"limits": {"memory": "1Gi"}}}}),
        json!({"size": 3, "version": "9.7.4", "repository": "registry.example/mysql"}),
    ] {
        assert_ne!(hash(other.clone()), was, "{other}");
    }
}
