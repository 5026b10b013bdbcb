//! What users see beside the memory.

use jiff::Timestamp;

use crate::api::{MemberHealth, MemberRole, MySQLVersion, Phase};
use crate::reason::Reason;
use crate::world::Ordinal;

/// The visible state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The generation of the spec that was followed.
    pub generation: i64,
    /// Where the cluster is in its life.
    pub phase: Phase,
    /// How many members have a pod.
    pub size: u32,
    /// How many of them serve in their role.
    pub ready: u32,
    /// The primary takes writes.
    pub available: Statement,
    /// Work is being done.
    pub progressing: Statement,
    /// Something is not as expected.
    pub degraded: Statement,
    /// Members are added or removed.
    pub scaling: Option<Statement>,
    /// A version is rolled out.
    pub upgrading: Option<Statement>,
    /// What was lost is brought back.
    pub recovering: Option<Statement>,
    /// What is being waited for; empty when nothing is.
    pub waiting: String,
    /// One line for each member.
    pub members: Vec<MemberLine>,
    /// When the first certificate expires.
    pub not_after: Option<Timestamp>,
}

/// A condition's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statement {
    /// It holds.
    pub holds: bool,
    /// Why.
    pub reason: Reason,
    /// A sentence.
    pub message: String,
}

/// A member as users see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberLine {
    /// Which.
    pub member: Ordinal,
    /// What it is.
    pub role: MemberRole,
    /// How it is.
    pub health: MemberHealth,
    /// The version that its server says it runs.
    pub version: Option<MySQLVersion>,
    /// The UUID of its server.
    pub uuid: Option<u128>,
    /// How far it is behind, rounded.
    pub lag: Option<u64>,
    /// How much of its data it has cloned.
    pub clone_percent: Option<u32>,
    /// What is wrong with it, or done with it.
    pub message: String,
}
