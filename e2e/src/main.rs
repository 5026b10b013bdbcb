//! The end-to-end suite: each scenario is written once, against a kubeconfig and a small set of faults, and runs on the
//! embedded and on a real Kubernetes. Run it with `./x e2e` or `./x kube test`.

mod bench;
mod cert_manager;
mod certificates;
mod definitions;
mod ground;
mod log;
mod memory;
mod meter;
mod s3;
mod scenarios;
#[path = "../../crates/store/tests/servers/mod.rs"]
mod servers;
mod story;
mod test;
mod tool;
mod wait;
mod writer;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use futures::StreamExt;
use stateward_api::EtcdVersion;

use ground::Ground;
use scenarios::{SCENARIOS, Scenario};
use test::Test;

/// Runs scenarios on a ground.
#[derive(Parser)]
struct Options {
    /// Where
    #[arg(long, value_enum, default_value = "embedded")]
    ground: Where,
    /// Only those that matter most
    #[arg(long)]
    smoke: bool,
    /// Measure what the operator needs against the same objects made by hand, instead of running scenarios
    #[arg(long)]
    bench: bool,
    /// Only list them
    #[arg(long)]
    list: bool,
    /// Run all this many times
    #[arg(long, default_value_t = 1)]
    repeat: usize,
    /// How many scenarios run side by side, where they need not be alone
    #[arg(long, default_value_t = 4)]
    beside: usize,
    /// Leave a failed scenario's namespace as it is
    #[arg(long)]
    keep: bool,
    /// Folders of etcd programs by version: the versions that there are images of
    #[arg(long, env = "STATEWARD_ETCD_DIR")]
    etcd: PathBuf,
    /// The images of the embedded environment
    #[arg(long, env = "STATEWARD_IMAGES", default_value = "images")]
    images: PathBuf,
    /// The program that breaks things on the real ground
    #[arg(long, env = "STATEWARD_XTASK", default_value = "xtask")]
    xtask: PathBuf,
    /// Only these scenarios; measurements by a word of their names
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

#[tokio::main]
async fn main() -> ExitCode {
    match suite(Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stateward-e2e: {error:#}");
            ExitCode::FAILURE
        }
    }
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
        bail!("there is no scenario {unknown}; --list shows them");
    }
    if options.list {
        chosen
            .iter()
            .for_each(|scenario| println!("{}{}", scenario.name, if scenario.smoke { " (smoke)" } else { "" }));
        return Ok(());
    }
    let versions = versions(&options.etcd)?;
    let ground: Arc<dyn Ground> = match options.ground {
        Where::Embedded => {
            Arc::new(ground::embedded::Embedded::start(&options.images, versions, log::Log::install()).await?)
        }
        Where::Real => {
            Arc::new(ground::real::Real::connect(options.xtask.clone(), versions, log::Log::install()).await?)
        }
    };
    if options.bench {
        return bench::run(&ground, &options.names).await;
    }
    let mut tally = Tally::default();
    let all = Instant::now();
    for _ in 0..options.repeat.max(1) {
        for alone in [false, true] {
            let these = chosen.iter().filter(|scenario| scenario.alone == alone);
            let runs = these.map(|scenario| timed(&ground, scenario, options.keep));
            let beside = if alone { 1 } else { options.beside.max(1) };
            let mut ends = futures::stream::iter(runs).buffer_unordered(beside);
            while let Some(end) = ends.next().await {
                tally.add(ground.name(), end);
            }
        }
    }
    let Tally {
        passed,
        failed,
        skipped,
    } = tally;
    println!(
        "{} ground, {:.0} s{}",
        ground.name(),
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

/// How the scenarios ended.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: Vec<&'static str>,
    skipped: usize,
}

impl Tally {
    fn add(&mut self, ground: &str, (scenario, seconds, outcome): (&Scenario, f64, Outcome)) {
        let name = scenario.name;
        match outcome {
            Outcome::Passed(what) => {
                self.passed += 1;
                println!("scenario {name} ... ok ({seconds:.1} s) {what}");
            }
            Outcome::CannotRun(why) => {
                self.skipped += 1;
                println!("scenario {name} ... cannot run on the {ground} ground: {why}");
            }
            Outcome::Failed(error) => {
                self.failed.push(name);
                println!("scenario {name} ... FAILED ({seconds:.1} s): {error:#}");
            }
        }
    }
}

async fn timed<'a>(ground: &Arc<dyn Ground>, scenario: &'a Scenario, keep: bool) -> (&'a Scenario, f64, Outcome) {
    let started = Instant::now();
    let outcome = run(ground, scenario, keep).await;
    (scenario, started.elapsed().as_secs_f64(), outcome)
}

async fn run(ground: &Arc<dyn Ground>, scenario: &Scenario, keep: bool) -> Outcome {
    if let Some(why) = scenario.needs.iter().find_map(|need| ground.lacks(*need)) {
        return Outcome::CannotRun(why);
    }
    let test = match Test::new(ground.clone(), scenario.name).await {
        Ok(test) => test,
        Err(error) => return Outcome::Failed(error),
    };
    let limit = Duration::from_secs(scenario.limit);
    let here = scenario.needs.contains(&ground::Need::Meter);
    let run = async {
        if here {
            ground
                .operator_here(true)
                .await
                .context("the operator cannot run here")?;
        }
        (scenario.run)(&test).await
    };
    let result = match tokio::time::timeout(limit, run).await {
        Ok(result) => result,
        Err(_) => Err(anyhow::anyhow!("took longer than {} s", scenario.limit)),
    };
    if let Err(error) = &result {
        println!("scenario {} failed: {error:#}. Its story:", scenario.name);
        story::tell(&test).await;
    }
    // What was broken of what others share is mended, and the operator works again, before the next one.
    let mended = async {
        if scenario.alone {
            ground.fault(ground::Fault::Heal).await.context("cannot undo cuts")?;
            ground.operator_here(false).await?;
            let started = ground.start_operator().await;
            started.context("the operator does not come back")?;
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
