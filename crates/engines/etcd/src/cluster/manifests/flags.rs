//! etcd's flags, by version.

use crate::api::etcd_cluster::{AutoCompactionMode, MetricsMode};
use crate::api::{EtcdCluster, EtcdVersion, names};

use crate::cluster::{MemberName, TlsStage};

/// Where a member's volume is mounted.
pub(super) const VOLUME: &str = "/var/etcd";
/// Where certificates are mounted.
pub(super) const PEER_TLS: &str = "/etc/etcdtls/member/peer-tls";
/// Where the server's certificates are mounted.
pub(super) const SERVER_TLS: &str = "/etc/etcdtls/member/server-tls";
/// Where the operator's own client certificate is mounted, for etcdctl in the pod.
pub(super) const CLIENT_TLS: &str = "/etc/etcdtls/operator/etcd-tls";

/// The one flag that both the user and we have something to say in.
const GATES: &str = "feature-gates";

/// Metrics and health in plain text have a port of their own since 3.3.
pub(super) fn has_metrics_port(version: &EtcdVersion) -> bool {
    version.at_least(3, 3, 0)
}

/// The arguments of etcd in a member's pod.
pub(super) fn flags(cluster: &EtcdCluster, member: &MemberName, version: &EtcdVersion, tls: TlsStage) -> Vec<String> {
    let host = cluster.member_host(&member.0);
    let peers = tls == TlsStage::On;
    let clients = cluster.tls().clients();
    let mut flags = vec![
        format!("--name={member}"),
        format!("--data-dir={VOLUME}/data"),
        format!(
            "--initial-advertise-peer-urls={}",
            names::url(peers, &host, names::PEER_PORT)
        ),
        format!("--listen-peer-urls={}", names::url(peers, "0.0.0.0", names::PEER_PORT)),
        format!(
            "--listen-client-urls={}",
            names::url(clients, "0.0.0.0", names::CLIENT_PORT)
        ),
        format!(
            "--advertise-client-urls={}",
            names::url(clients, &host, names::CLIENT_PORT)
        ),
    ];
    if has_metrics_port(version) {
        let port = cluster
            .spec
            .metrics
            .as_ref()
            .and_then(|metrics| metrics.port)
            .unwrap_or(names::METRICS_PORT);
        flags.push(format!("--listen-metrics-urls={}", names::url(false, "0.0.0.0", port)));
    }
    if cluster.spec.metrics.as_ref().and_then(|metrics| metrics.mode) == Some(MetricsMode::Extensive) {
        flags.push("--metrics=extensive".into());
    }
    if tls != TlsStage::Off {
        flags.extend([
            "--peer-client-cert-auth=true".into(),
            format!("--peer-trusted-ca-file={PEER_TLS}/peer-ca.crt"),
            format!("--peer-cert-file={PEER_TLS}/peer.crt"),
            format!("--peer-key-file={PEER_TLS}/peer.key"),
        ]);
    }
    if clients {
        flags.extend([
            "--client-cert-auth=true".into(),
            format!("--trusted-ca-file={SERVER_TLS}/server-ca.crt"),
            format!("--cert-file={SERVER_TLS}/server.crt"),
            format!("--key-file={SERVER_TLS}/server.key"),
        ]);
    }
    flags.extend(maintenance(cluster, version));
    flags.extend(corruption_checks(cluster, version));
    if version.has_max_learners() {
        flags.push(format!("--max-learners={}", crate::api::SIZES.end()));
    }
    // The user's last: etcd takes the last of two equal flags, and the schema refuses those that are ours.
    let options = cluster.spec.etcd_options.iter().filter(|(name, _)| *name != GATES);
    flags.extend(options.map(|(name, value)| format!("--{name}={value}")));
    flags
}

fn maintenance(cluster: &EtcdCluster, version: &EtcdVersion) -> Vec<String> {
    let Some(maintenance) = &cluster.spec.maintenance else {
        return Vec::new();
    };
    let mut flags = Vec::new();
    if let Some(bytes) = maintenance.quota.as_ref().and_then(stateward_core::quantity::bytes) {
        flags.push(format!("--quota-backend-bytes={bytes}"));
    }
    if let Some(compaction) = maintenance
        .auto_compaction
        .as_ref()
        .filter(|compaction| !compaction.retention.is_empty())
    {
        // 3.2 knows whole hours only, and no mode.
        if version.at_least(3, 3, 0) {
            let mode = match compaction.mode.unwrap_or_default() {
                AutoCompactionMode::Periodic => "periodic",
                AutoCompactionMode::Revision => "revision",
            };
            flags.push(format!("--auto-compaction-mode={mode}"));
        }
        flags.push(format!("--auto-compaction-retention={}", compaction.retention));
    }
    flags
}

/// Checks at start and at compaction that the member's data is that of the others.
fn corruption_checks(cluster: &EtcdCluster, version: &EtcdVersion) -> Vec<String> {
    if version.at_least(3, 6, 0) {
        // The user's gates come after ours: of two equal ones etcd takes the last.
        let gates = ["InitialCorruptCheck=true,CompactHashCheck=true"].into_iter();
        let gates = gates.chain(cluster.spec.etcd_options.get(GATES).map(String::as_str));
        vec![format!("--{GATES}={}", gates.collect::<Vec<_>>().join(","))]
    } else if version.at_least(3, 5, 5) {
        vec![
            "--experimental-initial-corrupt-check=true".into(),
            "--experimental-compact-hash-check-enabled=true".into(),
        ]
    } else if version.at_least(3, 4, 0) {
        vec!["--experimental-initial-corrupt-check=true".into()]
    } else {
        Vec::new()
    }
}
