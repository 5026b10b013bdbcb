//! Follows the API: every event goes into a cache and wakes whom it is about.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::serde::de::DeserializeOwned;
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};

use crate::cache::Index;
use crate::{Key, Runtime};

/// The objects of a kind that the operator looks after.
pub fn api<K>(runtime: &Runtime) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    match &runtime.namespace {
        Some(namespace) => Api::namespaced(runtime.client.clone(), namespace),
        None => Api::all(runtime.client.clone()),
    }
}

/// Follows all objects of a kind.
pub async fn follow_all<K>(runtime: &Runtime, what: &str, index: &Index<K>, wake: impl Fn(&Key))
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    follow(
        watcher(api::<K>(runtime), watcher::Config::default()),
        what,
        index,
        wake,
    )
    .await;
}

/// Follows those with these labels.
pub async fn follow_labelled<K>(runtime: &Runtime, labels: &str, what: &str, index: &Index<K>, wake: impl Fn(&Key))
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let config = watcher::Config::default().labels(labels);
    follow(watcher(api::<K>(runtime), config), what, index, wake).await;
}

/// Follows a watch: `wake` is called with every key that an event is about.
pub async fn follow<K>(
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

/// Follows the nodes: `wake` is called when one dies or comes back. They are not in a namespace: an operator of one namespace may
/// not be allowed to see them, and does without.
pub async fn nodes(runtime: &Runtime, wake: impl Fn(&str)) {
    if runtime.namespace.is_some() {
        return;
    }
    let dead = Mutex::new(HashSet::new());
    let changed = |key: &Key| {
        let is_dead = runtime.nodes.get(key).is_some_and(|node| dead_since(&node).is_some());
        let mut dead = dead.lock().unwrap_or_else(PoisonError::into_inner);
        let turned = if is_dead {
            dead.insert(key.name.clone())
        } else {
            dead.remove(&key.name)
        };
        drop(dead);
        if turned {
            wake(&key.name);
        }
    };
    let nodes: Api<Node> = Api::all(runtime.client.clone());
    follow(
        watcher(nodes, watcher::Config::default()),
        "Nodes",
        &runtime.nodes,
        changed,
    )
    .await;
}

/// Since when Kubernetes holds a node for dead: its kubelet does not report any more.
pub fn dead_since(node: &Node) -> Option<Timestamp> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    (ready.status == "Unknown").then(|| {
        ready
            .last_transition_time
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0)
    })
}
