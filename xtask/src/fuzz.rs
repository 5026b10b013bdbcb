//! `./x fuzz`: sends generated requests to the embedded API server. libFuzzer is guided by coverage counters, which the
//! stable compiler can emit too; everything is compiled once more with them, into a folder of its own.

use anyhow::{Result, ensure};

use crate::paths::Paths;
use crate::shell::{cmd, output, run as show};

/// What libFuzzer needs to see which code a request reaches.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Ccodegen-units=1";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Duration in seconds
    #[arg(default_value_t = 60)]
    seconds: u64,
}

pub(crate) fn run(paths: &Paths, args: &Args) -> Result<()> {
    ensure!(
        output(&mut cmd("c++", ["--version"])).is_ok(),
        "libFuzzer is C++ and is compiled here: install g++ (apt-get install g++)"
    );
    let found = paths.cache.join("fuzz");
    std::fs::create_dir_all(found.join("corpus"))?;
    let limits = [format!("-max_total_time={}", args.seconds), "-timeout=20".to_owned()];
    let words = [
        "run",
        "--quiet",
        "--manifest-path",
        "crates/embedded-kube/fuzz/Cargo.toml",
    ];
    // When a target is named, the flags apply only to the program and not to build scripts.
    let mut command = cmd("cargo", words);
    command.args(["--target", "host-tuple", "--"]).args(limits);
    command
        .arg(format!("-artifact_prefix={}/", found.display()))
        .arg(found.join("corpus"))
        .env("RUSTFLAGS", COVERAGE)
        .env("CARGO_TARGET_DIR", paths.cache.join("target-fuzz"));
    show(command.current_dir(&paths.checkout))
}
