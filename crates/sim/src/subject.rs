//! What is tested: a planner, and the guard that its driver does not check.

use jiff::Timestamp;
use stateward_etcd::cluster::guard::Kind;
use stateward_etcd::cluster::{Intent, Plan, Record, World};

/// A planner and its driver.
#[derive(Clone, Copy)]
pub struct Subject {
    /// Its name in summaries.
    pub name: &'static str,
    /// The planner.
    pub plan: fn(&Intent, &Record, &World, Timestamp) -> Plan,
    /// The guard that the driver does not check.
    pub without: Option<Kind>,
    /// A rule that is not checked, to see which other rule catches this subject.
    pub ignores: Option<&'static str>,
}

/// The real planner.
pub const REAL: Subject = Subject {
    name: "the planner",
    plan: stateward_etcd::cluster::plan,
    without: None,
    ignores: None,
};
