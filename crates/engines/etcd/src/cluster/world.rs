//! What was observed: the cluster's objects in Kubernetes, and what its members said themselves.
//!
//! The world is plain data. `operator` fills it from the API and from etcd, `sim` from its model.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::api::EtcdVersion;
use crate::api::agent::Place;
use crate::api::etcd_restore::RestoreSource;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
pub use stateward_core::Uid;
pub use stateward_core::claim::Claim;
pub use stateward_core::pod::{Blocked, Exit};

use super::manifests::TrustFiles;

/// The name of a member: also its pod's name, its hostname and its claim's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemberName(pub String);

/// The ID etcd gave a member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// The ID etcd gave a cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub u64);

macro_rules! shown_as_hex {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:x}", self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:x})"), self.0)
            }
        }
        impl $name {
            /// Reads what `Display` writes, as etcdctl prints it.
            pub fn from_hex(text: &str) -> Option<Self> {
                u64::from_str_radix(text, 16).ok().map(Self)
            }
        }
    };
}
shown_as_hex!(MemberId);
shown_as_hex!(ClusterId);

impl fmt::Display for MemberName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for MemberName {
    fn from(name: &str) -> Self {
        Self(name.to_owned())
    }
}

/// Everything observed in one round.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// Pods that this cluster (by UID) owns, by member name.
    pub pods: BTreeMap<MemberName, Pod>,
    /// Claims that belong to this cluster (by UID), by member name.
    pub claims: BTreeMap<MemberName, Claim>,
    /// Claims with data of an earlier cluster of the same name (other UID). They are never touched.
    pub foreign_claims: Vec<String>,
    /// Names that are taken by pods, claims or services that are not this cluster's.
    pub conflicts: Vec<String>,
    /// What is there of the objects beside pods and claims, by the hash of how it was made.
    pub services: Services,
    /// What each member with a running pod said when asked. A pod without an entry was not asked.
    pub probes: BTreeMap<MemberName, MemberProbe>,
    /// The member list, proven by a quorum in this round. `None`: nobody could prove one.
    pub list: Option<MemberList>,
    /// The alarms that are raised in the cluster, as any member that answers tells them. They outlive their member, and
    /// etcd raises CORRUPT for member 0 where it cannot tell which member is wrong: the ID may be in no list.
    pub alarms: BTreeSet<(MemberId, Alarm)>,
    /// The hash of each voter's data, taken in this round and only while CORRUPT is raised.
    pub hashes: BTreeMap<MemberId, DataHash>,
    /// Nodes that Kubernetes itself holds for dead, with since when.
    pub dead_nodes: BTreeMap<String, Timestamp>,
    /// Nodes that members were last seen on and whose end is known. A node that is not here may run its pods.
    pub ended_nodes: BTreeMap<String, NodeEnd>,
    /// Pods of this cluster that are gone by now and of which a kubelet said before that they have ended.
    pub ended_pods: BTreeSet<Uid>,
    /// The volumes that are attached to nodes, as volume and node. `None`: this operator may not see them.
    pub attachments: Option<BTreeSet<(String, String)>>,
    /// For how long this operator itself has seen things as they are.
    pub watched: Watched,
    /// The secrets with certificates.
    pub secrets: Secrets,
    /// The certificate authorities, with TLS.
    pub trust: Option<Trust>,
    /// Whom a pod that is created now trusts.
    pub trust_files: Option<TrustFiles>,
    /// When the first of the certificates that members show ends.
    pub certificates_end: Option<Timestamp>,
    /// Unused member names, drawn by the caller. The planner takes from the front.
    pub fresh_names: Vec<MemberName>,
    /// An unused cluster token, drawn by the caller.
    pub fresh_token: String,
    /// The newest proven backup of each EtcdBackup that backs this cluster up by name, or of the one that the spec names.
    pub backups: Vec<BackupPoint>,
    /// The EtcdBackup of `spec.backup`.
    pub kept_backup: KeptBackup,
    /// The EtcdBackup that the record names as the one before an upgrade.
    pub upgrade_backup: Option<UpgradeBackup>,
    /// Authentication is enabled in etcd, by its members' own words. `None`: not known; asked only before an upgrade to 3.5.
    pub auth_enabled: Option<bool>,
    /// The EtcdRestores of this cluster that are not complete, oldest first.
    pub restores: Vec<RestoreRequest>,
}

/// How a node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEnd {
    /// Its Node object is deleted.
    Deleted,
    /// An administrator says with the taint `node.kubernetes.io/out-of-service` that it is shut down.
    OutOfService,
}

/// For how long this operator itself has seen something so in every round, by a clock that nobody sets. Zero: not yet.
///
/// A wall clock can be wrong by minutes, and so can the one that wrote a timestamp: no timer rests on those alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// No quorum answers, since the moment that the record names.
    pub no_quorum: Duration,
    /// A node is dead, since the moment that the node names.
    pub dead_nodes: BTreeMap<String, Duration>,
    /// A pod is on no node.
    pub unscheduled: BTreeMap<Uid, Duration>,
    /// Old claims are kept, since the moment that the record names.
    pub old_claims: Duration,
    /// The last member that was replaced because it crashed, at the moment that the record names.
    pub crash_replaced: Duration,
    /// A pod is ready.
    pub ready: BTreeMap<Uid, Duration>,
}

