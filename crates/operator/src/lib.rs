//! The operator: observe, plan, carry out. It speaks the Kubernetes API and etcd's, and decides nothing itself: that is
//! `stateward-plan`'s.
//!
//! Each EtcdCluster ([`cluster_loop`]) and EtcdBackup ([`backup`]) is its own loop, woken by the events of its own objects; a
//! slow or broken one delays no other. Nothing is remembered between rounds but caches and connections.

mod adopt_scope;
mod adopted;
mod backup;
mod caches;
mod carry_out;
mod cluster_loop;
mod config;
mod connections;
mod crds;
mod election;
mod events;
mod fate;
mod health;
mod metrics;
mod named;
mod observe;
mod platform;
mod restore;
mod secrets;
mod tls;
mod watch;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::Client;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use adopt_scope::AdoptAllow;
use caches::{Caches, Key};
pub use config::{AGENT_IMAGE, Config, Election};
use election::Tenure;

/// Why the operator could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The CustomResourceDefinitions.
    #[error("the CustomResourceDefinitions could not be brought up to date: {0}")]
    Crds(#[source] kube::Error),
    /// They were not taken up by the API server.
    #[error("the API server did not take up the CustomResourceDefinition {0} within a minute")]
    CrdNotServed(String),
    /// The port.
    #[error("cannot listen on {0}: {1}")]
    Listen(std::net::SocketAddr, #[source] std::io::Error),
}

/// What all loops share.
struct Shared {
    client: Client,
    config: Config,
    caches: Caches,
    tenure: Tenure,
    events: events::Events,
    metrics: metrics::Metrics,
    loops: Loops,
    secret_users: watch::Users,
    /// The Secrets that are not watched.
    named: named::Named,
    platform: platform::Platform,
    /// What cert-manager was asked for.
    requests: tls::Requests,
    /// The loops of EtcdBackups, and what wakes them beside their own objects.
    backups: backup::Backups,
    /// The loops of EtcdRestores.
    restores: restore::Restores,
    dead_nodes: watch::DeadNodes,
    stop: CancellationToken,
    /// The operator's own future was dropped: everything ends where it is, as in a crash.
    killed: CancellationToken,
}

/// The loops that run, and how to wake them.
#[derive(Default)]
struct Loops {
    running: Mutex<HashMap<Key, Arc<Notify>>>,
    tasks: TaskTracker,
}

impl Loops {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Arc<Notify>>> {
        self.running.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Wakes an object's loop. Several calls while it is busy make one further round.
    fn wake(&self, key: &Key) {
        if let Some(mailbox) = self.lock().get(key) {
            mailbox.notify_one();
        }
    }

    /// Wakes an object's loop, and starts it where there is none and `start` gives one.
    fn tend<F>(&self, killed: &CancellationToken, key: &Key, start: impl FnOnce(Arc<Notify>) -> Option<F>)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut running = self.lock();
        if let Some(mailbox) = running.get(key) {
            mailbox.notify_one();
            return;
        }
        let mailbox = Arc::new(Notify::new());
        if let Some(work) = start(mailbox.clone()) {
            mailbox.notify_one();
            running.insert(key.clone(), mailbox);
            let killed = killed.clone();
            self.tasks.spawn(async move { killed.run_until_cancelled(work).await });
        }
    }

    /// Ends a loop whose object is gone. `false`: the object is there again.
    fn leave(&self, key: &Key, is_there: impl FnOnce() -> bool) -> bool {
        let mut running = self.lock();
        if is_there() {
            return false;
        }
        running.remove(key);
        true
    }
}

impl Shared {
    /// Wakes the cluster's loop, and starts it where there is none.
    fn tend(shared: &Arc<Self>, key: &Key) {
        shared.loops.tend(&shared.killed, key, |mailbox| {
            let wanted = !shared.stop.is_cancelled() && shared.caches.clusters.get(key).is_some();
            wanted.then(|| cluster_loop::run(shared.clone(), key.clone(), mailbox))
        });
    }

    /// A cluster as a request of our own found it. The watch says the same later and is not heard then, so those who look at the
    /// cluster are woken now.
    fn put_cluster(&self, key: &Key, cluster: stateward_api::EtcdCluster) {
        self.caches.clusters.put(cluster);
        self.wake_users_of_cluster(key);
    }

    /// The loops beside its own that look at a cluster.
    fn wake_users_of_cluster(&self, key: &Key) {
        self.restores.loops.wake(key);
        for backup in self.backups.cluster_users.of(key) {
            self.backups.loops.wake(&backup);
        }
    }

    /// The same for an EtcdBackup.
    fn put_backup(&self, key: &Key, backup: stateward_api::EtcdBackup) {
        self.caches.backups.put(backup);
        self.wake_users_of_backup(key);
    }

    /// The loops beside its own that look at an EtcdBackup.
    fn wake_users_of_backup(&self, key: &Key) {
        for cluster in self.restores.users.of(key) {
            self.restores.loops.wake(&cluster);
        }
        // The cluster that it is of looks at it: before an upgrade, and when it lost its quorum.
        if let Some(backup) = self.caches.backups.get(key)
            && let Some(cluster) = &backup.spec.cluster_ref
        {
            self.loops.wake(&Key::new(key.namespace.clone(), cluster.name.clone()));
        }
    }

    /// Waits for the next turn of a loop: until it is called or the pause is over, and this operator leads. `false`: the
    /// operator stops. A stop ends the waits between rounds, never a round.
    async fn next_turn(&self, mailbox: &Notify, pause: Duration) -> bool {
        let turn = async {
            tokio::select! {
                () = mailbox.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
            self.tenure.begins().await;
        };
        tokio::select! {
            () = self.stop.cancelled() => false,
            () = turn => true,
        }
    }

    /// Ends a loop whose cluster is gone. `false`: the cluster is there again.
    fn leave(&self, key: &Key) -> bool {
        self.secret_users.forget(key);
        self.loops.leave(key, || self.caches.clusters.get(key).is_some())
    }
}

/// Runs the operator until `stop` is cancelled; then lets every round end, and gives the Lease back.
pub async fn run(config: Config, client: Client, stop: CancellationToken) -> Result<(), Error> {
    if config.manage_crds {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            done = crds::bring_up_to_date(&client) => done?,
        }
    }
    let tenure = if config.election.is_some() {
        Tenure::none()
    } else {
        Tenure::alone()
    };
    let shared = Arc::new(Shared {
        events: events::Events::new(client.clone()),
        client: client.clone(),
        caches: Caches::new(),
        tenure: tenure.clone(),
        metrics: metrics::Metrics::new(),
        loops: Loops::default(),
        secret_users: watch::Users::default(),
        named: named::Named::default(),
        platform: platform::Platform::default(),
        requests: tls::Requests::default(),
        backups: backup::Backups::default(),
        restores: restore::Restores::default(),
        dead_nodes: watch::DeadNodes::default(),
        stop: stop.clone(),
        killed: CancellationToken::new(),
        config: config.clone(),
    });
    let _ends_all_when_dropped = shared.killed.clone().drop_guard();
    // The watches and the Lease outlive the loops, which may be in the middle of a round.
    let end = CancellationToken::new();
    let background = TaskTracker::new();
    let spawn = |work: futures::future::BoxFuture<'static, ()>| {
        let killed = shared.killed.clone();
        background.spawn(async move { killed.run_until_cancelled(work).await });
    };
    if let Some(address) = config.listen {
        let listener = tokio::net::TcpListener::bind(address)
            .await
            .map_err(|error| Error::Listen(address, error))?;
        spawn(Box::pin(health::serve(listener, shared.clone(), end.clone())));
    }
    if let Some(election) = config.election {
        spawn(Box::pin(election::run(client, election, tenure, end.clone())));
    }
    spawn(Box::pin(watch::follow_all(shared.clone(), end.clone())));
    stop.cancelled().await;
    shared.loops.tasks.close();
    shared.backups.loops.tasks.close();
    shared.restores.loops.tasks.close();
    // A round is bounded, and so is this.
    let rounds = async {
        tokio::join!(
            shared.loops.tasks.wait(),
            shared.backups.loops.tasks.wait(),
            shared.restores.loops.tasks.wait()
        )
    };
    let _ = tokio::time::timeout(cluster_loop::ROUND_LIMIT, rounds).await;
    end.cancel();
    background.close();
    let _ = tokio::time::timeout(Duration::from_secs(5), background.wait()).await;
    Ok(())
}
