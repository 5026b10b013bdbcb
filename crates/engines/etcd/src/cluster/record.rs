//! What must survive between rounds: the part of the status that later decisions rest on.
//!
//! It is written before the step that depends on it, with the resource version it was read at, so that two operators
//! cannot both take the step.

use std::collections::BTreeMap;

use crate::api::EtcdVersion;
use crate::api::etcd_restore::RestoreSource;
use jiff::Timestamp;

use super::world::{ClusterId, MemberId, MemberName, Uid};

/// The cluster's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The one bootstrap of this cluster.
    pub bootstrap: Option<Bootstrapped>,
    /// The members of the last proven list that are ours.
    pub members: BTreeMap<MemberName, Remembered>,
    /// The version all members run, or ran before the upgrade in progress.
    pub current: Option<EtcdVersion>,
    /// The last version whose path was accepted.
    pub target: Option<EtcdVersion>,
    /// The EtcdBackup that is taken before the upgrade to the wanted version.
    pub upgrade_backup: Option<String>,
    /// The next minor version, up or down, that the members are ready for by their own words: pods are made with it.
    pub ready_for: Option<EtcdVersion>,
    /// The members' logs hold what etcd 3.6 and later cannot read.
    pub old_log: Option<OldLog>,
    /// The last member that was replaced because it crashed again and again.
    pub crash_replaced: Option<CrashReplaced>,
    /// The last defragmentation by schedule.
    pub defragmented: Option<Defragmented>,
    /// Since when no quorum answers.
    pub quorum_lost: Option<Timestamp>,
    /// A recovery with the user's consent, in progress.
    pub recovery: Option<Recovering>,
    /// The EtcdRestore that a recovery with the user's consent asked for.
    pub asked: Option<String>,
    /// The last restore from a backup, in progress or done.
    pub restore: Option<Restoring>,
    /// All pods were stopped on purpose.
    pub hibernating: bool,
    /// Every ID that etcd gave this cluster, the newest last.
    pub cluster_ids: Vec<ClusterId>,
    /// Where each member last ran.
    pub last_seen: BTreeMap<MemberName, LastSeen>,
    /// Voters of the last proven list that are not ours; `None`: no list was looked at for that yet.
    pub other_voters: Option<Vec<String>>,
    /// Claims that a recovery left.
    pub old_claims: Option<OldClaims>,
    /// Claims of members that restores replaced and that are still there.
    pub replaced_claims: Vec<(MemberName, Uid)>,
}

/// How many cluster IDs are remembered. Each restore from a backup makes one.
const CLUSTER_IDS: usize = 32;

/// The pod that a member was last seen in. What runs there may go on although the object is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastSeen {
    /// The pod; empty where an earlier version did not record it.
    pub pod: Uid,
    /// Its node; `None`: it was on none.
    pub node: Option<String>,
    /// The volume that was attached to that node for it.
    pub attached: Option<String>,
    /// Its kubelet said that it has ended.
    pub ended: bool,
}

/// Claims of the members before a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldClaims {
    /// The claims.
    pub claims: Vec<(MemberName, Uid)>,
    /// When the new cluster served.
    pub served: Timestamp,
}

/// A member was replaced because it crashed again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashReplaced {
    /// When.
    pub at: Timestamp,
    /// How many there were in a row.
    pub times: u32,
}

/// A defragmentation by schedule. A member's turn is written down before it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defragmented {
    /// The time of the schedule.
    pub scheduled: Timestamp,
    /// Who had their turn.
    pub members: Vec<MemberName>,
}

/// Entries of etcd 3.4 and before in the members' logs: every question to `/health` was written there, and etcd 3.6 ends
/// at the first one ("detected disallowed v2 WAL"). They are gone once a member has made a snapshot of its own after them.
pub use crate::api::etcd_cluster::OldLog;

/// The record of the bootstrap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bootstrapped {
    /// The token of this incarnation of the cluster.
    pub token: String,
    /// The first members: one, or all with a parallel bootstrap.
    pub first: Vec<MemberName>,
    /// The cluster's ID once it has answered. From then on nothing starts as a first member again.
    pub cluster: Option<ClusterId>,
}

/// What is known of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// Its ID.
    pub id: Option<MemberId>,
    /// It votes.
    pub voter: bool,
    /// Where peers reach it.
    pub peer_url: String,
}

/// A recovery in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovering {
    /// The member whose data becomes the cluster's.
    pub survivor: MemberName,
    /// It was started as the only member.
    pub started: bool,
    /// It served as the only member: from now on it starts as an ordinary one.
    pub served: bool,
}

/// A restore: the cluster is replaced by one from a backup. It holds everything that is needed to go on, since the
/// EtcdRestore may be deleted at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restoring {
    /// The EtcdRestore.
    pub uid: Uid,
    /// Its name.
    pub name: String,
    /// It was made for a recovery from quorum loss.
    pub recovery: bool,
    /// The backup.
    pub source: Box<RestoreSource>,
    /// The token of the new cluster.
    pub token: String,
    /// Its first member. A name that no member ever had, so that nothing of the old cluster can be taken for it.
    pub seed: MemberName,
    /// The claims of the old members.
    pub old_claims: Vec<(MemberName, Uid)>,
    /// How far it is.
    pub step: RestoreStep,
}

/// How far a restore is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreStep {
    /// The old members are being stopped; the way back is open where their data outlives their pods.
    Stopping,
    /// The first member of the new cluster is being started.
    Seeding,
    /// It served.
    Done,
}

impl Record {
    /// Remembers an ID of the cluster.
    pub(super) fn has_been(&mut self, cluster: ClusterId) {
        if !self.cluster_ids.contains(&cluster) {
            self.cluster_ids.push(cluster);
            let over = self.cluster_ids.len().saturating_sub(CLUSTER_IDS);
            self.cluster_ids.drain(..over);
        }
    }

    /// The cluster has answered once: nothing starts as a first member any more.
    pub fn began(&self) -> bool {
        let bootstrap = self.bootstrap.as_ref();
        bootstrap.is_some_and(|bootstrap| bootstrap.cluster.is_some())
    }

    /// The restore that is in progress.
    pub fn restoring(&self) -> Option<&Restoring> {
        self.restore
            .as_ref()
            .filter(|restore| restore.step != RestoreStep::Done)
    }

    /// The restore that this record takes up and the one before it did not.
    pub fn begins_restore(&self, before: &Self) -> Option<&Restoring> {
        let known = before.restore.as_ref().map(|restore| &restore.uid);
        self.restoring().filter(|restore| Some(&restore.uid) != known)
    }
}
