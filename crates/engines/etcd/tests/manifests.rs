//! The objects that Stateward makes, compared with the files in `manifests/`: a change of any of them is seen in review.
//!
//! The specs are those of `examples/`. `UPDATE_SNAPSHOTS=1 cargo test -p stateward-etcd --test manifests` writes the files anew.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use stateward_etcd::api::{EtcdBackup, EtcdCluster, EtcdRestore};
use stateward_etcd::cluster::manifests::{self, TrustFiles};
use stateward_etcd::cluster::{Intent, Launch, MemberName, TlsStage};
use stateward_etcd::{backup, restore};

const IMAGE: &str = "stateward.example/stateward:1";

/// An object of `examples/` as the API server shows it.
fn example<T: DeserializeOwned>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../examples")
        .join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let first = serde_yaml_ng::Deserializer::from_str(&text).next().expect("a document");
    let mut object: Value = serde::Deserialize::deserialize(first).expect("an object");
    let metadata = object["metadata"].as_object_mut().expect("metadata");
    metadata.insert("namespace".into(), json!("default"));
    metadata.insert("uid".into(), json!("1b4e28ba-2fa1-11d2-883f-0016d3cca427"));
    metadata.insert("generation".into(), json!(1));
    serde_json::from_value(object).expect("an object of its kind")
}

fn snapshot(name: &str, object: &impl Serialize) {
    let is = serde_yaml_ng::to_string(object).expect("YAML");
    let file: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/manifests")
        .join(format!("{name}.yaml"));
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

fn member(cluster: &EtcdCluster, launch: &Launch, tls: TlsStage, trust: Option<&TrustFiles>) -> Pod {
    let intent = Intent {
        agent_image: IMAGE.into(),
        ..Intent::of(cluster, false).expect("a good spec")
    };
    let name = MemberName(format!("{}-aaaaaaaaaa", cluster.name()));
    let version = cluster.version().expect("a version");
    manifests::pod(&intent, &name, launch, &version, tls, trust)
}

#[test]
fn pods_of_members() {
    let cluster: EtcdCluster = example("etcd-cluster.yaml");
    let token = "token".to_owned();
    snapshot(
        "pod-seed",
        &member(&cluster, &Launch::Seed { token }, TlsStage::Off, None),
    );
    let host = |name: &str| format!("http://{name}.{}.default.svc:2380", cluster.name());
    let members = ["aaaaaaaaaa", "bbbbbbbbbb"].map(|suffix| {
        let name = format!("{}-{suffix}", cluster.name());
        (MemberName(name.clone()), host(&name))
    });
    let join = Launch::Join {
        members: members.to_vec(),
    };
    snapshot("pod-join", &member(&cluster, &join, TlsStage::Off, None));
}

#[test]
fn a_sealed_pod_with_tls() {
    let cluster: EtcdCluster = example("etcd-cluster-tls.yaml");
    let trust = TrustFiles {
        cas: ["client/77aa".to_owned(), "peer/1f2e".to_owned()].into(),
        peer: Some("the CA of peers, in PEM".into()),
        client: Some("the CA of clients, in PEM".into()),
    };
    let pod = member(&cluster, &Launch::Sealed, TlsStage::On, Some(&trust));
    snapshot("pod-sealed-tls", &pod);
}

#[test]
fn a_production_pod() {
    let cluster: EtcdCluster = example("etcd-cluster-production.yaml");
    snapshot(
        "pod-sealed-production",
        &member(&cluster, &Launch::Sealed, TlsStage::Off, None),
    );
    let name = MemberName(format!("{}-aaaaaaaaaa", cluster.name()));
    snapshot("claim", &manifests::claim(&cluster, &name));
}

#[test]
fn services_and_the_budget() {
    let cluster: EtcdCluster = example("etcd-cluster.yaml");
    snapshot("service-peers", &manifests::peer_service(&cluster));
    snapshot("service-clients", &manifests::client_service(&cluster));
    snapshot("budget", &manifests::budget(&cluster));
}

fn made(effects: &[backup::Effect]) -> &Pod {
    let pod = effects.iter().find_map(|effect| {
        let backup::Effect::CreatePod(pod) = effect else {
            return None;
        };
        Some(pod)
    });
    pod.expect("a pod")
}

#[test]
fn pods_of_agents() {
    let mut cluster: EtcdCluster = example("etcd-cluster.yaml");
    let ready = format!("{}-aaaaaaaaaa", cluster.name());
    cluster.status = serde_json::from_value(json!({"members": {"ready": [ready]}})).expect("a status");
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");

    let backup: EtcdBackup = example("etcd-backup-s3.yaml");
    let world = backup::World {
        source: backup::Source::Cluster(Box::new(backup::ClusterSource::of(&cluster))),
        image: IMAGE.into(),
        ..backup::World::default()
    };
    snapshot("agent-backup", made(&backup::plan(&backup, &world, now).effects));

    let restore: EtcdRestore = example("etcd-restore.yaml");
    let mut source = backup.clone();
    source.status = serde_json::from_value(json!({"succeeded": true, "backups": [{
        "location": "bucket/backup_v7", "revision": 7, "verified": "Check", "completedAt": "2026-01-01T00:00:00Z",
        "sha256": "ab",
    }]}))
    .expect("a status");
    let world = restore::World {
        cluster: Some(Arc::new(cluster)),
        backup: Some(Arc::new(source)),
        image: IMAGE.into(),
        ..restore::World::default()
    };
    snapshot("agent-restore", made(&restore::plan(&restore, &world, now).effects));
}
