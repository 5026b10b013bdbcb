//! `./x e2e`: the end-to-end suite on the embedded Kubernetes. `./x kube test` runs it on the real one.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::paths::Paths;
use crate::shell::run as show;
use crate::{cargo, pins, setup};

/// Options of the suite; `./x e2e --help` documents them.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Arguments of the suite: --smoke, --list, --repeat N, --keep, names of scenarios
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    suite: Vec<String>,
}

pub(crate) fn run(paths: &Paths, args: &Args) -> Result<()> {
    show(suite(paths, "embedded", cargo::build, &args.suite)?.current_dir(&paths.checkout))
}

/// Builds the suite, and returns a command with its environment.
pub(crate) fn suite(
    paths: &Paths,
    environment: &str,
    build: fn(&str) -> Result<PathBuf>,
    arguments: &[String],
) -> Result<Command> {
    // The pods that take and restore backups run this program.
    build("stateward")?;
    let mut command = Command::new(build("stateward-e2e")?);
    // Last: compiling takes minutes, in which another checkout may have added an etcd to the cache that needs an image.
    setup::ensure(paths)?;
    command.args(["--environment", environment]).args(arguments);
    command
        .env("STATEWARD_CACHE", &paths.cache)
        .env("STATEWARD_ETCD_DIR", paths.cache.join("etcd"))
        .env("STATEWARD_IMAGES", paths.images());
    command.env("STATEWARD_XTASK", std::env::current_exe()?);
    // The newest kubectl that was built, otherwise Debian's.
    let built = paths.cache.join("kube").join(pins::KUBERNETES[0]);
    let mut folders = vec![paths.helm(), built, paths.kubectl(pins::KUBECTL)];
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    command.env("PATH", std::env::join_paths(folders)?);
    Ok(command)
}
