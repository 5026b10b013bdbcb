//! What is being proven: a planner, and which guard its driver does not keep.

use jiff::Timestamp;
use stateward_plan::etcd::guard::Kind;
use stateward_plan::etcd::{Intent, Plan, Record, World};

/// A planner and its driver.
#[derive(Clone, Copy)]
pub struct Subject {
    /// Its name in summaries.
    pub name: &'static str,
    /// The decision.
    pub plan: fn(&Intent, &Record, &World, Timestamp) -> Plan,
    /// The guard that the driver does not keep.
    pub without: Option<Kind>,
    /// A rule that does not count: what else would catch this one?
    pub ignores: Option<&'static str>,
}

/// The real one.
pub const REAL: Subject = Subject {
    name: "the planner",
    plan: stateward_plan::etcd::plan,
    without: None,
    ignores: None,
};
