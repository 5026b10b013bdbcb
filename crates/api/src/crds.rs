//! The CustomResourceDefinitions of all kinds here.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::{EtcdBackup, EtcdCluster, EtcdRestore};

/// All of them, in the order of their names.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![EtcdBackup::crd(), EtcdCluster::crd(), EtcdRestore::crd()]
}
