//! What is watched of MySQL's objects.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::PartialObjectMeta;
use stateward_mysql::MySQLCluster;
use stateward_mysql::names::{ANNOTATION_CLUSTER_UID, LABEL_INSTANCE};
use stateward_runtime::cache::own_key;
use stateward_runtime::{Index, Key};

/// Everything that is watched.
pub(crate) struct Caches {
    pub(crate) clusters: Index<MySQLCluster>,
    pub(crate) pods: Index<Pod>,
    pub(crate) claims: Index<PersistentVolumeClaim>,
    pub(crate) sets: Index<StatefulSet>,
    pub(crate) services: Index<Service>,
    pub(crate) config_maps: Index<ConfigMap>,
    pub(crate) budgets: Index<PodDisruptionBudget>,
    pub(crate) policies: Index<NetworkPolicy>,
    pub(crate) secrets: Index<PartialObjectMeta<Secret>>,
}

impl Caches {
    pub(crate) fn new() -> Self {
        Self {
            clusters: Index::new(own_key),
            pods: Index::new(label_key),
            claims: Index::new(label_key),
            sets: Index::new(label_key),
            services: Index::new(label_key),
            config_maps: Index::new(label_key),
            budgets: Index::new(label_key),
            policies: Index::new(label_key),
            secrets: Index::new(own_key),
        }
    }

    /// Waits until everything was listed once.
    pub(crate) async fn synced(&self) {
        self.clusters.synced().await;
        self.pods.synced().await;
        self.claims.synced().await;
        self.sets.synced().await;
        self.services.synced().await;
        self.config_maps.synced().await;
        self.budgets.synced().await;
        self.policies.synced().await;
        self.secrets.synced().await;
    }
}

/// The cluster that the object's label names.
fn label_key<K: Resource>(object: &K) -> Option<Key> {
    let meta = object.meta();
    let cluster = meta.labels.as_ref()?.get(LABEL_INSTANCE)?;
    Some(Key::new(meta.namespace.clone().unwrap_or_default(), cluster.clone()))
}

/// Made for the cluster of this UID: names come back, UIDs do not. Pods belong to the StatefulSet and are annotated.
pub(crate) fn is_owned(meta: &ObjectMeta, uid: &str) -> bool {
    let annotated = meta
        .annotations
        .as_ref()
        .and_then(|all| all.get(ANNOTATION_CLUSTER_UID));
    let mut owners = meta.owner_references.iter().flatten();
    owners.any(|owner| owner.uid == uid) || annotated.is_some_and(|annotated| annotated == uid)
}

/// Stays for good: what an object that is gone owned is on its way out, and so is what is being deleted.
pub(crate) fn is_free(meta: &ObjectMeta) -> bool {
    meta.owner_references.iter().flatten().next().is_none() && meta.deletion_timestamp.is_none()
}
