//! Secrets. Only those with an engine's labels are watched; what a spec names beside them (the user's certificates, a CA,
//! credentials of a store) is asked for by name, and asked for again now and then, so that a change is noticed within a minute. Of
//! the many other Secrets of a Kubernetes nothing is read or kept.
//!
//! Only metadata is looked at here. A Secret's content is read by whoever needs it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::core::{PartialObjectMeta, PartialObjectMetaExt};
use kube::runtime::watcher;
use rand::Rng;
use stateward_core::names;

use crate::cache::{Index, Key, own_key};
use crate::{Runtime, watch};

/// How long after a look at a Secret that is there the next one comes, at least and at most. With the time that it takes, a change is
/// noticed within 60 s.
const THERE: (Duration, Duration) = (Duration::from_secs(25), Duration::from_secs(45));
/// The first looks after one that was not there, or that something is wrong with; each later by half, and the longest.
const WANTED: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(50));
/// How often it is looked who is due, and whether anybody still uses what is looked at.
const TICK: Duration = Duration::from_secs(1);
const SWEEP: Duration = Duration::from_secs(600);
/// How many are asked for at once.
const AT_ONCE: usize = 8;

type Metadata = Arc<PartialObjectMeta<Secret>>;

/// The name under which workers say that they look at a Secret ([`Workers::uses`](crate::Workers::uses)).
pub const KIND: &str = "Secret";

/// What is known of Secrets.
pub struct Secrets {
    /// Those that are watched.
    pub watched: Index<PartialObjectMeta<Secret>>,
    /// Those that are asked for by name.
    named: Mutex<HashMap<Key, Looked>>,
}

impl Default for Secrets {
    fn default() -> Self {
        Self {
            watched: Index::new(own_key),
            named: Mutex::default(),
        }
    }
}

struct Looked {
    found: Option<Metadata>,
    next: Instant,
    /// It is not there, or something is wrong with it: somebody is about to mend it, after this pause for example.
    wanted: Option<Duration>,
}

impl Secrets {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Looked>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was found a moment ago may be otherwise now: the next look asks.
    pub fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    /// What was written or read is known at once.
    pub fn put(&self, metadata: ObjectMeta) {
        let namespace = metadata.namespace.clone().unwrap_or_default();
        let name = metadata.name.clone().unwrap_or_default();
        self.forget(&Key::new(namespace, name));
        self.watched.put(kept(metadata));
    }

    /// Something is wrong with this Secret, and somebody is about to mend it.
    pub fn hurry(&self, key: &Key) {
        if let Some(looked) = self.lock().get_mut(key)
            && looked.wanted.is_none()
        {
            looked.wanted = Some(WANTED.0);
            looked.next = looked.next.min(Instant::now() + WANTED.0);
        }
    }

    fn due(&self) -> Vec<Key> {
        let now = Instant::now();
        let all = self.lock();
        all.iter()
            .filter(|(_, looked)| looked.next <= now)
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Remembers what was found. Returns whether it is another one than before, or another version.
    fn note(&self, key: &Key, found: Option<Metadata>) -> bool {
        let mut all = self.lock();
        let before = all.get(key);
        let version = |found: &Option<Metadata>| {
            let meta = &found.as_ref()?.metadata;
            Some((meta.uid.clone(), meta.resource_version.clone()))
        };
        let changed = before.is_some_and(|before| version(&before.found) != version(&found));
        let wanted = match (before.filter(|_| !changed), &found) {
            (Some(before), _) => before.wanted.map(|pause| pause.mul_f64(1.5).min(WANTED.1)),
            (None, None) => Some(WANTED.0),
            (None, Some(_)) => None,
        };
        let pause = wanted.unwrap_or_else(|| rand::rng().random_range(THERE.0..THERE.1));
        let looked = Looked {
            next: Instant::now() + pause,
            wanted,
            found,
        };
        all.insert(key.clone(), looked);
        changed
    }
}

/// A Secret's metadata, from the watch, or by its name.
pub async fn look(runtime: &Runtime, key: &Key) -> kube::Result<Option<Metadata>> {
    if let Some(seen) = runtime.secrets.watched.get(key) {
        runtime.secrets.forget(key);
        return Ok(Some(seen));
    }
    if let Some(looked) = runtime.secrets.lock().get(key) {
        return Ok(looked.found.clone());
    }
    ask(runtime, key).await.map(|(found, _)| found)
}

/// Asks for a Secret and notes what is found.
async fn ask(runtime: &Runtime, key: &Key) -> kube::Result<(Option<Metadata>, bool)> {
    let api: Api<Secret> = Api::namespaced(runtime.client.clone(), &key.namespace);
    let found = api.get_metadata_opt(&key.name).await?.map(|found| {
        let mut metadata = found.metadata;
        keep_what_is_used(&mut metadata);
        Arc::new(metadata.into_response_partial())
    });
    let changed = runtime.secrets.note(key, found.clone());
    Ok((found, changed))
}

/// Only what is looked at stays in memory: not what `kubectl apply` or other programs keep in annotations, which may be the whole
/// Secret.
fn keep_what_is_used(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    metadata.finalizers = None;
    let is_used = |name: &String| name.starts_with(names::RESERVED_PREFIX) || name.starts_with("cert-manager.io/");
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|name, _| is_used(name));
    }
    metadata.labels = None;
}

