//! Every manifest of the seeds, of the old project's documentation and of `examples/` is read, and nothing is lost.

mod data;

use data::{Expect, cases, manifests};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use stateward_core::store::{StorageType, Store};
use stateward_etcd::api::etcd_cluster::{Phase, Tls};
use stateward_etcd::api::{EtcdBackup, EtcdCluster, EtcdRestore};

fn through<T: DeserializeOwned + Serialize>(value: &Value) -> Result<Value, serde_json::Error> {
    serde_json::to_value(serde_json::from_value::<T>(value.clone())?)
}

fn through_its_kind(value: &Value) -> Result<Value, serde_json::Error> {
    match value["kind"].as_str().unwrap_or_default() {
        "EtcdCluster" => through::<EtcdCluster>(value),
        "EtcdBackup" => through::<EtcdBackup>(value),
        "EtcdRestore" => through::<EtcdRestore>(value),
        kind => panic!("unknown kind {kind}"),
    }
}

/// Empty means unset: takes away what says nothing, so that two writings of the same can be compared.
fn without_empty(value: &Value) -> Option<Value> {
    match value {
        Value::Null | Value::Bool(false) => None,
        Value::String(text) if text.is_empty() => None,
        // quantities may be written as numbers, and are kept as text
        Value::Number(number) if number.as_i64() == Some(0) => None,
        Value::Number(number) => Some(Value::String(number.to_string())),
        Value::Array(items) => {
            let items: Vec<Value> = items.iter().filter_map(without_empty).collect();
            (!items.is_empty()).then_some(Value::Array(items))
        }
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .filter_map(|(key, inner)| Some((key.clone(), without_empty(inner)?)));
            let fields: serde_json::Map<String, Value> = fields.collect();
            (!fields.is_empty()).then_some(Value::Object(fields))
        }
        other => Some(other.clone()),
    }
}

fn manifest(file: &str) -> Value {
    let found = manifests().into_iter().find(|(name, _)| name == file);
    found.unwrap_or_else(|| panic!("no fixture {file}")).1
}

fn cluster(file: &str) -> EtcdCluster {
    serde_json::from_value(manifest(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn nothing_in_a_manifest_is_lost() {
    let manifests = manifests();
    assert!(manifests.len() >= 25, "only {} manifests found", manifests.len());
    for (file, value) in manifests {
        let back = through_its_kind(&value).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(without_empty(&back), without_empty(&value), "{file}");
        let again = through_its_kind(&back).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(again, back, "{file}: writing is not stable");
    }
}

#[test]
fn what_the_schema_accepts_can_be_read() {
    for case in cases().into_iter().filter(|case| case.expect == Expect::Ok) {
        through_its_kind(&case.apply).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    }
}

#[test]
fn the_cluster_of_the_seeds_means_what_it_says() {
    let cluster = cluster("seed-cluster.yaml");
    let version = cluster.version().expect("version");
    assert_eq!((cluster.name(), cluster.spec.size), ("example-etcd-cluster", 3));
    assert_eq!(cluster.image(&version), "quay.io/coreos/etcd:v3.2.13");
    assert_eq!(cluster.tls(), Tls::Off);
    assert_eq!(
        cluster
            .claim_spec()
            .resources
            .expect("resources")
            .requests
            .expect("requests")["storage"]
            .0,
        "1Gi"
    );
    assert!(!cluster.is_ephemeral(false));
    assert!(
        cluster.is_ephemeral(true),
        "an operator flag can make ephemeral the default"
    );
}

#[test]
fn own_secrets_are_handed_out_where_members_have_those_of_stateward() {
    let cluster = |peer: &str, mounted: &str, peers: bool| -> EtcdCluster {
        serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "n"},
            "spec": {"size": 3, "TLS": {"static": {
                "member": {"peerSecret": peer, "serverSecret": "server"}, "operatorSecret": "client",
            }}},
            "status": {"TLS": {"peers": peers, "clients": peers, "peerSecret": mounted}},
        }))
        .expect("a cluster")
    };
    let copied = |cluster: EtcdCluster| matches!(cluster.tls(), Tls::Copied(_));
    assert!(copied(cluster("peer", "c-peer-tls", true)));
    assert!(!copied(cluster("peer", "peer", true)), "they mount the user's own");
    assert!(
        !copied(cluster("peer", "c-peer-tls", false)),
        "they had no TLS any more"
    );
    assert!(
        !copied(cluster("c-server-tls", "c-peer-tls", true)),
        "by that name they are the user's"
    );
    assert!(!copied(cluster("", "c-peer-tls", true)), "not all three are there");
}

#[test]
fn empty_means_unset() {
    let cluster = cluster("old-client-cluster.yaml");
    assert_eq!((&cluster.spec.repository, &cluster.spec.version), (&None, &None));
    assert_eq!((&cluster.spec.pod, &cluster.spec.tls), (&None, &None));
    assert_eq!(cluster.tls(), Tls::Off);
    assert_eq!(cluster.status.as_ref().expect("status").phase, Phase::None);
    assert_eq!(
        cluster.version().expect("default").to_string(),
        stateward_etcd::api::DEFAULT_VERSION
    );

    let backup: EtcdBackup = serde_json::from_value(manifest("old-client-backup.yaml")).expect("backup");
    let Ok(Store::S3(s3)) = backup.spec.plan.store() else {
        panic!("no S3 store")
    };
    assert_eq!((s3.endpoint.as_deref(), s3.force_path_style), (None, false));
    assert_eq!(backup.status.expect("status").last_success_date, None);
}

#[test]
fn a_cluster_without_a_version_keeps_the_one_it_runs() {
    let mut cluster = cluster("old-client-cluster-update.yaml");
    cluster.spec.version = None;
    assert_eq!(cluster.version().expect("version").to_string(), "3.2.13");
}

#[test]
fn a_status_is_written_as_old_clients_read_it() {
    let fresh = serde_json::to_value(stateward_etcd::api::EtcdClusterStatus::default()).expect("JSON");
    assert_eq!(
        fresh,
        json!({"phase": "", "size": 0, "members": {}, "currentVersion": "", "targetVersion": ""})
    );
    let fresh = serde_json::to_value(stateward_etcd::api::EtcdBackupStatus::default()).expect("JSON");
    assert_eq!(fresh, json!({"succeeded": false}));
    let failed = stateward_etcd::api::EtcdBackupStatus {
        reason: "no such bucket".into(),
        ..Default::default()
    };
    assert_eq!(serde_json::to_value(failed).expect("JSON")["Reason"], "no such bucket");
}

#[test]
fn an_unknown_store_type_of_an_old_object_is_no_error_of_reading() {
    let mut value = manifest("seed-backup.yaml");
    value["spec"]["storageType"] = json!("FTP");
    let backup: EtcdBackup = serde_json::from_value(value).expect("readable");
    assert_eq!(backup.spec.plan.storage_type, Some(StorageType::Unknown));
    assert!(backup.spec.plan.store().is_err());
}
