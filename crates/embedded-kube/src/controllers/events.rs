//! Writes events, and limits their number.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use futures::{StreamExt, pin_mut};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::world::lock;

/// Beyond this many different events the recorder forgets what it wrote; the next repetition is a new event.
const REMEMBERED: usize = 1024;
/// Events that wait to be written; more are dropped.
const WAITING: usize = 1024;

/// The object's UID, the reason, the message.
type Message = (String, String, String);

/// Writes the events of one controller, in the background: nothing waits for them. A repeated event is counted.
pub(crate) struct Recorder {
    component: &'static str,
    /// With the name of the event and its count.
    written: Mutex<HashMap<Message, (String, i32)>>,
    queue: mpsc::Sender<Event>,
}

impl Recorder {
    pub(crate) fn new(client: Client, component: &'static str) -> Self {
        let (queue, mut events) = mpsc::channel::<Event>(WAITING);
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                write(&client, &event).await;
            }
        });
        Recorder {
            component,
            written: Mutex::default(),
            queue,
        }
    }

    pub(crate) fn normal<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, message: &str) {
        self.publish(about, "Normal", reason, message);
    }

    pub(crate) fn warning<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, message: &str) {
        self.publish(about, "Warning", reason, message);
    }

    /// A warning about a lasting state: written only once.
    pub(crate) fn warning_once<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, message: &str) {
        let uid = about.meta().uid.clone().unwrap_or_default();
        let written = lock(&self.written).contains_key(&(uid, reason.to_owned(), message.to_owned()));
        if !written {
            self.publish(about, "Warning", reason, message);
        }
    }

    fn publish<K: Resource<DynamicType = ()>>(&self, about: &K, kind: &str, reason: &str, message: &str) {
        let object = about.object_ref(&());
        let key = (
            object.uid.clone().unwrap_or_default(),
            reason.to_owned(),
            message.to_owned(),
        );
        let (name, count) = {
            let mut written = lock(&self.written);
            if written.len() > REMEMBERED {
                written.clear();
            }
            let entry = written.entry(key).or_insert_with(|| {
                let id = uuid::Uuid::new_v4().as_u128();
                let name = object.name.as_deref().unwrap_or("object");
                (format!("{name}.{:016x}", id as u64), 0)
            });
            entry.1 += 1;
            entry.clone()
        };
        let event = event(object, name, self.component, kind, reason, message, count);
        if self.queue.try_send(event).is_err() {
            tracing::debug!(reason, message, "event not written: too many are waiting");
        }
    }
}

/// An event that cannot be written is lost: nothing depends on it.
async fn write(client: &Client, event: &Event) {
    let api: Api<Event> = Api::namespaced(client.clone(), &event.namespace().unwrap_or_default());
    if event.count > Some(1) {
        let patch = Patch::Merge(json!({"count": event.count, "lastTimestamp": event.last_timestamp}));
        let patched = api.patch(&event.name_any(), &PatchParams::default(), &patch).await;
        if patched.is_ok() {
            return;
        }
    }
    if let Err(error) = api.create(&PostParams::default(), event).await {
        tracing::debug!(%error, reason = event.reason, message = event.message, "event not written");
    }
}

fn event(
    object: ObjectReference,
    name: String,
    component: &str,
    kind: &str,
    reason: &str,
    message: &str,
    count: i32,
) -> Event {
    let namespace = object.namespace.clone().unwrap_or_else(|| "default".to_owned());
    let now = Time(Timestamp::now());
    Event {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        involved_object: object,
        type_: Some(kind.to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        count: Some(count),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now),
        source: Some(EventSource {
            component: Some(component.to_owned()),
            host: None,
        }),
        reporting_component: Some(component.to_owned()),
        reporting_instance: Some(String::new()),
        ..Event::default()
    }
}

/// Removes the oldest events once there are more than `most`.
pub(crate) async fn bound(client: Client, most: usize, stop: CancellationToken) {
    let stream = watcher(Api::<Event>::all(client.clone()), watcher::Config::default()).default_backoff();
    pin_mut!(stream);
    // By age. The watch may report an event several times; its key is the same each time.
    let mut known: BTreeMap<(Option<Time>, String, String), ()> = BTreeMap::new();
    while let Some(Some(event)) = stop.run_until_cancelled(stream.next()).await {
        let key = |event: &Event| {
            (
                event.creation_timestamp(),
                event.namespace().unwrap_or_default(),
                event.name_any(),
            )
        };
        match event {
            Ok(watcher::Event::Init) => known.clear(),
            Ok(watcher::Event::Apply(event) | watcher::Event::InitApply(event)) => {
                known.insert(key(&event), ());
            }
            Ok(watcher::Event::Delete(event)) => {
                known.remove(&key(&event));
            }
            Ok(watcher::Event::InitDone) | Err(_) => {}
        }
        while known.len() > most {
            let Some(((_, namespace, name), ())) = known.pop_first() else {
                break;
            };
            let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
            if let Err(error) = api.delete(&name, &DeleteParams::default()).await {
                tracing::debug!(%error, "an old event stays");
            }
        }
    }
}
