//! What is being proven: a planner, and whether the driver keeps the guards.

use jiff::Timestamp;
use stateward_plan::etcd::{Intent, Plan, Record, World};

/// A planner and its driver.
pub struct Subject {
    /// Its name in summaries.
    pub name: &'static str,
    /// The decision.
    pub plan: fn(&Intent, &Record, &World, Timestamp) -> Plan,
    /// The driver refuses destructive effects whose guard does not hold.
    pub guards: bool,
}

/// The real one.
pub const REAL: Subject = Subject {
    name: "the planner",
    plan: stateward_plan::etcd::plan,
    guards: true,
};
