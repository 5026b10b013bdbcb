//! The metadata of all objects: the graph of owners across all kinds, including custom ones.
//!
//! One watch per kind keeps it up to date; kinds are added and removed with their definitions. Garbage collection and
//! the deletion of namespaces use it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::{StreamExt, pin_mut};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ApiResource, DynamicObject};
use kube::discovery::{ApiCapabilities, Discovery, Scope, verbs};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::world::lock;

pub(crate) type Uid = String;

/// The stored metadata of one object.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) kind: Arc<Kind>,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) uid: Uid,
    pub(crate) version: Option<String>,
    pub(crate) owners: Vec<OwnerReference>,
    pub(crate) finalizers: Vec<String>,
    pub(crate) deleting: bool,
}

/// Group, version and plural.
type KindId = (String, String, String);

/// A kind the API serves.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) resource: ApiResource,
    pub(crate) namespaced: bool,
    capabilities: ApiCapabilities,
}

impl Kind {
    pub(crate) fn can(&self, verb: &str) -> bool {
        self.capabilities.supports_operation(verb)
    }

    pub(crate) fn api(&self, client: Client, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace {
            Some(namespace) if self.namespaced => Api::namespaced_with(client, namespace, &self.resource),
            _ => Api::all_with(client, &self.resource),
        }
    }

    fn id(&self) -> KindId {
        (
            self.resource.group.clone(),
            self.resource.version.clone(),
            self.resource.plural.clone(),
        )
    }

    /// Events are many, own nothing and are owned by nothing.
    fn is_event(&self) -> bool {
        self.resource.kind == "Event" && matches!(self.resource.group.as_str(), "" | "events.k8s.io")
    }
}

/// The graph of ownership.
#[derive(Default)]
pub(crate) struct Graph {
    pub(crate) items: HashMap<Uid, Item>,
    dependents: HashMap<Uid, BTreeSet<Uid>>,
    /// Items to check.
    pub(crate) dirty: BTreeSet<Uid>,
}

impl Graph {
    pub(crate) fn dependents(&self, owner: &str) -> impl Iterator<Item = &Item> {
        self.dependents
            .get(owner)
            .into_iter()
            .flatten()
            .filter_map(|uid| self.items.get(uid))
    }

    pub(crate) fn set(&mut self, item: Item) {
        let uid = item.uid.clone();
        if let Some(old) = self.items.get(&uid) {
            for owner in old.owners.clone() {
                if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                    dependents.remove(&uid);
                }
                self.dirty.insert(owner.uid);
            }
        }
        for owner in &item.owners {
            self.dependents
                .entry(owner.uid.clone())
                .or_default()
                .insert(uid.clone());
            self.dirty.insert(owner.uid.clone());
        }
        if item.deleting {
            self.dirty
                .extend(self.dependents.get(&uid).into_iter().flatten().cloned());
        }
        self.dirty.insert(uid.clone());
        self.items.insert(uid, item);
    }

    pub(crate) fn remove(&mut self, uid: &str) {
        if let Some(item) = self.items.remove(uid) {
            for owner in item.owners {
                if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                    dependents.remove(uid);
                    if dependents.is_empty() {
                        self.dependents.remove(&owner.uid);
                    }
                }
                self.dirty.insert(owner.uid);
            }
        }
        self.dirty
            .extend(self.dependents.get(uid).into_iter().flatten().cloned());
        self.dirty.remove(uid);
    }
}

/// The graph, and the kinds that it covers.
pub(crate) struct Objects {
    graph: Mutex<Graph>,
    /// Each with the handle that ends its watch.
    kinds: Mutex<HashMap<KindId, (Arc<Kind>, CancellationToken)>>,
    wakes: Mutex<Vec<Arc<Notify>>>,
}

