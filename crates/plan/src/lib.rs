//! The pure planners. `plan(intent, world, now)` returns the complete status to write and the effects to carry out, in
//! order. Nothing here touches a clock, a socket, a file or a random number: what a decision needs is in its arguments,
//! so every history can be replayed. One folder an engine.

pub mod agent;
pub mod backup;
pub mod etcd;
mod reason;
pub mod restore;

pub use reason::Reason;
