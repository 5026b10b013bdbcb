//! What the watches have shown, indexed by the cluster that it belongs to, so that one cluster's look costs nothing of
//! the others' number.
//!
//! What the operator writes itself goes in at once: the next round must not decide again what this one did. An event that
//! is older than what is known of the same object is ignored, and so is a write's echo of an object whose deletion was seen.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Resource;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use stateward_api::{EtcdBackup, EtcdCluster, EtcdRestore};
use tokio::sync::watch;

/// A cluster, or whatever else is found by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Everything that is watched.
pub(crate) struct Caches {
    pub(crate) clusters: Index<EtcdCluster>,
    pub(crate) backups: Index<EtcdBackup>,
    /// By the cluster that they put back.
    pub(crate) restores: Index<EtcdRestore>,
    /// The pods of agents, by what they work for: see [`owner_key`].
    pub(crate) agents: Index<Pod>,
    pub(crate) pods: Index<Pod>,
    pub(crate) claims: Index<PersistentVolumeClaim>,
    pub(crate) services: Index<Service>,
    pub(crate) budgets: Index<PodDisruptionBudget>,
    /// Those with the labels of a cluster; others are asked for by name (`named.rs`).
    pub(crate) secrets: Index<PartialObjectMeta<Secret>>,
    pub(crate) nodes: Index<Node>,
    pub(crate) attachments: Index<VolumeAttachment>,
}

impl Caches {
    pub(crate) fn new() -> Self {
        Self {
            clusters: Index::new(own_key),
            backups: Index::new(own_key),
            restores: Index::new(restore_key),
            agents: Index::new(agent_key),
            pods: Index {
                last_words: |pod| stateward_plan::etcd::facts::pod(pod).stopped,
                last_state: |pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none()),
                ..Index::new(label_key)
            },
            claims: Index::new(label_key),
            services: Index::new(label_key),
            budgets: Index::new(label_key),
            secrets: Index::new(own_key),
            nodes: Index::new(own_key),
            attachments: Index::new(own_key),
        }
    }

    /// Waits until everything that decisions about backups rest on was listed once. Clusters do not wait for it: an operator
    /// without rights on EtcdBackups looks after clusters all the same.
    pub(crate) async fn backups_synced(&self) {
        self.synced().await;
        self.backups.synced().await;
        self.restores.synced().await;
        self.agents.synced().await;
    }

    /// Waits until everything that decisions about clusters rest on was listed once.
    pub(crate) async fn synced(&self) {
        self.clusters.synced().await;
        self.pods.synced().await;
        self.claims.synced().await;
        self.services.synced().await;
        self.budgets.synced().await;
        self.secrets.synced().await;
    }
}

/// The object's own namespace and name.
pub(crate) fn own_key<K: Resource>(object: &K) -> Option<Key> {
    let meta = object.meta();
    Some(Key::new(meta.namespace.clone().unwrap_or_default(), meta.name.clone()?))
}

/// The cluster that the object's label names.
fn label_key<K: Resource>(object: &K) -> Option<Key> {
    let meta = object.meta();
    let cluster = meta.labels.as_ref()?.get(stateward_api::names::LABEL_CLUSTER)?;
    Some(Key::new(meta.namespace.clone().unwrap_or_default(), cluster.clone()))
}

/// The cluster that an EtcdRestore puts back.
fn restore_key(restore: &EtcdRestore) -> Option<Key> {
    let namespace = restore.metadata.namespace.clone().unwrap_or_default();
    Some(Key::new(namespace, restore.cluster_name()))
}

/// The object that an agent's pod works for: the kind is part of the name, since two kinds may have objects of one name.
fn agent_key(pod: &Pod) -> Option<Key> {
    let meta = &pod.metadata;
    let owner = meta
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true))?;
    Some(owner_key(
        meta.namespace.as_deref().unwrap_or_default(),
        &owner.kind,
        &owner.name,
    ))
}

/// The key of what belongs to an object of a kind.
pub(crate) fn owner_key(namespace: &str, kind: &str, name: &str) -> Key {
    Key::new(namespace, format!("{kind}/{name}"))
}

/// Objects of one kind by what they belong to.
pub(crate) struct Index<K> {
    key_of: fn(&K) -> Option<Key>,
    /// What an object that is gone said last is worth remembering.
    last_words: fn(&K) -> bool,
    /// So is the state in which it was deleted. Only the event of its deletion shows it: what was seen before may be old.
    last_state: fn(&K) -> bool,
    inner: RwLock<Inner<K>>,
    synced: watch::Sender<bool>,
}

struct Inner<K> {
    objects: HashMap<Key, BTreeMap<String, Arc<K>>>,
    /// UIDs of the last deleted objects.
    deleted: VecDeque<String>,
    /// UIDs of the last objects that are gone and whose last words count.
    said: VecDeque<String>,
    /// What the list in progress has shown so far.
    listing: HashSet<(Key, String)>,
}

