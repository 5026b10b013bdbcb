//! A one-machine Kubernetes in one process: a real Kubernetes API over HTTPS, the controllers an operator's tests need,
//! and nodes that run pods as ordinary processes. It knows nothing of any particular operator.
//!
//! - [`api`]: the API server: storage, requests, watches, authentication and authorization
//! - [`schema`]: pure functions over objects: pruning, defaulting, validation, patches, server-side apply, OpenAPI, tables
//! - [`controllers`]: scheduling, garbage collection, namespaces, endpoints, claims, node health, StatefulSets
//! - [`streams`]: what the API server asks of the nodes: logs, exec, attach, port-forward
//! - [`node`]: pods as processes: sandboxes, images, volumes, probes, logs, names and service addresses

mod api;
mod cluster;
mod controllers;
pub mod conversations;
mod network;
mod node;
mod schema;
mod streams;

pub use cluster::{Builder, Cluster, StartError, kubeconfig_yaml};
pub use network::{EnterError, Guest, enter as enter_network, several_users_hint, visit as visit_network};
pub use node::{FaultError, Faults, Image, ImageSource, Root};
