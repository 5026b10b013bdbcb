//! What every engine shares: identities, conditions, reasons, notes, pods and claims as facts, agents, stores, schedules.
//!
//! Pure: no I/O, no clock, no randomness, no client of Kubernetes. It knows no engine either: whatever names one belongs
//! into the engine's own crate.

pub mod agent;
pub mod backoff;
pub mod claim;
pub mod conditions;
pub mod crd;
pub mod cron;
pub mod fields;
pub mod guard;
pub mod ids;
pub mod kind;
pub mod lenient;
pub mod manifests;
pub mod names;
pub mod note;
pub mod pod;
pub mod quantity;
pub mod reason;
pub mod schedule;
pub mod store;
mod word;

pub use conditions::{Condition, ConditionStatus};
pub use ids::{ObjectVersion, Uid};
pub use note::Note;

/// For enums in a schema: the description of the field that uses one says more than that of the type, and stays.
pub fn undescribed(schema: &mut schemars::Schema) {
    schema.remove("description");
}
