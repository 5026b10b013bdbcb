//! Watches: a cursor in the resource's log, read at the client's pace.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream;
use http::{HeaderValue, Response, header};
use rand::Rng;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Call;
use super::list::{revision, selector};
use super::present::{self, Form};
use crate::api::body::{self, Body};
use crate::api::errors::{Result, Status};
use crate::api::selector::Selector;
use crate::api::store::{Event, Log, Object, Snapshot};

const BOOKMARK_EVERY: Duration = Duration::from_secs(30);
/// Events sent in one chunk.
const BATCH: usize = 64;

struct Watch {
    call: Call,
    selector: Selector,
    log: Arc<Log>,
    news: tokio::sync::watch::Receiver<u64>,
    /// Everything up to here was sent.
    cursor: u64,
    bookmarks: bool,
    ends: Instant,
    next_bookmark: Instant,
    /// The initial objects, sent before any change.
    initial: Option<(Arc<Snapshot>, Option<String>)>,
    /// Whether to mark the end of the initial objects.
    mark_initial_end: bool,
    /// A table's columns are only sent with its first event.
    first: bool,
    done: bool,
}

pub(crate) fn watch(call: Call) -> Result<Response<Body>> {
    // `GET .../NAME?watch` is a watch on one object.
    let selector = selector(&call)?;
    let store = &call.server.store;
    let log = store.log(&call.resource.storage);
    let news = log.subscribe();
    let snapshot = store.snapshot();
    let bookmarks = call.query.flag("allowWatchBookmarks");
    let wanted = revision(&call)?;
    let send_initial = call.query.get("sendInitialEvents");
    match (send_initial, call.query.get("resourceVersionMatch")) {
        (Some(_), Some("NotOlderThan")) | (None, None) => {}
        (Some(_), _) => {
            return Err(Status::new(
                422,
                "Invalid",
                "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires \
                 setting resourceVersionMatch to NotOlderThan",
            ));
        }
        (None, Some(_)) => {
            return Err(Status::new(
                422,
                "Invalid",
                "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is \
                 forbidden for watch unless sendInitialEvents is provided",
            ));
        }
    }
    let send_initial = send_initial.map(|text| text == "true" || text == "1");
    // Without a version, or with "0", Kubernetes starts with the existing objects.
    let initial = send_initial.unwrap_or(wanted.unwrap_or(0) == 0);
    let cursor = match wanted {
        Some(wanted) if wanted > 0 && !initial => wanted,
        _ => snapshot.revision,
    };
    if let Err(old) = log.after(cursor, 0) {
        let status = Status::expired(format!("too old resource version: {cursor} ({})", old.oldest));
        return Ok(chunked(stream::iter([Ok(error_line(&status))])));
    }
    let seconds = match call.query.number("timeoutSeconds")?.filter(|s| *s > 0) {
        Some(seconds) => seconds.min(24 * 3600),
        None => rand::rng().random_range(1800..3600),
    };
    let now = Instant::now();
    let state = Watch {
        selector,
        log,
        news,
        cursor,
        bookmarks,
        ends: now + Duration::from_secs(seconds),
        next_bookmark: now + BOOKMARK_EVERY,
        initial: initial.then_some((snapshot, None)),
        mark_initial_end: send_initial == Some(true) && bookmarks,
        first: true,
        done: false,
        call,
    };
    Ok(chunked(stream::unfold(state, |mut state| async move {
        let chunk = state.next().await?;
        Some((Ok(chunk), state))
    })))
}

