//! Flags of etcd that Stateward sets itself, or that would undo what it rests on. They are refused in `etcdOptions`, and in
//! `pod.etcdEnv` by the name of the variable that etcd reads for them.

/// By name. Those that begin with one of [`PREFIXES`] are too.
pub(crate) const FLAGS: &[&str] = &[
    "advertise-client-urls",
    "auto-tls",
    "cert-file",
    "client-cert-auth",
    "config-file",
    "data-dir",
    "enable-v2",
    "force-new-cluster",
    "gateway",
    "key-file",
    "max-learners",
    "name",
    "proxy",
    "strict-reconfig-check",
    "trusted-ca-file",
    "version",
    "wal-dir",
];
/// By the beginning of the name.
pub(crate) const PREFIXES: &[&str] = &["client-crl", "discovery", "initial-", "listen-", "peer-", "proxy-"];

/// The environment variable that etcd reads for a flag (its `FlagToEnv`).
pub(crate) fn variable(flag: &str) -> String {
    format!("ETCD_{}", flag.to_uppercase().replace('-', "_"))
}

/// It stands for a flag that is Stateward's.
pub(crate) fn is_owned_variable(name: &str) -> bool {
    FLAGS.iter().any(|flag| variable(flag) == name) || PREFIXES.iter().any(|prefix| name.starts_with(&variable(prefix)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_named_as_etcd_names_them() {
        assert_eq!(variable("strict-reconfig-check"), "ETCD_STRICT_RECONFIG_CHECK");
        for owned in [
            "ETCD_WAL_DIR",
            "ETCD_CONFIG_FILE",
            "ETCD_PEER_AUTO_TLS",
            "ETCD_INITIAL_CLUSTER",
            "ETCD_NAME",
        ] {
            assert!(is_owned_variable(owned), "{owned}");
        }
        for other in [
            "ETCD_QUOTA_BACKEND_BYTES",
            "ETCD_NAMESPACE",
            "ETCDCTL_API",
            "NAME",
            "ETCD_SNAPSHOT_COUNT",
        ] {
            assert!(!is_owned_variable(other), "{other}");
        }
    }
}
