//! What was observed: objects of Kubernetes from caches, and what each server said of itself.
//!
//! # Order of the readings
//! Decisions rest on what was read before what:
//! - a server's channel (`receiver`) is read before its GTID sets, so a stopped receiver's sets are final;
//! - [`World::ahead`] is read from the primary after every other server's reply was complete.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use stateward_core::Uid;
pub use stateward_core::claim::Claim;
pub use stateward_core::pod::{Blocked, Exit, Facts};

use crate::api::MySQLVersion;
use crate::gtid::GtidSet;

/// The ordinal of a member in the StatefulSet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ordinal(pub u32);

impl fmt::Display for Ordinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What was observed in one reconcile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct World {
    /// The objects that exist once for the cluster: the hash that each was made from (annotation `stateward.dev/metadata`).
    pub objects: BTreeMap<Object, String>,
    /// The StatefulSet.
    pub set: Option<StatefulSet>,
    /// Every member that has a pod, a claim or a place below `spec.size`.
    pub members: BTreeMap<Ordinal, Member>,
    /// The executed and owned GTIDs of the primary in memory, read after every other member's reply was complete. `None`: it
    /// did not reply then.
    pub ahead: Option<GtidSet>,
    /// An object has one of our names and is not ours, or a Secret that the spec names is missing: why, in words.
    pub taken: Option<Taken>,
    /// The Secrets that Stateward writes exist, with every key.
    pub secrets: Secrets,
    /// The certificates of members.
    pub tls: Tls,
    /// A backup of the whole data that was proven, and what it holds: what an upgrade waits for. `None`: there is none yet.
    pub backup: Option<UpgradeBackup>,
}

/// An object that keeps the cluster from being created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is somebody else's.
    Name(String),
    /// A Secret of the user is missing or lacks a key.
    Missing(String),
}

/// The Secrets that Stateward writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Secrets {
    /// Every Secret exists with every key.
    pub complete: bool,
    /// The value of `stateward.dev/rotate-passwords` that their passwords were drawn for.
    pub rotation: String,
}

/// The certificates of members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The Secret exists and covers every member.
    pub issued: bool,
    /// It is time to renew.
    pub due: bool,
    /// When the first certificate expires.
    pub not_after: Option<Timestamp>,
    /// The fingerprint of the certificate in the Secret.
    pub fingerprint: Option<String>,
}

/// A backup before an upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradeBackup {
    /// The MySQLBackup's name.
    pub name: String,
    /// It is proven.
    pub proven: bool,
    /// Why it failed.
    pub problem: Option<String>,
}

/// An object that exists once for a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Object {
    /// The ConfigMap with my.cnf.
    Config,
    /// The headless Service.
    Headless,
    /// The Service that leads to the primary.
    PrimaryService,
    /// The Service that leads to replicas in sync.
    ReadService,
    /// The disruption budget.
    Budget,
    /// The network policy.
    NetworkPolicy,
    /// The MySQLBackup of `spec.backup`.
    Backup,
}

/// The StatefulSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatefulSet {
    /// Its UID.
    pub uid: Uid,
    /// How many pods it asks for.
    pub replicas: u32,
    /// The hash of its template (annotation `stateward.dev/pod-hash` of the template).
    pub template: String,
    /// The hash of everything else (annotation `stateward.dev/metadata`).
    pub metadata: String,
    /// It was made for this MySQLCluster.
    pub ours: bool,
}

/// A member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its pod.
    pub pod: Option<Pod>,
    /// Its claim.
    pub claim: Option<Claim>,
    /// The claim has the MySQLCluster as an owner: Kubernetes deletes it with the cluster.
    pub owned: bool,
    /// What its server said.
    pub server: Server,
}

/// A member's pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// What Kubernetes shows of it and of the container that runs mysqld.
    pub facts: Facts,
    /// Label `stateward.dev/role`.
    pub role: Option<Role>,
    /// Label `stateward.dev/reads`.
    pub reads: bool,
    /// Annotation `stateward.dev/pod-hash`.
    pub template: String,
    /// Annotation `stateward.dev/mysql-version`.
    pub version: Option<MySQLVersion>,
    /// The node that it is bound to was deleted or is out of service.
    pub node_ended: bool,
}

/// What a pod is labelled as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It takes writes.
    Primary,
    /// It follows.
    Replica,
}

/// The result of asking a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// No reply.
    NoReply(NoReply),
    /// A reply.
    Reply(Box<Reply>),
}

impl Default for Server {
    fn default() -> Self {
        Self::NoReply(NoReply::default())
    }
}

/// A server that did not reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NoReply {
    /// Since when it has not replied, as far as this operator knows: not before the operator first asked it.
    pub since: Option<Timestamp>,
    /// Why, in words: refused, timed out, access denied.
    pub reason: String,
}

