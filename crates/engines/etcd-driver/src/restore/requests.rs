//! What an EtcdCluster sees of EtcdRestores and EtcdBackups.

use kube::api::ListParams;
use kube::{Api, ResourceExt};
use stateward_core::kind::Kind;
use stateward_etcd::api::{EtcdCluster, EtcdRestore};
use stateward_etcd::cluster::{BackupPoint, RestoreRequest, Uid};
use stateward_etcd::restore::{Restore, request};
use stateward_runtime::Key;

use crate::Shared;

/// What EtcdCluster control sees: the EtcdRestores of a cluster that are not complete, oldest first.
pub(crate) fn requests(shared: &Shared, key: &Key, cluster: &EtcdCluster) -> Vec<RestoreRequest> {
    let mut restores = shared.caches.restores.of(key);
    restores.retain(|restore| restore.metadata.deletion_timestamp.is_none());
    restores.sort_by_key(|restore| {
        let created = restore.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (created, restore.metadata.uid.clone())
    });
    restores
        .iter()
        .filter_map(|restore| request(restore, cluster))
        .collect()
}

/// The UID of an EtcdRestore that may be taken up at this moment, which a watch may tell late. `None`: it is gone, being
/// deleted, or complete.
pub(crate) async fn now(
    shared: &Shared,
    key: &Key,
    cluster: &EtcdCluster,
    name: &str,
) -> Result<Option<Uid>, kube::Error> {
    let known = shared.caches.restores.named(key, name);
    let uid = known.and_then(|known| known.metadata.uid.clone()).unwrap_or_default();
    let now = look_afresh(shared, key, name, &uid).await?;
    Ok(now.and_then(|now| request(&now, cluster)).map(|request| request.uid))
}

/// The EtcdRestores of a cluster that a user made and that are not complete, past all caches. Clusters do not wait for the
/// cache of EtcdRestores, since an operator may have no permission to list them: then there are none for it. What is found is
/// not put into the cache: the watch tells of it, and wakes its loop.
pub(crate) async fn waiting(shared: &Shared, key: &Key, cluster: &EtcdCluster) -> Result<Vec<String>, kube::Error> {
    let api: Api<EtcdRestore> = shared.runtime.api(&key.namespace);
    let restores = match api.list(&ListParams::default()).await {
        Ok(restores) => restores.items,
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => Vec::new(),
        Err(error) => return Err(error),
    };
    let waits = |restore: &&EtcdRestore| {
        restore.cluster_name() == key.name
            && restore.metadata.deletion_timestamp.is_none()
            && request(restore, cluster).is_some_and(|request| !request.recovery)
    };
    Ok(restores.iter().filter(waits).map(ResourceExt::name_any).collect())
}

/// A quorum read of an EtcdRestore, which the cache takes in. `None`: it is gone, going, or another one by now.
async fn look_afresh(shared: &Shared, key: &Key, name: &str, uid: &str) -> Result<Option<EtcdRestore>, kube::Error> {
    let api: Api<EtcdRestore> = shared.runtime.api(&key.namespace);
    let now = api.get_opt(name).await?;
    match &now {
        Some(now) => shared.caches.restores.put(now.clone()),
        None => shared.caches.restores.forget(key, name, uid),
    }
    // The cache has it already, so its worker does not hear of it from the watch.
    let restore = Key::new(key.namespace.clone(), name);
    shared.runtime.workers.wake(Restore::NAME, &restore);
    Ok(now.filter(|now| now.metadata.uid.as_deref() == Some(uid) && now.metadata.deletion_timestamp.is_none()))
}

/// The newest proven backup of the EtcdBackup that the spec names for a recovery, or of each one that backs the cluster up.
pub(crate) fn backups(shared: &Shared, key: &Key, cluster: &EtcdCluster) -> Vec<BackupPoint> {
    let recovery = cluster.spec.recovery.as_ref();
    let named = recovery.and_then(|recovery| recovery.backup_ref.as_ref());
    if let Some(named) = named {
        let named = Key::new(key.namespace.clone(), named.name.clone());
        let backup = shared.caches.backups.get(&named);
        return backup
            .and_then(|backup| stateward_etcd::backup::point(&backup))
            .into_iter()
            .collect();
    }
    let backups = shared.caches.backups.referring_to(key);
    let points = backups.iter();
    points
        .filter_map(|backup| stateward_etcd::backup::point(backup))
        .collect()
}
