//! What is being proven: a planner, and whether the driver keeps the guards.

use jiff::Timestamp;
use stateward_plan::etcd::{Intent, Plan, Record, World};

/// A planner and its driver.
#[derive(Clone, Copy)]
pub struct Subject {
    /// Its name in summaries.
    pub name: &'static str,
    /// The decision.
    pub plan: fn(&Intent, &Record, &World, Timestamp) -> Plan,
    /// The driver refuses destructive effects whose guard does not hold.
    pub guards: bool,
    /// A rule that does not count: what else would catch this one?
    pub ignores: Option<&'static str>,
}

/// The real one.
pub const REAL: Subject = Subject {
    name: "the planner",
    plan: stateward_plan::etcd::plan,
    guards: true,
    ignores: None,
};