/// Follows the Secrets with these labels.
pub async fn follow_labelled(runtime: &Runtime, labels: &str) {
    follow_in(runtime, labels, &runtime.secrets.watched, |secret| {
        runtime.secrets.forget(secret); // one that has lost its labels is asked for
        runtime.changed(KIND, secret);
    })
    .await;
}

/// Follows the Secrets with these labels in an index of its own: an index shows what one watch shows.
pub async fn follow_in(runtime: &Runtime, labels: &str, index: &Index<PartialObjectMeta<Secret>>, wake: impl Fn(&Key)) {
    let config = watcher::Config::default().labels(labels);
    let all = watcher(watch::api::<PartialObjectMeta<Secret>>(runtime), config)
        .map_ok(|event| event.modify(|secret| keep_what_is_used(&mut secret.metadata)));
    watch::follow(all, "Secrets", index, wake).await;
}

/// The metadata of a Secret as it is kept in an index.
pub fn kept(mut metadata: ObjectMeta) -> PartialObjectMeta<Secret> {
    keep_what_is_used(&mut metadata);
    metadata.into_response_partial()
}

/// Looks again at what is due, and tells whoever uses what has changed.
pub async fn follow_named(runtime: &Runtime) {
    let mut swept = Instant::now();
    loop {
        tokio::time::sleep(TICK).await;
        if swept.elapsed() >= SWEEP {
            swept = Instant::now();
            runtime
                .secrets
                .lock()
                .retain(|key, _| runtime.workers.is_used(KIND, key));
        }
        let looks = futures::stream::iter(runtime.secrets.due()).for_each_concurrent(AT_ONCE, async |key| {
            if runtime.secrets.watched.get(&key).is_some() {
                runtime.secrets.forget(&key); // it has labels now: the watch tells of it
                return;
            }
            match ask(runtime, &key).await {
                Ok((_, true)) => runtime.changed(KIND, &key),
                Ok((_, false)) => {}
                Err(error) => tracing::debug!(%error, secret = %key, "a Secret could not be looked at"),
            }
        });
        looks.await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn metadata(version: &str) -> Metadata {
        let meta = ObjectMeta {
            uid: Some("1".into()),
            resource_version: Some(version.into()),
            ..ObjectMeta::default()
        };
        Arc::new(meta.into_response_partial())
    }

    fn pause(named: &Secrets, key: &Key) -> Duration {
        named.lock()[key].next.saturating_duration_since(Instant::now())
    }

    #[test]
    fn what_is_there_is_looked_at_again_within_a_minute_and_what_is_wanted_sooner() {
        let (named, key) = (Secrets::default(), Key::new("ns", "s"));
        // Given one that is not there: the next looks are soon, and never far.
        assert!(!named.note(&key, None), "the first look is no change");
        assert!(pause(&named, &key) <= WANTED.0);
        for _ in 0..20 {
            assert!(!named.note(&key, None));
        }
        assert!(pause(&named, &key) <= WANTED.1 && pause(&named, &key) > WANTED.0);
        // When it is made, that is a change; then there is time,
        assert!(named.note(&key, Some(metadata("1"))));
        assert!(!named.note(&key, Some(metadata("1"))));
        assert!(pause(&named, &key) > Duration::from_secs(24) && pause(&named, &key) <= THERE.1);
        // unless something is wrong with it.
        named.hurry(&key);
        assert!(pause(&named, &key) <= WANTED.0);
        assert!(named.note(&key, Some(metadata("2"))));
        assert!(named.note(&key, None));
        // Forgotten, it is asked for at the next look.
        named.forget(&key);
        assert!(named.lock().get(&key).is_none());
    }

    #[test]
    fn nothing_is_kept_that_is_not_used() {
        let text = |text: &str| text.to_owned();
        let mut meta = ObjectMeta {
            annotations: Some(BTreeMap::from([
                (
                    text("kubectl.kubernetes.io/last-applied-configuration"),
                    text("{\"data\":…}"),
                ),
                (text("stateward.dev/issued-by"), text("x")),
            ])),
            labels: Some(BTreeMap::from([(text("team"), text("t")), (text("app"), text("etcd"))])),
            ..ObjectMeta::default()
        };
        keep_what_is_used(&mut meta);
        let keys: Vec<_> = meta.annotations.unwrap_or_default().into_keys().collect();
        assert_eq!(keys, ["stateward.dev/issued-by"]);
        assert_eq!(meta.labels, None);
    }
}
