//! Kubernetes Events on the objects that are looked after. The same words are said once in a while, not every round; saying them never
//! holds a round up.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use stateward_core::{Note, names};

/// For how long the same words about the same object are not said again.
const QUIET: Duration = Duration::from_secs(600);

/// Writes events.
#[derive(Clone)]
pub struct Events {
    client: Client,
    said: Arc<Mutex<HashMap<(String, String), Instant>>>,
}

impl Events {
    /// For all workers.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            said: Arc::default(),
        }
    }

    /// Says it, in the background.
    pub fn tell<K: Resource<DynamicType = ()>, R: Display>(&self, object: &K, note: &Note<R>) {
        let meta = object.meta();
        if !self.is_news(meta.uid.as_deref().unwrap_or_default(), note) {
            return;
        }
        let now = Timestamp::now();
        let namespace = meta.namespace.clone().unwrap_or_default();
        let name = meta.name.as_deref().unwrap_or_default();
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            action: Some(note.reason.to_string()),
            reason: Some(note.reason.to_string()),
            // The API refuses notes of more than 1 kB.
            note: Some(note.message.chars().take(1000).collect()),
            type_: Some(if note.warning { "Warning" } else { "Normal" }.to_owned()),
            event_time: Some(MicroTime(now)),
            regarding: Some(object.object_ref(&())),
            reporting_controller: Some(names::MANAGER.to_owned()),
            reporting_instance: Some(names::MANAGER.to_owned()),
            ..Event::default()
        };
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        tokio::spawn(async move {
            let params = PostParams::default();
            let written = tokio::time::timeout(Duration::from_secs(10), api.create(&params, &event));
            if let Ok(Err(error)) = written.await {
                tracing::debug!(%error, "an event could not be written");
            }
        });
    }

    fn is_news(&self, uid: &str, note: &Note<impl Display>) -> bool {
        let mut said = self.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let key = (uid.to_owned(), format!("{}:{}", note.reason, note.message));
        if said.get(&key).is_some_and(|when| when.elapsed() < QUIET) {
            return false;
        }
        if said.len() > 10_000 {
            said.retain(|_, when| when.elapsed() < QUIET);
        }
        said.insert(key, Instant::now());
        true
    }
}
