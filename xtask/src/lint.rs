//! `./x lint`: the checks that every change must pass before its tests run.
//!
//! cargo-deny takes minutes to compile, so it runs only where it is installed. It adds advisories and yanked crates to
//! what [`dependencies`] checks everywhere with the same `deny.toml`.

mod conflicts;
mod dependencies;
mod purity;
mod standalone;
mod words;

use anyhow::{Context, Result};

use crate::paths::Paths;
use crate::shell::{self, cmd};

/// One check: its name, and the arguments of cargo.
const GATES: [(&str, &[&str]); 3] = [
    ("format", &["fmt", "--all", "--check"]),
    (
        "clippy",
        &[
            "clippy",
            "--quiet",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
    ),
    ("deny", &["deny", "--log-level", "error", "check"]),
];

pub(crate) fn run(paths: &Paths) -> Result<()> {
    eprintln!("lint: merge conflicts");
    conflicts::check(paths).context("lane failed: merge conflicts")?;
    eprintln!("lint: dependencies");
    dependencies::check(paths).context("lane failed: dependencies")?;
    eprintln!("lint: purity");
    purity::check(paths).context("lane failed: purity")?;
    eprintln!("lint: standalone");
    standalone::check(paths).context("lane failed: standalone")?;
    eprintln!("lint: words");
    words::check(paths).context("lane failed: words")?;
    for (name, arguments) in GATES {
        if name == "deny" && !deny_is_installed() {
            eprintln!("lint: deny skipped: cargo-deny is not installed (cargo install --locked cargo-deny)");
            continue;
        }
        eprintln!("lint: {name}");
        shell::run(&mut cmd("cargo", arguments)).with_context(|| format!("lane failed: {name}"))?;
    }
    Ok(())
}

fn deny_is_installed() -> bool {
    shell::output(&mut cmd("cargo", ["deny", "--version"])).is_ok()
}
