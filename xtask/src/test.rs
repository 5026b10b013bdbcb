//! `./x test`: the linters, the generated files, every test of the workspace, then the demo and the smoke scenarios of
//! the end-to-end suite on the embedded Kubernetes. It names the lane that failed. The summary line of the workspace's
//! tests has cargo's format, summed over all test programs.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::paths::Paths;
use crate::shell::cmd;
use crate::{cargo, e2e, lint, pins, setup};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compile and test one crate without the others of the workspace, and nothing else: for example embedded-kube
    #[arg(long, value_name = "CRATE")]
    only: Option<String>,
    /// Arguments of `cargo test --workspace`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    cargo: Vec<String>,
}

pub(crate) fn run(paths: &Paths, args: &Args) -> Result<()> {
    setup::ensure(paths).context("lane failed: setup")?;
    if args.only.is_none() {
        setup::ensure_for_tests(paths).context("lane failed: images of the tests")?;
        lint::run(paths)?;
        cargo::generate(paths, &cargo::Generate { check: true }).context("lane failed: generated files")?;
    }
    let started = Instant::now();
    let (passed, sum) = cargo_test(paths, args)?;
    let word = if passed { "ok" } else { "FAILED" };
    let Sum {
        passed: good,
        failed,
        ignored,
        filtered,
    } = sum;
    println!(
        "test result: {word}. {good} passed; {failed} failed; {ignored} ignored; 0 measured; {filtered} filtered out; \
         finished in {:.2}s",
        started.elapsed().as_secs_f64()
    );
    if !passed {
        bail!("lane failed: cargo test");
    }
    if args.only.is_some() || !args.cargo.is_empty() {
        return Ok(()); // only the given tests were requested
    }
    let program = cargo::build("stateward")?;
    let mut demo = cmd(&program, ["demo", "--check"]);
    demo.env("STATEWARD_CACHE", &paths.cache).current_dir(&paths.checkout);
    crate::shell::run(&mut demo).context("lane failed: demo")?;
    let mut suite = e2e::suite(paths, "embedded", cargo::build, &["--smoke".to_owned()])?;
    crate::shell::run(suite.current_dir(&paths.checkout)).context("lane failed: end to end on the embedded Kubernetes")
}

/// Every available kubectl: Debian's, and the newest one that was built.
fn kubectls(paths: &Paths) -> String {
    let mut found = vec![paths.kubectl(pins::KUBECTL).join("kubectl")];
    let built = std::fs::read_dir(paths.cache.join("kube"))
        .into_iter()
        .flatten()
        .flatten();
    let mut built: Vec<_> = built.map(|entry| entry.path().join("kubectl")).collect();
    built.sort();
    found.extend(built.pop());
    let found = found
        .iter()
        .filter(|path| path.is_file())
        .map(|path| path.display().to_string());
    found.collect::<Vec<_>>().join(":")
}

/// The sum of cargo's `test result:` lines.
#[derive(Default, Debug, PartialEq)]
struct Sum {
    passed: u64,
    failed: u64,
    ignored: u64,
    filtered: u64,
}

impl Sum {
    /// Adds a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1s`.
    fn add(&mut self, line: &str) {
        let Some((_, counts)) = line
            .strip_prefix("test result: ")
            .and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        for part in counts.split("; ") {
            let Some((number, what)) = part.split_once(' ') else {
                continue;
            };
            let Ok(number) = number.parse::<u64>() else { continue };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                "filtered out" => self.filtered += number,
                _ => {}
            }
        }
    }
}

fn cargo_test(paths: &Paths, args: &Args) -> Result<(bool, Sum)> {
    let scope = match &args.only {
        None => vec!["--workspace"],
        Some(one) => vec!["--package", one],
    };
    let mut child = cmd("cargo", ["test", "--no-fail-fast"])
        .args(scope)
        .args(&args.cargo)
        .env("STATEWARD_CACHE", &paths.cache)
        .env("STATEWARD_ETCD_DIR", paths.cache.join("etcd"))
        .env("EMBEDDED_KUBE_ETCD_DIR", paths.cache.join("etcd"))
        .env("KUBECTLS", kubectls(paths))
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo test")?;
    let mut sum = Sum::default();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            println!("{line}");
            sum.add(&line);
        }
    }
    Ok((child.wait()?.success(), sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_add_up_and_others_do_not_count() {
        let mut sum = Sum::default();
        sum.add("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.10s");
        sum.add("test foo ... ok");
        sum.add("test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 4 filtered out; finished in 0.00s");
        assert_eq!(
            sum,
            Sum {
                passed: 5,
                failed: 1,
                ignored: 1,
                filtered: 4
            }
        );
    }
}