/// The EtcdBackup that is kept for `spec.backup`, as it was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KeptBackup {
    /// Not there.
    #[default]
    None,
    /// This cluster's.
    Ours {
        /// Its UID.
        uid: Uid,
        /// Hash of the wishes that it was made from.
        hash: String,
    },
    /// An object of its name is somebody else's.
    Theirs,
}

/// How far the backup before an upgrade is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpgradeBackup {
    /// It is good.
    pub succeeded: bool,
    /// Why it fails; empty while it does not.
    pub trouble: String,
}

/// An EtcdRestore that names this cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreRequest {
    /// Its UID: each is followed once.
    pub uid: Uid,
    /// Its name.
    pub name: String,
    /// It was made for a recovery from quorum loss.
    pub recovery: bool,
    /// The EtcdBackup that it names, if it names one.
    pub backup: Option<String>,
    /// How far its backup is.
    pub state: RequestState,
}

/// How far the backup of an EtcdRestore is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// Being fetched and proven.
    Fetching,
    /// Proven: the cluster may be replaced by it.
    Proven(Box<RestoreSource>),
    /// It cannot be used, with the reason.
    Failed(String),
}

/// The state of the secrets a TLS cluster needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Secrets {
    /// No TLS, or all there.
    #[default]
    Good,
    /// To be issued, or renewed, by Stateward; `true` when nothing can start before.
    Due {
        /// None is there yet.
        first: bool,
    },
    /// Named in the spec and not there, or without a key they need.
    Missing(String),
    /// A Secret that is not this cluster's has the name of one that is made for it.
    Taken(String),
    /// To be written by cert-manager.
    Awaited {
        /// What is waited for.
        what: String,
        /// It is to be asked for them.
        ask: bool,
    },
}

/// A certificate authority: for whose traffic it vouches, and the fingerprint of its certificate, as `peer/1f2e…` or
/// `client/77aa…`.
pub type Ca = String;

/// Who is trusted, and who should be. It is read from the Secrets, so that an operator that dies in the middle of a
/// rotation leaves nothing in doubt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// Those that the Secrets tell to trust. A pod that is made now trusts exactly these.
    pub bundle: BTreeSet<Ca>,
    /// Those that vouch for the certificates in the Secrets.
    pub issued: BTreeSet<Ca>,
    /// Those that certificates shall come from.
    pub wanted: BTreeSet<Ca>,
    /// Stateward hands the certificates out. Otherwise the user does, and pods only follow.
    pub managed: bool,
    /// The Secrets do not all say the same yet.
    pub uneven: bool,
    /// The authority itself is to be replaced: it nears its end, or a person asked for it.
    pub renew: bool,
    /// Every running member was seen with the certificates that are in the Secrets now. Looked at only when it matters.
    pub seen: bool,
    /// For how long clients are left to read what was handed out last. Zero: they had the time.
    pub overlap_left: Duration,
}

/// The services and the disruption budget, as they were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Services {
    /// Hash annotation of the headless peer service; `None`: not there.
    pub peer: Option<String>,
    /// Hash annotation of the client service.
    pub client: Option<String>,
    /// Hash annotation of the PodDisruptionBudget.
    pub budget: Option<String>,
}

/// A backup that a recovery may start from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupPoint {
    /// The EtcdBackup object.
    pub name: String,
    /// The revision it holds.
    pub revision: i64,
    /// When it was taken.
    pub taken: Timestamp,
    /// Where it is.
    pub place: Place,
    /// The file in the store.
    pub location: String,
    /// SHA-256 of the snapshot, in hexadecimal.
    pub sha256: String,
    /// The cluster that it was taken from; `None`: not said.
    pub cluster: Option<ClusterId>,
}

/// A member's pod as Kubernetes shows it, and what its annotations say of its etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// What every engine's pod shows.
    pub facts: stateward_core::pod::Facts,
    /// The etcd version it runs (annotation `etcd.version`).
    pub version: EtcdVersion,
    /// Hash of the user's wishes that its spec was made from (annotation `stateward.dev/template`).
    pub template: String,
    /// Hash of the wishes that can change without a restart: labels and annotations.
    pub metadata: String,
    /// How its etcd starts when its container starts (from its annotations, so that it can change in a living pod).
    pub launch: LaunchKind,
    /// The names in its initial cluster, sorted.
    pub initial_cluster: Vec<MemberName>,
    /// The scheme its peers reach it by.
    pub tls: TlsStage,
    /// The authorities that its etcd trusts since it started; `None`: not said, as in pods of earlier versions.
    pub trusts: Option<BTreeSet<Ca>>,
    /// The user asked for this member to leave first.
    pub marked_to_leave: bool,
}

impl Deref for Pod {
    type Target = stateward_core::pod::Facts;

    fn deref(&self) -> &Self::Target {
        &self.facts
    }
}

impl DerefMut for Pod {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.facts
    }
}

