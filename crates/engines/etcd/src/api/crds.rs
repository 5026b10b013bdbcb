//! The CustomResourceDefinitions of all kinds here, and the files in `deploy/crds/` that hold them. The schema comes from the
//! types; bounds, defaults and CEL rules from [`crate::api::rules`].

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt;
use stateward_core::crd::{file, finish};

use crate::api::rules;
use crate::api::{EtcdBackup, EtcdCluster, EtcdRestore};

/// Fields whose types are Kubernetes' own; everything below them is documented there.
const EMBEDDED: [&str; 8] = [
    "spec.pod.affinity",
    "spec.pod.etcdEnv",
    "spec.pod.imagePullSecrets",
    "spec.pod.persistentVolumeClaimSpec",
    "spec.pod.resources",
    "spec.pod.securityContext",
    "spec.pod.tolerations",
    "spec.topologySpreadConstraints",
];

/// All definitions, in the order of their names.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![etcd_backup(), etcd_cluster(), etcd_restore()]
}

/// The definition of EtcdCluster.
pub fn etcd_cluster() -> CustomResourceDefinition {
    finish(
        EtcdCluster::crd(),
        &rules::etcd_cluster_bounds(),
        &rules::etcd_cluster(),
        &EMBEDDED,
    )
}

/// The definition of EtcdBackup.
pub fn etcd_backup() -> CustomResourceDefinition {
    finish(
        EtcdBackup::crd(),
        &rules::etcd_backup_bounds(),
        &rules::etcd_backup(),
        &EMBEDDED,
    )
}

/// The definition of EtcdRestore.
pub fn etcd_restore() -> CustomResourceDefinition {
    finish(
        EtcdRestore::crd(),
        &rules::etcd_restore_bounds(),
        &rules::etcd_restore(),
        &EMBEDDED,
    )
}

/// The generated files of `deploy/crds/`: name and content of each.
pub fn files() -> Vec<(String, String)> {
    all().iter().map(file).collect()
}
