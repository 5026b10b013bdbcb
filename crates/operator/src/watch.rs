//! Follows the API: every event goes into the caches and wakes the one cluster that it is about.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::core::NamespaceResourceScope;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use stateward_api::{EtcdBackup, EtcdCluster, EtcdRestore, names};
use tokio_util::sync::CancellationToken;

use crate::Shared;
use crate::caches::{Index, Key};
use crate::named::{self, keep_what_is_used, wake_users};

/// Which objects look at a Secret, or at another object, so that its change wakes them.
#[derive(Default)]
pub(crate) struct Users(Mutex<HashMap<Key, Vec<Key>>>);

impl Users {
    /// Remembers that something is looked at.
    pub(crate) fn uses(&self, used: Key, user: &Key) {
        let mut users = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let users = users.entry(used).or_default();
        if !users.contains(user) {
            users.push(user.clone());
        }
    }

    /// Forgets an object that is gone.
    pub(crate) fn forget(&self, user: &Key) {
        let mut users = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        users.retain(|_, users| {
            users.retain(|other| other != user);
            !users.is_empty()
        });
    }

    pub(crate) fn of(&self, used: &Key) -> Vec<Key> {
        let users = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        users.get(used).cloned().unwrap_or_default()
    }
}

/// Follows everything until told to stop.
pub(crate) async fn follow_all(shared: Arc<Shared>, stop: CancellationToken) {
    let ours = watcher::Config::default().labels(&format!(
        "{}={},{}",
        names::LABEL_APP,
        names::APP_ETCD,
        names::LABEL_CLUSTER
    ));
    let (client, namespace) = (&shared.client, shared.config.namespace.as_deref());
    let clusters = follow(
        watcher(api::<EtcdCluster>(client, namespace), watcher::Config::default()),
        "EtcdClusters",
        &shared.caches.clusters,
        |key| {
            Shared::tend(&shared, key);
            shared.wake_users_of_cluster(key);
        },
    );
    let backups = follow(
        watcher(api::<EtcdBackup>(client, namespace), watcher::Config::default()),
        "EtcdBackups",
        &shared.caches.backups,
        |key| crate::backup::tend(&shared, key),
    );
    let restores = follow(
        watcher(api::<EtcdRestore>(client, namespace), watcher::Config::default()),
        "EtcdRestores",
        &shared.caches.restores,
        |cluster| crate::restore::tend(&shared, cluster),
    );
    let agents_of_ours = format!(
        "app.kubernetes.io/name={},app.kubernetes.io/managed-by={}",
        names::APP_AGENT,
        names::MANAGER
    );
    let agents = follow(
        watcher(
            api::<Pod>(client, namespace),
            watcher::Config::default().labels(&agents_of_ours),
        ),
        "agents",
        &shared.caches.agents,
        |owner| wake_owner(&shared, owner),
    );
    let wake = |key: &Key| shared.loops.wake(key);
    let pods = follow(
        watcher(api::<Pod>(client, namespace), ours.clone()),
        "Pods",
        &shared.caches.pods,
        wake,
    );
    let claims = follow(
        watcher(api::<PersistentVolumeClaim>(client, namespace), ours.clone()),
        "PersistentVolumeClaims",
        &shared.caches.claims,
        wake,
    );
    let services = follow(
        watcher(api::<Service>(client, namespace), ours.clone()),
        "Services",
        &shared.caches.services,
        wake,
    );
    let budgets = follow(
        watcher(api::<PodDisruptionBudget>(client, namespace), ours.clone()),
        "PodDisruptionBudgets",
        &shared.caches.budgets,
        wake,
    );
    let secrets = follow(
        watcher(api::<PartialObjectMeta<Secret>>(client, namespace), ours)
            .map_ok(|event| event.modify(|secret| keep_what_is_used(&mut secret.metadata))),
        "Secrets",
        &shared.caches.secrets,
        |secret| {
            shared.named.forget(secret); // one that has lost its labels is asked for
            wake_users(&shared, secret);
        },
    );
    tokio::select! {
        () = stop.cancelled() => {}
        () = async {
            let named = named::follow(&shared);
            tokio::join!(clusters, backups, restores, agents, pods, claims, services, budgets, secrets, named, nodes(&shared));
        } => {}
    }
}

/// Nodes are not in a namespace: an operator of one namespace may not be allowed to see them, and does without.
async fn nodes(shared: &Shared) {
    if shared.config.namespace.is_some() {
        return;
    }
    let wake_those_on = |node: &Key| {
        let dead = shared
            .caches
            .nodes
            .get(node)
            .is_some_and(|node| crate::observe::dead_since(&node).is_some());
        if dead != shared.dead_nodes.is_dead(&node.name) {
            shared.dead_nodes.set(&node.name, dead);
            let on_it =
                |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node.name.as_str());
            for cluster in shared.caches.pods.keys_where(on_it) {
                shared.loops.wake(&cluster);
            }
            for owner in shared.caches.agents.keys_where(on_it) {
                wake_owner(shared, &owner);
            }
        }
    };
    let nodes: Api<Node> = Api::all(shared.client.clone());
    let nodes = follow(
        watcher(nodes, watcher::Config::default()),
        "Nodes",
        &shared.caches.nodes,
        wake_those_on,
    );
    // Whether a volume is still attached to the node of a lost member. A cluster that has lost its quorum looks again by
    // itself, so nobody is woken.
    let attachments: Api<VolumeAttachment> = Api::all(shared.client.clone());
    let attachments = follow(
        watcher(attachments, watcher::Config::default()),
        "VolumeAttachments",
        &shared.caches.attachments,
        |_| {},
    );
    tokio::join!(nodes, attachments);
}

/// Wakes whoever an agent works for.
fn wake_owner(shared: &Shared, owner: &Key) {
    match owner.name.split_once('/') {
        Some(("EtcdBackup", name)) => shared.backups.loops.wake(&Key::new(owner.namespace.clone(), name)),
        Some(("EtcdRestore", name)) => crate::restore::wake_owner(shared, &owner.namespace, name),
        _ => {}
    }
}

/// The nodes that were last seen dead, to notice when that changes.
#[derive(Default)]
pub(crate) struct DeadNodes(Mutex<std::collections::HashSet<String>>);

impl DeadNodes {
    fn is_dead(&self, node: &str) -> bool {
        let nodes = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        nodes.contains(node)
    }

    fn set(&self, node: &str, dead: bool) {
        let mut nodes = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if dead {
            nodes.insert(node.to_owned());
        } else {
            nodes.remove(node);
        }
    }
}

fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

async fn follow<K>(
    stream: impl Stream<Item = watcher::Result<Event<K>>> + Send,
    what: &str,
    index: &Index<K>,
    wake: impl Fn(&Key),
) where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let mut stream = std::pin::pin!(stream.default_backoff());
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => {
                let event = event.modify(|object| object.managed_fields_mut().clear());
                for key in index.take(event) {
                    wake(&key);
                }
            }
            Err(error) => tracing::warn!(%error, "the watch of {what} broke and is taken up again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_gone_is_not_kept() {
        let users = Users::default();
        let key = |name: &str| Key::new("ns", name);
        users.uses(key("secret"), &key("a"));
        users.uses(key("secret"), &key("b"));
        users.uses(key("other"), &key("a"));
        users.forget(&key("a"));
        assert_eq!(users.of(&key("secret")), [key("b")]);
        let left = users.0.lock().expect("not poisoned").len();
        assert_eq!(left, 1, "what nobody looks at is not kept either");
    }
}
