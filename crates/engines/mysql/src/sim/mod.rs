//! The simulation: seeded histories in which servers, nodes, networks, volumes and operators fail, users edit the spec, and clients write.
//! The real planner, guards and status codec run in a model of Kubernetes and of MySQL's replication, and the rules of the design
//! are checked at every step. The same seed gives the same history.
//!
//! Inside a history there are no threads, no clocks and no I/O: time is virtual, and all randomness comes from the seed.

mod clients;
mod converge;
mod execute;
mod faults;
mod history;
mod kube;
mod many;
mod observe;
mod operator;
mod profile;
mod replication;
mod rng;
mod rules;
mod server;
mod state;
mod subject;
#[cfg(test)]
mod tests;
mod transactions;
mod user;

pub use history::{Outcome, replay, run};
pub use many::{Summary, run_many};
pub use state::Violation;
pub use subject::{REAL, Subject};
