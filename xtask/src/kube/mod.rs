//! `./x kube`: a real Kubernetes on this machine, for development and for the end-to-end tests.
//!
//! It has a control plane and three nodes. Each of them is a network, mount and process namespace whose first process
//! is this program ([`guest`]). Ending that one process ends everything under it, including pods and mounts, so a crash
//! leaves only empty network namespaces and folders, and a "stopped" node loses power as a machine does. No interface
//! leads from these namespaces to the machine's network; the only way in is a relay to the API server on a loopback
//! port.

mod build;
mod check;
mod claims;
mod control;
mod down;
mod fault;
mod guest;
mod layout;
mod net;
mod node;
mod objects;
mod permissions;
mod pki;
mod process;
mod relay;
mod root;
mod status;
mod store;
mod test;
mod up;

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;

use crate::paths::Paths;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Name of the cluster; several can run at the same time
    #[arg(long, global = true, default_value = "main")]
    name: String,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Build what is missing, then start; prints the paths of the kubeconfig and kubectl
    Up(up::Args),
    /// Stop it and remove every trace, also after a crash
    Down,
    /// Run the end-to-end suite; starts and stops a cluster unless one is running
    Test(test::Args),
    /// Show what is running
    Status,
    /// Print the environment for a shell: eval "$(./x kube env)"
    Env,
    /// Run a command inside the cluster's network, where pod and service addresses and names work
    Exec {
        /// The command and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<String>,
    },
    /// Import OCI archives on every node
    Load {
        /// Archives as `./x image` writes them
        archives: Vec<PathBuf>,
    },
    /// Check that the environment does what the tests rely on: claims, names, services, faults, a node that loses power
    Check,
    /// Inject a fault, or undo one
    #[command(subcommand)]
    Fault(fault::Fault),
    /// (internal) the first process of the control plane or of a node
    #[command(hide = true)]
    Guest(guest::Args),
    /// (internal) the relay from the machine's loopback to the API server
    #[command(hide = true)]
    Relay,
    /// (internal) the volume provisioner
    #[command(hide = true)]
    Claims,
}

pub(crate) use build::etcds;

pub(crate) fn run(paths: &Paths, args: &Args) -> Result<()> {
    let run = layout::Run::new(paths, &args.name)?;
    match &args.verb {
        Verb::Up(options) => options.build(paths)?,
        Verb::Test(options) => options.build(paths)?,
        Verb::Down | Verb::Exec { .. } | Verb::Load { .. } | Verb::Check | Verb::Fault(_) => root::become_root(paths)?,
        _ => {}
    }
    let _lock = match &args.verb {
        Verb::Up(_) | Verb::Test(_) | Verb::Down => Some(run.lock()?),
        _ => None,
    };
    match &args.verb {
        Verb::Up(options) => up::run(paths, &run, options),
        Verb::Test(options) => test::run(paths, &run, options),
        Verb::Down => down::run(&run),
        Verb::Status => status::run(&run),
        Verb::Env => status::env(&run),
        Verb::Exec { command } => net::exec(&run, command),
        Verb::Load { archives } => node::load(paths, &run, archives),
        Verb::Check => check::run(paths, &run),
        Verb::Fault(fault) => fault::run(paths, &run, fault),
        Verb::Guest(options) => guest::run(paths, &run, options),
        Verb::Relay => relay::run(&run),
        Verb::Claims => claims::run(&run),
    }
}
