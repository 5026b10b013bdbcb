//! Names, addresses, labels and annotations. Everything that is found again by its name or label is named here, once.

use std::collections::BTreeMap;

pub use stateward_core::names::{APP_AGENT, MANAGER, RESERVED_PREFIX, agent_pod};

/// Port of the client service and of every member's client listener.
pub const CLIENT_PORT: i32 = 2379;
/// Port of every member's peer listener.
pub const PEER_PORT: i32 = 2380;
/// Port on which members serve metrics and health in plain text, unless `spec.metrics.port` says otherwise.
pub const METRICS_PORT: i32 = 2381;
/// The container that runs etcd in a member's pod.
pub const CONTAINER: &str = "etcd";

/// Label of everything that belongs to an etcd cluster, with the value [`APP_ETCD`].
pub const LABEL_APP: &str = "app";
/// The value of [`LABEL_APP`].
pub const APP_ETCD: &str = "etcd";
/// Label with the name of the cluster.
pub const LABEL_CLUSTER: &str = "etcd_cluster";
/// Label with the name of the member, which is the name of its pod.
pub const LABEL_MEMBER: &str = "etcd_node";

/// Annotation on pods with the version of etcd, as the old operator wrote it.
pub const ANNOTATION_ETCD_VERSION: &str = "etcd.version";
/// Annotation that a person sets on a pod: this member goes first when the cluster shrinks.
pub const ANNOTATION_REMOVE_FIRST: &str = "stateward.dev/remove-first";
/// Annotation of the user on an EtcdCluster: client URLs, with commas between them, of a running cluster that is to be taken over.
pub const ANNOTATION_ADOPT: &str = "stateward.dev/adopt-endpoints";
/// Annotation of the user on an EtcdCluster: `true` lets the members that were taken over leave.
pub const ANNOTATION_RELEASE: &str = "stateward.dev/release-adopted";
/// On an EtcdCluster, of the user: these members are gone for good, with their data. Names, separated by commas.
pub const ANNOTATION_CONFIRM_LOST: &str = "stateward.dev/confirm-lost";
/// Annotation on pods: hash of what the pod was built from, to see whether the spec has moved on.
pub const ANNOTATION_POD_HASH: &str = "stateward.dev/pod-hash";
/// Annotation on pods and claims: UID of the EtcdCluster they were made for.
pub const ANNOTATION_CLUSTER_UID: &str = "stateward.dev/cluster-uid";

/// Finalizer on periodic EtcdBackups, as the old operator named it.
pub const FINALIZER_PERIODIC_BACKUP: &str = "backup-operator-periodic";
/// Finalizer on EtcdBackups whose files go with them.
pub const FINALIZER_BACKUP_FILES: &str = "stateward.dev/backup-files";

/// A member's name is the cluster's, a dash and this many characters, and must fit into one DNS label (63 characters).
pub const MEMBER_SUFFIX_LENGTH: usize = 10;
/// The longest name that an EtcdCluster can have.
pub const CLUSTER_NAME_LIMIT: usize = 63 - 1 - MEMBER_SUFFIX_LENGTH;
/// Letters and digits that spell no word and are not mistaken for each other, as Kubernetes uses them.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Names a member from the given randomness: `<cluster>-<10 characters>`.
pub fn member(cluster: &str, mut entropy: u64) -> String {
    let base = ALPHABET.len() as u64;
    let suffix = (0..MEMBER_SUFFIX_LENGTH).map(|_| {
        let index = usize::try_from(entropy % base).unwrap_or(0);
        entropy /= base;
        char::from(ALPHABET[index])
    });
    let suffix: String = suffix.collect();
    format!("{cluster}-{suffix}")
}

/// The name of a member's claim: the member's own.
pub fn claim(member: &str) -> String {
    member.to_owned()
}

/// The headless service through which members find each other.
pub fn peer_service(cluster: &str) -> String {
    cluster.to_owned()
}

/// The service for clients, which leads to ready members only.
pub fn client_service(cluster: &str) -> String {
    format!("{cluster}-client")
}

/// The Secrets that Stateward writes for the members' certificates: between members, for clients, and a client's own.
pub fn tls_secrets(cluster: &str) -> [String; 3] {
    ["peer", "server", "client"].map(|role| format!("{cluster}-{role}-tls"))
}

