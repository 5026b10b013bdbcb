//! What a pod of a backup or a restore does (`stateward agent run`), told by a [`Task`] and answering with an [`Outcome`].
//!
//! It touches members of etcd, the store, and the folders that its pod mounts; never the Kubernetes API. Data is
//! streamed in bounded memory. It can be stopped at any time and then leaves nothing that looks like a backup, and no
//! data directory that looks complete.

mod backup;
mod by_hand;
mod certified;
mod chain;
mod delete;
mod failure;
mod fetch;
mod follow;
mod inspect;
mod let_go;
mod member;
mod outcome;
mod passed;
mod place;
mod progress;
mod prove;
mod replay;
mod restore;
mod segment;
mod source;
mod stop;
mod tool;

use std::net::SocketAddr;
use std::path::PathBuf;

use stateward_etcd::api::agent::{Mounts, Outcome, PROGRESS_PORT, Task};

pub use by_hand::unpack;
pub use outcome::{install, write};
pub use stop::Stop;

/// Where the pod's mounts are (elsewhere only in tests), and what else its environment says.
#[derive(Clone, Debug)]
pub struct Folders {
    /// The secret of the store.
    pub store: PathBuf,
    /// The client's certificate for etcd.
    pub client_tls: PathBuf,
    /// The key for encryption.
    pub encryption: PathBuf,
    /// The claim of a `file` store.
    pub claim: PathBuf,
    /// Room for a scratch member.
    pub scratch: PathBuf,
    /// Where etcd's programs are looked for, as in `PATH`. Not set: the environment's.
    pub path: Option<std::ffi::OsString>,
    /// Where an agent that works for long says how far it is.
    pub listen: SocketAddr,
}

impl Default for Folders {
    fn default() -> Self {
        Self {
            store: Mounts::STORE.into(),
            client_tls: Mounts::CLIENT_TLS.into(),
            encryption: Mounts::ENCRYPTION.into(),
            claim: Mounts::CLAIM.into(),
            scratch: Mounts::SCRATCH.into(),
            path: None,
            listen: SocketAddr::from(([0, 0, 0, 0], PROGRESS_PORT)),
        }
    }
}

/// Does one piece of work. When told to stop it cleans up and says so.
pub async fn run(task: Task, folders: &Folders, stop: &Stop) -> Outcome {
    let work = async {
        match task {
            Task::Backup(task) => backup::run(&task, folders, stop).await.map(Outcome::BackedUp),
            Task::Inspect(task) => inspect::run(&task, folders, stop).await.map(Outcome::Inspected),
            Task::Restore(task) => restore::run(&task, folders, stop).await.map(Outcome::Restored),
            Task::Delete(task) => delete::run(&task, folders, stop).await.map(|()| Outcome::Deleted),
            Task::Prove(task) => prove::run(&task, folders, stop).await.map(Outcome::Proven),
            Task::Follow(task) => follow::run(&task, folders, stop)
                .await
                .and_then(|()| Err(stop.failure())),
        }
    };
    match stop.bounded(work).await {
        Ok(outcome) => outcome,
        Err(failure) => Outcome::Failed(failure),
    }
}
