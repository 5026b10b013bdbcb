//! etcd, as pure values and functions: the custom resources ([`api`]) and a planner for each of them. `plan(intent, memory, world,
//! now)` returns the complete status to write and the effects to execute, in order. Nothing here touches a clock, a socket, a file or
//! a random number: what a decision needs is in its arguments, so every history can be replayed.

pub mod agent;
pub mod api;
pub mod backup;
pub mod cluster;
mod reason;
pub mod restore;

pub use reason::Reason;
