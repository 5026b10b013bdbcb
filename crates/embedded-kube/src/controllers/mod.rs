//! The controllers, which create and update objects from other objects. Each uses only the Kubernetes API.
//!
//! All of them share one [`world::World`] of watched objects. Each is a loop that wakes when one of its kinds changes,
//! reads the whole cache, writes what differs, and sleeps again: nothing is kept between passes unless documented,
//! nothing is polled, and nothing is written to a cluster that does not change.

mod budgets;
mod claims;
mod endpoints;
mod events;
mod eviction;
mod garbage;
mod namespaces;
mod node_health;
mod objects;
mod quantity;
mod scheduler;
mod scheduling;
mod statefulsets;
mod volumes;
mod world;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio_util::sync::CancellationToken;

use world::World;

/// The configuration of the controllers.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Goes into the ConfigMap `kube-root-ca.crt` of every namespace.
    pub(crate) ca_pem: String,
    /// The folder of the volumes of the storage class `standard`.
    pub(crate) volumes_dir: PathBuf,
    /// A node whose Lease was not renewed for this long is unreachable, and a node that was missing for this long loses
    /// its pods. Kubernetes' default is 40 s for both.
    pub(crate) node_grace: Duration,
    /// The oldest events beyond this number are removed.
    pub(crate) max_events: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            ca_pem: String::new(),
            volumes_dir: std::env::temp_dir().join("embedded-kube-volumes"),
            node_grace: Duration::from_secs(40),
            max_events: 2000,
        }
    }
}

/// The error of a pass. The pass is tried again soon.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("writing an object as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the folder of volume {volume}: {source}")]
    Folder { volume: String, source: std::io::Error },
}

/// Runs all controllers until `stop`.
pub(crate) async fn run(client: Client, options: Options, stop: CancellationToken) {
    let world = Arc::new(World::start(client.clone(), &stop));
    tokio::select! {
        () = world.synced() => {}
        () = stop.cancelled() => return,
    }
    let objects = objects::Objects::new();
    tokio::join!(
        scheduler::run(world.clone(), stop.clone()),
        garbage::run(world.clone(), objects.clone(), stop.clone()),
        namespaces::run(world.clone(), objects, options.ca_pem.clone(), stop.clone()),
        endpoints::run(world.clone(), stop.clone()),
        claims::run(world.clone(), options.volumes_dir.clone(), stop.clone()),
        volumes::run(world.clone(), options.volumes_dir.clone(), stop.clone()),
        node_health::run(world.clone(), options.node_grace, stop.clone()),
        eviction::run(world.clone(), options.node_grace, stop.clone()),
        statefulsets::run(world.clone(), stop.clone()),
        budgets::run(world.clone(), stop.clone()),
        events::bound(client, options.max_events, stop),
    );
}
