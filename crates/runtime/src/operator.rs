//! An operator: engines on one runtime, from their CustomResourceDefinitions at the start to the Lease given back at the end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{Election, Leadership, Runtime, crds, election, health, metrics, secrets, watch, worker};

/// The project's image of this version.
pub const AGENT_IMAGE: &str = concat!("ghcr.io/stateward/stateward:", env!("CARGO_PKG_VERSION"));

/// What an operator is told when it starts, whatever its engines are.
#[derive(Clone, Debug)]
pub struct Config {
    /// The one namespace to look after; `None`: all of them.
    pub namespace: Option<String>,
    /// Create and update the CustomResourceDefinitions at start.
    pub manage_crds: bool,
    /// Where to serve `/metrics`, `/healthz`, `/readyz` and `/version`; `None`: nowhere.
    pub listen: Option<SocketAddr>,
    /// How it is made sure that only one operator acts; `None`: the caller knows that there is only one.
    pub election: Option<Election>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            namespace: None,
            manage_crds: true,
            listen: None,
            election: None,
        }
    }
}

/// The kinds of one engine, as the operator runs them.
pub trait Engine: Send + Sync + 'static {
    /// Their CustomResourceDefinitions.
    fn crds(&self) -> Vec<CustomResourceDefinition>;

    /// Follows everything that their drivers need, until it is dropped.
    fn watches(self: Arc<Self>) -> BoxFuture<'static, ()>;

    /// Waits until everything that decisions rest on was listed once.
    fn synced(&self) -> BoxFuture<'_, ()>;

    /// A node has died or come back: whoever has a pod on it is woken.
    fn node_changed(&self, node: &str);

    /// Adds metrics about the objects.
    fn register_metrics(&self, registry: &mut Registry);

    /// Takes the metrics from the objects as they are now.
    fn refresh_metrics(&self);
}

/// Why the operator could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The CustomResourceDefinitions.
    #[error(transparent)]
    Crds(#[from] crds::Error),
    /// The port.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, #[source] std::io::Error),
}

/// Runs an operator with the engines that `engines` makes, until `stop` is cancelled; then lets every reconcile end, and gives the
/// Lease back. Dropping the future ends everything where it is, as a crash does.
pub async fn run(
    config: Config,
    client: Client,
    stop: CancellationToken,
    engines: impl FnOnce(&Arc<Runtime>) -> Vec<Arc<dyn Engine>>,
) -> Result<(), Error> {
    let leadership = match config.election {
        Some(_) => Leadership::none(),
        None => Leadership::alone(),
    };
    let runtime = Runtime::new(client.clone(), config.namespace, leadership.clone(), stop.clone());
    let runtime = Arc::new(runtime);
    let engines = engines(&runtime);
    if config.manage_crds {
        let crds = engines.iter().flat_map(|engine| engine.crds()).collect();
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            done = crds::bring_up_to_date(&client, crds) => done?,
        }
    }
    let killed = runtime.killed.clone();
    let _ends_all_when_dropped = killed.clone().drop_guard();
    // The watches and the Lease outlive the workers, which may be in the middle of a reconcile.
    let end = CancellationToken::new();
    let background = TaskTracker::new();
    let spawn = |work: BoxFuture<'static, ()>| {
        let killed = killed.clone();
        background.spawn(async move { killed.run_until_cancelled(work).await });
    };
    if let Some(address) = config.listen {
        let listener = tokio::net::TcpListener::bind(address)
            .await
            .map_err(|error| Error::Listen(address, error))?;
        let status = Arc::new(Status::new(&runtime, &engines));
        spawn(Box::pin(health::serve(listener, status, end.clone())));
    }
    if let Some(election) = config.election {
        spawn(Box::pin(election::run(client, election, leadership, end.clone())));
    }
    let watches = {
        let (runtime, end) = (runtime.clone(), end.clone());
        async move {
            let nodes = watch::nodes(&runtime, |node| {
                engines.iter().for_each(|engine| engine.node_changed(node))
            });
            let own = join_all(engines.iter().map(|engine| engine.clone().watches()));
            let all = async { tokio::join!(own, nodes, secrets::follow_named(&runtime)) };
            tokio::select! {
                () = end.cancelled() => {}
                _ = all => {}
            }
        }
    };
    spawn(Box::pin(watches));
    stop.cancelled().await;
    // A reconcile is bounded, and so is this.
    runtime.workers.ended(worker::LIMIT).await;
    end.cancel();
    background.close();
    let _ = tokio::time::timeout(Duration::from_secs(5), background.wait()).await;
    Ok(())
}

/// What is served about an operator.
struct Status {
    runtime: Arc<Runtime>,
    engines: Vec<Arc<dyn Engine>>,
    registry: Registry,
}

impl Status {
    fn new(runtime: &Arc<Runtime>, engines: &[Arc<dyn Engine>]) -> Self {
        let mut registry = Registry::with_prefix("stateward");
        runtime.metrics.register(&mut registry);
        for engine in engines {
            engine.register_metrics(&mut registry);
        }
        Self {
            runtime: runtime.clone(),
            engines: engines.to_vec(),
            registry,
        }
    }
}

impl health::Health for Status {
    fn is_ready(&self) -> bool {
        let mut engines = self.engines.iter();
        engines.all(|engine| engine.synced().now_or_never().is_some())
    }

    fn metrics(&self) -> String {
        self.runtime.metrics.leads(self.runtime.leadership.holds());
        for engine in &self.engines {
            engine.refresh_metrics();
        }
        metrics::text(&self.registry)
    }
}
