//! What the watches have shown, indexed by the object that it belongs to, so that looking at one costs nothing of the
//! others' number.
//!
//! What the operator writes itself goes in at once: the next round must not decide again what this one did. An event that
//! is older than what is known of the same object is ignored, and so is a write's echo of an object whose deletion was seen.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use kube::runtime::watcher::Event;
use tokio::sync::watch;

/// What is found by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The namespace; empty for what is in none.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl Key {
    /// A key.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
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

/// The object's own namespace and name.
pub fn own_key<K: Resource>(object: &K) -> Option<Key> {
    let meta = object.meta();
    Some(Key::new(meta.namespace.clone().unwrap_or_default(), meta.name.clone()?))
}

/// The object that an agent's pod works for: the kind is part of the name, since two kinds may have objects of one name.
pub fn agent_key(pod: &Pod) -> Option<Key> {
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
pub fn owner_key(namespace: &str, kind: &str, name: &str) -> Key {
    Key::new(namespace, format!("{kind}/{name}"))
}

/// Objects of one kind by what they belong to.
pub struct Index<K> {
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
    /// What each object belongs to, by its own namespace and name.
    places: HashMap<Key, Key>,
    /// What objects refer to, where that is looked up too.
    refers_to: fn(&K) -> Option<Key>,
    /// The objects by what they refer to, by their own namespace and name.
    references: HashMap<Key, BTreeSet<Key>>,
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
    /// An empty one. `key_of`: what an object belongs to.
    pub fn new(key_of: fn(&K) -> Option<Key>) -> Self {
        Self {
            key_of,
            last_words: |_| false,
            last_state: |_| false,
            inner: RwLock::new(Inner {
                objects: HashMap::new(),
                places: HashMap::new(),
                refers_to: |_| None,
                references: HashMap::new(),
                deleted: VecDeque::new(),
                said: VecDeque::new(),
                listing: HashSet::new(),
            }),
            synced: watch::Sender::new(false),
        }
    }

    /// The same, where it is worth remembering what objects that are gone said last (see [`said`](Self::said)): in whatever state
    /// they were seen last, or in the very state in which they were deleted.
    pub fn remembering(mut self, last_words: fn(&K) -> bool, last_state: fn(&K) -> bool) -> Self {
        self.last_words = last_words;
        self.last_state = last_state;
        self
    }

    /// The same, where objects are found by what they refer to as well (see [`referring_to`](Self::referring_to)).
    pub fn with_references(self, refers_to: fn(&K) -> Option<Key>) -> Self {
        self.write().refers_to = refers_to;
        self
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner<K>> {
        self.inner.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner<K>> {
        self.inner.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Everything that belongs to the key.
    pub fn of(&self, key: &Key) -> Vec<Arc<K>> {
        self.read()
            .objects
            .get(key)
            .map(|objects| objects.values().cloned().collect())
            .unwrap_or_default()
    }

    /// One object that belongs to the key.
    pub fn named(&self, key: &Key, name: &str) -> Option<Arc<K>> {
        self.read().objects.get(key)?.get(name).cloned()
    }

    /// Everything that refers to the key, by namespace and name.
    pub fn referring_to(&self, key: &Key) -> Vec<Arc<K>> {
        let inner = self.read();
        let referring = inner.references.get(key).into_iter().flatten();
        let found = referring.filter_map(|own| inner.objects.get(inner.places.get(own)?)?.get(&own.name));
        found.cloned().collect()
    }

    /// The object with this namespace and name, whatever it belongs to.
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        let inner = self.read();
        let place = inner.places.get(key)?;
        inner.objects.get(place)?.get(&key.name).cloned()
    }

    /// The keys whose objects satisfy something. Looks at all of them: for rare events only.
    pub fn keys_where(&self, test: impl Fn(&K) -> bool) -> Vec<Key> {
        self.read()
            .objects
            .iter()
            .filter(|(_, objects)| objects.values().any(|object| test(object)))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// All objects. For rare events only.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.read()
            .objects
            .values()
            .flat_map(BTreeMap::values)
            .cloned()
            .collect()
    }

    /// How many keys have objects.
    pub fn count(&self) -> usize {
        self.read().objects.len()
    }

    /// Whether an object that is gone said last what is worth remembering.
    pub fn said(&self, uid: &str) -> bool {
        self.read().said.iter().any(|said| said == uid)
    }

    /// Everything was listed once.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Takes in what a write of our own came back with.
    pub fn put(&self, object: K) {
        let mut inner = self.write();
        let uid = object.meta().uid.as_deref().unwrap_or_default();
        if !inner.deleted.iter().any(|deleted| deleted == uid) {
            inner.put(self.key_of, object);
        }
    }

    /// An object that a request of our own found gone.
    pub fn forget(&self, key: &Key, name: &str, uid: &str) {
        self.write().forget(self.last_words, key, name, uid);
    }

    /// The same, by its own namespace and name.
    pub fn lost(&self, own: &Key, uid: &str) {
        let mut inner = self.write();
        if let Some(place) = inner.places.get(own).cloned() {
            inner.forget(self.last_words, &place, &own.name, uid);
        }
    }

    /// Takes in what a watch told. Returns the keys that it is about.
    pub fn take(&self, event: Event<K>) -> Vec<Key> {
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
                let mut lost: Vec<Arc<K>> = Vec::new();
                for (key, objects) in &mut inner.objects {
                    let before = objects.len();
                    objects.retain(|name, object| {
                        let stays = listing.contains(&(key.clone(), name.clone()));
                        if !stays {
                            lost.push(object.clone());
                        }
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
                for object in lost {
                    inner.forget_references(&object);
                    own_key(&*object).map(|own| inner.places.remove(&own));
                }
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

    /// Waits until everything was listed once.
    pub async fn synced(&self) {
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
        let own = own_key(&object)?;
        let before = self.places.get(&own).filter(|before| **before != key).cloned();
        let objects = self.objects.entry(key.clone()).or_default();
        if objects
            .get(&name)
            .is_some_and(|known| is_as_new(known.as_ref(), &object))
        {
            return None;
        }
        let refers_to = (self.refers_to)(&object);
        let mut replaced = objects.insert(name.clone(), Arc::new(object));
        self.places.insert(own.clone(), key.clone());
        // It belongs to something else now.
        if let Some(before) = before {
            replaced = self.remove(&before, &name);
        }
        if let Some(replaced) = replaced {
            self.forget_references(&replaced);
        }
        if let Some(target) = refers_to {
            self.references.entry(target).or_default().insert(own);
        }
        Some(key)
    }

    fn forget(&mut self, last_words: fn(&K) -> bool, key: &Key, name: &str, uid: &str) {
        let Some(objects) = self.objects.get_mut(key) else {
            return;
        };
        let is_it = |known: &&Arc<K>| known.meta().uid.as_deref() == Some(uid);
        let counts = objects.get(name).filter(is_it).map(|known| last_words(known));
        if let Some(own) = objects.get(name).filter(is_it).and_then(|known| own_key(&**known)) {
            self.places.remove(&own);
            if let Some(removed) = self.remove(key, name) {
                self.forget_references(&removed);
            }
        }
        if counts == Some(true) {
            self.remember_words(uid.to_owned());
        }
    }

    fn remove(&mut self, key: &Key, name: &str) -> Option<Arc<K>> {
        let objects = self.objects.get_mut(key)?;
        let removed = objects.remove(name);
        if objects.is_empty() {
            self.objects.remove(key);
        }
        removed
    }

    fn forget_references(&mut self, object: &K) {
        let (Some(own), Some(target)) = (own_key(object), (self.refers_to)(object)) else {
            return;
        };
        if let Entry::Occupied(mut references) = self.references.entry(target) {
            references.get_mut().remove(&own);
            if references.get().is_empty() {
                references.remove();
            }
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

/// Whether what is known is at least as new as what came: an echo of our own write wakes nobody. Resource versions of one kind
/// can be compared as numbers (Kubernetes says so since 1.35); where they are not numbers, what comes last counts.
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
                labels: Some([("belongs-to".to_owned(), "c".to_owned())].into()),
                ..ObjectMeta::default()
            },
            ..Pod::default()
        }
    }

    fn label_key(pod: &Pod) -> Option<Key> {
        let labels = pod.metadata.labels.as_ref()?;
        Some(Key::new("ns", labels.get("belongs-to")?))
    }

    fn versions(index: &Index<Pod>) -> Vec<String> {
        let of = index.of(&Key::new("ns", "c"));
        of.iter()
            .map(|pod| pod.metadata.resource_version.clone().unwrap_or_default())
            .collect()
    }

    #[test]
    fn own_writes_are_seen_and_old_events_are_not() {
        let index = Index::new(label_key);
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
    fn objects_are_found_by_what_they_refer_to_now() {
        // given two pods that refer to `c`, and one that refers to `d`
        let index = Index::new(own_key).with_references(label_key);
        let of = |name: &str, uid: &str, version, target: &str| {
            let mut pod = pod(name, uid, version);
            pod.metadata.labels = Some([("belongs-to".to_owned(), target.to_owned())].into());
            pod
        };
        let referring = |target: &str| -> Vec<String> {
            let found = index.referring_to(&Key::new("ns", target));
            found.iter().filter_map(|pod| pod.metadata.name.clone()).collect()
        };
        for (name, target) in [("a", "c"), ("b", "c"), ("x", "d")] {
            index.take(Event::Apply(of(name, name, 1, target)));
        }
        assert_eq!(
            (referring("c"), referring("d")),
            (vec!["a".into(), "b".into()], vec!["x".into()])
        );
        // when one refers to another, one is deleted, and one is not listed any more
        index.take(Event::Apply(of("a", "a", 2, "d")));
        index.take(Event::Delete(of("b", "b", 2, "c")));
        assert_eq!((referring("c"), referring("d")), (vec![], vec!["a".into(), "x".into()]));
        index.take(Event::Init);
        index.take(Event::InitApply(of("a", "a", 3, "d")));
        index.take(Event::InitDone);
        // then each is found where it refers to now
        assert_eq!((referring("c"), referring("d")), (vec![], vec!["a".to_owned()]));
        assert_eq!(index.read().references.len(), 1, "nothing is kept for what is gone");
    }

    #[test]
    fn last_words_are_kept_however_the_object_went() {
        // given pods of which two say that they ended
        let ended = |pod: &Pod| pod.metadata.annotations.is_some();
        let index = Index::new(label_key).remembering(ended, |_| false);
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
    fn an_object_is_found_by_its_own_name_and_belongs_to_one_thing() {
        let index = Index::new(label_key);
        let own = Key::new("ns", "a");
        index.take(Event::Apply(pod("a", "1", 1)));
        assert!(index.get(&own).is_some());
        // when it comes to belong to something else
        let mut moved = pod("a", "1", 2);
        moved.metadata.labels = Some([("belongs-to".to_owned(), "d".to_owned())].into());
        index.take(Event::Apply(moved));
        // then nothing is left in its old place
        assert!(index.of(&Key::new("ns", "c")).is_empty());
        assert_eq!(index.of(&Key::new("ns", "d")).len(), 1);
        index.forget(&Key::new("ns", "d"), "a", "1");
        assert!(index.get(&own).is_none());
    }

    #[test]
    fn a_new_list_takes_away_what_it_lacks() {
        let index = Index::new(label_key);
        index.take(Event::Apply(pod("a", "1", 1)));
        index.take(Event::Apply(pod("b", "2", 2)));
        index.take(Event::Init);
        index.take(Event::InitApply(pod("b", "2", 2)));
        assert_eq!(index.take(Event::InitDone), [Key::new("ns", "c")]);
        assert_eq!(versions(&index), ["2"]);
    }
}
