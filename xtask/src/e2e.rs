//! `./x e2e`: the end-to-end suite on the embedded Kubernetes. `./x kube test` runs it on the real one.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::paths::Paths;
use crate::shell::{cmd, output, run as show};
use crate::{cargo, images, pins, setup};

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
    let program = build("stateward-e2e")?;
    let mut command = Command::new(&program);
    // Last: compiling takes minutes, in which another checkout may have added an etcd to the cache that needs an image.
    setup::ensure(paths)?;
    command.args(["--environment", environment]).args(arguments);
    command
        .env("STATEWARD_CACHE", &paths.cache)
        .env("STATEWARD_ETCD_DIR", paths.cache.join("etcd"))
        .env("STATEWARD_IMAGES", paths.images());
    command.env("STATEWARD_XTASK", std::env::current_exe()?);
    let provided = provide_images(paths, &program, arguments)?;
    let provided: Vec<_> = provided.iter().map(ToString::to_string).collect();
    command.env("STATEWARD_PROVIDED_IMAGES", provided.join(","));
    // The newest kubectl that was built, otherwise Debian's.
    let built = paths.cache.join("kube").join(pins::KUBERNETES[0]);
    let mut folders = vec![paths.helm(), built, paths.kubectl(pins::KUBECTL)];
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    command.env("PATH", std::env::join_paths(folders)?);
    Ok(command)
}

/// An image of the catalogue that was built.
pub(crate) struct Provided {
    /// `name:tag`.
    pub(crate) title: String,
    /// The version of its program, where it is known.
    version: Option<String>,
}

impl std::fmt::Display for Provided {
    /// As the suite reads it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.version {
            Some(version) => write!(f, "{}={version}", self.title),
            None => f.write_str(&self.title),
        }
    }
}

/// Builds the images of the catalogue that the chosen scenarios need. An image that cannot be built
/// fails nothing here: the scenarios that need it are then reported as such that cannot run.
pub(crate) fn provide_images(paths: &Paths, program: &Path, arguments: &[String]) -> Result<Vec<Provided>> {
    if arguments
        .iter()
        .any(|word| ["--list", "--bench", "--help", "-h"].contains(&word.as_str()))
    {
        return Ok(Vec::new());
    }
    let mut list = cmd(program, ["--list-images"]);
    list.args(arguments).env("STATEWARD_ETCD_DIR", paths.cache.join("etcd"));
    let mut provided = Vec::new();
    for name in output(&mut list)?.lines() {
        match images::provide(paths, name).and_then(|folder| images::Built::read(&folder)) {
            Ok(built) => provided.push(Provided {
                title: name.to_owned(),
                version: built.version(),
            }),
            Err(error) => eprintln!("continuing without: {error:#}"),
        }
    }
    Ok(provided)
}
