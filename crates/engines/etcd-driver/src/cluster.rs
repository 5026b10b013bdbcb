//! EtcdClusters: what is followed for them, and how the worker drives one.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::watcher;
use stateward_core::kind::Kind;
use stateward_etcd::api::{EtcdCluster, names};
use stateward_etcd::cluster::{Cluster, Effect, Launch, MemberName, Order, Record, Settings};
use stateward_runtime::{Driver, Failure, Index, Key, Look, Observed, Runtime, Step, secrets, watch, worker};

use crate::Shared;
use crate::execute::Executor;
use crate::observe::{Means, Session, observe};

/// How much earlier the first by name of several members that begin a cluster together is started. At its very first start
/// etcd asks its peers by the order of their names whether it has been there before, for up to a second each. Peers that open
/// their ports in the same moment serve nobody yet and hold each other up for seconds; the first, when a little ahead, finds
/// no port open and then answers all others.
const HEAD_START: Duration = Duration::from_millis(150);

/// The driver of EtcdClusters.
pub(crate) struct Clusters {
    shared: Arc<Shared>,
    settings: Settings,
}

impl Clusters {
    pub(crate) fn new(shared: &Arc<Shared>) -> Arc<Self> {
        let settings = Settings {
            agent_image: shared.config.agent_image.clone(),
            ephemeral_by_default: shared.config.ephemeral_by_default,
        };
        Arc::new(Self {
            shared: shared.clone(),
            settings,
        })
    }
}

/// Waits until everything that decisions about clusters rest on was listed once.
pub(crate) async fn synced(shared: &Shared) {
    let caches = &shared.caches;
    caches.clusters.synced().await;
    caches.pods.synced().await;
    caches.claims.synced().await;
    caches.services.synced().await;
    caches.budgets.synced().await;
    shared.runtime.secrets.watched.synced().await;
}

impl Driver for Clusters {
    type Kind = Cluster;
    type Object = EtcdCluster;
    type Session = Session;
    type Means = Means;

    fn resync(&self) -> Duration {
        self.shared.config.health_interval
    }

    fn runtime(&self) -> &Runtime {
        &self.shared.runtime
    }

    fn objects(&self) -> &Index<EtcdCluster> {
        &self.shared.caches.clusters
    }

    fn settings(&self) -> &Settings {
        &self.settings
    }

    async fn watches(self: Arc<Self>) {
        let (shared, caches, runtime) = (&*self.shared, &self.shared.caches, &self.shared.runtime);
        let ours = format!("{}={},{}", names::LABEL_APP, names::APP_ETCD, names::LABEL_CLUSTER);
        let wake = |key: &Key| runtime.workers.wake(Cluster::NAME, key);
        let clusters = watch::follow_all(runtime, "EtcdClusters", &caches.clusters, |key| {
            worker::tend(&self, key);
            runtime.changed(Cluster::NAME, key);
        });
        let nodes = watch::nodes(runtime, |node| {
            let is_on_it = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
            caches.pods.keys_where(is_on_it).iter().for_each(wake);
            for owner in caches.agents.keys_where(is_on_it) {
                shared.agent_changed(&owner);
            }
        });
        tokio::join!(
            clusters,
            watch::follow_labelled(runtime, &ours, "Pods", &caches.pods, wake),
            watch::follow_labelled(runtime, &ours, "PersistentVolumeClaims", &caches.claims, wake),
            watch::follow_labelled(runtime, &ours, "Services", &caches.services, wake),
            watch::follow_labelled(runtime, &ours, "PodDisruptionBudgets", &caches.budgets, wake),
            secrets::follow_labelled(runtime, &ours),
            secrets::follow_named(runtime),
            nodes,
            attachments(shared),
        );
    }

    async fn synced(&self) {
        synced(&self.shared).await;
    }

    fn changed(&self, key: &Key, _: &EtcdCluster) {
        self.shared.runtime.changed(Cluster::NAME, key);
    }

    async fn observe(&self, look: Look<'_, Self>) -> kube::Result<Observed<Self>> {
        observe(&self.shared, look).await
    }

    async fn may_remember(&self, step: &Step<'_, Self>, before: &Record, after: &Record) -> Result<(), Failure> {
        Ok(Executor::new(self, &self.shared, step)
            .may_remember(before, after)
            .await?)
    }

    async fn begin(&self, step: &Step<'_, Self>, orders: &[Order]) -> Result<(), Failure> {
        Ok(Executor::new(self, &self.shared, step).begin(orders).await?)
    }

    async fn holds(&self, step: &Step<'_, Self>, order: &Order) -> Result<(), Failure> {
        Ok(Executor::new(self, &self.shared, step).holds(&order.effect).await?)
    }

    async fn execute(&self, step: &Step<'_, Self>, order: &Order) -> Result<(), Failure> {
        let done = Executor::new(self, &self.shared, step).execute(order).await;
        done.map_err(|failure| failure.said(step.intent))
    }

    fn delay(&self, order: &Order, together: &[Order]) -> Duration {
        let ahead = together.iter().filter_map(first_member).min();
        if first_member(order) > ahead {
            HEAD_START
        } else {
            Duration::ZERO
        }
    }
}

/// Whom this starts, where it is one of several that begin a cluster together.
fn first_member(order: &Order) -> Option<&MemberName> {
    let Effect::CreatePod { member, launch, .. } = &order.effect else {
        return None;
    };
    matches!(launch, Launch::Static { .. }).then_some(member)
}

/// Whether a volume is still attached to the node of a lost member. A cluster that has lost its quorum looks again by itself, so
/// nobody is woken.
async fn attachments(shared: &Shared) {
    if shared.runtime.namespace.is_some() {
        return;
    }
    let all = watcher(Api::all(shared.runtime.client.clone()), watcher::Config::default());
    watch::follow(all, "VolumeAttachments", &shared.caches.attachments, |_| {}).await;
}
