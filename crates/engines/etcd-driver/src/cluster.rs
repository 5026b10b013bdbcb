//! EtcdClusters: what is followed for them, and how the worker drives one.

use std::sync::Arc;
use std::time::Duration;

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
        tokio::join!(
            clusters,
            watch::follow_labelled(runtime, &ours, "Pods", &caches.pods, wake),
            watch::follow_labelled(runtime, &ours, "PersistentVolumeClaims", &caches.claims, wake),
            watch::follow_labelled(runtime, &ours, "Services", &caches.services, wake),
            watch::follow_labelled(runtime, &ours, "PodDisruptionBudgets", &caches.budgets, wake),
            secrets::follow_labelled(runtime, &ours),
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
        let done = Executor::new(self, &self.shared, step)
            .may_remember(before, after)
            .await;
        done.map_err(|failure| failure.said(step.intent))
    }

    async fn begin(&self, step: &Step<'_, Self>, orders: &[Order]) -> Result<(), Failure> {
        let done = Executor::new(self, &self.shared, step).begin(orders).await;
        done.map_err(|failure| failure.said(step.intent))
    }

    async fn holds(&self, step: &Step<'_, Self>, order: &Order) -> Result<(), Failure> {
        let done = Executor::new(self, &self.shared, step).holds(&order.effect).await;
        done.map_err(|failure| failure.said(step.intent))
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::SocketAddr;

    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use serde_json::json;
    use stateward_core::ObjectVersion;
    use stateward_etcd::api::EtcdVersion;
    use stateward_etcd::cluster::{ClusterId, Intent, MemberId, MemberProbe, Reply, Uid, World};
    use stateward_runtime::Leadership;
    use stateward_runtime::worker::Seen;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::client::{Client, Timeouts};
    use crate::{Config, caches::Caches, metrics, tls};

    /// A gRPC server that rejects every call with these words, until the test ends.
    async fn rejecting(words: &'static str) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let reject = service_fn(move |_| async move {
            let response = hyper::Response::builder()
                .header("content-type", "application/grpc")
                .header("grpc-status", "7")
                .header("grpc-message", words);
            response.body(http_body_util::Empty::<bytes::Bytes>::new())
        });
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(server.serve_connection(TokioIo::new(stream), reject));
            }
        });
        address
    }

    fn shared() -> Arc<Shared> {
        let _another_test_has = rustls::crypto::ring::default_provider().install_default();
        let nowhere = kube::Config::new(http::Uri::from_static("http://127.0.0.1:1"));
        let client = kube::Client::try_from(nowhere).expect("a client");
        let runtime = Runtime::new(client, None, Leadership::alone(), CancellationToken::new());
        Arc::new(Shared {
            metrics: metrics::ObjectMetrics::default(),
            runtime: Arc::new(runtime),
            config: Config::default(),
            caches: Caches::new(),
            requests: tls::Requests::default(),
        })
    }

    fn reply() -> Reply {
        let (id, cluster) = (MemberId(1), ClusterId(7));
        Reply {
            id,
            cluster,
            leader: Some(id),
            learner: false,
            version: EtcdVersion::new(3, 5, 0),
            storage_minor: None,
            cluster_minor: None,
            downgrading: None,
            term: 1,
            index: 1,
            db_size: 0,
            db_in_use: 0,
            list: Vec::new(),
        }
    }

    #[tokio::test]
    async fn a_guard_that_fails_does_not_repeat_what_a_foreign_server_said() {
        // given a cluster that adopts another one, of which a server rejects calls with words of its own
        let address = rejecting("secret words").await;
        let clusters = Clusters::new(&shared());
        let cluster: EtcdCluster = serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "n", "uid": "u", "generation": 1, "resourceVersion": "1",
                "annotations": {names::ANNOTATION_ADOPT: "http://old.n.svc:2379"}},
            "spec": {"size": 3},
        }))
        .expect("an EtcdCluster");
        let intent = Intent::of(&cluster, false).expect("an intent");
        assert!(!intent.adopt.is_empty());
        let member = MemberName("http://old.n.svc:2379".into());
        let timeouts = Timeouts {
            connect: Duration::from_secs(10),
            request: Duration::from_secs(10),
        };
        let client = Client::new(address, None, timeouts).expect("a connection");
        let observed = Observed {
            world: World {
                probes: [(member.clone(), MemberProbe::Reply(reply()))].into(),
                ..World::default()
            },
            means: Means {
                pod_versions: BTreeMap::new(),
                clients: [(member, client)].into(),
            },
            look_again: None,
            trouble: None,
        };
        let seen = Seen::default();
        seen.now(Some(ObjectVersion::of(&cluster.metadata)));
        let (key, object) = (Key::new("n", "c"), cluster);
        let step = Step {
            key: &key,
            object: &object,
            intent: &intent,
            observed: &observed,
            seen: &seen,
        };
        // when a claim is to be deleted, which requires the member list
        let effect = Effect::DeleteClaim {
            member: MemberName("c-1".into()),
            uid: Uid("claim".into()),
            cluster: ClusterId(7),
        };
        let order = Order { effect, write: None };
        let failure = clusters.holds(&step, &order).await.expect_err("a rejected call");
        // then the failure, which the status shows, is in our own words
        assert!(matches!(failure, Failure::Failed(_)), "{failure:?}");
        assert!(!failure.to_string().contains("secret"), "{failure}");
    }
}
