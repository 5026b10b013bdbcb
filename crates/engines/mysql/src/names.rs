//! Names, ports, labels and annotations. Everything that is found again by its name or label is named here, once.

use std::collections::BTreeMap;

use stateward_core::names::MANAGER;

use crate::world::Ordinal;

/// Port of clients and of replication.
pub const PORT: i32 = 3306;
/// Port for Stateward's own sessions: they are served when all connections are taken.
pub const ADMIN_PORT: i32 = 33062;
/// Port of the agent in every pod: readiness, saving transactions, backups.
pub const AGENT_PORT: i32 = 3307;
/// The container that runs mysqld.
pub const CONTAINER: &str = "mysqld";
/// The container of the agent.
pub const AGENT: &str = "agent";
/// The init container that makes the data directory.
pub const INIT: &str = "init";
/// `app.kubernetes.io/name` of everything of a cluster.
pub const APP: &str = "mysql";

/// Label with the role that a pod serves as: `primary` or `replica`. A pod that serves neither has none.
pub const LABEL_ROLE: &str = "stateward.dev/role";
/// Label of pods that `NAME-read` leads to: `true`.
pub const LABEL_READS: &str = "stateward.dev/reads";
/// Label of pods with their cluster.
pub const LABEL_INSTANCE: &str = "app.kubernetes.io/instance";

/// Annotation on pods: hash of what the pod was made from and needs a restart to change.
pub const ANNOTATION_POD_HASH: &str = "stateward.dev/pod-hash";
/// Annotation on pods: the version of MySQL that the pod runs.
pub const ANNOTATION_VERSION: &str = "stateward.dev/mysql-version";
/// Annotation on objects and pods: UID of the MySQLCluster that they were made for.
pub const ANNOTATION_CLUSTER_UID: &str = "stateward.dev/cluster-uid";
/// Annotation on objects: hash of what they were made from.
pub const ANNOTATION_METADATA: &str = "stateward.dev/metadata";
/// Annotation of the user on a MySQLCluster: a new value rotates all passwords.
pub const ANNOTATION_ROTATE: &str = "stateward.dev/rotate-passwords";
/// Annotation of the user on a MySQLCluster: this pod's own transactions may be discarded. Names, separated by commas.
pub const ANNOTATION_DISCARD: &str = "stateward.dev/discard-errant";
/// Annotation of the user on a MySQLCluster: these members are gone for good, with their data. Names, separated by commas.
pub const ANNOTATION_CONFIRM_LOST: &str = "stateward.dev/confirm-lost";
/// Annotation of the user on a MySQLCluster: a StatefulSet to adopt.
pub const ANNOTATION_ADOPT: &str = "stateward.dev/adopt-statefulset";
/// Annotation of the user on a MySQLCluster: `true` starts an empty cluster although claims of an earlier one exist.
pub const ANNOTATION_IGNORE_OLD_CLAIMS: &str = "stateward.dev/ignore-old-claims";
/// Annotation of the user on a MySQLCluster: a pod that shall become the primary (`kubectl stateward switchover`).
pub const ANNOTATION_SWITCHOVER: &str = "stateward.dev/switchover-to";

/// A pod's name is the cluster's, a dash and one digit, and the StatefulSet's pods carry a label with a hash after its name.
pub const CLUSTER_NAME_LIMIT: usize = 50;

/// The account that Stateward itself uses.
pub const ACCOUNT_OPERATOR: &str = "stateward";
/// The account that a recipient uses on the donor of a clone.
pub const ACCOUNT_CLONE: &str = "stateward_clone";

/// The replication account of a member: one each, so that one member can be kept from acknowledging alone.
pub fn replication_account(member: Ordinal) -> String {
    format!("stateward_repl_{}", member.0)
}

/// The pod of a member.
pub fn pod(cluster: &str, member: Ordinal) -> String {
    format!("{cluster}-{}", member.0)
}

/// The member that a pod is of.
pub fn ordinal(cluster: &str, pod: &str) -> Option<Ordinal> {
    let number = pod.strip_prefix(cluster)?.strip_prefix('-')?;
    let parsed = number.parse().ok().map(Ordinal)?;
    (number == parsed.0.to_string()).then_some(parsed)
}

/// The claim of a member.
pub fn claim(cluster: &str, member: Ordinal) -> String {
    format!("data-{cluster}-{}", member.0)
}

/// The host name of a member: what certificates and replication channels name.
pub fn host(cluster: &str, namespace: &str, member: Ordinal) -> String {
    format!("{}.{cluster}.{namespace}.svc", pod(cluster, member))
}

/// The Service that leads to the primary.
pub fn primary_service(cluster: &str) -> String {
    format!("{cluster}-primary")
}

/// The Service that leads to replicas in sync.
pub fn read_service(cluster: &str) -> String {
    format!("{cluster}-read")
}

/// The Secret with the password of root.
pub fn root_secret(cluster: &str) -> String {
    format!("{cluster}-root")
}

/// The Secret with what an application needs to connect.
pub fn app_secret(cluster: &str) -> String {
    format!("{cluster}-app")
}

/// The Secret with the passwords of Stateward's own accounts: keys are the names of the accounts.
pub fn internal_secret(cluster: &str) -> String {
    format!("{cluster}-internal")
}

/// The Secret with the certificates of members.
pub fn tls_secret(cluster: &str) -> String {
    format!("{cluster}-tls")
}

/// The Secret with the CA of `TLS.auto`.
pub fn ca_secret(cluster: &str) -> String {
    format!("{cluster}-ca")
}

/// The ConfigMap with my.cnf.
pub fn config_map(cluster: &str) -> String {
    format!("{cluster}-config")
}

/// What the Services and the StatefulSet select by.
pub fn selector(cluster: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        ("app.kubernetes.io/name".to_owned(), APP.to_owned()),
        (LABEL_INSTANCE.to_owned(), cluster.to_owned()),
    ])
}

/// The labels of everything of a cluster.
pub fn labels(cluster: &str) -> BTreeMap<String, String> {
    let mut labels = selector(cluster);
    labels.insert("app.kubernetes.io/managed-by".into(), MANAGER.into());
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_found_by_its_name() {
        assert_eq!(ordinal("orders", "orders-2"), Some(Ordinal(2)));
        for other in ["orders", "orders-", "orders-x", "orders-02", "others-2", "orders-db-1"] {
            assert_eq!(ordinal("orders", other), None, "{other}");
        }
    }
}
