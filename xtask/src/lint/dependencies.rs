//! Checks the dependency tree against `deny.toml`: licenses, banned crates, and crates.io as the only source. This is
//! our own check on `cargo metadata`, so that it runs everywhere.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::paths::Paths;
use crate::shell::{cmd, output};

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The parts of `deny.toml` that are checked here.
struct Rules {
    licences: BTreeSet<String>,
    banned: BTreeSet<String>,
}

pub(super) fn check(paths: &Paths) -> Result<()> {
    let text = fs::read_to_string(paths.checkout.join("deny.toml")).context("cannot read deny.toml")?;
    let rules = Rules {
        licences: list(&text, "allow")?,
        banned: list(&text, "deny")?,
    };
    let words = [
        "metadata",
        "--format-version=1",
        "--locked",
        "--filter-platform=x86_64-unknown-linux-gnu",
    ];
    let metadata: Value = serde_json::from_str(&output(cmd("cargo", words).current_dir(&paths.checkout))?)?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata names no packages")?;
    let wrong: Vec<String> = packages
        .iter()
        .flat_map(|package| complaints(&rules, package))
        .collect();
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}

fn complaints(rules: &Rules, package: &Value) -> Vec<String> {
    let text = |field: &str| package[field].as_str().unwrap_or_default();
    let (name, version, licence) = (text("name"), text("version"), text("license"));
    let mut wrong = Vec::new();
    if rules.banned.contains(name) {
        wrong.push(format!("{name} {version} is banned in deny.toml"));
    }
    if !is_allowed(&rules.licences, licence) {
        wrong.push(format!(
            "{name} {version}: deny.toml does not allow its license, \"{licence}\""
        ));
    }
    // A package of this workspace has no source.
    if package["source"].as_str().is_some_and(|source| source != REGISTRY) {
        wrong.push(format!("{name} {version} does not come from crates.io"));
    }
    wrong
}

/// The entries of `name = [ … ]`. The file is ours and simple: no entry contains a bracket or a quote.
fn list(file: &str, name: &str) -> Result<BTreeSet<String>> {
    let begin = format!("\n{name} = [");
    let rest = file
        .split_once(&begin)
        .with_context(|| format!("deny.toml has no list \"{name}\""))?
        .1;
    let inside = rest.split_once(']').context("a list in deny.toml has no end")?.0;
    let lines = inside.lines().filter(|line| !line.trim_start().starts_with('#'));
    Ok(lines
        .flat_map(|line| line.split('"').skip(1).step_by(2))
        .map(str::to_owned)
        .collect())
}

/// Whether the licenses of the list satisfy a license expression. `AND` binds closer than `OR`; a slash is an old form
/// of `OR`; an exception (`WITH`) only permits more.
fn is_allowed(allowed: &BTreeSet<String>, expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any(allowed, &mut rest) && rest.is_empty()
}

fn any(allowed: &BTreeSet<String>, rest: &mut &[&str]) -> bool {
    let mut met = all(allowed, rest);
    while let Some((&"OR", after)) = rest.split_first() {
        *rest = after;
        met |= all(allowed, rest);
    }
    met
}

fn all(allowed: &BTreeSet<String>, rest: &mut &[&str]) -> bool {
    let mut met = one(allowed, rest);
    while let Some((&"AND", after)) = rest.split_first() {
        *rest = after;
        met &= one(allowed, rest);
    }
    met
}

fn one(allowed: &BTreeSet<String>, rest: &mut &[&str]) -> bool {
    let Some((first, after)) = rest.split_first() else {
        return false;
    };
    *rest = after;
    if *first == "(" {
        let met = any(allowed, rest);
        return match rest.split_first() {
            Some((&")", after)) => {
                *rest = after;
                met
            }
            _ => false,
        };
    }
    if let [with, _, after @ ..] = *rest
        && *with == "WITH"
    {
        *rest = after;
    }
    // "or any later version"
    allowed.contains(first.trim_end_matches('+'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_is_allowed_when_its_expression_can_be_met() {
        // given a list as in deny.toml
        let file = "[licenses]\nallow = [\n  \"MIT\",\n  # \"GPL-3.0\" is not\n  \"Zlib\",\n]\n";
        let allowed = list(file, "allow").unwrap();
        assert_eq!(allowed.len(), 2);
        // when and then
        for (expression, met) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0/MIT", true),
            ("GPL-3.0 AND MIT", false),
            ("(GPL-3.0 OR MIT) AND Zlib", true),
            ("GPL-3.0 AND Zlib OR MIT", true),
            ("MIT WITH some-exception", true),
            ("Zlib+", true),
            ("(MIT", false),
            ("", false),
        ] {
            assert_eq!(is_allowed(&allowed, expression), met, "{expression}");
        }
    }
}
