//! Builds the workspace's programs, and runs the verbs that only call one of them.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::paths::Paths;
use crate::shell::{cmd, run};

/// Arguments that are passed to another program unchanged.
#[derive(clap::Args)]
pub(crate) struct Forwarded {
    /// Arguments of the program
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

#[derive(clap::Args)]
pub(crate) struct Generate {
    /// Change nothing; fail if a committed file differs from what would be generated
    #[arg(long)]
    pub(crate) check: bool,
}

/// Builds one program of the workspace with the development profile and returns its path. It is built as part of the
/// whole workspace, so that dependencies have the same features in every build and are compiled once.
pub(crate) fn build(program: &str) -> Result<PathBuf> {
    compile(&["build", "--workspace", "--bin", program], &[])
}

/// Like [`build`], but optimized: benchmarks measure what users get.
pub(crate) fn build_release(program: &str) -> Result<PathBuf> {
    compile(&["build", "--workspace", "--release", "--bin", program], &[])
}

/// Like [`build`], for an example.
pub(crate) fn build_example(example: &str) -> Result<PathBuf> {
    compile(&["build", "--workspace", "--example", example], &[])
}

/// Like [`build`], for a test program.
pub(crate) fn build_test(test: &str) -> Result<PathBuf> {
    compile(&["test", "--no-run", "--workspace", "--test", test], &[])
}

/// Builds what these arguments of cargo name, with additional environment variables.
pub(crate) fn compile(arguments: &[&str], environment: &[(&str, &str)]) -> Result<PathBuf> {
    let result = cmd("cargo", arguments)
        .args(["--message-format", "json-render-diagnostics"])
        .envs(environment.iter().copied())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    let described = || format!("cargo {}", arguments.join(" "));
    if !result.status.success() {
        bail!("{} failed", described());
    }
    let messages = String::from_utf8(result.stdout)?;
    let executable = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .next_back();
    executable.with_context(|| format!("{} produced no program", described()))
}

/// `./x sim`: optimized, because its value is the number of histories that it explores.
pub(crate) fn sim(args: &Forwarded) -> Result<()> {
    run(cmd("cargo", ["run", "--quiet", "--package", "stateward-sim", "--"]).args(&args.arguments))
}

/// `./x crds`: writes every generated file, or with `--check` fails on a difference.
pub(crate) fn generate(paths: &Paths, args: &Generate) -> Result<()> {
    let program = build("stateward")?;
    let made = tempfile::tempdir().context("cannot create a folder")?;
    run(cmd(&program, ["manifests", "--folder"]).arg(made.path()))?;
    let mut files = Vec::new();
    read_tree(made.path(), &mut files)?;
    for (path, text) in files {
        let path = paths.checkout.join(path.strip_prefix(made.path())?);
        let is = std::fs::read_to_string(&path).unwrap_or_default();
        if args.check && is != text {
            bail!("{} is not up to date: run ./x crds", path.display());
        }
        if is != text {
            std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            println!("wrote {}", path.display());
        }
    }
    Ok(())
}

/// All files below a folder, with their contents.
fn read_tree(folder: &Path, files: &mut Vec<(PathBuf, String)>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read_tree(&path, files)?;
        } else {
            let text = std::fs::read_to_string(&path)?;
            files.push((path, text));
        }
    }
    Ok(())
}
