//! A place for backups with everything an agent mounts, and real etcd beside it.
#![allow(dead_code, unused_imports, reason = "each test takes what it needs")]

#[path = "../client_support/mod.rs"]
mod etcd;
pub(crate) mod process;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

pub(crate) use etcd::{Etcd, Program, Start, free_port, programs, until};
use stateward_core::store::{FileStore, StoreBlocks};
use stateward_etcd::api::agent::{
    BackedUp, BackupTask, Failure, InspectTask, Inspected, Outcome, Place, RestoreTask, Retention, Task,
};
use stateward_etcd::api::etcd_backup::Compression;
use stateward_etcd_driver::agent::{Folders, Stop, run};
use stateward_etcd_driver::client::Client;
use stateward_etcd_driver::client::messages::RangeRequest;

/// The newest etcd at hand.
pub(crate) fn newest() -> Program {
    programs().pop().expect("an etcd")
}

/// The program whose tools restore for a server: what the planner names, or else what is at hand and can raise revisions.
pub(crate) fn tool_for(program: &Program) -> Program {
    let wanted = stateward_etcd::cluster::facts::restore_tool_version(&program.version);
    let mut able: Vec<Program> = programs()
        .into_iter()
        .filter(|program| program.version.at_least(3, 5, 10))
        .collect();
    able.sort_by_key(|program| program.version != wanted);
    able.into_iter()
        .next()
        .expect("an etcd of 3.5.10 or later: run ./x setup")
}

pub(crate) fn url(etcd: &Etcd) -> String {
    format!("http://{}", etcd.client)
}

/// Writes keys `key-000` on, each with a value.
pub(crate) async fn fill(etcd: &Etcd, keys: usize) {
    let client = etcd.client();
    for index in 0..keys {
        let (key, value) = (format!("key-{index:03}"), format!("value {index}"));
        until("a write", async || client.put(key.clone(), value.clone()).await.ok()).await;
    }
}

/// Keys and revision.
pub(crate) async fn count(client: &Client) -> Option<(i64, i64)> {
    let reply = client.range(RangeRequest::count_of_all(0)).await.ok()?;
    Some((reply.count, reply.header.map_or(0, |header| header.revision)))
}

pub(crate) fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Keep so many periodic backups.
pub(crate) fn keep(count: i64) -> Retention {
    Retention {
        max_backups: Some(count),
        ..Retention::default()
    }
}

pub(crate) fn failed(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Failed(failure) => failure,
        other => panic!("expected a failure: {other:?}"),
    }
}

/// Folders as a pod mounts them.
pub(crate) struct Ground {
    root: tempfile::TempDir,
    folders: Folders,
    place: Place,
}

impl Ground {
    pub(crate) fn new(program: &Program) -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let folder = |name: &str| {
            let folder = root.path().join(name);
            std::fs::create_dir_all(&folder).expect("a folder");
            folder
        };
        let tools = program.path.parent().expect("a folder").as_os_str().to_owned();
        let folders = Folders {
            store: folder("store"),
            client_tls: folder("tls"),
            encryption: folder("encryption"),
            claim: folder("claim"),
            scratch: folder("scratch"),
            path: Some(tools),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        let place = Place {
            store: StoreBlocks {
                file: Some(FileStore {
                    claim_name: "claim".into(),
                    path: "dir/etcd.backup".into(),
                }),
                ..StoreBlocks::default()
            },
            ..Place::default()
        };
        Self { root, folders, place }
    }

    /// The same secrets of the store.
    pub(crate) fn with_secrets_of(mut self, other: &Self) -> Self {
        self.folders.store.clone_from(&other.folders.store);
        self
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    pub(crate) fn claim(&self) -> PathBuf {
        self.folders.claim.clone()
    }

    pub(crate) fn place(&self) -> Place {
        self.place.clone()
    }

    pub(crate) fn set_store(&mut self, store: StoreBlocks) {
        self.place.store = store;
    }

    /// Chooses where a follower says how far it is.
    pub(crate) fn listen(&mut self) -> SocketAddr {
        self.folders.listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
        self.folders.listen
    }

    /// The same with the tools of another version.
    pub(crate) fn with_tools<'a>(&'a self, tools: &Program) -> WithTools<'a> {
        let path = tools.path.parent().map(|folder| folder.as_os_str().to_owned());
        let folders = Folders {
            path,
            ..self.folders.clone()
        };
        WithTools { _ground: self, folders }
    }

    pub(crate) fn folders(&self) -> &Folders {
        &self.folders
    }

    /// From now on compressed, and encrypted with this key.
    pub(crate) fn pack_with(&mut self, key: &[u8]) {
        std::fs::write(self.folders.encryption.join("key"), key).expect("a key");
        self.place.compression = Compression::Zstd;
        self.place.encrypted = true;
    }

    pub(crate) async fn run(&self, task: Task) -> Outcome {
        run(task, &self.folders, &Stop::default()).await
    }

    pub(crate) async fn back_up(&self, etcd: &Etcd, task: BackupTask) -> BackedUp {
        let task = BackupTask {
            endpoints: vec![url(etcd)],
            place: self.place(),
            ..task
        };
        match self.run(Task::Backup(task)).await {
            Outcome::BackedUp(done) => done,
            other => panic!("no backup: {other:?}"),
        }
    }

    pub(crate) async fn inspect(&self, task: InspectTask) -> Result<Inspected, Failure> {
        let task = InspectTask {
            place: self.place(),
            ..task
        };
        match self.run(Task::Inspect(task)).await {
            Outcome::Inspected(found) => Ok(found),
            Outcome::Failed(failure) => Err(failure),
            other => panic!("not inspected: {other:?}"),
        }
    }

    /// A data directory made with the tools of a program.
    pub(crate) async fn restore(&self, tools: &Program, found: &Inspected, bump: i64) -> PathBuf {
        let folder = self.root().join("volume");
        match self.restore_into(tools, found, bump, &folder).await {
            Outcome::Restored(_) => folder.join("data"),
            other => panic!("not restored: {other:?}"),
        }
    }

    /// The task of making a data directory.
    pub(crate) fn restore_task(&self, found: &Inspected, bump: i64, data: &Path) -> RestoreTask {
        RestoreTask {
            place: self.place(),
            location: found.location.clone(),
            sha256: found.sha256.clone(),
            revision: found.revision,
            restore_to: None,
            revision_bump: bump,
            data_dir: data.display().to_string(),
            member: "m1".into(),
            peer_url: "http://127.0.0.1:2380".into(),
            token: "restored".into(),
        }
    }

    pub(crate) async fn restore_into(&self, tools: &Program, found: &Inspected, bump: i64, into: &Path) -> Outcome {
        let task = self.restore_task(found, bump, &into.join("data"));
        self.with_tools(tools).run(Task::Restore(task)).await
    }
}

/// A ground with other tools.
pub(crate) struct WithTools<'a> {
    _ground: &'a Ground,
    folders: Folders,
}

impl WithTools<'_> {
    pub(crate) async fn run(&self, task: Task) -> Outcome {
        run(task, &self.folders, &Stop::default()).await
    }
}
