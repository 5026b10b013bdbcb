//! MySQL with a primary and replicas, as pure values and functions: the custom resource, what it is checked for, what is
//! decided next and the objects that are made.
//!
//! No I/O, no clock, no randomness: the driver (`stateward-mysql-driver`) observes and executes. `docs/mysql-facts.md` has the
//! facts about MySQL that decisions rest on.

#![allow(clippy::duplicated_attributes, reason = "kube's printcolumn(...) repeats type_")]

pub mod action;
pub mod agent;
pub mod api;
pub mod gtid;
pub mod guard;
pub mod intent;
pub mod kind;
pub mod layout;
pub mod manifests;
pub mod memory;
pub mod names;
pub mod plan;
pub mod reason;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod status;
pub mod world;

pub use action::{Action, ClaimEnd, Note, Stop};
pub use api::MySQLCluster;
pub use gtid::GtidSet;
pub use intent::Intent;
pub use kind::MySQLClusters;
pub use memory::Memory;
pub use reason::Reason;
pub use world::{Ordinal, World};
