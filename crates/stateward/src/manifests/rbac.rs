//! The operator's RBAC rules: the only source of the roles in `deploy/` and in the chart. `./x kube test` compares them
//! with the requests of the operator in the API server's audit log.

use serde_json::{Value, json};

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

/// Rules for the namespaces that it watches.
pub(crate) fn in_namespaces() -> Vec<Value> {
    vec![
        rule("etcd.database.coreos.com", &["etcdclusters"], &["get", "list", "watch"]),
        rule("etcd.database.coreos.com", &["etcdclusters/status"], &["update"]),
        // The operator creates and deletes the EtcdBackup of an EtcdCluster's spec.backup, and sets finalizers.
        rule(
            "etcd.database.coreos.com",
            &["etcdbackups"],
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        rule("etcd.database.coreos.com", &["etcdbackups/status"], &["update"]),
        // A recovery from quorum loss that uses a backup creates an EtcdRestore.
        rule(
            "etcd.database.coreos.com",
            &["etcdrestores"],
            &["get", "list", "watch", "create"],
        ),
        rule("etcd.database.coreos.com", &["etcdrestores/status"], &["update"]),
        // The objects of a cluster have it as their owner with blockOwnerDeletion, so that a foreground deletion waits for them. Where the
        // admission plugin OwnerReferencesPermissionEnforcement is on, as in OpenShift, that needs this permission.
        rule("etcd.database.coreos.com", &["etcdclusters/finalizers"], &["update"]),
        rule("mysql.stateward.dev", &["mysqlclusters"], &["get", "list", "watch"]),
        rule("mysql.stateward.dev", &["mysqlclusters/status"], &["update"]),
        rule("mysql.stateward.dev", &["mysqlclusters/finalizers"], &["update"]),
        rule(
            "",
            &["pods", "persistentvolumeclaims"],
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        rule(
            "",
            &["services", "configmaps"],
            &["get", "list", "watch", "create", "patch"],
        ),
        rule("apps", &["statefulsets"], &["get", "list", "watch", "create", "patch"]),
        rule(
            "networking.k8s.io",
            &["networkpolicies"],
            &["get", "list", "watch", "create", "patch"],
        ),
        rule(
            "policy",
            &["poddisruptionbudgets"],
            &["get", "list", "watch", "create", "patch"],
        ),
        rule("", &["secrets"], &["get", "list", "watch", "create", "update"]),
        // For TLS.certManager.
        rule("cert-manager.io", &["certificates"], &["get", "create", "update"]),
        rule("", &["events"], &["list"]),
        rule("events.k8s.io", &["events"], &["create"]),
    ]
}

/// Rules for objects without a namespace; an operator of one namespace does not have them.
pub(crate) fn in_the_cluster() -> Vec<Value> {
    vec![
        rule("", &["nodes"], &["list", "watch"]),
        // Whether the volume of a lost member is still attached to its node.
        rule("storage.k8s.io", &["volumeattachments"], &["list", "watch"]),
    ]
}

/// Rules for its own namespace: the lease of the leader election.
pub(crate) fn in_own_namespace() -> Vec<Value> {
    vec![rule("coordination.k8s.io", &["leases"], &["get", "create", "update"])]
}
