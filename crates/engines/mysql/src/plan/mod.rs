//! What to do next.

pub mod report;

use jiff::Timestamp;
use stateward_core::kind::Plan;

use crate::intent::Intent;
use crate::kind::MySQLClusters;
use crate::memory::Memory;
use crate::world::World;

/// Decides what to do next.
pub fn plan(_: &Intent, memory: &Memory, _: &World, _: Timestamp) -> Plan<MySQLClusters> {
    Plan {
        memory: memory.clone(),
        report: report::Report::default(),
        actions: Vec::new(),
        wake: None,
    }
}