fn chunked(chunks: impl futures::Stream<Item = std::io::Result<Bytes>> + Send + 'static) -> Response<Body> {
    let mut response = Response::new(body::stream(chunks));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn error_line(status: &Status) -> Bytes {
    Bytes::from(format!("{{\"type\":\"ERROR\",\"object\":{}}}\n", status.to_value()))
}

impl Watch {
    /// The next chunk; `None` ends the watch.
    async fn next(&mut self) -> Option<Bytes> {
        if self.done {
            return None;
        }
        if let Some(chunk) = self.initial_chunk() {
            return Some(chunk);
        }
        loop {
            self.news.borrow_and_update();
            // The revision is read before the log, so that a bookmark never overtakes an event.
            let published = self.call.server.store.snapshot().revision;
            match self.log.after(self.cursor, BATCH) {
                Err(old) => {
                    self.done = true;
                    let text = format!("too old resource version: {} ({})", self.cursor, old.oldest);
                    return Some(error_line(&Status::expired(text)));
                }
                Ok(events) if !events.is_empty() => {
                    let mut chunk = BytesMut::new();
                    for event in &events {
                        self.cursor = event.revision;
                        self.write_event(&mut chunk, event);
                    }
                    if !chunk.is_empty() {
                        return Some(chunk.freeze());
                    }
                    continue;
                }
                Ok(_) => self.cursor = self.cursor.max(published),
            }
            let stop = self.call.server.stop.clone();
            tokio::select! {
                changed = self.news.changed() => {
                    if changed.is_err() {
                        return None;
                    }
                }
                () = tokio::time::sleep_until(self.ends) => {
                    self.done = true;
                    return self.bookmarks.then(|| self.bookmark(json!({})));
                }
                () = tokio::time::sleep_until(self.next_bookmark) => {
                    self.next_bookmark = Instant::now() + BOOKMARK_EVERY;
                    if self.bookmarks && self.log.after(self.cursor, 1).is_ok_and(|e| e.is_empty()) {
                        return Some(self.bookmark(json!({})));
                    }
                }
                () = stop.cancelled() => return None,
            }
        }
    }

    /// A part of the initial objects.
    fn initial_chunk(&mut self) -> Option<Bytes> {
        let (snapshot, after) = self.initial.take()?;
        let mut chunk = BytesMut::new();
        let mut last = None;
        let storage = self.call.resource.storage.clone();
        let namespace = self.call.namespace().to_owned();
        for (key, object) in snapshot.list(&storage, &namespace, after.as_deref()) {
            if self.wants(&object.value) {
                self.write(&mut chunk, "ADDED", object);
            }
            if chunk.len() > 256 * 1024 {
                last = Some(key.as_str().to_owned());
                break;
            }
        }
        match last {
            Some(last) => self.initial = Some((snapshot, Some(last))),
            None if self.mark_initial_end => {
                let end = self.bookmark(json!({"k8s.io/initial-events-end": "true"}));
                chunk.extend_from_slice(&end);
            }
            None => {}
        }
        (!chunk.is_empty()).then(|| chunk.freeze())
    }

    fn wants(&self, value: &Value) -> bool {
        let named = &self.call.path.name;
        self.selector.matches(value) && (named.is_empty() || value["metadata"]["name"].as_str() == Some(named))
    }

    fn write_event(&mut self, chunk: &mut BytesMut, event: &Event) {
        let namespace = self.call.namespace();
        if !namespace.is_empty() && event.key.namespace() != namespace {
            return;
        }
        let before = event.before.as_ref().is_some_and(|o| self.wants(&o.value));
        let after = event.after.as_ref().is_some_and(|o| self.wants(&o.value));
        // An object that stops matching the selector leaves the watch, and the other way round.
        match (before, after) {
            (false, true) => self.write(chunk, "ADDED", &event.shown),
            (true, true) => self.write(chunk, "MODIFIED", &event.shown),
            (true, false) => {
                let mut last = event.before.as_ref().map(|o| o.value.clone()).unwrap_or_default();
                last["metadata"]["resourceVersion"] = event.revision.to_string().into();
                self.write(chunk, "DELETED", &Object::new(last, event.revision));
            }
            (false, false) => {}
        }
    }

    fn write(&mut self, chunk: &mut BytesMut, kind: &str, object: &Object) {
        let bytes = match self.call.form {
            Form::Table => {
                let shown = present::value(&self.call.resource, &object.value);
                let one = std::slice::from_ref(&shown);
                let table = crate::api::table::table(&self.call, one, None, self.first);
                Bytes::from(table.to_string())
            }
            _ => present::object(&self.call, object),
        };
        self.first = false;
        chunk.put_slice(b"{\"type\":\"");
        chunk.put_slice(kind.as_bytes());
        chunk.put_slice(b"\",\"object\":");
        chunk.put_slice(&bytes);
        chunk.put_slice(b"}\n");
    }

    fn bookmark(&self, annotations: Value) -> Bytes {
        let mut metadata = json!({"resourceVersion": self.cursor.to_string(), "creationTimestamp": null});
        if annotations.as_object().is_some_and(|a| !a.is_empty()) {
            metadata["annotations"] = annotations;
        }
        let resource = &self.call.resource;
        let object = match self.call.form {
            Form::Plain => {
                json!({"kind": resource.kind, "apiVersion": resource.api_version(), "metadata": metadata})
            }
            Form::Metadata => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
            }
            Form::Table => {
                let row =
                    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
                json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": self.cursor.to_string()},
                    "columnDefinitions": null, "rows": [{"cells": [], "object": row}]})
            }
        };
        Bytes::from(format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n"))
    }
}
