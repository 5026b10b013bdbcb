//! `./x demo`: sets everything up, then replaces this process with the `stateward` program's own demo.

use std::os::unix::process::CommandExt;

use anyhow::{Context, Result};

use crate::paths::Paths;
use crate::{cargo, setup};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Arguments of `stateward demo`, for example --check
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    demo: Vec<String>,
}

pub(crate) fn run(paths: &Paths, args: &Args) -> Result<()> {
    setup::ensure(paths)?;
    let program = cargo::build("stateward")?;
    // Replaces this process, so that Ctrl-C and the exit status are the demo's.
    let failure = std::process::Command::new(&program)
        .arg("demo")
        .args(&args.demo)
        .env("STATEWARD_CACHE", &paths.cache)
        .current_dir(&paths.checkout)
        .exec();
    Err(failure).with_context(|| format!("cannot start {}", program.display()))
}
