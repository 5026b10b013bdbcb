//! The network of pods: a network namespace for this process, one for each pod, links between them, and packet filter rules
//! for services and faults.
//!
//! Touches only the network namespace that this process is in, which is never the machine's own, and those it makes.

mod enter;
mod filter;
mod guest;
mod namespace;
mod netlink;
mod plane;
mod range;
mod visit;

pub use enter::{EnterError, enter};
pub use guest::Guest;
pub use visit::visit;

pub(crate) use enter::outside;
pub(crate) use filter::{Destination, Filter};
pub(crate) use namespace::Namespace;
pub(crate) use plane::{Place, Plane};
pub(crate) use range::Range;
pub(crate) use visit::write_resolv;
