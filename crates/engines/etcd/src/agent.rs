//! Agents that work on etcd: their pods are those of [`stateward_core::agent`], and they answer an [`Outcome`].

use crate::api::agent::Outcome;
pub use stateward_core::agent::AgentPod;

/// An agent's pod as Kubernetes shows it.
pub type Agent = stateward_core::agent::Agent<Outcome>;
/// How far an agent is.
pub type State = stateward_core::agent::State<Outcome>;
