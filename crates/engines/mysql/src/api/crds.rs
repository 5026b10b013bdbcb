//! The CustomResourceDefinitions of MySQL.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt;
use stateward_core::crd::finish;

use super::{MySQLCluster, rules};

/// Fields whose types are Kubernetes' own; everything below them is documented there.
const EMBEDDED: [&str; 6] = [
    "spec.pod.affinity",
    "spec.pod.imagePullSecrets",
    "spec.pod.resources",
    "spec.pod.securityContext",
    "spec.pod.tolerations",
    "spec.pod.topologySpreadConstraints",
];

/// All definitions, in the order of their names.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![mysql_cluster()]
}

/// The definition of MySQLCluster.
pub fn mysql_cluster() -> CustomResourceDefinition {
    let mut crd = MySQLCluster::crd();
    rules::open_config(&mut crd);
    finish(crd, &rules::cluster_bounds(), &rules::cluster(), &EMBEDDED)
}
