//! What the agent in every pod is asked, and how it replies: JSON over HTTP on [`names::AGENT_PORT`](crate::names::AGENT_PORT),
//! over TLS where the cluster has it. Requests carry the token in the Secret `NAME-internal` as a bearer token; only [`READY`]
//! needs none.

use serde::{Deserialize, Serialize};

use crate::gtid::GtidSet;

/// GET: 200 once mysqld replies on its socket, else 503.
pub const READY: &str = "/ready";
/// GET: a [`State`].
pub const STATE: &str = "/v1/state";
/// POST an [`End`]: an [`Ended`]. The reply comes after the process has ended.
pub const END: &str = "/v1/end";
/// POST a [`SaveErrant`]: a [`Saving`].
pub const SAVE_ERRANT: &str = "/v1/save-errant";
/// The key in the Secret `NAME-internal` with the agent's token.
pub const TOKEN_KEY: &str = "agent-token";

/// What the agent knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// The process of mysqld.
    pub mysqld: Mysqld,
    /// The volume with the data.
    #[serde(default)]
    pub volume: Option<Volume>,
    /// Sets of transactions that are saved on the volume.
    #[serde(default)]
    pub saved: Vec<GtidSet>,
    /// The last request to save transactions, if one is being executed or has failed since the agent started.
    #[serde(default)]
    pub saving: Option<SaveState>,
}

/// The process of mysqld.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum Mysqld {
    /// Its container does not reply: it has not started, or has ended.
    #[default]
    Absent,
    /// It runs.
    Running {
        /// What `pid_file` is named after.
        boot: String,
        /// It replies on its socket.
        ready: bool,
    },
    /// It has ended, and is not started again in this container.
    Exited {
        /// What its `pid_file` was named after.
        boot: String,
        /// Its exit code; 128 and the signal's number if a signal ended it.
        code: i32,
    },
}

/// A volume, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// Its size.
    pub size: u64,
    /// What is free for mysqld.
    pub free: u64,
    /// What binlogs take.
    #[serde(default)]
    pub binlogs: u64,
}

/// End mysqld at once with SIGKILL. Its container ends with it, and Kubernetes starts it again, sealed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct End {
    /// Only this process; another one is left alone. Not set: whichever runs.
    #[serde(default)]
    pub boot: Option<String>,
}

/// What became of an [`End`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "result")]
pub enum Ended {
    /// This process has ended: the kernel has closed its connections.
    Killed {
        /// Its boot.
        boot: String,
    },
    /// Another process runs than the one that was meant, which therefore has ended.
    Other {
        /// Its boot.
        boot: String,
    },
    /// None ran.
    NotRunning,
}

/// Save transactions of this server with `mysqlbinlog`. Repeating it is harmless: what is saved is not saved again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SaveErrant {
    /// Which ones.
    pub gtids: GtidSet,
}

/// The reply to [`SaveErrant`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "result")]
pub enum Saving {
    /// They are saved, durably.
    Saved {
        /// The file, relative to the volume.
        file: String,
    },
    /// It is being done: see [`State::saved`].
    Running,
    /// It failed.
    Failed {
        /// Why, in words.
        reason: String,
    },
}

/// A request to save transactions that has not succeeded yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SaveState {
    /// Which ones.
    pub gtids: GtidSet,
    /// Why it failed; `None`: it is being done.
    #[serde(default)]
    pub error: Option<String>,
}

/// What identifies a process of mysqld, from its variable `pid_file`: the name that was drawn when it was started.
pub fn boot_of(pid_file: &str) -> &str {
    let name = pid_file.rsplit('/').next().unwrap_or(pid_file);
    name.strip_suffix(".pid").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_reads_as_it_is_written() {
        let gtids: GtidSet = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7".parse().expect("a set");
        let state = State {
            mysqld: Mysqld::Running {
                boot: boot_of("/run/mysqld/1f2e.pid").into(),
                ready: true,
            },
            volume: Some(Volume {
                size: 100,
                free: 40,
                binlogs: 7,
            }),
            saved: vec![gtids.clone()],
            saving: Some(SaveState { gtids, error: None }),
        };
        let text = serde_json::to_string(&state).expect("JSON");
        assert_eq!(
            text,
            r#"{"mysqld":{"state":"running","boot":"1f2e","ready":true},"volume":{"size":100,"free":40,"binlogs":7},"saved":["3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7"],"saving":{"gtids":"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7","error":null}}"#
        );
        assert_eq!(serde_json::from_str::<State>(&text).expect("a state"), state);
        assert_eq!(serde_json::from_str::<End>("{}").expect("an end"), End::default());
    }
}
