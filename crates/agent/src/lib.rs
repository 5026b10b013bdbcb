//! What a pod of a backup or a restore does (`stateward agent run`), told by a [`Task`] and answering with an [`Outcome`].
//!
//! It touches members of etcd, the store, and the folders that its pod mounts; never the Kubernetes API. Data is
//! streamed in bounded memory. It can be stopped at any time and then leaves nothing that looks like a backup, and no
//! data directory that looks complete.

mod backup;
mod delete;
mod failure;
mod inspect;
mod outcome;
mod place;
mod restore;
mod source;
mod stop;
mod tool;

use std::path::PathBuf;

use stateward_api::agent::{Failure, Mounts, Outcome, Task};

pub use outcome::{install, write};
pub use stop::Stop;

/// Where the pod's mounts are. Elsewhere only in tests.
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
            Task::Prove(_) | Task::Follow(_) => Err(Failure {
                reason: "NotKnown".into(),
                message: "this version of the agent cannot do that".into(),
                retry: false,
            }),
        }
    };
    match stop.bounded(work).await {
        Ok(outcome) => outcome,
        Err(failure) => Outcome::Failed(failure),
    }
}
