//! The etcd engine, as an operator runs it.

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use prometheus_client::registry::Registry;
use stateward_core::kind::Kind;
use stateward_etcd::cluster::Cluster;
use stateward_runtime::operator::Engine;
use stateward_runtime::{Driver, Runtime};

use crate::backup::Backups;
use crate::caches::Caches;
use crate::cluster::{self, Clusters};
use crate::metrics::ObjectMetrics;
use crate::restore::Restores;
use crate::{Config, Shared, tls};

/// EtcdClusters, EtcdBackups and EtcdRestores.
pub struct Etcd(Arc<Shared>);

impl Etcd {
    /// An engine that follows nothing yet.
    pub fn new(runtime: &Arc<Runtime>, config: Config) -> Arc<Self> {
        Arc::new(Self(Arc::new(Shared {
            runtime: runtime.clone(),
            config,
            caches: Caches::new(),
            metrics: ObjectMetrics::default(),
            requests: tls::Requests::default(),
        })))
    }
}

impl Engine for Etcd {
    fn crds(&self) -> Vec<CustomResourceDefinition> {
        stateward_etcd::api::crds::all()
    }

    fn watches(self: Arc<Self>) -> BoxFuture<'static, ()> {
        let shared = &self.0;
        let (clusters, backups, restores) = (Clusters::new(shared), Backups::new(shared), Restores::new(shared));
        Box::pin(async move {
            tokio::join!(clusters.watches(), backups.watches(), restores.watches());
        })
    }

    fn synced(&self) -> BoxFuture<'_, ()> {
        Box::pin(cluster::synced(&self.0))
    }

    fn node_changed(&self, node: &str) {
        let (caches, runtime) = (&self.0.caches, &self.0.runtime);
        let is_on_it = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
        for cluster in caches.pods.keys_where(is_on_it) {
            runtime.workers.wake(Cluster::NAME, &cluster);
        }
        for owner in caches.agents.keys_where(is_on_it) {
            self.0.agent_changed(&owner);
        }
    }

    fn register_metrics(&self, registry: &mut Registry) {
        self.0.metrics.register(registry);
    }

    fn refresh_metrics(&self) {
        self.0.metrics.refresh(&self.0.caches);
    }
}
