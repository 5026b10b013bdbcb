//! What must survive between rounds: the part of the status that later decisions rest on.
//!
//! It is written before the step that depends on it, with the resource version it was read at, so that two operators
//! cannot both take the step.

use std::collections::BTreeMap;

use jiff::Timestamp;
use stateward_api::EtcdVersion;

use super::world::{ClusterId, MemberId, MemberName};

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
    /// The version that etcd has made its data readable for, by the members' own words.
    pub downgrade: Option<EtcdVersion>,
    /// The EtcdBackup that is taken before the upgrade to the wanted version.
    pub upgrade_backup: Option<String>,
    /// Since when no quorum answers.
    pub quorum_lost: Option<Timestamp>,
    /// A recovery with the user's consent, in progress.
    pub recovery: Option<Recovering>,
    /// All pods were stopped on purpose.
    pub hibernating: bool,
}

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
}
