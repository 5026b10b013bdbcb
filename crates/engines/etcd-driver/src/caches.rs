//! What is watched of etcd's objects.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Resource;
use stateward_etcd::api::{EtcdBackup, EtcdCluster, EtcdRestore, names};
use stateward_etcd::cluster::facts;
use stateward_runtime::cache::{agent_key, own_key};
use stateward_runtime::{Index, Key};

/// Everything that is watched.
pub(crate) struct Caches {
    pub(crate) clusters: Index<EtcdCluster>,
    pub(crate) backups: Index<EtcdBackup>,
    /// By the cluster that they put back.
    pub(crate) restores: Index<EtcdRestore>,
    /// The pods of agents, by what they work for: see [`stateward_runtime::cache::owner_key`].
    pub(crate) agents: Index<Pod>,
    pub(crate) pods: Index<Pod>,
    pub(crate) claims: Index<PersistentVolumeClaim>,
    pub(crate) services: Index<Service>,
    pub(crate) budgets: Index<PodDisruptionBudget>,
    pub(crate) attachments: Index<VolumeAttachment>,
}

impl Caches {
    pub(crate) fn new() -> Self {
        Self {
            clusters: Index::new(own_key),
            backups: Index::new(own_key).with_references(backed_up),
            restores: Index::new(restore_key),
            agents: Index::new(agent_key),
            pods: Index::new(label_key).remembering(
                |pod| facts::pod(pod).stopped,
                |pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none()),
            ),
            claims: Index::new(label_key),
            services: Index::new(label_key),
            budgets: Index::new(label_key),
            attachments: Index::new(own_key),
        }
    }
}

/// The cluster that the object's label names.
fn label_key<K: Resource>(object: &K) -> Option<Key> {
    let meta = object.meta();
    let cluster = meta.labels.as_ref()?.get(names::LABEL_CLUSTER)?;
    Some(Key::new(meta.namespace.clone().unwrap_or_default(), cluster.clone()))
}

/// The cluster that an EtcdBackup backs up, where it names one.
fn backed_up(backup: &EtcdBackup) -> Option<Key> {
    let cluster = backup.spec.cluster_ref.as_ref()?;
    let namespace = backup.metadata.namespace.clone().unwrap_or_default();
    Some(Key::new(namespace, cluster.name.clone()))
}

/// The cluster that an EtcdRestore puts back.
pub(crate) fn restore_key(restore: &EtcdRestore) -> Option<Key> {
    let namespace = restore.metadata.namespace.clone().unwrap_or_default();
    Some(Key::new(namespace, restore.cluster_name()))
}
