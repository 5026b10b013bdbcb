//! `./x demo`: all set-up, then the `stateward` program's own demo takes over this process.

use std::os::unix::process::CommandExt;

use anyhow::{Context, Result};

use crate::paths::Paths;
use crate::{cargo, setup};

/// Options of `./x demo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Given to `stateward demo`, for example --check
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    demo: Vec<String>,
}

pub(crate) fn run(paths: &Paths, args: &Args) -> Result<()> {
    setup::ensure(paths)?;
    let program = cargo::build("stateward")?;
    // Replaces this process, so that Ctrl-C and the exit status are the demo's own.
    let failure = std::process::Command::new(&program)
        .arg("demo")
        .args(&args.demo)
        .env("STATEWARD_CACHE", &paths.cache)
        .current_dir(&paths.checkout)
        .exec();
    Err(failure).with_context(|| format!("cannot start {}", program.display()))
}
