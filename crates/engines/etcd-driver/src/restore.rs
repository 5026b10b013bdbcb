//! EtcdRestores: what is followed for them, and how the worker drives one. It touches nothing of the cluster: that is its own
//! worker's.

mod requests;

use std::sync::Arc;

use stateward_core::kind::Kind;
use stateward_etcd::api::{EtcdBackup, EtcdRestore};
use stateward_etcd::backup::{Backup, Effect};
use stateward_etcd::cluster::Cluster;
use stateward_etcd::restore::{Restore, World};
use stateward_runtime::{Driver, Failure, Index, Key, Look, Observed, Runtime, Step, secrets, watch, worker};

use crate::backup::synced;
use crate::caches::restore_key;
use crate::{Shared, agents};

pub(crate) use requests::{backups, now, requests, waiting};

/// The driver of EtcdRestores.
pub(crate) struct Restores(Arc<Shared>);

impl Restores {
    pub(crate) fn new(shared: &Arc<Shared>) -> Arc<Self> {
        Arc::new(Self(shared.clone()))
    }
}

impl Driver for Restores {
    type Kind = Restore;
    type Object = EtcdRestore;
    type Session = ();
    type Means = ();

    fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    fn objects(&self) -> &Index<EtcdRestore> {
        &self.0.caches.restores
    }

    fn settings(&self) -> &() {
        &()
    }

    async fn watches(self: Arc<Self>) {
        let (caches, runtime) = (&self.0.caches, &self.0.runtime);
        watch::follow_all(runtime, "EtcdRestores", &caches.restores, |cluster| {
            for restore in caches.restores.of(cluster) {
                if let Some(key) = stateward_runtime::cache::own_key(&*restore) {
                    worker::tend(&self, &key);
                }
            }
            runtime.workers.wake(Cluster::NAME, cluster);
            // One that is gone looked at its cluster: its worker ends.
            runtime.changed(Cluster::NAME, cluster);
        })
        .await;
    }

    async fn synced(&self) {
        synced(&self.0).await;
    }

    /// What was proven, or is complete, is news to the cluster.
    fn changed(&self, _: &Key, restore: &EtcdRestore) {
        if let Some(cluster) = restore_key(restore) {
            self.0.runtime.workers.wake(Cluster::NAME, &cluster);
        }
    }

    async fn observe(&self, look: Look<'_, Self>) -> kube::Result<Observed<Self>> {
        let (key, restore) = (look.key, look.object);
        let caches = &self.0.caches;
        let uses = |kind, key_of_used: &Key| {
            self.0
                .runtime
                .workers
                .uses((Restore::NAME, key), (kind, key_of_used.clone()))
        };
        let cluster = Key::new(key.namespace.clone(), restore.cluster_name());
        uses(Cluster::NAME, &cluster);
        let backup = restore.spec.backup_ref.as_ref().and_then(|reference| {
            let backup = Key::new(key.namespace.clone(), reference.name.clone());
            uses(Backup::NAME, &backup);
            caches.backups.get(&backup)
        });
        let world = World {
            cluster: caches.clusters.get(&cluster),
            agents: agents::of(&self.0, key, restore, Some(&look.memory.agent)).await?,
            missing: missing_secret(&self.0, key, restore, backup.as_deref()).await?,
            backup,
            image: self.0.config.agent_image.clone(),
        };
        Ok(Observed {
            world,
            means: (),
            look_again: None,
            trouble: None,
        })
    }

    /// What it makes is its own, and may be made from an old copy of it.
    async fn begin(&self, _: &Step<'_, Self>, _: &[Effect]) -> Result<(), Failure> {
        Ok(())
    }

    async fn execute(&self, step: &Step<'_, Self>, effect: &Effect) -> Result<(), Failure> {
        agents::execute(&self.0, self, step, effect).await
    }
}

/// A Secret that the pod would mount and that is not there. Its content is not read.
async fn missing_secret(
    shared: &Shared,
    key: &Key,
    restore: &EtcdRestore,
    backup: Option<&EtcdBackup>,
) -> kube::Result<Option<String>> {
    let spec = &restore.spec;
    let plan = backup.map(|backup| &backup.spec.plan);
    let store = match plan {
        Some(plan) => plan.store(),
        None => spec.store(),
    };
    let store = store.ok().and_then(|store| store.secret().map(str::to_owned));
    let encryption = spec
        .encryption
        .as_ref()
        .or(plan.and_then(|plan| plan.encryption.as_ref()));
    let encryption = encryption.map(|encryption| encryption.secret_key_ref.name.clone());
    for name in store.into_iter().chain(encryption) {
        let secret = Key::new(key.namespace.clone(), name.clone());
        shared
            .runtime
            .workers
            .uses((Restore::NAME, key), (secrets::KIND, secret.clone()));
        if secrets::look(&shared.runtime, &secret).await?.is_none() {
            return Ok(Some(format!("the Secret {name} does not exist: create it")));
        }
    }
    Ok(None)
}
