//! `./x kube test`: the end-to-end suite on the real ground. The operator runs as it is shipped: its own image, the shipped
//! manifests, the shipped rights.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::build::Parts;
use super::layout::Run;
use super::process::Process;
use super::{down, node, objects, rights, up};
use crate::paths::Paths;
use crate::shell::{cmd, output};
use crate::{cargo, cert_manager, chart, e2e, image, pins, published, shell};

/// The scenarios that start with the release before.
const FROM_PREVIOUS: [&str; 2] = ["operator_upgrade", "two_operators_of_different_versions"];

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
    /// Only these scenarios; measurements by a word of their names
    names: Vec<String>,
}

impl Args {
    /// Compiles and builds everything as this user, before root is needed.
    pub(crate) fn build(&self, paths: &Paths) -> Result<()> {
        image::operator(paths, self.profile())?;
        self.compile()("stateward-e2e")?;
        if self.is_suite() {
            converse()?;
            admission()?;
        }
        if !self.smoke && !self.bench {
            cert_manager::build(paths)?;
        }
        if self.needs_previous() {
            image::previous(paths)?;
        }
        if self.needs_s3() {
            image::minio(paths)?;
        }
        self.up.build(paths)
    }

    fn profile(&self) -> &'static str {
        if self.bench { "release" } else { "dev" }
    }

    /// Figures are those of a release.
    fn compile(&self) -> fn(&str) -> Result<PathBuf> {
        if self.bench { cargo::build_release } else { cargo::build }
    }

    /// The scenarios with an S3 server say so in their names.
    fn needs_s3(&self) -> bool {
        self.is_whole() || self.names.iter().any(|name| name.contains("s3"))
    }

    fn needs_previous(&self) -> bool {
        let named = |scenario: &&str| self.names.iter().any(|name| name == scenario);
        self.is_whole() || FROM_PREVIOUS.iter().any(named)
    }

    /// Not single scenarios, nor measurements.
    fn is_suite(&self) -> bool {
        self.names.is_empty() && !self.bench
    }

    /// Every scenario.
    fn is_whole(&self) -> bool {
        self.is_suite() && !self.smoke
    }
}

/// Leaves a cluster running that ran before, and ends one that it started.
pub(crate) fn run(paths: &Paths, run: &Run, args: &Args) -> Result<()> {
    if args.up.build_only {
        return Ok(());
    }
    let ran_before = Process::find(run, "control").is_some();
    up::run(paths, run, &args.up)?;
    let result = lanes(paths, run, args);
    let keep = ran_before || args.keep && result.is_err(); // a namespace that is kept needs its cluster
    if !keep {
        down::run(run)?;
    }
    result
}

/// The conversations and the admission cases, which the embedded server has to answer alike, then the scenarios, then what
/// the operator was allowed to do and did.
fn lanes(paths: &Paths, run: &Run, args: &Args) -> Result<()> {
    if args.is_suite() {
        chart::check(paths, false).context("lane failed: chart")?;
        if args.is_whole() {
            published::run(paths).context("lane failed: published")?;
        }
        let config = run.kubeconfig();
        // The embedded server speaks as the newest one does; older ones have other words for some refusals.
        if args.up.version == pins::KUBERNETES[0] {
            shell::run(cmd(converse()?, ["--quiet"]).env("KUBECONFIG", &config))
                .context("lane failed: conversations")?;
        }
        let mut cases = cmd(admission()?, ["--ignored", "--quiet"]);
        shell::run(
            cases
                .env("KUBECONFIG", &config)
                .current_dir(paths.checkout.join("crates/api")),
        )
        .context("lane failed: admission")?;
    }
    let mark = rights::mark(run);
    let manifests = install(paths, run, args)?;
    suite(paths, run, args)?;
    rights::check(run, mark, &manifests, args.is_whole()).context("lane failed: rights")
}

fn converse() -> Result<PathBuf> {
    cargo::build_example("converse")
}

fn admission() -> Result<PathBuf> {
    cargo::build_test("admission")
}

/// The operator of this checkout, in place of any that is there.
fn install(paths: &Paths, run: &Run, args: &Args) -> Result<String> {
    let parts = Parts::new(paths, &run.facts()?.version);
    node::load(paths, run, &[image::operator(paths, args.profile())?])?;
    let manifests =
        output(&mut cmd(args.compile()("stateward")?, ["manifests"])).context("cannot make the manifests")?;
    objects::apply(&parts, run, &manifests)?;
    let words = [
        "--namespace=stateward-system",
        "rollout",
        "restart",
        "deployment/stateward",
    ];
    output(objects::kubectl(&parts, run).args(words))?;
    Ok(manifests)
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
    let mut suite = e2e::suite(paths, "real", args.compile(), &arguments)?;
    if args.needs_previous()
        && let Some((archive, manifests)) = image::previous(paths)?
    {
        node::load(paths, run, &[archive])?;
        suite.env("STATEWARD_PREVIOUS", manifests);
    }
    if args.needs_s3() {
        let (archive, reference) = image::minio(paths)?;
        node::load(paths, run, &[archive])?;
        suite.env("STATEWARD_MINIO", reference);
    }
    let mut inside = cmd(run.program(), ["kube", "--name", &run.name, "exec", "--"]);
    inside.arg(suite.get_program()).args(suite.get_args());
    for (key, value) in suite.get_envs() {
        inside.env(key, value.unwrap_or_default());
    }
    shell::run(inside.current_dir(&paths.checkout))
}
