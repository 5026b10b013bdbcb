//! Building the workspace's programs, and the verbs that only hand over to one of them.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::paths::Paths;
use crate::shell::{cmd, output, run};

/// Arguments that go to another program as they are.
#[derive(clap::Args)]
pub(crate) struct Forwarded {
    /// Given to the program
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Options of `./x crds`.
#[derive(clap::Args)]
pub(crate) struct Generate {
    /// Change nothing; fail when a committed file is not what would be generated
    #[arg(long)]
    pub(crate) check: bool,
}

/// Builds one program of the workspace with the development profile and returns where it is.
pub(crate) fn build(package: &str) -> Result<PathBuf> {
    build_with(package, &[], &[])
}

/// As [`build`], with more arguments and environment for cargo.
pub(crate) fn build_with(package: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Result<PathBuf> {
    let result = cmd(
        "cargo",
        [
            "build",
            "--package",
            package,
            "--message-format",
            "json-render-diagnostics",
        ],
    )
    .args(arguments)
    .envs(environment.iter().copied())
    .stderr(Stdio::inherit())
    .output()
    .context("cannot start cargo")?;
    if !result.status.success() {
        bail!("cargo build --package {package} failed");
    }
    let messages = String::from_utf8(result.stdout)?;
    let executable = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .next_back();
    executable.with_context(|| format!("package {package} has no program"))
}

/// `./x sim`: optimized, since its worth is the number of histories it walks.
pub(crate) fn sim(args: &Forwarded) -> Result<()> {
    run(cmd("cargo", ["run", "--quiet", "--package", "stateward-sim", "--"]).args(&args.arguments))
}

/// `./x crds`: writes every generated file in place, or with `--check` fails on a difference.
pub(crate) fn generate(paths: &Paths, args: &Generate) -> Result<()> {
    let program = build("stateward")?;
    let made = tempfile::tempdir().context("cannot make a folder")?;
    run(cmd(&program, ["crds", "--folder"]).arg(made.path()))?;
    let deploy = paths.checkout.join("deploy");
    let mut files = vec![(deploy.join("install.yaml"), output(&mut cmd(&program, ["manifests"]))?)];
    for entry in std::fs::read_dir(made.path())? {
        let entry = entry?;
        let text = std::fs::read_to_string(entry.path())?;
        files.push((deploy.join("crds").join(entry.file_name()), text));
    }
    for (path, text) in files {
        let is = std::fs::read_to_string(&path).unwrap_or_default();
        if args.check && is != text {
            bail!("{} is not what the program makes: run ./x crds", path.display());
        }
        if is != text {
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            println!("wrote {}", path.display());
        }
    }
    Ok(())
}
