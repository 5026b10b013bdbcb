//! What touches MySQL: the driver that observes and executes for the planner in `stateward-mysql`, and the agent in every pod.

pub mod agent;
mod caches;
mod client;
mod driver;
mod engine;
mod execute;
mod holds;
mod metrics;
mod observe;
mod secrets;
mod session;
mod tls;

pub use driver::MySQLDriver;
pub use engine::MySQL;
pub use metrics::Metrics;
pub use observe::Means;
pub use session::Session;
