//! The end-to-end suite. Each scenario is written once, against a kubeconfig and a small set of faults, and runs on the
//! embedded and on a real Kubernetes. Run it with `./x e2e` or `./x kube test`.

mod bench;
mod cert_manager;
mod certificates;
mod definitions;
mod diagnostics;
mod environment;
mod log;
mod memory;
mod meter;
mod mysql;
mod s3;
mod scenarios;
#[path = "../../crates/backup/tests/servers/mod.rs"]
mod servers;
mod test;
mod tool;
mod wait;
mod writer;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use futures::StreamExt;
use stateward_etcd::api::EtcdVersion;

use environment::{Environment, Need};
use scenarios::{SCENARIOS, Scenario};
use test::Test;

/// Runs scenarios in an environment
#[derive(Parser)]
struct Options {
    /// The environment to run in
    #[arg(long, value_enum, default_value = "embedded")]
    environment: Where,
    /// Run only the most important scenarios
    #[arg(long)]
    smoke: bool,
    /// Compare the operator with the same objects created by a script, instead of running scenarios
    #[arg(long)]
    bench: bool,
    /// List the scenarios and exit
    #[arg(long)]
    list: bool,
    /// List the images of the catalogue that the scenarios need and exit
    #[arg(long, hide = true)]
    list_images: bool,
    /// Run every scenario this many times
    #[arg(long, default_value_t = 1)]
    repeat: usize,
    /// How many scenarios run in parallel, among those that allow it
    #[arg(long, default_value_t = 4)]
    beside: usize,
    /// Keep the namespace of a failed scenario
    #[arg(long)]
    keep: bool,
    /// Folder of etcd programs by version: the versions that there are images of
    #[arg(long, env = "STATEWARD_ETCD_DIR")]
    etcd: PathBuf,
    /// The images of the embedded environment
    #[arg(long, env = "STATEWARD_IMAGES", default_value = "images")]
    images: PathBuf,
    /// The program that injects faults into the real environment
    #[arg(long, env = "STATEWARD_XTASK", default_value = "xtask")]
    xtask: PathBuf,
    /// Only these scenarios; with --bench, only measurements whose names contain one of these words
    names: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Where {
    Embedded,
    Real,
}

enum Outcome {
    Passed(String),
    Failed(anyhow::Error),
    CannotRun(&'static str),
}

fn main() -> ExitCode {
    match start(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stateward-e2e: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(options: Options) -> Result<()> {
    if matches!(options.environment, Where::Embedded) && !options.list && !options.list_images {
        // Before there are threads.
        embedded_kube::enter_network()?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(suite(options))
}

async fn suite(options: Options) -> Result<()> {
    let chosen: Vec<&Scenario> = SCENARIOS
        .iter()
        .filter(|scenario| {
            if options.names.is_empty() {
                !options.smoke || scenario.smoke
            } else {
                options.names.iter().any(|name| name == scenario.name)
            }
        })
        .collect();
    if !options.bench
        && let Some(unknown) = options
            .names
            .iter()
            .find(|name| SCENARIOS.iter().all(|scenario| scenario.name != **name))
    {
        bail!("no scenario is named {unknown}; --list shows all");
    }
    if options.list {
        chosen
            .iter()
            .for_each(|scenario| println!("{}{}", scenario.name, if scenario.smoke { " (smoke)" } else { "" }));
        return Ok(());
    }
    if options.list_images {
        images(&chosen).into_iter().for_each(|image| println!("{image}"));
        return Ok(());
    }
    let versions = versions(&options.etcd)?;
    let environment: Arc<dyn Environment> = match options.environment {
        Where::Embedded => {
            Arc::new(environment::embedded::Embedded::start(&options.images, versions, log::Log::install()).await?)
        }
        Where::Real => {
            Arc::new(environment::real::Real::connect(options.xtask.clone(), versions, log::Log::install()).await?)
        }
    };
    if options.bench {
        return bench::run(&environment, &options.names).await;
    }
    let mut tally = Tally::default();
    let all = Instant::now();
    for _ in 0..options.repeat.max(1) {
        for alone in [false, true] {
            let these = chosen.iter().filter(|scenario| scenario.alone == alone);
            let runs = these.map(|scenario| timed(&environment, scenario, options.keep));
            let beside = if alone { 1 } else { options.beside.max(1) };
            let mut ends = futures::stream::iter(runs).buffer_unordered(beside);
            while let Some(end) = ends.next().await {
                tally.add(environment.name(), end);
            }
        }
    }
    let Tally {
        passed,
        failed,
        skipped,
    } = tally;
    println!(
        "{} environment, {:.0} s{}",
        environment.name(),
        all.elapsed().as_secs_f64(),
        if failed.is_empty() {
            String::new()
        } else {
            format!("; failed: {}", failed.join(", "))
        }
    );
    println!("{passed} passed, {} failed, {skipped} skipped", failed.len());
    if failed.is_empty() {
        Ok(())
    } else {
        bail!("{} scenarios failed", failed.len())
    }
}

/// The images of the catalogue that scenarios need.
fn images(scenarios: &[&Scenario]) -> BTreeSet<&'static str> {
    let needs = scenarios.iter().flat_map(|scenario| scenario.needs);
    needs
        .filter_map(|need| match need {
            Need::Image(image) => Some(*image),
            _ => None,
        })
        .collect()
}

#[derive(Default)]
struct Tally {
    passed: usize,
    failed: Vec<&'static str>,
    skipped: usize,
}

impl Tally {
    fn add(&mut self, environment: &str, (scenario, seconds, outcome): (&Scenario, f64, Outcome)) {
        let name = scenario.name;
        match outcome {
            Outcome::Passed(what) => {
                self.passed += 1;
                println!("scenario {name} ... ok ({seconds:.1} s) {what}");
            }
            Outcome::CannotRun(why) => {
                self.skipped += 1;
                println!("scenario {name} ... cannot run in the {environment} environment: {why}");
            }
            Outcome::Failed(error) => {
                self.failed.push(name);
                println!("scenario {name} ... FAILED ({seconds:.1} s): {error:#}");
            }
        }
    }
}

async fn timed<'a>(
    environment: &Arc<dyn Environment>,
    scenario: &'a Scenario,
    keep: bool,
) -> (&'a Scenario, f64, Outcome) {
    let started = Instant::now();
    let outcome = run(environment, scenario, keep).await;
    (scenario, started.elapsed().as_secs_f64(), outcome)
}

async fn run(environment: &Arc<dyn Environment>, scenario: &Scenario, keep: bool) -> Outcome {
    if let Some(why) = scenario.needs.iter().find_map(|need| environment.lacks(*need)) {
        return Outcome::CannotRun(why);
    }
    let test = match Test::new(environment.clone(), scenario.name).await {
        Ok(test) => test,
        Err(error) => return Outcome::Failed(error),
    };
    let limit = Duration::from_secs(scenario.limit);
    let in_process = scenario.needs.contains(&Need::Meter);
    let run = async {
        if in_process {
            environment
                .operator_in_process(true)
                .await
                .context("the operator cannot run in this process")?;
        }
        (scenario.run)(&test).await
    };
    let result = match tokio::time::timeout(limit, run).await {
        Ok(result) => result,
        Err(_) => Err(anyhow::anyhow!("took longer than {} s", scenario.limit)),
    };
    if let Err(error) = &result {
        println!("scenario {} failed: {error:#}. Diagnostics:", scenario.name);
        diagnostics::print(&test).await;
    }
    // Before the next scenario, shared faults are undone and the operator runs again.
    let mended = async {
        if scenario.alone {
            environment
                .fault(environment::Fault::Heal)
                .await
                .context("cannot undo cuts")?;
            environment.operator_in_process(false).await?;
            let started = environment.start_operator().await;
            started.context("the operator does not start")?;
        }
        if keep && result.is_err() {
            Ok(())
        } else {
            test.clean_up().await.context("cannot clean up")
        }
    };
    let mended = mended.await;
    match result.and_then(|what| mended.map(|()| what)) {
        Ok(what) => Outcome::Passed(what),
        Err(error) => Outcome::Failed(error),
    }
}

/// The etcd versions in a folder, oldest first.
fn versions(folder: &std::path::Path) -> Result<Vec<EtcdVersion>> {
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("no etcd programs in {}; run ./x setup", folder.display()))?;
    let mut versions: Vec<EtcdVersion> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    versions.sort();
    if versions.is_empty() {
        bail!("no etcd programs in {}; run ./x setup", folder.display());
    }
    Ok(versions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smoke_scenarios_need_no_image_of_the_catalogue() {
        let smoke: Vec<_> = SCENARIOS.iter().filter(|scenario| scenario.smoke).collect();
        assert!(!smoke.is_empty());
        assert!(images(&smoke).is_empty(), "{:?}", images(&smoke));
    }

    #[test]
    fn an_image_that_several_scenarios_need_is_listed_once() {
        let web: Vec<_> = SCENARIOS
            .iter()
            .filter(|scenario| scenario.name.starts_with("web_"))
            .collect();
        assert_eq!(web.len(), 2);
        assert_eq!(images(&web), BTreeSet::from(["nginx:1.22", "nginx:1.26"]));
    }
}
