//! What the user wants, read from the spec once and checked. A spec that cannot be followed is refused here, in words.

use std::time::Duration;

use stateward_api::EtcdVersion;

use super::world::{MemberName, Uid};

/// The user's wishes as decisions need them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Where.
    pub namespace: String,
    /// The cluster's name.
    pub name: String,
    /// The cluster object's UID.
    pub uid: Uid,
    /// The generation of the spec that this was read from.
    pub generation: i64,
    /// How many voters.
    pub size: usize,
    /// Which etcd.
    pub version: EtcdVersion,
    /// Touch nothing.
    pub paused: bool,
    /// Stop all pods, keep all data.
    pub hibernate: bool,
    /// How the first members come to be.
    pub bootstrap: Bootstrap,
    /// Where data lives.
    pub storage: Storage,
    /// Peers and clients speak TLS.
    pub tls: bool,
    /// Hash of the wishes that a pod is made from. A pod with another one is restarted, one at a time.
    pub template: String,
    /// Hash of the wishes that reach a pod without a restart.
    pub metadata: String,
    /// Hashes of what the services and the budget should be.
    pub services: ServiceHashes,
    /// What may be done when a majority is lost.
    pub recovery: Recovery,
    /// How long a node may be dead before its member is replaced.
    pub replace_after: Duration,
    /// Take a snapshot before a minor upgrade.
    pub backup_first: bool,
    /// Begin although claims of an earlier cluster of this name are there.
    pub ignore_old_claims: bool,
    /// Give back a member's free space when it is more than half of a database larger than this.
    pub defragment_above: Option<u64>,
}

/// How the services should look, as hashes of their making.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceHashes {
    /// Headless service.
    pub peer: String,
    /// Client service.
    pub client: String,
    /// Disruption budget.
    pub budget: String,
}

/// How the first members come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bootstrap {
    /// One first member, the others join it.
    SeedThenJoin,
    /// All at once.
    Parallel,
}

/// Where data lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// On a claim of this many bytes.
    Durable {
        /// Requested bytes.
        bytes: u64,
    },
    /// In the pod, gone with it.
    Ephemeral,
}

/// What may be done when a majority is lost for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Say so and wait.
    Report,
    /// Go on with the most advanced survivor, after this time.
    FromSurvivor(Duration),
    /// Go on with the latest verified backup, after this time.
    FromBackup(Duration),
}

impl Intent {
    /// Data outlives pods.
    pub fn is_durable(&self) -> bool {
        matches!(self.storage, Storage::Durable { .. })
    }

    /// The host name of a member: the name every URL and certificate carries.
    pub fn host(&self, member: &MemberName) -> String {
        format!("{member}.{}.{}.svc", self.name, self.namespace)
    }

    /// Where peers reach a member.
    pub fn peer_url(&self, member: &MemberName, tls: bool) -> String {
        format!("{}://{}:2380", if tls { "https" } else { "http" }, self.host(member))
    }

    /// The member that a peer URL belongs to, if it is one of this cluster's.
    pub fn member_of_url(&self, url: &str) -> Option<MemberName> {
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))?;
        let host = rest.strip_suffix(":2380")?;
        let (name, domain) = host.split_once('.')?;
        let ours = format!("{}.{}.svc", self.name, self.namespace);
        (domain == ours || domain.strip_prefix(&ours).is_some_and(|tail| tail.starts_with('.')))
            .then(|| MemberName(name.to_owned()))
    }
}
