//! Kubernetes I/O for any engine: what is between a pure [`Kind`](stateward_core::kind::Kind) and a real API server.
//!
//! An engine implements [`Driver`] for each of its kinds; one [`Worker`](worker::run) per object does the rest. Nothing is
//! remembered between reconciles but caches and connections.

pub mod cache;
pub mod crds;
mod driver;
pub mod election;
mod events;
pub mod guards;
pub mod health;
pub mod metrics;
pub mod objects;
pub mod operator;
pub mod pki;
mod platform;
pub mod secrets;
pub mod watch;
pub mod worker;
mod workers;

pub use cache::{Index, Key};
pub use driver::{Driver, Failure, Look, Observed, Step};
pub use election::{Election, Leadership};
pub use events::Events;
pub use metrics::Metrics;
pub use platform::Platform;
pub use workers::Workers;

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use stateward_core::names;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// What all workers of all kinds share.
pub struct Runtime {
    /// The client.
    pub client: Client,
    /// The one namespace to look after; `None`: all of them.
    pub namespace: Option<String>,
    /// Whether this operator may act.
    pub leadership: Leadership,
    /// Writes events.
    pub events: Events,
    /// Counts.
    pub metrics: Metrics,
    /// What the Kubernetes is.
    pub platform: Platform,
    /// The workers, and what wakes them.
    pub workers: Workers,
    /// Secrets, by their labels or by name.
    pub secrets: secrets::Secrets,
    /// The nodes, unless the operator looks after one namespace only.
    pub nodes: Index<Node>,
    /// The operator stops: reconciles that run come to their end, no other starts.
    pub stop: CancellationToken,
    /// The operator's own future was dropped: everything ends where it is, as in a crash.
    pub killed: CancellationToken,
}

impl Runtime {
    /// A runtime whose workers have not started yet.
    pub fn new(client: Client, namespace: Option<String>, leadership: Leadership, stop: CancellationToken) -> Self {
        Self {
            events: Events::new(client.clone()),
            client,
            namespace,
            leadership,
            metrics: Metrics::default(),
            platform: Platform::default(),
            workers: Workers::default(),
            secrets: secrets::Secrets::default(),
            nodes: Index::new(cache::own_key),
            stop,
            killed: CancellationToken::new(),
        }
    }

    /// The objects of a kind in a namespace.
    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// An object has changed: whoever looks at it is woken.
    pub fn changed(&self, kind: &'static str, key: &Key) {
        self.workers.wake_users(kind, key);
    }

    /// Waits for the next turn of a worker: until it is called or the pause is over, and this operator leads. `false`: the
    /// operator stops. A stop ends the waits between reconciles, never a reconcile.
    async fn next_turn(&self, mailbox: &Notify, pause: Duration) -> bool {
        let turn = async {
            tokio::select! {
                () = mailbox.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
            self.leadership.begins().await;
        };
        tokio::select! {
            () = self.stop.cancelled() => false,
            () = turn => true,
        }
    }
}

/// The parameters of a write: who writes.
pub(crate) fn as_manager() -> kube::api::PostParams {
    kube::api::PostParams {
        field_manager: Some(names::MANAGER.into()),
        ..kube::api::PostParams::default()
    }
}