stateward_core::stored_words! {
    /// How etcd starts in a pod.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub enum LaunchKind {
        /// As the first member of a new cluster.
        Seed,
        /// As one of several first members that all know each other.
        Static,
        /// As a new member of an existing cluster.
        Join,
        /// Only with the data it has: without data it ends at once and says so. Every member is sealed once it takes part.
        Sealed,
        /// As the only member of its cluster, with its data, dropping all others.
        ForceNew,
        /// With the data that is made from a backup first.
        Restore,
    }
}

stateward_core::stored_words! {
    /// How far TLS between peers is switched on in a pod.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    pub enum TlsStage {
        /// Plain.
        #[default]
        Off,
        /// Listens in plain text, but has the certificates to call peers that listen with TLS.
        Prepared,
        /// TLS.
        On,
    }
}

/// What came back when a member was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberProbe {
    /// It answered.
    Reply(Reply),
    /// It did not. This alone proves nothing.
    NoReply(NoReply),
}

/// Why a member did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoReply {
    /// What kind of failure it is.
    pub kind: NoReplyKind,
    /// In words that do not change from one time to the next.
    pub words: String,
    /// Since when it is known to be so, if that is known.
    pub since: Option<Timestamp>,
}

/// What kept a member from answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NoReplyKind {
    /// There is no connection to it: it may be starting, and this passes by itself.
    NotReached,
    /// It accepts a connection and does not reply in time, or not as etcd does. A member that starts slowly does the same.
    TimedOut,
    /// Its port is open and no TLS connection comes about: a certificate, a name, a protocol.
    Handshake,
    /// It refuses to answer us: it wants a user or a permission that we do not have.
    NotPermitted,
    /// It answers with something that cannot be understood or used.
    Unusable,
    /// There is nothing to ask it with: a Secret is missing or cannot be read.
    CannotAsk,
}

impl NoReply {
    /// Of this kind, in these words.
    pub fn new(kind: NoReplyKind, words: impl Into<String>) -> Self {
        Self {
            kind,
            words: words.into(),
            since: None,
        }
    }

    /// The same failure, whenever it was met first.
    pub fn is_same(&self, other: &Self) -> bool {
        self.kind == other.kind && self.words == other.words
    }
}

impl fmt::Display for NoReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

/// A member's own words about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its ID.
    pub id: MemberId,
    /// The cluster it believes to be in.
    pub cluster: ClusterId,
    /// The leader it knows; none means that it sees no quorum.
    pub leader: Option<MemberId>,
    /// It is a learner.
    pub learner: bool,
    /// Server version.
    pub version: EtcdVersion,
    /// The minor version that its data is readable for (3.6 and later say so).
    pub storage_minor: Option<u64>,
    /// The minor version that the members have agreed on, as far as this one knows. `None`: not said, or not asked.
    pub cluster_minor: Option<u64>,
    /// The minor version that etcd was told to go back to (3.6 and later say so).
    pub downgrading: Option<u64>,
    /// Raft term.
    pub term: u64,
    /// Raft index: how far its log goes.
    pub index: u64,
    /// Size of its database file.
    pub db_size: u64,
    /// What of it is in use.
    pub db_in_use: u64,
    /// The member list as it knows it, which may be old.
    pub list: Vec<Listed>,
}

/// etcd's alarms. One alarm of one member stops the writes of the whole cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alarm {
    /// The quota is used up: only reads and deletes work.
    NoSpace,
    /// Members' data differs: only reads work.
    Corrupt,
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSpace => "NOSPACE",
            Self::Corrupt => "CORRUPT",
        })
    }
}

/// The hash of all keys of a member at its current revision (`HashKV`). A member is asked only after it has applied the
/// CORRUPT alarm itself: from there on no write is applied, so equal data means equal hashes at an equal revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DataHash {
    /// The revision that it was taken at.
    pub revision: i64,
    /// The last compaction before that. Hashes before and after a compaction cannot be compared.
    pub compact_revision: i64,
    /// CRC-32 of the keys with their values and revisions.
    pub hash: u32,
}

impl fmt::Display for DataHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x} at revision {}", self.hash, self.revision)
    }
}

/// A member list that a quorum agreed to in this round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberList {
    /// The cluster.
    pub cluster: ClusterId,
    /// The leader at that moment.
    pub leader: Option<MemberId>,
    /// Its members.
    pub members: Vec<Listed>,
}

/// A line of the member list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its ID.
    pub id: MemberId,
    /// Its name; empty until it has started once.
    pub name: Option<MemberName>,
    /// Where peers reach it.
    pub peer_urls: Vec<String>,
    /// It is a learner.
    pub learner: bool,
}

impl World {
    /// An alarm of this kind is raised, for whichever member.
    pub fn has_alarm(&self, alarm: Alarm) -> bool {
        self.alarms.iter().any(|(_, raised)| *raised == alarm)
    }
}

impl MemberList {
    /// The members that vote.
    pub fn voters(&self) -> impl Iterator<Item = &Listed> {
        self.members.iter().filter(|member| !member.learner)
    }

    /// How many voters must live for writes to be accepted.
    pub fn quorum(&self) -> usize {
        self.voters().count() / 2 + 1
    }
}
