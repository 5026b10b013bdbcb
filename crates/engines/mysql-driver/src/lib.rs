//! What touches MySQL: the driver that observes and executes for the planner in `stateward-mysql`, and the agent in every pod.

pub mod agent;
