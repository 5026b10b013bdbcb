//! EtcdBackups: what is followed for them, and how the worker drives one.

mod observe;

use std::sync::Arc;
use std::time::Instant;

use kube::ResourceExt;
use stateward_core::kind::Kind;
use stateward_etcd::api::{EtcdBackup, names};
use stateward_etcd::backup::{Backup, Effect, share};
use stateward_runtime::{Driver, Failure, Index, Key, Look, Observed, Runtime, Step, watch, worker};

use crate::{Shared, agents, cluster};

/// The driver of EtcdBackups.
pub(crate) struct Backups(Arc<Shared>);

impl Backups {
    pub(crate) fn new(shared: &Arc<Shared>) -> Arc<Self> {
        Arc::new(Self(shared.clone()))
    }

    /// Whoever has the same path as an EtcdBackup looks again.
    fn wake_sharers(&self, key: &Key) {
        let backups = &self.0.caches.backups;
        let Some(backup) = backups.get(key) else { return };
        for other in backups.all().iter().filter(|other| share(&backup, other)) {
            let other = Key::new(other.namespace().unwrap_or_default(), other.name_any());
            self.0.runtime.workers.wake(Backup::NAME, &other);
        }
    }
}

/// Waits until everything that decisions about backups and restores rest on was listed once. Clusters do not wait for it: an
/// operator without rights on EtcdBackups looks after clusters all the same.
pub(crate) async fn synced(shared: &Shared) {
    cluster::synced(shared).await;
    shared.caches.backups.synced().await;
    shared.caches.restores.synced().await;
    shared.caches.agents.synced().await;
}

/// When the pod that streams changes was last asked how far it is.
pub(crate) type Session = Option<Instant>;

impl Driver for Backups {
    type Kind = Backup;
    type Object = EtcdBackup;
    type Session = Session;
    type Means = ();

    fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    fn objects(&self) -> &Index<EtcdBackup> {
        &self.0.caches.backups
    }

    fn settings(&self) -> &() {
        &()
    }

    fn finalizes(&self) -> bool {
        true
    }

    async fn watches(self: Arc<Self>) {
        let (caches, runtime) = (&self.0.caches, &self.0.runtime);
        let ours = format!(
            "app.kubernetes.io/name={},app.kubernetes.io/managed-by={}",
            names::APP_AGENT,
            names::MANAGER
        );
        tokio::join!(
            watch::follow_all(runtime, "EtcdBackups", &caches.backups, |key| {
                worker::tend(&self, key);
                self.0.backup_changed(key);
                self.wake_sharers(key);
            }),
            watch::follow_labelled(runtime, &ours, "agents", &caches.agents, |owner| {
                self.0.agent_changed(owner);
            }),
        );
    }

    async fn synced(&self) {
        synced(&self.0).await;
    }

    fn changed(&self, key: &Key, _: &EtcdBackup) {
        self.0.backup_changed(key);
    }

    async fn observe(&self, look: Look<'_, Self>) -> kube::Result<Observed<Self>> {
        Ok(Observed {
            world: observe::observe(&self.0, look.key, look.object, look.session).await?,
            means: (),
            look_again: None,
            trouble: None,
        })
    }

    async fn execute(&self, step: &Step<'_, Self>, effect: &Effect) -> Result<(), Failure> {
        agents::execute(&self.0, self, step, effect).await
    }
}
