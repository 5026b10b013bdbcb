//! MySQLClusters: what is followed for them, and how the worker drives one.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use stateward_core::kind::Kind;
use stateward_core::names::MANAGER;
use stateward_mysql::action::Action;
use stateward_mysql::kind::{MySQLClusters, Settings};
use stateward_mysql::names::APP;
use stateward_mysql::{MySQLCluster, names};
use stateward_runtime::{Driver, Failure, Index, Key, Look, Observed, Runtime, Step, secrets, watch, worker};

use crate::caches::Caches;
use crate::execute::Executor;
use crate::holds::must_hold;
use crate::metrics::Metrics;
use crate::observe::{Means, observe};
use crate::session::Session;

/// The driver of MySQLClusters.
pub struct MySQLDriver {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) caches: Caches,
    /// The image with the `stateward` program, which pods of members copy it from.
    pub(crate) agent_image: String,
    /// Heartbeats that are being committed.
    pub(crate) nudges: Nudges,
    /// What is told about clusters.
    pub metrics: Metrics,
}

/// Pods on whose servers a heartbeat is being committed: it may wait for long.
#[derive(Clone, Default)]
pub(crate) struct Nudges(Arc<Mutex<HashSet<String>>>);

impl Nudges {
    /// Begins one, unless one is being committed.
    pub(crate) fn begin(&self, pod: &str) -> bool {
        let mut pods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pods.insert(pod.to_owned())
    }

    pub(crate) fn end(&self, pod: &str) {
        let mut pods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pods.remove(pod);
    }
}

impl MySQLDriver {
    /// A driver that follows nothing yet. `agent_image` has the `stateward` program.
    pub fn new(runtime: Arc<Runtime>, agent_image: impl Into<String>) -> Arc<Self> {
        // The second time does nothing.
        let _installed = rustls::crypto::ring::default_provider().install_default();
        Arc::new(Self {
            runtime,
            caches: Caches::new(),
            agent_image: agent_image.into(),
            nudges: Nudges::default(),
            metrics: Metrics::default(),
        })
    }

    /// A node has died or come back: whoever has a pod on it is woken.
    pub fn node_changed(&self, node: &str) {
        let is_on_it = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
        for key in self.caches.pods.keys_where(is_on_it) {
            self.wake(&key);
        }
    }

    /// The metrics of all clusters are what their statuses say now.
    pub fn refresh_metrics(&self) {
        self.metrics.set(&self.caches.clusters.all());
    }

    fn wake(&self, key: &Key) {
        self.runtime.workers.wake(MySQLClusters::NAME, key);
    }
}

impl Driver for MySQLDriver {
    type Kind = MySQLClusters;
    type Object = MySQLCluster;
    type Session = Session;
    type Means = Means;

    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn objects(&self) -> &Index<MySQLCluster> {
        &self.caches.clusters
    }

    fn settings(&self) -> &Settings {
        &Settings
    }

    /// Lag, acknowledgements and volumes change without an event.
    fn resync(&self) -> Duration {
        Duration::from_secs(10)
    }

    async fn watches(self: Arc<Self>) {
        let (runtime, caches) = (self.runtime.as_ref(), &self.caches);
        let ours = format!(
            "app.kubernetes.io/name={APP},app.kubernetes.io/managed-by={MANAGER},{}",
            names::LABEL_INSTANCE
        );
        let wake = |key: &Key| self.wake(key);
        tokio::join!(
            watch::follow_all(runtime, "MySQLClusters", &caches.clusters, |key| {
                worker::tend(&self, key);
                runtime.changed(MySQLClusters::NAME, key);
            }),
            watch::follow_labelled(runtime, &ours, "Pods", &caches.pods, wake),
            watch::follow_labelled(runtime, &ours, "PersistentVolumeClaims", &caches.claims, wake),
            watch::follow_labelled(runtime, &ours, "StatefulSets", &caches.sets, wake),
            watch::follow_labelled(runtime, &ours, "Services", &caches.services, wake),
            watch::follow_labelled(runtime, &ours, "ConfigMaps", &caches.config_maps, wake),
            watch::follow_labelled(runtime, &ours, "PodDisruptionBudgets", &caches.budgets, wake),
            watch::follow_labelled(runtime, &ours, "NetworkPolicies", &caches.policies, wake),
            secrets::follow_in(runtime, &ours, &caches.secrets, |secret| {
                runtime.secrets.forget(secret);
                runtime.changed(secrets::KIND, secret);
            }),
        );
    }

    async fn synced(&self) {
        self.caches.synced().await;
    }

    fn changed(&self, key: &Key, _: &MySQLCluster) {
        self.runtime.changed(MySQLClusters::NAME, key);
    }

    async fn observe(&self, look: Look<'_, Self>) -> kube::Result<Observed<Self>> {
        observe(self, look).await
    }

    async fn holds(&self, step: &Step<'_, Self>, action: &Action) -> Result<(), Failure> {
        must_hold(self, step, action).await
    }

    async fn execute(&self, step: &Step<'_, Self>, action: &Action) -> Result<(), Failure> {
        Executor::new(self, step).execute(action).await
    }
}
