//! What the operator may do, and no more: the one source of the roles in `deploy/` and in the chart. `./x kube test` compares it
//! with what the API server saw the operator do.

use serde_json::{Value, json};

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

/// In the namespaces it looks after.
pub(crate) fn in_namespaces() -> Vec<Value> {
    vec![
        rule("etcd.database.coreos.com", &["etcdclusters"], &["get", "list", "watch"]),
        rule("etcd.database.coreos.com", &["etcdclusters/status"], &["update"]),
        // Those that an EtcdCluster's spec.backup asks for are made and taken away; finalizers are set.
        rule(
            "etcd.database.coreos.com",
            &["etcdbackups"],
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        rule("etcd.database.coreos.com", &["etcdbackups/status"], &["update"]),
        // One is made where a recovery from quorum loss is to use a backup.
        rule(
            "etcd.database.coreos.com",
            &["etcdrestores"],
            &["get", "list", "watch", "create"],
        ),
        rule("etcd.database.coreos.com", &["etcdrestores/status"], &["update"]),
        // What is made for a cluster names it as its owner with blockOwnerDeletion, so that a foreground deletion waits for it. Where the
        // admission plugin OwnerReferencesPermissionEnforcement is on, as in OpenShift, that takes this right.
        rule("etcd.database.coreos.com", &["etcdclusters/finalizers"], &["update"]),
        rule(
            "",
            &["pods", "persistentvolumeclaims"],
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        rule("", &["services"], &["get", "list", "watch", "create", "patch"]),
        rule(
            "policy",
            &["poddisruptionbudgets"],
            &["get", "list", "watch", "create", "patch"],
        ),
        rule("", &["secrets"], &["get", "list", "watch", "create", "update"]),
        // With TLS.certManager.
        rule("cert-manager.io", &["certificates"], &["get", "create", "update"]),
        rule("", &["events"], &["list"]),
        rule("events.k8s.io", &["events"], &["create"]),
    ]
}

/// On what is in no namespace; an operator of one namespace does without.
pub(crate) fn in_the_cluster() -> Vec<Value> {
    vec![
        rule("", &["nodes"], &["list", "watch"]),
        // Whether the volume of a lost member is still attached to its node.
        rule("storage.k8s.io", &["volumeattachments"], &["list", "watch"]),
    ]
}

/// In its own namespace: the lease of the leader.
pub(crate) fn at_home() -> Vec<Value> {
    vec![rule("coordination.k8s.io", &["leases"], &["get", "create", "update"])]
}
