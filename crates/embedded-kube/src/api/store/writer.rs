//! The one thread that changes state: takes what is queued, checks, commits once, publishes, replies.

use std::path::Path;
use std::sync::Arc;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::{Event, Key, Map, Object, OpenError, Shared, Snapshot};

const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const REVISION: &str = "revision";
/// Writes in one commit.
const MAX_BATCH: usize = 512;
/// redb's page cache: all reads come from memory, so it only serves commits.
const CACHE_BYTES: usize = 4 * 1024 * 1024;

/// The precondition of a write.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Expect {
    Absent,
    Revision(u64),
}

#[derive(Debug)]
pub(crate) enum Change {
    /// Stores the object; the writer fills in `metadata.resourceVersion`.
    Put(Value),
    Delete,
}

#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) key: Key,
    pub(crate) expect: Expect,
    pub(crate) change: Change,
}

#[derive(Debug, Clone, thiserror::Error, PartialEq)]
pub(crate) enum WriteError {
    #[error("the object exists already")]
    Exists,
    #[error("the object is gone")]
    Missing,
    #[error("the object has changed")]
    Stale,
    #[error("the server is stopping")]
    Closed,
    #[error("the state could not be written: {0}")]
    Disk(String),
}

pub(super) struct Queued {
    pub(super) write: Write,
    pub(super) answer: oneshot::Sender<Result<Arc<Object>, WriteError>>,
}

pub(super) fn load(file: &Path) -> Result<(Database, Snapshot), OpenError> {
    let database = redb::Builder::new()
        .set_cache_size(CACHE_BYTES)
        .create(file)
        .map_err(redb::Error::from)?;
    let mut map = Map::new();
    let mut revision = 1;
    let read = database.begin_read().map_err(redb::Error::from)?;
    match read.open_table(META) {
        Ok(meta) => {
            if let Some(stored) = meta.get(REVISION).map_err(redb::Error::from)? {
                revision = stored.value();
            }
            let objects = read.open_table(OBJECTS).map_err(redb::Error::from)?;
            for entry in objects.iter().map_err(redb::Error::from)? {
                let (key, json) = entry.map_err(redb::Error::from)?;
                let value: Value = serde_json::from_slice(json.value())?;
                let at = value["metadata"]["resourceVersion"]
                    .as_str()
                    .and_then(|v| v.parse().ok())
                    .unwrap_or(revision);
                map.insert(Key(key.value().into()), Arc::new(Object::new(value, at)));
            }
        }
        Err(redb::TableError::TableDoesNotExist(_)) => {}
        Err(e) => return Err(redb::Error::from(e).into()),
    }
    Ok((database, Snapshot { map, revision }))
}

pub(super) fn run(database: Database, shared: Arc<Shared>, mut queue: mpsc::Receiver<Queued>) {
    let mut batch = Vec::with_capacity(MAX_BATCH);
    while let Some(first) = queue.blocking_recv() {
        batch.push(first);
        while batch.len() < MAX_BATCH
            && let Ok(next) = queue.try_recv()
        {
            batch.push(next);
        }
        commit(&database, &shared, batch.drain(..));
    }
}

fn commit(database: &Database, shared: &Shared, batch: impl Iterator<Item = Queued>) {
    let now = shared.snapshot.load_full();
    let (mut map, mut revision) = (now.map.clone(), now.revision);
    let mut events = Vec::new();
    let mut answers = Vec::new();
    for Queued { write, answer } in batch {
        match step(&mut map, revision + 1, write) {
            Ok(event) => {
                revision += 1;
                answers.push((answer, Ok(event.shown.clone())));
                events.push(event);
            }
            Err(e) => answers.push((answer, Err(e))),
        }
    }
    if !events.is_empty() {
        if let Err(e) = persist(database, &events, revision) {
            tracing::error!(error = %e, "the state could not be written");
            for (answer, result) in answers {
                let _ = answer.send(result.and(Err(WriteError::Disk(e.to_string()))));
            }
            return;
        }
        // Logs first, then the snapshot: a reader of a snapshot finds all its events in the logs.
        let mut touched: Vec<String> = Vec::new();
        for event in events {
            let storage = event.key.storage();
            if !touched.iter().any(|t| t == storage) {
                touched.push(storage.to_owned());
            }
            shared.log(storage).push(event);
        }
        shared.snapshot.store(Arc::new(Snapshot { map, revision }));
        for storage in touched {
            shared.log(&storage).announce(revision);
        }
    }
    for (answer, result) in answers {
        let _ = answer.send(result);
    }
}

/// Applies one write to the working copy, or leaves the copy unchanged.
fn step(map: &mut Map, revision: u64, write: Write) -> Result<Event, WriteError> {
    let Write { key, expect, change } = write;
    let before = map.get(&key).cloned();
    match (expect, &before) {
        (Expect::Absent, Some(_)) => return Err(WriteError::Exists),
        (Expect::Revision(_), None) => return Err(WriteError::Missing),
        (Expect::Revision(wanted), Some(found)) if found.revision != wanted => return Err(WriteError::Stale),
        _ => {}
    }
    let (mut value, deleted) = match (change, &before) {
        (Change::Put(value), _) => (value, false),
        (Change::Delete, Some(before)) => (before.value.clone(), true),
        (Change::Delete, None) => return Err(WriteError::Missing),
    };
    value["metadata"]["resourceVersion"] = revision.to_string().into();
    let shown = Arc::new(Object::new(value, revision));
    let after = if deleted {
        map.remove(&key);
        None
    } else {
        map.insert(key.clone(), shown.clone());
        Some(shown.clone())
    };
    Ok(Event {
        revision,
        key,
        before,
        after,
        shown,
    })
}

fn persist(database: &Database, events: &[Event], revision: u64) -> Result<(), redb::Error> {
    let write = database.begin_write()?;
    {
        let mut objects = write.open_table(OBJECTS)?;
        for event in events {
            match &event.after {
                Some(object) => objects.insert(event.key.as_str(), object.json().as_ref())?,
                None => objects.remove(event.key.as_str())?,
            };
        }
        write.open_table(META)?.insert(REVISION, revision)?;
    }
    write.commit()?;
    Ok(())
}