impl Objects {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Objects {
            graph: Mutex::default(),
            kinds: Mutex::default(),
            wakes: Mutex::default(),
        })
    }

    pub(crate) fn graph(&self) -> MutexGuard<'_, Graph> {
        lock(&self.graph)
    }

    pub(crate) fn kinds(&self) -> Vec<Arc<Kind>> {
        let kinds = lock(&self.kinds);
        kinds.values().map(|(kind, _)| kind.clone()).collect()
    }

    /// The kind an owner reference names, at any version of its group.
    pub(crate) fn kind_of(&self, owner: &OwnerReference) -> Option<Arc<Kind>> {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        self.kinds()
            .into_iter()
            .find(|kind| kind.resource.group == group && kind.resource.kind == owner.kind)
    }

    /// Wakes `wake` on every change.
    pub(crate) fn wakes(&self, wake: &Arc<Notify>) {
        lock(&self.wakes).push(wake.clone());
    }

    pub(crate) fn wake(&self) {
        for wake in lock(&self.wakes).iter() {
            wake.notify_one();
        }
    }

    /// Reads which kinds exist; starts and ends watches accordingly.
    pub(crate) async fn discover(
        self: &Arc<Self>,
        client: &Client,
        stop: &CancellationToken,
    ) -> Result<(), kube::Error> {
        let discovery = Discovery::new(client.clone()).run().await?;
        let mut found = HashMap::new();
        for (resource, capabilities) in discovery.groups().flat_map(|group| group.recommended_resources()) {
            let namespaced = capabilities.scope == Scope::Namespaced;
            let kind = Kind {
                resource,
                namespaced,
                capabilities,
            };
            if kind.can(verbs::LIST) && kind.can(verbs::WATCH) && kind.can(verbs::DELETE) {
                found.insert(kind.id(), Arc::new(kind));
            }
        }
        let mut gone = Vec::new();
        {
            let mut kinds = lock(&self.kinds);
            kinds.retain(|id, (_, watching)| {
                let stays = found.contains_key(id);
                if !stays {
                    watching.cancel();
                    gone.push(id.clone());
                }
                stays
            });
            for (id, kind) in found {
                kinds.entry(id).or_insert_with(|| {
                    let watching = stop.child_token();
                    if !kind.is_event() {
                        tokio::spawn(follow(self.clone(), client.clone(), kind.clone(), watching.clone()));
                    }
                    (kind, watching)
                });
            }
        }
        if !gone.is_empty() {
            self.keep(|item| !gone.contains(&item.kind.id()));
        }
        self.wake();
        Ok(())
    }

    fn keep(&self, stays: impl Fn(&Item) -> bool) {
        let mut graph = self.graph();
        let lost: Vec<Uid> = graph
            .items
            .values()
            .filter(|item| !stays(item))
            .map(|item| item.uid.clone())
            .collect();
        for uid in lost {
            graph.remove(&uid);
        }
    }
}

/// Watches one kind into the graph.
async fn follow(objects: Arc<Objects>, client: Client, kind: Arc<Kind>, stop: CancellationToken) {
    let stream = watcher(kind.api(client, None), watcher::Config::default()).default_backoff();
    pin_mut!(stream);
    let mut listed: HashSet<Uid> = HashSet::new();
    while let Some(Some(event)) = stop.run_until_cancelled(stream.next()).await {
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(object)) => {
                listed.extend(object.uid());
                objects.graph().set(item(&kind, object));
            }
            Ok(watcher::Event::InitDone) => {
                objects.keep(|item| item.kind.id() != kind.id() || listed.contains(&item.uid));
                listed = HashSet::new();
            }
            Ok(watcher::Event::Apply(object)) => objects.graph().set(item(&kind, object)),
            Ok(watcher::Event::Delete(object)) => objects.graph().remove(&object.uid().unwrap_or_default()),
            Err(error) => {
                tracing::debug!(kind = kind.resource.kind, %error, "watch interrupted");
                continue;
            }
        }
        objects.wake();
    }
}

fn item(kind: &Arc<Kind>, object: DynamicObject) -> Item {
    let metadata = object.metadata;
    Item {
        kind: kind.clone(),
        namespace: metadata.namespace,
        name: metadata.name.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
        version: metadata.resource_version,
        owners: metadata.owner_references.unwrap_or_default(),
        finalizers: metadata.finalizers.unwrap_or_default(),
        deleting: metadata.deletion_timestamp.is_some(),
    }
}

#[cfg(test)]
pub(crate) mod fixtures {
    use super::*;

    /// A kind without a server behind it.
    pub(crate) fn kind(name: &str, namespaced: bool) -> Arc<Kind> {
        let resource = ApiResource {
            group: String::new(),
            version: "v1".to_owned(),
            api_version: "v1".to_owned(),
            kind: name.to_owned(),
            plural: format!("{}s", name.to_lowercase()),
        };
        let scope = if namespaced { Scope::Namespaced } else { Scope::Cluster };
        let capabilities = ApiCapabilities {
            scope,
            subresources: Vec::new(),
            operations: Vec::new(),
        };
        Arc::new(Kind {
            resource,
            namespaced,
            capabilities,
        })
    }
}
