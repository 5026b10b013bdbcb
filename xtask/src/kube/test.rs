//! `./x kube test`: the end-to-end suite in the real environment. The operator runs as it is shipped: its own image,
//! the shipped manifests, the shipped permissions.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::build::Parts;
use super::layout::Run;
use super::process::Process;
use super::{down, node, objects, permissions, up};
use crate::paths::Paths;
use crate::shell::{cmd, output};
use crate::{cargo, cert_manager, chart, e2e, image, images, pins, published, shell};

/// The scenarios that start with the previous release.
const FROM_PREVIOUS: [&str; 2] = ["operator_upgrade", "two_operators_of_different_versions"];

#[derive(clap::Args)]
#[group(id = "test")] // separate from the group of the flattened options
pub(crate) struct Args {
    #[command(flatten)]
    up: up::Args,
    /// Run only the most important scenarios
    #[arg(long)]
    smoke: bool,
    /// Compare the operator with a script that creates the same pods, instead of running scenarios
    #[arg(long)]
    bench: bool,
    /// Keep the namespace of a failed scenario
    #[arg(long)]
    keep: bool,
    /// Run everything this many times
    #[arg(long, default_value_t = 1)]
    repeat: usize,
    /// Only these scenarios; with --bench, only measurements whose names contain one of these words
    names: Vec<String>,
}

impl Args {
    /// Compiles and builds everything as this user, before root is needed.
    pub(crate) fn build(&self, paths: &Paths) -> Result<()> {
        image::operator(paths, self.profile())?;
        let suite = self.compile()("stateward-e2e")?;
        for image in e2e::provide_images(paths, &suite, &self.arguments())? {
            images::provide_archive(paths, &image.title)?;
        }
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

    /// The arguments of the suite.
    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![format!("--repeat={}", self.repeat)];
        arguments.extend(self.smoke.then(|| "--smoke".to_owned()));
        arguments.extend(self.bench.then(|| "--bench".to_owned()));
        arguments.extend(self.keep.then(|| "--keep".to_owned()));
        arguments.extend(self.names.iter().cloned());
        arguments
    }

    fn profile(&self) -> &'static str {
        if self.bench { "release" } else { "dev" }
    }

    /// Benchmarks measure a release build.
    fn compile(&self) -> fn(&str) -> Result<PathBuf> {
        if self.bench { cargo::build_release } else { cargo::build }
    }

    /// Scenarios that need an S3 server have S3 in their names.
    fn needs_s3(&self) -> bool {
        self.is_whole() || self.names.iter().any(|name| name.contains("s3"))
    }

    fn needs_previous(&self) -> bool {
        let named = |scenario: &&str| self.names.iter().any(|name| name == scenario);
        self.is_whole() || FROM_PREVIOUS.iter().any(named)
    }

    /// Neither single scenarios nor benchmarks.
    fn is_suite(&self) -> bool {
        self.names.is_empty() && !self.bench
    }

    /// Every scenario.
    fn is_whole(&self) -> bool {
        self.is_suite() && !self.smoke
    }
}

/// Keeps a cluster running that ran before, and stops one that it started.
pub(crate) fn run(paths: &Paths, run: &Run, args: &Args) -> Result<()> {
    if args.up.build_only {
        return Ok(());
    }
    let ran_before = Process::find(run, "control").is_some();
    up::run(paths, run, &args.up)?;
    let result = lanes(paths, run, args);
    let keep = ran_before || args.keep && result.is_err(); // a kept namespace needs its cluster
    if !keep {
        down::run(run)?;
    }
    result
}

/// Runs the conversations and the admission cases, which the embedded server must answer the same way, then the
/// scenarios, then the comparison of the operator's permissions with its requests.
fn lanes(paths: &Paths, run: &Run, args: &Args) -> Result<()> {
    if args.is_suite() {
        chart::check(paths, false).context("lane failed: chart")?;
        if args.is_whole() {
            published::run(paths).context("lane failed: published")?;
        }
        let config = run.kubeconfig();
        // The embedded server has the messages of the newest version; older versions word some rejections differently.
        if args.up.version == pins::KUBERNETES[0] {
            shell::run(cmd(converse()?, ["--quiet"]).env("KUBECONFIG", &config))
                .context("lane failed: conversations")?;
        }
        let mut cases = cmd(admission()?, ["--ignored", "--quiet"]);
        shell::run(
            cases
                .env("KUBECONFIG", &config)
                .current_dir(paths.checkout.join("crates/engines/etcd-driver")),
        )
        .context("lane failed: admission")?;
    }
    let mark = permissions::mark(run);
    let manifests = install(paths, run, args)?;
    suite(paths, run, args)?;
    permissions::check(run, mark, &manifests, args.is_whole()).context("lane failed: permissions")
}

fn converse() -> Result<PathBuf> {
    cargo::build_example("converse")
}

fn admission() -> Result<PathBuf> {
    cargo::build_test("admission")
}

/// Installs the operator of this checkout, in place of any other.
fn install(paths: &Paths, run: &Run, args: &Args) -> Result<String> {
    let parts = Parts::new(paths, &run.facts()?.version);
    node::load(paths, run, &[image::operator(paths, args.profile())?])?;
    let manifests =
        output(&mut cmd(args.compile()("stateward")?, ["manifests"])).context("cannot generate the manifests")?;
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

/// Runs it in the cluster's network, so that it reaches pods and services like any client there.
fn suite(paths: &Paths, run: &Run, args: &Args) -> Result<()> {
    if run.name != "main" {
        bail!("the suite injects faults into the cluster named main; omit --name");
    }
    let arguments = args.arguments();
    let mut suite = e2e::suite(paths, "real", args.compile(), &arguments)?;
    for image in e2e::provide_images(paths, suite.get_program().as_ref(), &arguments)? {
        node::load(paths, run, &[images::provide_archive(paths, &image.title)?])?;
    }
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
