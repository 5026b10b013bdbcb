//! The `stateward` program. It only connects the crates: each subcommand is a file.

mod agent;
mod crds;
mod demo;
mod local;
mod logging;
mod manifests;
mod operator;
mod status;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

/// Runs stateful systems on Kubernetes the way a careful human operator would.
#[derive(Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run the operator
    Operator(operator::Options),
    /// A Kubernetes on this machine, in one process, with pods as ordinary processes
    #[command(subcommand)]
    Local(local::Verb),
    /// Create the example on an embedded Kubernetes and watch it live
    Demo(demo::Options),
    /// Describe a cluster, or list all clusters, backups and restores
    Status(status::Options),
    /// The program of Stateward's own pods
    #[command(subcommand, hide = true)]
    Agent(agent::Verb),
    /// Print the CustomResourceDefinitions
    Crds(crds::Options),
    /// Print everything that installs Stateward
    Manifests(manifests::Options),
}

fn main() -> ExitCode {
    match start(Cli::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stateward: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(verb: Verb) -> Result<()> {
    let runs_pods = match &verb {
        Verb::Local(verb) => verb.runs_pods(),
        Verb::Demo(_) => true,
        _ => false,
    };
    if runs_pods {
        // Before there are threads.
        embedded_kube::enter_network()?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("cannot start")?.block_on(run(verb))
}

async fn run(verb: Verb) -> Result<()> {
    match verb {
        Verb::Operator(options) => operator::run(options).await,
        Verb::Local(verb) => local::run(verb).await,
        Verb::Demo(options) => demo::run(options).await,
        Verb::Status(options) => status::run(&options).await,
        Verb::Agent(verb) => agent::run(verb).await,
        Verb::Crds(options) => crds::run(&options),
        Verb::Manifests(options) => manifests::run(&options),
    }
}
