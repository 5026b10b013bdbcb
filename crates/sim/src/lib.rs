//! The simulation: a seeded world with faults that drives the planner of etcd and checks the rules of the design at
//! every step. The same seed gives the same history, and a history that breaks a rule can be printed line by line.
//!
//! Inside a history there are no threads, no clocks and no I/O: time is virtual, and all randomness comes from the
//! seed.

mod alarms;
mod backups;
mod elsewhere;
mod etcd;
mod execute;
mod faults;
mod guards;
mod history;
mod kube;
mod kubelet;
mod many;
mod mutants;
mod node;
mod operator;
mod profile;
mod proof;
mod queue;
mod raft;
mod requests;
mod restores;
mod rng;
mod rules;
#[cfg(test)]
mod scenes;
mod sim;
mod subject;
mod trust;
mod user;

pub use backups::{BackupOutcome, BackupSubject, REAL_BACKUPS, run_backups};
pub use history::{Outcome, replay, run};
pub use many::{Summary, run_many};
pub use mutants::Table;
pub use sim::Violation;
pub use subject::{REAL, Subject};
