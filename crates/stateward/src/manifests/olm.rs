//! The bundle for the Operator Lifecycle Manager: metadata for its catalogues, and the same parts as in `deploy/`.

use anyhow::Result;
use serde_json::{Value, json};

use super::{GENERATED, IMAGE, NAME, VERSION, deployment_spec, labels, rbac};

/// Paths and contents.
pub(crate) fn files() -> Result<Vec<(String, String)>> {
    let yaml = |value: &Value| -> Result<String> { Ok(format!("{GENERATED}{}", serde_yaml_ng::to_string(value)?)) };
    let mut files = vec![
        (
            "manifests/stateward.clusterserviceversion.yaml".to_owned(),
            yaml(&service_version()?)?,
        ),
        ("metadata/annotations.yaml".to_owned(), yaml(&annotations())?),
    ];
    for (name, text) in crate::crds::files() {
        files.push((format!("manifests/{name}"), text));
    }
    Ok(files)
}

fn annotations() -> Value {
    let key = |name: &str| format!("operators.operatorframework.io.bundle.{name}");
    json!({"annotations": {
        key("mediatype.v1"): "registry+v1",
        key("manifests.v1"): "manifests/",
        key("metadata.v1"): "metadata/",
        key("package.v1"): NAME,
        key("channels.v1"): "stable",
        key("channel.default.v1"): "stable",
        "com.redhat.openshift.versions": "v4.20",
    }})
}

fn service_version() -> Result<Value> {
    let mut owned = Vec::new();
    let mut examples = Vec::new();
    for crd in stateward::crds() {
        let names = &crd.spec.names;
        let description = match names.kind.as_str() {
            "EtcdCluster" => "An etcd cluster.",
            "EtcdBackup" => "Backups of an etcd cluster, once or by schedule.",
            "EtcdRestore" => "A cluster made from a backup.",
            _ => "A MySQL primary with replicas.",
        };
        owned.push(json!({
            "name": crd.metadata.name, "kind": names.kind, "displayName": names.kind, "description": description,
            "version": crd.spec.versions.first().map(|version| &version.name),
        }));
    }
    examples.push(json!({
        "apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdCluster",
        "metadata": {"name": "example"}, "spec": {"size": 3},
    }));
    let store = json!({"path": "backups/example", "awsSecret": "aws"});
    examples.push(json!({
        "apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdBackup", "metadata": {"name": "example"},
        "spec": {"clusterRef": {"name": "example"}, "storageType": "S3", "s3": store},
    }));
    examples.push(json!({
        "apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdRestore", "metadata": {"name": "example"},
        "spec": {"etcdCluster": {"name": "example"}, "backupStorageType": "S3", "s3": store},
    }));
    examples.push(json!({
        "apiVersion": "mysql.stateward.dev/v1alpha1", "kind": "MySQLCluster",
        "metadata": {"name": "example"}, "spec": {"size": 3, "storage": {"size": "10Gi"}},
    }));
    let deployment = json!({
        "name": NAME, "label": labels(), "spec": deployment_spec(IMAGE, &["operator".into(), "--no-crds".into()]),
    });
    let cluster_rules = [rbac::in_namespaces(), rbac::in_the_cluster()].concat();
    let mode = |name: &str, supported: bool| json!({"type": name, "supported": supported});
    Ok(json!({
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": format!("{NAME}.v{VERSION}"),
            "annotations": {
                "alm-examples": serde_json::to_string_pretty(&examples)?,
                "capabilities": "Deep Insights",
                "categories": "Database",
                "containerImage": IMAGE,
                "repository": env!("CARGO_PKG_REPOSITORY"),
                "description": "Runs etcd and MySQL clusters as a careful human operator would.",
            },
        },
        "spec": {
            "displayName": "Stateward",
            "description": "Creates, scales, heals, upgrades, backs up and restores etcd clusters, runs MySQL with replicas and failover, and says in plain words what it does.\n\nA drop-in successor of the CoreOS etcd-operator.",
            "version": VERSION,
            "maturity": "alpha",
            "minKubeVersion": "1.33.0",
            "keywords": ["etcd", "mysql", "database", "backup"],
            "provider": {"name": "Stateward"},
            "links": [{"name": "Source", "url": env!("CARGO_PKG_REPOSITORY")}],
            "icon": [],
            "customresourcedefinitions": {"owned": owned},
            // OLM has no Role for an arbitrary single namespace here: the bundle is for the whole cluster.
            "installModes": [
                mode("OwnNamespace", false), mode("SingleNamespace", false),
                mode("MultiNamespace", false), mode("AllNamespaces", true),
            ],
            "install": {
                "strategy": "deployment",
                "spec": {
                    "clusterPermissions": [{"serviceAccountName": NAME, "rules": cluster_rules}],
                    "permissions": [{"serviceAccountName": NAME, "rules": rbac::in_own_namespace()}],
                    "deployments": [deployment],
                },
            },
        },
    }))
}
