//! `./x bench`: benchmarks, as ratios against a baseline of the same run wherever there is one. `./x kube test --bench`
//! measures the operator in the real environment.

use anyhow::Result;

use crate::paths::Paths;
use crate::shell::{cmd, run as show};
use crate::{cargo, e2e, setup};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to measure; everything if none is named
    #[arg(value_enum)]
    subjects: Vec<Subject>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Subject {
    /// The embedded API server: start-up time, idle memory, durable creates per second
    Server,
    /// The operator compared with a script that creates the same pods, in the embedded environment
    Clusters,
    /// A backup and a restore of 1 GiB compared with etcd's own tools, and their memory use
    Backup,
}

pub(crate) fn run(paths: &Paths, args: &Args) -> Result<()> {
    setup::ensure(paths)?;
    let wanted = |subject| args.subjects.is_empty() || args.subjects.contains(&subject);
    if wanted(Subject::Server) {
        let words = [
            "run",
            "--quiet",
            "--release",
            "--package",
            "embedded-kube",
            "--example",
            "bench",
        ];
        show(cmd("cargo", words).current_dir(&paths.checkout))?;
    }
    if wanted(Subject::Clusters) {
        let arguments = ["--bench".to_owned()];
        let mut suite = e2e::suite(paths, "embedded", cargo::build_release, &arguments)?;
        show(suite.current_dir(&paths.checkout))?;
    }
    if wanted(Subject::Backup) {
        let words = [
            "bench",
            "--quiet",
            "--package",
            "stateward-etcd-driver",
            "--bench",
            "backup",
        ];
        let mut bench = cmd("cargo", words);
        bench
            .env("STATEWARD_CACHE", &paths.cache)
            .env("STATEWARD_ETCD_DIR", paths.cache.join("etcd"));
        show(bench.current_dir(&paths.checkout))?;
    }
    Ok(())
}