/// How many deletions are remembered: far more than can happen between a write and its answer.
const REMEMBERED: usize = 4096;

impl<K: Resource> Index<K> {
    fn new(key_of: fn(&K) -> Option<Key>) -> Self {
        Self {
            key_of,
            last_words: |_| false,
            last_state: |_| false,
            inner: RwLock::new(Inner {
                objects: HashMap::new(),
                deleted: VecDeque::new(),
                said: VecDeque::new(),
                listing: HashSet::new(),
            }),
            synced: watch::Sender::new(false),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner<K>> {
        self.inner.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner<K>> {
        self.inner.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Everything that belongs to the key.
    pub(crate) fn of(&self, key: &Key) -> Vec<Arc<K>> {
        self.read()
            .objects
            .get(key)
            .map(|objects| objects.values().cloned().collect())
            .unwrap_or_default()
    }

    /// One object that belongs to the key.
    pub(crate) fn named(&self, key: &Key, name: &str) -> Option<Arc<K>> {
        self.read().objects.get(key)?.get(name).cloned()
    }

    /// The one object that the key names.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.named(key, &key.name)
    }

    /// The keys whose objects satisfy something. Looks at all of them: for rare events only.
    pub(crate) fn keys_where(&self, test: impl Fn(&K) -> bool) -> Vec<Key> {
        self.read()
            .objects
            .iter()
            .filter(|(_, objects)| objects.values().any(|object| test(object)))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// All objects. For rare events only.
    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.read()
            .objects
            .values()
            .flat_map(BTreeMap::values)
            .cloned()
            .collect()
    }

    /// How many keys have objects.
    pub(crate) fn len(&self) -> usize {
        self.read().objects.len()
    }

    /// Whether an object that is gone said last what is worth remembering.
    pub(crate) fn said(&self, uid: &str) -> bool {
        self.read().said.iter().any(|said| said == uid)
    }

    /// Everything was listed once.
    pub(crate) fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Takes in what a write of our own came back with.
    pub(crate) fn put(&self, object: K) {
        let mut inner = self.write();
        let uid = object.meta().uid.as_deref().unwrap_or_default();
        if !inner.deleted.iter().any(|deleted| deleted == uid) {
            inner.put(self.key_of, object);
        }
    }

    /// An object that a request of our own found gone.
    pub(crate) fn forget(&self, key: &Key, name: &str, uid: &str) {
        self.write().forget(self.last_words, key, name, uid);
    }

    /// Takes in what a watch told. Returns the keys that it is about.
    pub(crate) fn take(&self, event: Event<K>) -> Vec<Key> {
        let mut inner = self.write();
        match event {
            Event::Init => {
                inner.listing.clear();
                Vec::new()
            }
            Event::InitApply(object) => {
                let Some(key) = (self.key_of)(&object) else {
                    return Vec::new();
                };
                let name = object.meta().name.clone().unwrap_or_default();
                inner.listing.insert((key, name));
                inner.put(self.key_of, object).into_iter().collect()
            }
            Event::InitDone => {
                let listing = std::mem::take(&mut inner.listing);
                let mut gone = Vec::new();
                let mut said = Vec::new();
                for (key, objects) in &mut inner.objects {
                    let before = objects.len();
                    objects.retain(|name, object| {
                        let stays = listing.contains(&(key.clone(), name.clone()));
                        if !stays && (self.last_words)(object) {
                            said.extend(object.meta().uid.clone());
                        }
                        stays
                    });
                    if objects.len() != before {
                        gone.push(key.clone());
                    }
                }
                said.into_iter().for_each(|uid| inner.remember_words(uid));
                inner.objects.retain(|_, objects| !objects.is_empty());
                drop(inner);
                self.synced.send_replace(true);
                gone
            }
            Event::Apply(object) => inner.put(self.key_of, object).into_iter().collect(),
            Event::Delete(object) => {
                let uid = object.meta().uid.clone().unwrap_or_default();
                inner.deleted.push_back(uid.clone());
                if inner.deleted.len() > REMEMBERED {
                    inner.deleted.pop_front();
                }
                if (self.last_words)(&object) || (self.last_state)(&object) {
                    inner.remember_words(uid.clone());
                }
                let Some(key) = (self.key_of)(&object) else {
                    return Vec::new();
                };
                let name = object.meta().name.as_deref().unwrap_or_default();
                inner.forget(self.last_words, &key, name, &uid);
                vec![key]
            }
        }
    }

    async fn synced(&self) {
        let mut synced = self.synced.subscribe();
        // the sender lives as long as the index, so this cannot fail
        let _ = synced.wait_for(|synced| *synced).await;
    }
}

impl<K: Resource> Inner<K> {
    /// Puts an object in its place unless a newer one of the same UID is there. Returns its key if it was taken.
    fn put(&mut self, key_of: fn(&K) -> Option<Key>, object: K) -> Option<Key> {
        let key = key_of(&object)?;
        let name = object.meta().name.clone()?;
        let objects = self.objects.entry(key.clone()).or_default();
        if objects
            .get(&name)
            .is_some_and(|known| is_as_new(known.as_ref(), &object))
        {
            return None;
        }
        objects.insert(name, Arc::new(object));
        Some(key)
    }

    fn forget(&mut self, last_words: fn(&K) -> bool, key: &Key, name: &str, uid: &str) {
        let Some(objects) = self.objects.get_mut(key) else {
            return;
        };
        let is_it = |known: &&Arc<K>| known.meta().uid.as_deref() == Some(uid);
        let counts = objects.get(name).filter(is_it).map(|known| last_words(known));
        if counts.is_some() {
            objects.remove(name);
        }
        if objects.is_empty() {
            self.objects.remove(key);
        }
        if counts == Some(true) {
            self.remember_words(uid.to_owned());
        }
    }

    fn remember_words(&mut self, uid: String) {
        if !self.said.contains(&uid) {
            self.said.push_back(uid);
        }
        if self.said.len() > REMEMBERED {
            self.said.pop_front();
        }
    }
}

/// Whether what is known is at least as new as what came: an echo of our own write wakes nobody. Resource versions of one kind can be compared as numbers (Kubernetes
/// says so since 1.35); where they are not numbers, what comes last counts.
fn is_as_new<K: Resource>(known: &K, came: &K) -> bool {
    let number = |object: &K| object.meta().resource_version.as_ref()?.parse::<u128>().ok();
    known.meta().uid == came.meta().uid && number(known) >= number(came) && number(came).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    fn pod(name: &str, uid: &str, version: u32) -> Pod {
        Pod {
            metadata: ObjectMeta {
                name: Some(name.into()),
                namespace: Some("ns".into()),
                uid: Some(uid.into()),
                resource_version: Some(version.to_string()),
                labels: Some([("etcd_cluster".to_owned(), "c".to_owned())].into()),
                ..ObjectMeta::default()
            },
            ..Pod::default()
        }
    }

    fn versions(index: &Index<Pod>) -> Vec<String> {
        let of = index.of(&Key::new("ns", "c"));
        of.iter()
            .map(|pod| pod.metadata.resource_version.clone().unwrap_or_default())
            .collect()
    }

    #[test]
    fn own_writes_are_seen_and_old_events_are_not() {
        let index = Index::new(label_key::<Pod>);
        index.put(pod("a", "1", 7));
        assert_eq!(index.take(Event::Apply(pod("a", "1", 5))), []);
        assert_eq!(versions(&index), ["7"]);
        assert_eq!(index.take(Event::Apply(pod("a", "1", 8))).len(), 1);
        // the same name under another UID is another object, whatever its version
        index.take(Event::Apply(pod("a", "2", 3)));
        assert_eq!(versions(&index), ["3"]);
        // a late deletion of the first does not take the second away
        index.take(Event::Delete(pod("a", "1", 9)));
        assert_eq!(versions(&index), ["3"]);
        index.take(Event::Delete(pod("a", "2", 10)));
        index.put(pod("a", "2", 4));
        assert!(
            versions(&index).is_empty(),
            "its deletion was seen before the write's answer"
        );
    }

    #[test]
    fn last_words_are_kept_however_the_object_went() {
        // given pods of which two say that they ended
        let index = Index {
            last_words: |pod: &Pod| pod.metadata.annotations.is_some(),
            ..Index::new(label_key::<Pod>)
        };
        let ended = |name: &str, uid: &str, version| {
            let mut pod = pod(name, uid, version);
            pod.metadata.annotations = Some(Default::default());
            pod
        };
        index.take(Event::Apply(pod("a", "1", 1)));
        index.take(Event::Apply(ended("b", "2", 2)));
        index.take(Event::Apply(pod("c", "3", 3)));
        // when one goes with its last words, one is found missing by a new list, and one goes without a word
        index.take(Event::Delete(ended("a", "1", 4)));
        index.take(Event::Init);
        index.take(Event::InitDone);
        // then the words of the first two count
        assert_eq!(["1", "2", "3"].map(|uid| index.said(uid)), [true, true, false]);
    }

    #[test]
    fn a_new_list_takes_away_what_it_lacks() {
        let index = Index::new(label_key::<Pod>);
        index.take(Event::Apply(pod("a", "1", 1)));
        index.take(Event::Apply(pod("b", "2", 2)));
        index.take(Event::Init);
        index.take(Event::InitApply(pod("b", "2", 2)));
        assert_eq!(index.take(Event::InitDone), [Key::new("ns", "c")]);
        assert_eq!(versions(&index), ["2"]);
    }
}
