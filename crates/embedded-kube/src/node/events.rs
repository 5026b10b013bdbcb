//! Events, as kubelet writes them. Recording never waits and never fails; repeats of the same event are counted in one
//! object, and written at most every few seconds.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, EventSource, Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const REPEATS_AT_MOST_EVERY: Duration = Duration::from_secs(5);
const REMEMBERED: usize = 4096;

/// Whether something needs attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Weight {
    Normal,
    Warning,
}

#[derive(Clone, Debug)]
struct Note {
    about: ObjectReference,
    weight: Weight,
    reason: &'static str,
    message: String,
    node: String,
}

/// Takes events for one instance.
#[derive(Clone)]
pub(crate) struct Recorder {
    notes: mpsc::Sender<Note>,
}

impl Recorder {
    pub(crate) fn start(client: Client, stop: CancellationToken) -> Self {
        let (notes, queue) = mpsc::channel(1024);
        tokio::spawn(async move {
            tokio::select! { () = stop.cancelled() => {}, () = write(client, queue) => {} }
        });
        Self { notes }
    }

    /// Of a pod, or of one of its containers.
    pub(crate) fn pod(
        &self,
        pod: &Pod,
        container: Option<&str>,
        weight: Weight,
        reason: &'static str,
        message: String,
    ) {
        let about = ObjectReference {
            api_version: Some("v1".to_string()),
            kind: Some("Pod".to_string()),
            namespace: pod.namespace(),
            name: Some(pod.name_any()),
            uid: pod.uid(),
            field_path: container.map(|name| field_path(pod, name)),
            ..ObjectReference::default()
        };
        let node = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.clone())
            .unwrap_or_default();
        self.note(Note {
            about,
            weight,
            reason,
            message,
            node,
        });
    }

    pub(crate) fn node(&self, node: &Node, reason: &'static str, message: String) {
        let about = ObjectReference {
            kind: Some("Node".to_string()),
            name: Some(node.name_any()),
            // kubelet names itself so, since it does not wait for its object's UID.
            uid: Some(node.name_any()),
            ..ObjectReference::default()
        };
        self.note(Note {
            about,
            weight: Weight::Normal,
            reason,
            message,
            node: node.name_any(),
        });
    }

    fn note(&self, note: Note) {
        // Full only when the API server has not answered for a thousand events: then the newest are lost.
        let _ = self.notes.try_send(note);
    }
}

fn field_path(pod: &Pod, container: &str) -> String {
    let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let list = if init.into_iter().any(|c| c.name == container) {
        "initContainers"
    } else {
        "containers"
    };
    format!("spec.{list}{{{container}}}")
}

/// Object, part of it, reason, message: what makes two events the same.
type Key = (Option<String>, Option<String>, &'static str, String);

struct Written {
    namespace: String,
    name: String,
    count: i32,
    pending: bool,
    at: Instant,
}

async fn write(client: Client, mut queue: mpsc::Receiver<Note>) {
    let mut written: HashMap<Key, Written> = HashMap::new();
    loop {
        let due = written
            .values()
            .filter(|w| w.pending)
            .map(|w| w.at + REPEATS_AT_MOST_EVERY)
            .min();
        let note = tokio::select! {
            note = queue.recv() => note,
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                for entry in written.values_mut().filter(|w| w.pending && w.at + REPEATS_AT_MOST_EVERY <= Instant::now()) {
                    count(&client, entry).await;
                }
                continue;
            }
        };
        let Some(note) = note else { return };
        let key = (
            note.about.uid.clone(),
            note.about.field_path.clone(),
            note.reason,
            note.message.clone(),
        );
        if let Some(entry) = written.get_mut(&key) {
            entry.count += 1;
            entry.pending = true;
            if entry.at.elapsed() >= REPEATS_AT_MOST_EVERY {
                count(&client, entry).await;
            }
            continue;
        }
        if written.len() >= REMEMBERED {
            written.clear();
        }
        if let Some(entry) = create(&client, note).await {
            written.insert(key, entry);
        }
    }
}

async fn create(client: &Client, note: Note) -> Option<Written> {
    let now = jiff::Timestamp::now();
    let namespace = note.about.namespace.clone().unwrap_or_else(|| "default".to_string());
    let name = format!(
        "{}.{:x}",
        note.about.name.as_deref().unwrap_or_default(),
        now.as_nanosecond()
    );
    let weight = if note.weight == Weight::Normal {
        "Normal"
    } else {
        "Warning"
    };
    let event = Event {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        involved_object: note.about,
        type_: Some(weight.to_string()),
        reason: Some(note.reason.to_string()),
        message: Some(note.message),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        source: Some(EventSource {
            component: Some("kubelet".to_string()),
            host: Some(note.node.clone()),
        }),
        reporting_component: Some("kubelet".to_string()),
        reporting_instance: Some(note.node),
        ..Event::default()
    };
    let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
    match api.create(&PostParams::default(), &event).await {
        Ok(_) => Some(Written {
            namespace,
            name,
            count: 1,
            pending: false,
            at: Instant::now(),
        }),
        Err(error) => {
            tracing::debug!(%error, "an event was refused");
            None
        }
    }
}

async fn count(client: &Client, entry: &mut Written) {
    entry.pending = false;
    entry.at = Instant::now();
    let api: Api<Event> = Api::namespaced(client.clone(), &entry.namespace);
    let change = serde_json::json!({"count": entry.count, "lastTimestamp": Time(jiff::Timestamp::now())});
    if let Err(error) = api
        .patch(&entry.name, &PatchParams::default(), &Patch::Merge(change))
        .await
    {
        tracing::debug!(%error, "an event was refused");
    }
}
