//! The EtcdRestores of one cluster: observe, plan, write the status, carry out; then wait for the next reason to look. It
//! decides nothing itself: that is `stateward_plan::restore`'s; and it touches nothing of the cluster: that is its own loop's.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use stateward_api::{EtcdBackup, EtcdCluster, EtcdRestore, names};
use stateward_plan::agent::Agent;
use stateward_plan::etcd::{BackupPoint, RestoreRequest, Uid};
use stateward_plan::restore::{Effect, World, plan, request};
use tokio::sync::Notify;

use crate::caches::{Key, owner_key};
use crate::cluster_loop::ROUND_LIMIT;
use crate::metrics::EffectLabel;
use crate::named::look;
use crate::observe::agent;
use crate::watch::Users;
use crate::{Loops, Shared};

/// Nothing is polled; this is only for events that were lost.
const RESYNC: Duration = Duration::from_secs(600);
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const AFTER_FAILURE: Duration = Duration::from_secs(2);

/// The loops, one for all EtcdRestores of a cluster, by the cluster's key.
#[derive(Default)]
pub(crate) struct Restores {
    pub(crate) loops: Loops,
    /// Which of them look at an EtcdBackup or a Secret.
    pub(crate) users: Users,
}

/// Wakes the loop of a cluster's EtcdRestores and the cluster's own, and starts the first where there is none.
pub(crate) fn tend(shared: &Arc<Shared>, cluster: &Key) {
    shared.restores.loops.tend(&shared.killed, cluster, |mailbox| {
        let wanted = !shared.stop.is_cancelled() && !shared.caches.restores.of(cluster).is_empty();
        wanted.then(|| run(shared.clone(), cluster.clone(), mailbox))
    });
    shared.loops.wake(cluster);
}

/// The cluster whose EtcdRestore an agent works for.
pub(crate) fn wake_owner(shared: &Shared, namespace: &str, restore: &str) {
    // It is named like the cluster, or like it with a dash and more; no other is followed.
    let dashes = restore.match_indices('-').map(|(dash, _)| &restore[..dash]);
    for name in dashes.chain([restore]) {
        let cluster = Key::new(namespace, name);
        let mut restores = shared.caches.restores.of(&cluster).into_iter();
        if restores.any(|object| object.name_any() == restore) {
            shared.restores.loops.wake(&cluster);
        }
    }
}

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
    let api: Api<EtcdRestore> = Api::namespaced(shared.client.clone(), &key.namespace);
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
    let api: Api<EtcdRestore> = Api::namespaced(shared.client.clone(), &key.namespace);
    let now = api.get_opt(name).await?;
    match &now {
        Some(now) => shared.caches.restores.put(now.clone()),
        None => shared.caches.restores.forget(key, name, uid),
    }
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
            .and_then(|backup| stateward_plan::backup::point(&backup))
            .into_iter()
            .collect();
    }
    let of_cluster = |backup: &EtcdBackup| {
        let by_reference = backup.spec.cluster_ref.as_ref();
        backup.namespace().as_deref() == Some(&key.namespace)
            && by_reference.is_some_and(|cluster| cluster.name == key.name)
    };
    let backups = shared.caches.backups.all();
    let points = backups.iter().filter(|backup| of_cluster(backup));
    points
        .filter_map(|backup| stateward_plan::backup::point(backup))
        .collect()
}

/// Why a round of one EtcdRestore ended early.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error("{0}")]
    GuardFailed(String),
    #[error(transparent)]
    Kubernetes(#[from] kube::Error),
}

/// Looks after the EtcdRestores of a cluster until they are gone or the operator stops.
async fn run(shared: Arc<Shared>, cluster: Key, mailbox: Arc<Notify>) {
    tokio::select! {
        () = shared.stop.cancelled() => return,
        () = shared.caches.synced() => {}
    }
    let mut pause = Duration::ZERO;
    while shared.next_turn(&mailbox, pause).await {
        let restores = shared.caches.restores.of(&cluster);
        if restores.is_empty() {
            let is_there = || !shared.caches.restores.of(&cluster).is_empty();
            shared.restores.users.forget(&cluster);
            if shared.restores.loops.leave(&cluster, is_there) {
                return;
            }
            continue;
        }
        pause = RESYNC;
        for restore in restores {
            let ended = tokio::time::timeout(ROUND_LIMIT, round(&shared, &cluster, &restore)).await;
            let wake = match ended {
                Ok(Ok(wake)) => wake,
                Ok(Err(RoundError::GuardFailed(why))) => {
                    tracing::debug!(restore = %restore.name_any(), "{why}");
                    Some(Duration::from_millis(50))
                }
                Ok(Err(error)) => {
                    tracing::warn!(restore = %restore.name_any(), "the round failed: {error}");
                    Some(AFTER_FAILURE)
                }
                Err(_) => Some(AFTER_FAILURE),
            };
            pause = wake.unwrap_or(RESYNC).clamp(SHORTEST_PAUSE, pause);
        }
    }
}

