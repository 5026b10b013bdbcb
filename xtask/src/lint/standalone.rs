//! The embedded Kubernetes stands alone: it depends on no other crate of this workspace, and its code names neither Stateward nor an
//! engine. Tests and fixtures may, since they need examples.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::paths::Paths;
use crate::shell::{cmd, output};

const CRATE: &str = "embedded-kube";
const NAMES: [&str; 3] = ["stateward", "etcd", "mysql"];

pub(super) fn check(paths: &Paths) -> Result<()> {
    let words = ["tree", "--locked", "--prefix=none", "--format={p}", "--package", CRATE];
    let tree = output(cmd("cargo", words).current_dir(&paths.checkout))?;
    if let Some(found) = sibling(&tree) {
        bail!("{CRATE} must stand alone, but depends on {found}");
    }
    let folder = paths.checkout.join("crates").join(CRATE);
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).context("cannot read its Cargo.toml")?;
    if let Some((line, name)) = named(&manifest) {
        bail!("{CRATE} must stand alone, but line {line} of its Cargo.toml names {name}");
    }
    code(&folder.join("src"))
}

fn code(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default();
        if name == "tests" || name == "fixtures" {
            continue;
        }
        if path.is_dir() {
            code(&path)?;
        } else if let Some((line, name)) = named(&fs::read_to_string(&path)?) {
            bail!("{CRATE} must stand alone, but {}:{line} names {name}", path.display());
        }
    }
    Ok(())
}

/// The first line outside of tests with one of the names.
fn named(text: &str) -> Option<(usize, &'static str)> {
    let code = text.lines().take_while(|line| line.trim() != "#[cfg(test)]");
    code.zip(1..).find_map(|(line, number)| {
        let line = line.to_lowercase();
        NAMES
            .into_iter()
            .find(|name| line.contains(name))
            .map(|name| (number, name))
    })
}

/// The first other crate of the workspace: its line has the path of its folder.
fn sibling(tree: &str) -> Option<&str> {
    let mut others = tree
        .lines()
        .filter(|line| line.contains("(/") && !line.starts_with(CRATE));
    others.find_map(|line| line.split_whitespace().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_siblings_are_found_outside_of_tests() {
        let clean = "// A member\nfn main() {}\n#[cfg(test)]\nmod tests { /* etcd */ }\n";
        assert_eq!(named(clean), None);
        assert_eq!(named(&format!("// See Stateward\n{clean}")), Some((1, "stateward")));
        let tree = "embedded-kube v0.1.0 (/a/crates/embedded-kube)\nkube v5.0.0\nserde_derive v1.0.1 (proc-macro)\n";
        assert_eq!(sibling(tree), None);
        let tree = format!("{tree}stateward-core v0.1.0 (/a/crates/core)\n");
        assert_eq!(sibling(&tree), Some("stateward-core"));
    }
}
