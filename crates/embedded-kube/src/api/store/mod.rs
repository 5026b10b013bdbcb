//! Storage: every object in memory in one ordered persistent map, and durably in one `redb` file.
//!
//! Reads take the published snapshot and never wait. Writes go to one writer thread (see `writer`), which checks the
//! expected revision of each, commits all that are queued with one fsync, and only then publishes the new snapshot,
//! appends to the watch logs and replies. One counter gives every write its revision; it is the `resourceVersion`.

mod log;
mod writer;

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use arc_swap::ArcSwap;
use bytes::Bytes;
use imbl::OrdMap;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

pub(crate) use log::{Event, Log};
pub(crate) use writer::{Change, Expect, Write, WriteError};

/// The key of an object: `resource.group/namespace/name`, the namespace empty for cluster-wide objects.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key(Arc<str>);

impl Key {
    pub(crate) fn new(storage: &str, namespace: &str, name: &str) -> Self {
        Self(format!("{storage}/{namespace}/{name}").into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The `resource.group` part.
    pub(crate) fn storage(&self) -> &str {
        self.0.split('/').next().unwrap_or_default()
    }

    pub(crate) fn namespace(&self) -> &str {
        self.0.split('/').nth(1).unwrap_or_default()
    }
}

/// One stored object at one revision.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) value: Value,
    pub(crate) revision: u64,
    json: OnceLock<Bytes>,
}

impl Object {
    pub(crate) fn new(value: Value, revision: u64) -> Self {
        Self {
            value,
            revision,
            json: OnceLock::new(),
        }
    }

    /// The object as JSON text, built once.
    pub(crate) fn json(&self) -> Bytes {
        self.json.get_or_init(|| Bytes::from(self.value.to_string())).clone()
    }
}

type Map = OrdMap<Key, Arc<Object>>;

/// All objects at one revision.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    map: Map,
    pub(crate) revision: u64,
}

impl Snapshot {
    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<Object>> {
        self.map.get(key)
    }

    /// Objects of one resource, of one namespace or (empty) of all, in key order, starting behind `after` if given.
    pub(crate) fn list<'a>(
        &'a self,
        storage: &str,
        namespace: &str,
        after: Option<&str>,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<Object>)> {
        let prefix = if namespace.is_empty() {
            format!("{storage}/")
        } else {
            format!("{storage}/{namespace}/")
        };
        let start = match after {
            Some(after) if after >= prefix.as_str() => format!("{after}\0"),
            _ => prefix.clone(),
        };
        self.map
            .range(Key(start.into())..)
            .take_while(move |(key, _)| key.as_str().starts_with(&prefix))
    }

    /// The values of one resource and namespace (empty: all).
    pub(crate) fn values<'a>(&'a self, storage: &str, namespace: &str) -> Vec<&'a Value> {
        self.list(storage, namespace, None)
            .map(|(_, object)| &object.value)
            .collect()
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("cannot open the state file (is another instance using this folder?): {0}")]
    Database(#[from] redb::Error),
    #[error("cannot start the writer thread: {0}")]
    Thread(#[from] std::io::Error),
    #[error("the state file holds an object that is not JSON: {0}")]
    Corrupt(#[from] serde_json::Error),
}

/// What the writer publishes and readers read.
struct Shared {
    snapshot: ArcSwap<Snapshot>,
    logs: RwLock<HashMap<String, Arc<Log>>>,
    /// The revision at which this process opened the store: no log begins earlier.
    opened_at: u64,
}

impl Shared {
    fn log(&self, storage: &str) -> Arc<Log> {
        if let Some(log) = self.logs.read().unwrap_or_else(|e| e.into_inner()).get(storage) {
            return log.clone();
        }
        let mut logs = self.logs.write().unwrap_or_else(|e| e.into_inner());
        logs.entry(storage.to_owned())
            .or_insert_with(|| Arc::new(Log::new(self.opened_at)))
            .clone()
    }
}

/// The store. Dropping it closes it.
pub(crate) struct Store {
    shared: Arc<Shared>,
    /// `None` once closed.
    writes: Mutex<Option<mpsc::Sender<writer::Queued>>>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// Snapshots that lists with a `continue` token still refer to.
    pages: Mutex<VecDeque<Arc<Snapshot>>>,
}

/// How many snapshots are kept for paged lists; an older page returns 410.
const KEPT_PAGES: usize = 32;
/// Writes waiting for the writer; beyond that, requests wait.
const WRITE_QUEUE: usize = 1024;

impl Store {
    pub(crate) fn open(file: &Path) -> Result<Self, OpenError> {
        let (database, snapshot) = writer::load(file)?;
        let opened_at = snapshot.revision;
        let shared = Arc::new(Shared {
            snapshot: ArcSwap::from_pointee(snapshot),
            logs: RwLock::default(),
            opened_at,
        });
        let (writes, queue) = mpsc::channel(WRITE_QUEUE);
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || writer::run(database, for_thread, queue))?;
        let (writes, thread) = (Mutex::new(Some(writes)), Mutex::new(Some(thread)));
        Ok(Self {
            shared,
            writes,
            thread,
            pages: Mutex::default(),
        })
    }

    /// The newest committed state.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.shared.snapshot.load_full()
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.snapshot().get(key).cloned()
    }

    /// The watch log of a resource.
    pub(crate) fn log(&self, storage: &str) -> Arc<Log> {
        self.shared.log(storage)
    }

    /// Queues a write and waits until it is durable and published.
    pub(crate) async fn write(&self, write: Write) -> Result<Arc<Object>, WriteError> {
        let (answer, answered) = oneshot::channel();
        let writes = self
            .writes
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .clone()
            .ok_or(WriteError::Closed)?;
        writes
            .send(writer::Queued { write, answer })
            .await
            .map_err(|_| WriteError::Closed)?;
        // Holding a handle while waiting would keep a closing store open.
        drop(writes);
        answered.await.map_err(|_| WriteError::Closed)?
    }

    /// Keeps a snapshot for the next page of a list.
    pub(crate) fn keep_page(&self, snapshot: Arc<Snapshot>) {
        let mut pages = self.pages.lock().unwrap_or_else(|e| e.into_inner());
        if pages.iter().any(|kept| kept.revision == snapshot.revision) {
            return;
        }
        if pages.len() >= KEPT_PAGES {
            pages.pop_front();
        }
        pages.push_back(snapshot);
    }

    pub(crate) fn page(&self, revision: u64) -> Option<Arc<Snapshot>> {
        let now = self.snapshot();
        if now.revision == revision {
            return Some(now);
        }
        let pages = self.pages.lock().unwrap_or_else(|e| e.into_inner());
        pages.iter().find(|kept| kept.revision == revision).cloned()
    }
}

impl Store {
    /// Ends the writer thread and releases the file for the next opener. Reads continue from memory, writes are
    /// rejected.
    pub(crate) fn close(&self) {
        self.writes.lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(thread) = self.thread.lock().unwrap_or_else(|e| e.into_inner()).take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
