//! `./x kube test`: the end-to-end suite on the real ground. The operator runs as it is shipped: its own image, the shipped
//! manifests, the shipped rights.

use anyhow::{Context, Result, bail};

use super::build::Parts;
use super::layout::Run;
use super::process::Process;
use super::{down, node, objects, up};
use crate::paths::Paths;
use crate::shell::{cmd, output};
use crate::{cargo, e2e, image};

/// Options of `./x kube test`.
#[derive(clap::Args)]
#[group(id = "test")] // apart from the group of the flattened options
pub(crate) struct Args {
    #[command(flatten)]
    up: up::Args,
    /// Only the scenarios that matter most
    #[arg(long)]
    smoke: bool,
    /// Measure the operator against the same pods made by hand, instead of running scenarios
    #[arg(long)]
    bench: bool,
    /// Leave a failed scenario's namespace as it is
    #[arg(long)]
    keep: bool,
    /// Run all this many times
    #[arg(long, default_value_t = 1)]
    repeat: usize,
    /// Only these scenarios
    names: Vec<String>,
}

impl Args {
    /// Compiles and builds everything as this user, before root is needed.
    pub(crate) fn build(&self, paths: &Paths) -> Result<()> {
        image::operator(paths, false)?;
        cargo::build("stateward-e2e")?;
        self.up.build(paths)
    }
}

/// Leaves a cluster running that ran before, and ends one that it started.
pub(crate) fn run(paths: &Paths, run: &Run, args: &Args) -> Result<()> {
    if args.up.build_only {
        return Ok(());
    }
    let ran_before = Process::find(run, "control").is_some();
    up::run(paths, run, &args.up)?;
    let result = install(paths, run).and_then(|()| suite(paths, run, args));
    let keep = ran_before || args.keep && result.is_err(); // a namespace that is kept needs its cluster
    if !keep {
        down::run(run)?;
    }
    result
}

/// The operator of this checkout, in place of any that is there.
fn install(paths: &Paths, run: &Run) -> Result<()> {
    let parts = Parts::new(paths, &run.facts()?.version);
    node::load(paths, run, &[image::operator(paths, false)?])?;
    let manifests = output(&mut cmd(cargo::build("stateward")?, ["manifests"])).context("cannot make the manifests")?;
    objects::apply(&parts, run, &manifests)?;
    let words = [
        "--namespace=stateward-system",
        "rollout",
        "restart",
        "deployment/stateward",
    ];
    output(objects::kubectl(&parts, run).args(words)).map(drop)
}

/// Runs it in the cluster's network: it speaks to pods and services as any client there does.
fn suite(paths: &Paths, run: &Run, args: &Args) -> Result<()> {
    if run.name != "main" {
        bail!("the suite breaks things in the cluster named main; leave --name out");
    }
    let mut arguments = vec![format!("--repeat={}", args.repeat)];
    arguments.extend(args.smoke.then(|| "--smoke".to_owned()));
    arguments.extend(args.bench.then(|| "--bench".to_owned()));
    arguments.extend(args.keep.then(|| "--keep".to_owned()));
    arguments.extend(args.names.iter().cloned());
    let suite = e2e::suite(paths, "real", &arguments)?;
    let mut inside = cmd(run.program(), ["kube", "--name", &run.name, "exec", "--"]);
    inside.arg(suite.get_program()).args(suite.get_args());
    for (key, value) in suite.get_envs() {
        inside.env(key, value.unwrap_or_default());
    }
    crate::shell::run(inside.current_dir(&paths.checkout))
}
