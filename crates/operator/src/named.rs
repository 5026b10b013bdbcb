//! Secrets by name. Only those with a cluster's labels are watched; what a spec names beside them (the user's certificates, a CA,
//! credentials of a store) is asked for by name, and asked for again now and then, so that a change is noticed within a minute. Of
//! the many other Secrets of a Kubernetes nothing is read or kept.
//!
//! Only metadata is looked at here. A Secret's content is read by whoever needs it (`secrets.rs`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::core::{PartialObjectMeta, PartialObjectMetaExt};
use rand::Rng;
use stateward_api::names;

use crate::Shared;
use crate::caches::Key;

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

/// The Secrets that are asked for by name.
#[derive(Default)]
pub(crate) struct Named(Mutex<HashMap<Key, Looked>>);

struct Looked {
    found: Option<Metadata>,
    next: Instant,
    /// It is not there, or something is wrong with it: somebody is about to mend it, after this pause for example.
    wanted: Option<Duration>,
}

impl Named {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Looked>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was found a moment ago may be otherwise now: the next look asks.
    pub(crate) fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    /// Something is wrong with this Secret, and somebody is about to mend it.
    pub(crate) fn hurry(&self, key: &Key) {
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
pub(crate) async fn look(shared: &Shared, key: &Key) -> kube::Result<Option<Metadata>> {
    if let Some(seen) = shared.caches.secrets.get(key) {
        shared.named.forget(key);
        return Ok(Some(seen));
    }
    if let Some(looked) = shared.named.lock().get(key) {
        return Ok(looked.found.clone());
    }
    ask(shared, key).await.map(|(found, _)| found)
}

/// Asks for a Secret and notes what is found.
async fn ask(shared: &Shared, key: &Key) -> kube::Result<(Option<Metadata>, bool)> {
    let api: Api<Secret> = Api::namespaced(shared.client.clone(), &key.namespace);
    let found = api.get_metadata_opt(&key.name).await?.map(|found| {
        let mut metadata = found.metadata;
        keep_what_is_used(&mut metadata);
        Arc::new(metadata.into_response_partial())
    });
    let changed = shared.named.note(key, found.clone());
    Ok((found, changed))
}

/// Only what is looked at stays in memory: not what `kubectl apply` or other programs keep in annotations, which may be the whole
/// Secret.
pub(crate) fn keep_what_is_used(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    metadata.finalizers = None;
    let is_used = |name: &String| name.starts_with(names::RESERVED_PREFIX) || name.starts_with("cert-manager.io/");
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|name, _| is_used(name));
    }
    if let Some(labels) = &mut metadata.labels {
        labels.retain(|name, _| name == names::LABEL_CLUSTER || name == names::LABEL_APP);
    }
}

/// Wakes everybody who looks at a Secret.
pub(crate) fn wake_users(shared: &Shared, secret: &Key) {
    for cluster in shared.secret_users.of(secret) {
        shared.loops.wake(&cluster);
    }
    for cluster in shared.restores.users.of(secret) {
        shared.restores.loops.wake(&cluster);
    }
    for backup in shared.backups.secret_users.of(secret) {
        shared.backups.loops.wake(&backup);
    }
}

/// Whether an object that looks at a Secret is still there.
fn has_users(shared: &Shared, secret: &Key) -> bool {
    let caches = &shared.caches;
    let clusters = shared.secret_users.of(secret);
    let restores = shared.restores.users.of(secret);
    let backups = shared.backups.secret_users.of(secret);
    clusters.iter().any(|cluster| caches.clusters.get(cluster).is_some())
        || restores.iter().any(|cluster| !caches.restores.of(cluster).is_empty())
        || backups.iter().any(|backup| caches.backups.get(backup).is_some())
}

/// Looks again at what is due, and tells whoever uses what has changed.
pub(crate) async fn follow(shared: &Shared) {
    let mut swept = Instant::now();
    loop {
        tokio::time::sleep(TICK).await;
        if swept.elapsed() >= SWEEP {
            swept = Instant::now();
            shared.named.lock().retain(|key, _| has_users(shared, key));
        }
        let looks = futures::stream::iter(shared.named.due()).for_each_concurrent(AT_ONCE, async |key| {
            if shared.caches.secrets.get(&key).is_some() {
                shared.named.forget(&key); // it has labels now: the watch tells of it
                return;
            }
            match ask(shared, &key).await {
                Ok((_, true)) => wake_users(shared, &key),
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

    fn pause(named: &Named, key: &Key) -> Duration {
        named.lock()[key].next.saturating_duration_since(Instant::now())
    }

    #[test]
    fn what_is_there_is_looked_at_again_within_a_minute_and_what_is_wanted_sooner() {
        let (named, key) = (Named::default(), Key::new("ns", "s"));
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
        let keys = |map: Option<BTreeMap<String, String>>| map.unwrap_or_default().into_keys().collect::<Vec<_>>();
        assert_eq!(keys(meta.annotations), ["stateward.dev/issued-by"]);
        assert_eq!(keys(meta.labels), ["app"]);
    }
}
