//! What the status remembers for the next decisions. Whatever a step rests on is written before the step.
//!
//! # The recorded acknowledgers
//! `ackers` (A) and `acks` (k) say who may acknowledge and how many must. At every moment each acknowledged transaction is held
//! by at least k members of A, in their executed sets or relay logs. So whoever reads what |A| - k + 1 of them received, after their
//! receivers were stopped, knows of every acknowledged transaction, and nothing more can be acknowledged.
//!
//! - A grows before a receiver may acknowledge.
//! - A shrinks, and k rises, only when k of those that remain hold everything that the primary had committed after the member that
//!   leaves was kept from acknowledging, or after the primary waited for more ([`Pending`]).
//! - After a failover A still holds the new primary, until k others hold all that it executed: if it is lost before, the same
//!   rule decides again.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use stateward_core::Uid;

use crate::api::MySQLVersion;
use crate::gtid::GtidSet;
use crate::world::Ordinal;

/// What is remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The decision to create the cluster.
    pub bootstrap: Option<Bootstrap>,
    /// The primary, since before it may be written to.
    pub primary: Option<Ordinal>,
    /// It grows with every change of the primary.
    pub epoch: u64,
    /// The primary of this epoch was open once.
    pub opened: bool,
    /// k: how many acknowledgements each write has had since it was recorded.
    pub acks: u32,
    /// How many acknowledgements the primary is to wait for: at least k. It is higher than k while that is not proven yet,
    /// and while the primary waits for an acknowledger that is lost.
    pub required: u32,
    /// A: who may acknowledge.
    pub ackers: BTreeSet<Ordinal>,
    /// A change of A or k that waits until enough members hold what the primary had.
    pub pending: Option<Pending>,
    /// A failover in progress: no receiver of an acknowledger is started from now on.
    pub failover: Option<Failover>,
    /// A planned change of the primary.
    pub switchover: Option<Switchover>,
    /// When the last planned change was given up.
    pub switchover_failed: Option<Timestamp>,
    /// Members with transactions that the primary does not have.
    pub quarantine: BTreeMap<Ordinal, Quarantine>,
    /// What was known to exist when the primary became it: what it had, and what acknowledgers had received. What a member other
    /// than the primary wrote itself beyond that was acknowledged by nobody.
    pub received_at_promotion: GtidSet,
    /// The former primary, until it is a clean replica again.
    pub former_primary: Option<Ordinal>,
    /// Members whose replication account is locked at the primary.
    pub expelled: BTreeSet<Ordinal>,
    /// The claims that held the cluster's data. A claim with another UID is a lost volume.
    pub claims: BTreeMap<Ordinal, Uid>,
    /// What was set in running servers.
    pub applied: BTreeMap<Ordinal, Applied>,
    /// The version that all members have reached.
    pub current: Option<MySQLVersion>,
    /// The version that they are being brought to.
    pub target: Option<MySQLVersion>,
    /// The backup that an upgrade waits for.
    pub upgrade_backup: Option<String>,
    /// The pods are stopped because of `spec.hibernate`.
    pub hibernating: bool,
    /// Passwords.
    pub passwords: Passwords,
    /// The last planned switchover that the user asked for by annotation, done or given up.
    pub switched_to: Option<String>,
}

/// The decision to create the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bootstrap {
    /// The member whose empty server becomes the first primary.
    pub seed: Ordinal,
    /// The first transactions; empty until they exist.
    pub first: GtidSet,
}

/// A change of the acknowledgers that is not safe yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// A afterwards.
    pub ackers: BTreeSet<Ordinal>,
    /// k afterwards.
    pub acks: u32,
    /// What `acks` of `ackers` must hold before.
    pub must_hold: GtidSet,
}

/// A failover in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failover {
    /// The primary that is replaced.
    pub from: Ordinal,
    /// Why, in words.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
}

/// A planned change of the primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switchover {
    /// The primary that gives its role up.
    pub from: Ordinal,
    /// The member that becomes the primary.
    pub to: Ordinal,
    /// Since when.
    pub since: Timestamp,
}

/// A member with transactions that the primary does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quarantine {
    /// The UUID of its server.
    pub uuid: u128,
    /// The transactions.
    pub gtids: GtidSet,
    /// It may be cloned anew without asking, once they are saved.
    pub automatic: bool,
    /// They were saved.
    pub saved: bool,
}

/// What was set in a running server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The process.
    pub boot: String,
    /// Hash of names and values.
    pub hash: String,
    /// The names.
    pub keys: BTreeSet<String>,
}

/// Passwords.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passwords {
    /// The annotation's value that was followed last.
    pub rotation: String,
    /// When the old ones end.
    pub old_until: Option<Timestamp>,
}

impl Memory {
    /// The first transactions exist: no empty server becomes a first primary any more.
    pub fn founded(&self) -> bool {
        self.bootstrap
            .as_ref()
            .is_some_and(|bootstrap| !bootstrap.first.is_empty())
    }

    /// The GTIDs that the data of every member begins with.
    pub fn first(&self) -> GtidSet {
        self.bootstrap
            .as_ref()
            .map(|bootstrap| bootstrap.first.clone())
            .unwrap_or_default()
    }

    /// The primary was proven to be safe to open: enough others hold what it had when it became the primary.
    pub fn established(&self) -> bool {
        self.primary.is_some_and(|primary| !self.ackers.contains(&primary))
    }

    /// How many acknowledgers must be stopped and read, so that every acknowledged transaction is known:
    /// |A| - k + 1.
    pub fn needed(&self) -> usize {
        let acks = usize::try_from(self.acks).unwrap_or(usize::MAX);
        (self.ackers.len() + 1).saturating_sub(acks)
    }
}