/// What a server says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Which process of which server.
    pub process: Process,
    /// `server_id`.
    pub server_id: u32,
    /// `version`.
    pub version: MySQLVersion,
    /// `super_read_only` and `read_only` are both on: not even administrators can write. While `SET GLOBAL super_read_only=ON`
    /// waits behind commits only the first one reads as on, and the server is still writable.
    pub read_only: bool,
    /// `gtid_executed`.
    pub executed: GtidSet,
    /// `gtid_purged`.
    pub purged: GtidSet,
    /// `gtid_owned`: transactions that are being committed, as those that wait for an acknowledgement.
    pub owned: GtidSet,
    /// Semi-synchronous replication as a source.
    pub source: SourceState,
    /// `rpl_semi_sync_replica_enabled`: a receiver that starts now acknowledges.
    pub acknowledges: bool,
    /// `Rpl_semi_sync_replica_status`: the receiver that runs acknowledges.
    pub acknowledging: bool,
    /// The default replication channel, where one is configured.
    pub channel: Option<Channel>,
    /// The members whose replication account is locked here.
    pub locked: BTreeSet<Ordinal>,
    /// A clone into this server.
    pub clone: Option<CloneState>,
    /// The UID of the MySQLCluster that this data was made for (`stateward.cluster`), where the data has one.
    pub cluster: Option<Uid>,
    /// Sets of transactions that were saved from this server, as the agent or the store knows them.
    pub saved: Vec<GtidSet>,
    /// The volume.
    pub volume: Option<Volume>,
    /// The fingerprint of the certificate that it presents.
    pub certificate: Option<String>,
    /// The hash of the [`SetVariables`](crate::Action::SetVariables) that this process took last, as far as is known.
    pub config: Option<String>,
    /// Accounts have a second, old password.
    pub old_passwords: bool,
}

/// One process of one server. What an action is meant for.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    /// `server_uuid`: it stays with the data directory.
    pub uuid: u128,
    /// It differs after every start of mysqld (`pid_file`, which the agent draws a name for).
    pub boot: String,
}

/// Semi-synchronous replication as a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceState {
    /// `rpl_semi_sync_source_enabled`.
    pub enabled: bool,
    /// `rpl_semi_sync_source_wait_for_replica_count`.
    pub acks: u32,
    /// `Rpl_semi_sync_source_status`: it waits for acknowledgements and has not fallen back to asynchronous.
    pub status: bool,
    /// Sessions that wait for an acknowledgement.
    pub waiting: u32,
    /// The server IDs that have a binlog dump thread here: the replicas that are connected.
    pub connected: BTreeSet<u32>,
}

/// A replication channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Channel {
    /// `SOURCE_HOST`.
    pub host: String,
    /// The receiver.
    pub receiver: Receiver,
    /// The applier runs.
    pub applier: bool,
    /// `Retrieved_Gtid_Set`: complete transactions in the relay logs, applied or not.
    pub retrieved: GtidSet,
    /// How far the applier is behind, in seconds. `None`: unknown.
    pub lag: Option<u64>,
    /// Why the receiver stopped or does not connect.
    pub receiver_error: Option<String>,
    /// Why the applier stopped.
    pub applier_error: Option<String>,
    /// The source has purged binlogs that this server needs (errors 13114, 13117): it must be cloned anew.
    pub purged: bool,
}

/// The state of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Receiver {
    /// It receives.
    Running,
    /// It tries to connect: it may receive and acknowledge at any moment.
    Connecting,
    /// It does not run, and nothing but an action starts it.
    #[default]
    Stopped,
}

/// A clone into a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloneState {
    /// It copies now.
    pub running: bool,
    /// How much was copied, in per cent.
    pub percent: u32,
    /// The host name of the donor.
    pub donor: String,
    /// Why the last one failed.
    pub error: Option<String>,
}

/// A volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Its size in bytes.
    pub size: u64,
    /// What is free, in bytes.
    pub free: u64,
    /// What binlogs take, in bytes.
    pub binlogs: u64,
}

impl Server {
    /// The reply, if there is one.
    pub fn reply(&self) -> Option<&Reply> {
        match self {
            Self::Reply(reply) => Some(reply),
            Self::NoReply(_) => None,
        }
    }
}

impl Reply {
    /// Everything that this server holds durably: executed, or in its relay logs.
    pub fn received(&self) -> GtidSet {
        match &self.channel {
            Some(channel) => self.executed.union(&channel.retrieved),
            None => self.executed.clone(),
        }
    }

    /// What is in the relay logs and not executed. It must not be discarded: an acknowledgement may lie only there.
    pub fn unapplied(&self) -> GtidSet {
        match &self.channel {
            Some(channel) => channel.retrieved.subtract(&self.executed),
            None => GtidSet::default(),
        }
    }

    /// Its receiver does not run: it receives and acknowledges nothing more.
    pub fn is_fenced(&self) -> bool {
        self.channel
            .as_ref()
            .is_none_or(|channel| channel.receiver == Receiver::Stopped)
    }

    /// It has no data but what every new server has.
    pub fn is_blank(&self) -> bool {
        self.executed.is_empty()
    }
}

impl Member {
    /// What its server said, if it replied.
    pub fn reply(&self) -> Option<&Reply> {
        self.server.reply()
    }

    /// The facts of its pod.
    pub fn facts(&self) -> Option<&Facts> {
        self.pod.as_ref().map(|pod| &pod.facts)
    }
}
