//! What Stateward and its own pods (`stateward agent run`) agree on, whatever engine they work for.
//!
//! A task is JSON in the environment variable [`TASK`]; secrets and claims are mounted below [`Mounts`]; the outcome is
//! JSON in the container's termination message, so that an agent needs no right on the Kubernetes API at all.

mod mounts;
mod pod;

use serde::{Deserialize, Serialize};

use crate::store::{Compression, StoreBlocks};

pub use mounts::{StoreMounts, mount};
pub use pod::{ANNOTATION_TASK, Agent, AgentPod, CONTAINER, LABEL_COMPONENT, State, no_privileges, small};

/// The environment variable with the task.
pub const TASK: &str = "STATEWARD_TASK";
/// The environment variable with the file that the outcome is written to. Not set: [`TERMINATION_LOG`].
pub const OUTCOME: &str = "STATEWARD_OUTCOME";
/// Where Kubernetes reads the termination message. It keeps 4096 bytes.
pub const TERMINATION_LOG: &str = "/dev/termination-log";
/// The port on which an agent that works for long says how far it is: `GET /progress` answers JSON.
pub const PROGRESS_PORT: u16 = 2390;
/// The environment variable with the address to answer `GET /progress` on, as `0.0.0.0:2390`, which is also the default.
/// Set it: where pods share a network stack, the node writes the pod's own address in its place.
pub const LISTEN: &str = "STATEWARD_LISTEN";

/// Where a pod's manifest mounts what a task needs. All are optional but for the task that needs them.
pub struct Mounts;

impl Mounts {
    /// The secret of the store, as files with the key names of the old API.
    pub const STORE: &'static str = "/etc/stateward/store";
    /// The client's certificate for the engine: `etcd-client.crt`, `etcd-client.key`, `etcd-client-ca.crt`.
    pub const CLIENT_TLS: &'static str = "/etc/stateward/client-tls";
    /// The key for encryption, in the file `key`: 32 bytes, or their base64.
    pub const ENCRYPTION: &'static str = "/etc/stateward/encryption";
    /// The claim of a `file` store.
    pub const CLAIM: &'static str = "/var/lib/stateward/claim";
    /// Room for a scratch member (an emptyDir).
    pub const SCRATCH: &'static str = "/var/lib/stateward/scratch";
    /// Where `stateward agent install` puts the program, for containers of the engine's own image (an emptyDir).
    pub const TOOLS: &'static str = "/opt/stateward";
}

/// A store and how files in it are packed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// The store block, its `path` as the user wrote it.
    pub store: StoreBlocks,
    /// How new files are packed. What is read back tells itself from its first bytes.
    #[serde(default)]
    pub compression: Compression,
    /// Whether new files are encrypted with the key in [`Mounts::ENCRYPTION`].
    #[serde(default)]
    pub encrypted: bool,
}

/// Which periodic files may go when another one is proven.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Retention {
    /// Keep so many.
    #[serde(default)]
    pub max_backups: Option<i64>,
    /// Keep them for so many seconds, and the newest proven one for ever.
    #[serde(default)]
    pub max_age_seconds: Option<i64>,
    /// Files that are remembered as proven, as in the record of a backup.
    #[serde(default)]
    pub proven: Vec<String>,
    /// Files that are remembered as not proven. They are counted apart.
    #[serde(default)]
    pub unproven: Vec<String>,
}

/// Why it failed. `R` is the engine's [`failure_reasons`](crate::failure_reasons).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure<R> {
    /// One word in CamelCase.
    pub reason: R,
    /// A sentence with what to do.
    pub message: String,
    /// Trying again may help.
    pub retry: bool,
}