async fn round(shared: &Shared, key: &Key, restore: &Arc<EtcdRestore>) -> Result<Option<Duration>, RoundError> {
    let cluster = shared.caches.clusters.get(key);
    let backup = named_backup(shared, key, restore);
    let world = World {
        cluster: cluster.as_deref(),
        backup: backup.as_deref(),
        agents: agents(shared, key, restore).await?,
        missing: missing_secret(shared, key, restore, backup.as_deref()).await?,
        image: shared.config.agent_image.clone(),
    };
    let plan = plan(restore, &world, Timestamp::now());
    let mut restore = restore.clone();
    if restore.status.clone().unwrap_or_default() != plan.status {
        restore = Arc::new(write_status(shared, key, &restore, plan.status).await?);
    }
    for effect in &plan.effects {
        if !shared.tenure.holds() {
            return Err(RoundError::GuardFailed("another operator leads".into()));
        }
        let kind = match effect {
            Effect::CreatePod(pod) => {
                create(shared, key, &restore, pod).await?;
                "create_agent"
            }
            Effect::DeletePod { name, uid } => {
                delete(shared, key, &restore, name, &uid.0).await?;
                "delete_agent"
            }
            Effect::Tell(note) => {
                shared.events.tell(restore.as_ref(), note);
                "tell"
            }
            Effect::SetFinalizers(_) | Effect::ForgetPod { .. } => continue,
        };
        if !matches!(effect, Effect::Tell(_)) {
            tracing::info!(restore = %restore.name_any(), "done: {effect}");
        }
        shared
            .metrics
            .effects
            .get_or_create(&EffectLabel { effect: kind })
            .inc();
    }
    Ok(plan.wake)
}

fn named_backup(shared: &Shared, key: &Key, restore: &EtcdRestore) -> Option<Arc<EtcdBackup>> {
    let reference = restore.spec.backup_ref.as_ref()?;
    let backup = Key::new(key.namespace.clone(), reference.name.clone());
    shared.restores.users.uses(backup.clone(), key);
    shared.caches.backups.get(&backup)
}

fn is_ours(pod: &Pod, restore: &EtcdRestore) -> bool {
    let uid = restore.metadata.uid.as_deref();
    pod.owner_references()
        .iter()
        .any(|owner| Some(owner.uid.as_str()) == uid)
}

async fn agents(
    shared: &Shared,
    key: &Key,
    restore: &EtcdRestore,
) -> kube::Result<std::collections::BTreeMap<String, Agent>> {
    let of_us = owner_key(&key.namespace, "EtcdRestore", &restore.name_any());
    let mut agents: std::collections::BTreeMap<String, Agent> = shared
        .caches
        .agents
        .of(&of_us)
        .iter()
        .filter(|pod| is_ours(pod, restore))
        .map(|pod| (pod.name_any(), agent(shared, pod)))
        .collect();
    let current = restore
        .status
        .as_ref()
        .map(|status| status.agent.clone())
        .unwrap_or_default();
    if !current.is_empty() && !agents.contains_key(&current) {
        // An attempt is not over because a watch is late.
        let pods: Api<Pod> = Api::namespaced(shared.client.clone(), &key.namespace);
        if let Some(pod) = pods.get_opt(&current).await?.filter(|pod| is_ours(pod, restore)) {
            agents.insert(current, agent(shared, &pod));
            shared.caches.agents.put(pod);
        }
    }
    Ok(agents)
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
        shared.restores.users.uses(secret.clone(), key);
        if look(shared, &secret).await?.is_none() {
            return Ok(Some(format!("the Secret {name} is not there: create it")));
        }
    }
    Ok(None)
}

async fn write_status(
    shared: &Shared,
    key: &Key,
    restore: &EtcdRestore,
    status: stateward_api::etcd_restore::EtcdRestoreStatus,
) -> Result<EtcdRestore, RoundError> {
    if !shared.tenure.holds() {
        return Err(RoundError::GuardFailed("another operator leads".into()));
    }
    let api: Api<EtcdRestore> = Api::namespaced(shared.client.clone(), &key.namespace);
    let name = restore.name_any();
    let mut object = restore.clone();
    object.status = Some(status);
    let params = PostParams {
        field_manager: Some(names::MANAGER.into()),
        ..PostParams::default()
    };
    match api.replace_status(&name, &params, &object).await {
        Ok(written) => {
            shared.metrics.status_writes.inc();
            shared.caches.restores.put(written.clone());
            // What was proven, or is complete, is news to the cluster.
            shared.loops.wake(key);
            Ok(written)
        }
        Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => {
            let uid = restore.metadata.uid.as_deref().unwrap_or_default();
            look_afresh(shared, key, &name, uid).await?;
            Err(RoundError::GuardFailed("the EtcdRestore has changed meanwhile".into()))
        }
        Err(error) => Err(error.into()),
    }
}

async fn create(shared: &Shared, key: &Key, restore: &EtcdRestore, pod: &Pod) -> Result<(), RoundError> {
    let api: Api<Pod> = Api::namespaced(shared.client.clone(), &key.namespace);
    let name = pod.name_any();
    let pod = &shared.platform.adapt(&shared.client, pod.clone()).await?;
    match api.create(&PostParams::default(), pod).await {
        Ok(created) => {
            shared.caches.agents.put(created);
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 409 => match api.get_opt(&name).await? {
            Some(there) if is_ours(&there, restore) => {
                shared.caches.agents.put(there);
                Err(RoundError::GuardFailed(format!("{name} exists already")))
            }
            _ => Err(RoundError::GuardFailed(format!(
                "pod {name} of another object is still there"
            ))),
        },
        Err(error) => Err(error.into()),
    }
}

async fn delete(shared: &Shared, key: &Key, restore: &EtcdRestore, name: &str, uid: &str) -> Result<(), RoundError> {
    let api: Api<Pod> = Api::namespaced(shared.client.clone(), &key.namespace);
    let params = DeleteParams::default().preconditions(Preconditions {
        uid: Some(uid.to_owned()),
        resource_version: None,
    });
    let of_us = owner_key(&key.namespace, "EtcdRestore", &restore.name_any());
    match api.delete(name, &params).await {
        Ok(deleted) => {
            match deleted.left().filter(|pod| pod.metadata.deletion_timestamp.is_some()) {
                Some(stopping) => shared.caches.agents.put(stopping),
                None => shared.caches.agents.forget(&of_us, name, uid),
            }
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => {
            shared.caches.agents.forget(&of_us, name, uid);
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}
