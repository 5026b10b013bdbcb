//! The project's tasks, one file per verb. `./x VERB` installs the system packages and then runs this program.
//!
//! Nothing here is part of the product, and nothing here may require the product to be compiled first.

mod bench;
mod cargo;
mod cert_manager;
mod chart;
mod debian;
mod demo;
mod e2e;
mod engine;
mod fuzz;
mod golang;
mod image;
mod images;
mod kube;
mod lint;
mod oci;
mod paths;
mod pins;
mod progress;
mod prometheus;
mod published;
mod release;
mod setup;
mod shell;
mod store;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tasks of the Stateward project.
#[derive(Parser)]
#[command(bin_name = "./x")]
struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Fetch what the embedded Kubernetes runs: two versions of etcd, kubectl
    Setup(setup::Args),
    /// Lint and run all tests
    Test(test::Args),
    /// Run a real etcd cluster on an embedded Kubernetes, with a live view
    Demo(demo::Args),
    /// Run the end-to-end suite on the embedded Kubernetes
    E2e(e2e::Args),
    /// Test backups with real object stores: build the servers, run the tests
    #[command(subcommand)]
    Store(store::Verb),
    /// Run rustfmt, clippy, and cargo-deny if it is installed
    Lint,
    /// Engines: make a new one
    #[command(subcommand)]
    Engine(engine::Verb),
    /// Run the operator's simulation
    Sim(cargo::Forwarded),
    /// Send generated requests to the embedded API server
    Fuzz(fuzz::Args),
    /// Measure the embedded Kubernetes, the operator and backups
    Bench(bench::Args),
    /// Regenerate the committed files that are generated, or check that they are up to date
    Crds(cargo::Generate),
    /// Lint and render the Helm chart, and compare it with the committed files
    Chart(chart::Args),
    /// Check the OLM bundle, the krew manifest and the alert rules with their own tools
    Published,
    /// Build everything that is published with a version, in one folder
    Release(release::Args),
    /// Write container images as OCI archives, without Docker
    Image(image::Args),
    /// Build the images of the catalogue (pins/images.yaml), list them, or test them
    Images(images::Args),
    /// Manage a real Kubernetes on this machine (needs root)
    Kube(kube::Args),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let paths = paths::Paths::find()?;
    match Command::parse().verb {
        Verb::Setup(args) => setup::run(&paths, &args),
        Verb::Test(args) => test::run(&paths, &args),
        Verb::Demo(args) => demo::run(&paths, &args),
        Verb::E2e(args) => e2e::run(&paths, &args),
        Verb::Store(verb) => store::run(&paths, &verb),
        Verb::Lint => lint::run(&paths),
        Verb::Engine(verb) => engine::run(&paths, &verb),
        Verb::Sim(args) => cargo::sim(&args),
        Verb::Fuzz(args) => fuzz::run(&paths, &args),
        Verb::Bench(args) => bench::run(&paths, &args),
        Verb::Crds(args) => cargo::generate(&paths, &args),
        Verb::Chart(args) => chart::run(&paths, &args),
        Verb::Published => published::run(&paths),
        Verb::Release(args) => release::run(&paths, &args),
        Verb::Image(args) => image::run(&paths, &args),
        Verb::Images(args) => images::run(&paths, &args),
        Verb::Kube(args) => kube::run(&paths, &args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Command::command().debug_assert();
    }
}
