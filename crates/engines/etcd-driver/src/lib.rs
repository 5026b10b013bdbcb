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
mod execute;
mod metrics;
mod observe;
mod restore;
mod secrets;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use stateward_core::kind::Kind;
use stateward_etcd::backup::Backup;
use stateward_etcd::cluster::Cluster;
use stateward_etcd::restore::Restore;
use stateward_runtime::{Driver, Key, Leadership, Runtime, crds, election, health, worker};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use adopt_scope::AdoptAllow;
use backup::Backups;
use caches::Caches;
use cluster::Clusters;
pub use config::{AGENT_IMAGE, Config};
use restore::Restores;
pub use stateward_runtime::Election;

/// Why the operator could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The CustomResourceDefinitions.
    #[error(transparent)]
    Crds(#[from] crds::Error),
    /// The port.
    #[error("cannot listen on {0}: {1}")]
    Listen(std::net::SocketAddr, #[source] std::io::Error),
}

/// What the drivers of all kinds share.
struct Shared {
    runtime: Runtime,
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

impl health::Health for Shared {
    fn is_ready(&self) -> bool {
        futures::FutureExt::now_or_never(cluster::synced(self)).is_some()
    }

    fn metrics(&self) -> String {
        self.runtime.metrics.leads(self.runtime.leadership.holds());
        self.metrics.text(&self.caches)
    }
}

/// Runs the operator until `stop` is cancelled; then lets every reconcile end, and gives the Lease back.
pub async fn run(config: Config, client: Client, stop: CancellationToken) -> Result<(), Error> {
    if config.manage_crds {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            done = crds::bring_up_to_date(&client, stateward_etcd::api::crds::all()) => done?,
        }
    }
    let leadership = if config.election.is_some() {
        Leadership::none()
    } else {
        Leadership::alone()
    };
    let runtime = Runtime::new(
        client.clone(),
        config.namespace.clone(),
        leadership.clone(),
        stop.clone(),
    );
    let shared = Arc::new(Shared {
        metrics: metrics::ObjectMetrics::new(&runtime.metrics),
        runtime,
        caches: Caches::new(),
        requests: tls::Requests::default(),
        config: config.clone(),
    });
    let killed = shared.runtime.killed.clone();
    let _ends_all_when_dropped = killed.clone().drop_guard();
    // The watches and the Lease outlive the workers, which may be in the middle of a reconcile.
    let end = CancellationToken::new();
    let background = TaskTracker::new();
    let spawn = |work: futures::future::BoxFuture<'static, ()>| {
        let killed = killed.clone();
        background.spawn(async move { killed.run_until_cancelled(work).await });
    };
    if let Some(address) = config.listen {
        let listener = tokio::net::TcpListener::bind(address)
            .await
            .map_err(|error| Error::Listen(address, error))?;
        spawn(Box::pin(health::serve(listener, shared.clone(), end.clone())));
    }
    if let Some(election) = config.election {
        spawn(Box::pin(election::run(client, election, leadership, end.clone())));
    }
    let watches = {
        let (clusters, backups, restores) = (Clusters::new(&shared), Backups::new(&shared), Restores::new(&shared));
        let end = end.clone();
        async move {
            let all = async { tokio::join!(clusters.watches(), backups.watches(), restores.watches()) };
            tokio::select! {
                () = end.cancelled() => {}
                _ = all => {}
            }
        }
    };
    spawn(Box::pin(watches));
    stop.cancelled().await;
    // A reconcile is bounded, and so is this.
    shared.runtime.workers.ended(worker::LIMIT).await;
    end.cancel();
    background.close();
    let _ = tokio::time::timeout(Duration::from_secs(5), background.wait()).await;
    Ok(())
}
