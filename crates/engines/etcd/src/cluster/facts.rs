//! Kubernetes' objects as the facts that decisions need.

use std::collections::BTreeMap;

use crate::api::{EtcdVersion, names};
use k8s_openapi::api::core::v1 as core;
use stateward_core::pod::Facts;

use super::manifests::{ANNOTATION_METADATA, launch};
use super::world::{Pod, TlsStage};

/// The etcd whose image makes a data directory for a server of this version: its own where `etcdutl` can raise the
/// revision (3.5.10 and later), else the oldest line that can. Servers of 3.4 serve what etcdutl of 3.5 makes.
pub fn restore_tool_version(version: &EtcdVersion) -> EtcdVersion {
    if version.at_least(3, 5, 10) {
        version.clone()
    } else {
        EtcdVersion::new(3, 5, 16)
    }
}

/// Why an etcd cannot read a backup: it refuses the data of a newer minor version. One that says none is tried.
pub fn cannot_read(cluster_version: &str, runs: &EtcdVersion) -> Option<String> {
    let of_backup: EtcdVersion = cluster_version.parse().ok()?;
    let (major, minor) = (of_backup.major(), of_backup.minor());
    ((major, minor) > (runs.major(), runs.minor())).then(|| {
        format!(
            "the backup is of a cluster of etcd {major}.{minor}, and etcd {runs} cannot read it: set spec.version of the \
             EtcdCluster to {major}.{minor} or later"
        )
    })
}

/// A member's pod.
pub fn pod(pod: &core::Pod) -> Pod {
    let empty = BTreeMap::new();
    let annotations = pod.metadata.annotations.as_ref().unwrap_or(&empty);
    let text = |key: &str| annotations.get(key).cloned().unwrap_or_default();
    Pod {
        facts: Facts::of(pod, names::CONTAINER),
        version: text(names::ANNOTATION_ETCD_VERSION)
            .parse()
            .unwrap_or_else(|_| crate::api::EtcdVersion::new(3, 2, 0)),
        template: text(names::ANNOTATION_POD_HASH),
        metadata: text(ANNOTATION_METADATA),
        launch: launch::kind(annotations),
        initial_cluster: launch::members(annotations),
        tls: TlsStage::parse(&text(launch::TLS)).unwrap_or_default(),
        trusts: annotations.get(launch::TRUSTS).map(|all| {
            let names = all.split(',').filter(|name| !name.is_empty());
            names.map(str::to_owned).collect()
        }),
        marked_to_leave: annotations
            .get(names::ANNOTATION_REMOVE_FIRST)
            .is_some_and(|value| value != "false"),
    }
}
