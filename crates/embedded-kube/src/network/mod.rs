//! The network of pods: a network namespace for this process, one for each pod, links between them, and packet filter rules
//! for services and faults.
//!
//! Changes only the network namespace that this process is in, which is never the machine's own, and those it makes. In the
//! machine's it only opens sockets.

mod enter;
mod filter;
mod guest;
mod kernel;
mod namespace;
mod netlink;
mod outbound;
mod plane;
mod range;
mod users;
mod visit;

pub use enter::{EnterError, enter};
pub use guest::Guest;
pub use users::several_users_hint;
pub use visit::visit;

pub(crate) use enter::{Outside, outside};
pub(crate) use filter::{Destination, Filter};
pub(crate) use namespace::Namespace;
#[cfg(test)]
pub(crate) use outbound::HOST_NAME;
pub(crate) use outbound::Outbound;
pub(crate) use plane::{Place, Plane};
pub(crate) use range::Range;
pub(crate) use visit::write_resolv;