/// The Secret with the CA that Stateward makes for servers and clients.
pub fn ca_secret(cluster: &str) -> String {
    format!("{cluster}-ca-tls")
}

/// The Secret with the CA that Stateward makes for the traffic between members.
pub fn peer_ca_secret(cluster: &str) -> String {
    format!("{cluster}-peer-ca-tls")
}

/// The EtcdBackup that is kept for a cluster's `spec.backup`.
pub fn kept_backup(cluster: &str) -> String {
    format!("{cluster}-backups")
}

/// The PodDisruptionBudget of a cluster.
pub fn disruption_budget(cluster: &str) -> String {
    cluster.to_owned()
}

/// The DNS name of a member: `<member>.<cluster>.<namespace>.svc`, exactly as certificates of the old operator carry
/// it; `domain` is the cluster's `pod.ClusterDomain`, with or without its leading dot, or empty.
pub fn member_host(member: &str, cluster: &str, namespace: &str, domain: &str) -> String {
    let host = format!("{member}.{cluster}.{namespace}.svc");
    with_domain(host, domain)
}

/// The DNS name of the client service.
pub fn client_host(cluster: &str, namespace: &str, domain: &str) -> String {
    with_domain(format!("{}.{namespace}.svc", client_service(cluster)), domain)
}

fn with_domain(host: String, domain: &str) -> String {
    match domain.trim_matches('.') {
        "" => host,
        domain => format!("{host}.{domain}"),
    }
}

/// A URL of a host and port, with TLS or without.
pub fn url(tls: bool, host: &str, port: i32) -> String {
    let scheme = if tls { "https" } else { "http" };
    format!("{scheme}://{host}:{port}")
}

/// The labels by which everything of a cluster is found: what services, budgets and the scale subresource select.
pub fn selector(cluster: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (LABEL_APP.into(), APP_ETCD.into()),
        (LABEL_CLUSTER.into(), cluster.into()),
    ])
}

/// [`selector`] as text, for `kubectl get -l` and the scale subresource.
pub fn selector_text(cluster: &str) -> String {
    format!("{LABEL_APP}={APP_ETCD},{LABEL_CLUSTER}={cluster}")
}

/// The labels of everything that is made for a cluster.
pub fn cluster_labels(cluster: &str) -> BTreeMap<String, String> {
    let mut labels = selector(cluster);
    labels.insert("app.kubernetes.io/name".into(), APP_ETCD.into());
    labels.insert("app.kubernetes.io/instance".into(), cluster.into());
    labels.insert("app.kubernetes.io/managed-by".into(), MANAGER.into());
    labels
}

/// The labels of a member's pod and claim. Labels of the user with the same keys are skipped: these win.
pub fn member_labels(cluster: &str, member: &str) -> BTreeMap<String, String> {
    let mut labels = cluster_labels(cluster);
    labels.insert(LABEL_MEMBER.into(), member.into());
    labels.insert("app.kubernetes.io/component".into(), "member".into());
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_names_are_those_of_the_old_operator() {
        let name = member("example-etcd-cluster", 0xDEAD_BEEF_0123_4567);
        let suffix = name.strip_prefix("example-etcd-cluster-").expect("prefix");
        assert_eq!(suffix.len(), MEMBER_SUFFIX_LENGTH);
        assert!(suffix.bytes().all(|byte| ALPHABET.contains(&byte)));
        assert_ne!(name, member("example-etcd-cluster", 1));
        assert!(member(&"c".repeat(CLUSTER_NAME_LIMIT), u64::MAX).len() <= 63);
    }

    #[test]
    fn addresses_are_the_names_in_certificates() {
        assert_eq!(member_host("c-x", "c", "ns", ""), "c-x.c.ns.svc");
        assert_eq!(
            member_host("c-x", "c", "ns", ".cluster.local"),
            "c-x.c.ns.svc.cluster.local"
        );
        assert_eq!(client_host("c", "ns", "cluster.local"), "c-client.ns.svc.cluster.local");
        assert_eq!(url(true, "c-x.c.ns.svc", PEER_PORT), "https://c-x.c.ns.svc:2380");
    }
}
