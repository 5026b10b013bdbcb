//! The API server: storage, requests, watches, authentication and authorization.
//!
//! One request: `listen` (TLS) or `client` (in memory) → `server` (authentication and authorization) → `rest` (the
//! verb) → `admission` (defaults and rules of built-in kinds) or `crd` (those of custom kinds) → `store`.

mod admission;
mod auth;
mod body;
mod bootstrap;
pub(crate) mod client;
mod crd;
mod discovery;
mod errors;
mod events;
pub(crate) mod listen;
mod managed;
mod meta;
pub(crate) mod network;
mod openapi;
pub(crate) mod pki;
mod pods;
mod protobuf;
mod request;
mod resources;
mod rest;
mod reviews;
mod selector;
pub(crate) mod server;
pub(crate) mod store;
mod streaming;
mod table;

pub(crate) use auth::{Authenticator, User};
pub(crate) use bootstrap::bootstrap;
