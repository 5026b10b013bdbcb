//! etcd's drivers: how EtcdClusters, EtcdBackups and EtcdRestores are observed, and how what was planned for them is executed. They
//! speak the Kubernetes API and etcd's, and decide nothing themselves: that is `stateward-etcd`'s. What is not etcd's is
//! `stateward-runtime`'s. [`client`] speaks to etcd, [`agent`] is what the pods of backups and restores run.

mod adopt_scope;
mod adopted;
pub mod agent;
mod agents;
mod backup;
mod caches;
pub mod client;
mod cluster;
mod config;
mod connections;
mod ends;
mod engine;
mod execute;
mod metrics;
mod observe;
mod restore;
mod secrets;
mod tls;

use std::sync::Arc;

use stateward_core::kind::Kind;
use stateward_etcd::backup::Backup;
use stateward_etcd::cluster::Cluster;
use stateward_etcd::restore::Restore;
use stateward_runtime::{Key, Runtime};

pub use adopt_scope::AdoptAllow;
use caches::Caches;
pub use config::Config;
pub use engine::Etcd;

/// What the drivers of all kinds share.
struct Shared {
    runtime: Arc<Runtime>,
    config: Config,
    caches: Caches,
    metrics: metrics::ObjectMetrics,
    /// What cert-manager was asked for.
    requests: tls::Requests,
}

impl Shared {
    /// An EtcdBackup has changed: whoever looks at it is woken, and the cluster that it is of, which looks at it before an upgrade
    /// and when it lost its quorum.
    fn backup_changed(&self, key: &Key) {
        self.runtime.changed(Backup::NAME, key);
        if let Some(backup) = self.caches.backups.get(key)
            && let Some(cluster) = &backup.spec.cluster_ref
        {
            let cluster = Key::new(key.namespace.clone(), cluster.name.clone());
            self.runtime.workers.wake(Cluster::NAME, &cluster);
        }
    }

    /// An agent's pod has changed: whoever it works for is woken.
    fn agent_changed(&self, owner: &Key) {
        let kinds = [Backup::NAME, Restore::NAME];
        if let Some((kind, name)) = owner.name.split_once('/')
            && let Some(kind) = kinds.into_iter().find(|known| *known == kind)
        {
            self.runtime
                .workers
                .wake(kind, &Key::new(owner.namespace.clone(), name));
        }
    }
}
