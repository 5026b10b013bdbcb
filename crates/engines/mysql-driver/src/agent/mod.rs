//! What runs in the pod of a member: it makes the data directory ([`init`]), runs mysqld sealed ([`run`]), and serves the
//! protocol of [`stateward_mysql::agent`] ([`serve`]).
//!
//! It reads files that the pod mounts and its environment ([`stateward_mysql::layout`]); it never speaks to Kubernetes. Passwords
//! come from files, are passed on in files or in connections, and are in no argument, variable or log.

mod binlog;
mod control;
mod data;
mod errant;
mod launch;
mod local;
mod reap;
mod run;
mod serve;
mod tls;
mod volume;

pub use data::{InitError, init};
pub use launch::SettingsError;
pub use run::{RunError, run};
pub use serve::{ServeError, serve};
