//! The project's own tasks, one file a verb. `./x VERB` makes sure of the system packages and calls this.
//!
//! Nothing here is part of the product, and nothing here may need the product to be compiled first.

mod bench;
mod cargo;
mod cert_manager;
mod chart;
mod debian;
mod demo;
mod e2e;
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
    /// Fetch what the embedded Kubernetes runs: etcd in two versions, kubectl
    Setup(setup::Args),
    /// Lint and run all tests
    Test(test::Args),
    /// An embedded Kubernetes with a real etcd cluster on it, live
    Demo(demo::Args),
    /// The end-to-end suite on the embedded Kubernetes
    E2e(e2e::Args),
    /// Backups in real object stores: build the servers, run the tests
    #[command(subcommand)]
    Store(store::Verb),
    /// rustfmt, clippy, and cargo-deny where it is installed
    Lint,
    /// Run the operator's simulation
    Sim(cargo::Forwarded),
    /// Feed the embedded API server made-up requests
    Fuzz(fuzz::Args),
    /// Measure the embedded Kubernetes and the operator
    Bench(bench::Args),
    /// Regenerate the committed files that are generated, or check that they are current
    Crds(cargo::Generate),
    /// Lint and render the Helm chart, and compare with what was committed
    Chart(chart::Args),
    /// Check the OLM bundle, the krew manifest and the alert rules with their own tools
    Published,
    /// Everything that is published with a version, in one folder
    Release(release::Args),
    /// Write container images as OCI archives, without Docker
    Image(image::Args),
    /// Build the images of the catalogue (pins/images.yaml), list them, or test them
    Images(images::Args),
    /// A real Kubernetes on this machine (root is needed)
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
