//! What is tested: a planner, and what its driver or the agent does wrong.

use jiff::Timestamp;
use stateward_core::kind::{Kind, Plan};

use crate::guard::Guard;
use crate::kind::MySQLClusters;
use crate::{Intent, Memory, World};

/// A planner and its driver.
#[derive(Clone, Copy)]
pub struct Subject {
    /// Its name in summaries.
    pub name: &'static str,
    /// The planner.
    pub plan: fn(&Intent, &Memory, &World, Timestamp) -> Plan<MySQLClusters>,
    /// The guard that the driver does not check.
    pub without: Option<&'static str>,
    /// A server that was cloned keeps its UUID, and so uses GTIDs again that its discarded transactions had.
    pub clones_keep_uuid: bool,
    /// The driver writes the status after the actions.
    pub writes_late: bool,
    /// A rule that is not checked, to see which other rule catches this subject.
    pub ignores: Option<&'static str>,
}

/// The real planner.
pub const REAL: Subject = Subject {
    name: "the planner",
    plan: MySQLClusters::plan,
    without: None,
    clones_keep_uuid: false,
    writes_late: false,
    ignores: None,
};

/// The kind of a guard. A new guard does not compile without one, and needs a mutant.
pub(super) fn kind(guard: &Guard) -> &'static str {
    match guard {
        Guard::Unchanged(_) => "Unchanged",
        Guard::PodUid(_) => "PodUid",
        Guard::ClaimUid(_) => "ClaimUid",
        Guard::SetUid(_) => "SetUid",
        Guard::Same { .. } => "Same",
        Guard::Blank { .. } => "Blank",
        Guard::Applied { .. } => "Applied",
        Guard::MayFollow { .. } => "MayFollow",
        Guard::Clean { .. } => "Clean",
        Guard::Held { .. } => "Held",
        Guard::Writable { .. } => "Writable",
        Guard::ReadOnly { .. } => "ReadOnly",
        Guard::Saved { .. } => "Saved",
    }
}
