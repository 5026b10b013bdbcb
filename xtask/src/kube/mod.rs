//! `./x kube`: a real Kubernetes on this machine, for developing and for the end-to-end tests.
//!
//! A control plane and three nodes. Each is a network namespace, a mount namespace and a process namespace of its own,
//! whose first process is this program ([`guest`]): ending that one process ends all that ran under it, pods included, and
//! with it go its mounts. So nothing can be left behind by a crash but empty network namespaces and folders, and a node
//! that is "stopped" loses power in the way a machine does. No interface leads from these namespaces to the machine's
//! network; the one way in is a relay to the API server on a loopback port.

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
mod pki;
mod process;
mod relay;
mod rights;
mod root;
mod status;
mod store;
mod test;
mod up;

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;

use crate::paths::Paths;

/// Options of `./x kube`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which cluster: several can run side by side
    #[arg(long, global = true, default_value = "main")]
    name: String,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Build what is missing, then start; prints kubeconfig and kubectl
    Up(up::Args),
    /// End it and remove every trace, also after a crash
    Down,
    /// Run the end-to-end suite on it; starts and ends a cluster unless one runs
    Test(test::Args),
    /// What runs
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
    /// Does this ground do what tests rely on? Claims, names, services, faults, a node that loses its power
    Check,
    /// Break something, or mend it
    #[command(subcommand)]
    Fault(fault::Fault),
    /// (internal) the first process of the control plane or of a node
    #[command(hide = true)]
    Guest(guest::Args),
    /// (internal) the relay from the machine's loopback to the API server
    #[command(hide = true)]
    Relay,
    /// (internal) makes volumes for claims
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
