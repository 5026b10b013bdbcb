//! `./x published`: checks the published packages with the tools that consume them: the OLM bundle with OLM's
//! validator, the plugin's manifest with krew's, the alert rules with Prometheus' own parser. All are built from the Go
//! module proxy.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::paths::Paths;
use crate::pins::{self, Pin};
use crate::shell::{cmd, output};
use crate::{cargo, golang, release};

pub(crate) fn run(paths: &Paths) -> Result<()> {
    let work = tempfile::tempdir()?;
    let program = cargo::build("stateward")?;
    output(cmd(program, ["manifests", "--bundle"]).arg(work.path()))?;
    bundle(paths, work.path())?;
    let manifest = work.path().join("stateward.yaml");
    let (archive, digest) = ("stateward.tar.gz", "0".repeat(64)); // neither is checked
    fs::write(&manifest, release::krew(archive, &digest)?)?;
    plugin(paths, &manifest)?;
    let rules = rules(paths, work.path())?;
    println!("published: OLM's bundle, krew's manifest and {rules} of Prometheus are valid");
    Ok(())
}

/// Checks that the bundle has no errors and no warnings.
pub(crate) fn bundle(paths: &Paths, folder: &Path) -> Result<()> {
    let verify = tool(paths, &pins::operator_verify())?;
    let out = cmd(verify, ["manifests"]).arg(folder.join("manifests")).output()?;
    let said = [out.stdout, out.stderr].concat();
    if !out.status.success() || !said.is_empty() {
        bail!("OLM rejects the bundle: {}", String::from_utf8_lossy(&said).trim());
    }
    Ok(())
}

/// Checks the manifest as krew does. It is not installed, because nothing is downloaded.
pub(crate) fn plugin(paths: &Paths, manifest: &Path) -> Result<()> {
    let validate = tool(paths, &pins::validate_krew_manifest())?;
    output(cmd(validate, ["-skip-install", "-manifest"]).arg(manifest))
        .map(drop)
        .context("krew rejects the plugin's manifest")
}

/// Writes the chart's alert rules as a file that Prometheus loads, and checks it.
fn rules(paths: &Paths, work: &Path) -> Result<String> {
    let groups = fs::read_to_string(paths.checkout.join("charts/stateward/files/alerts.yaml"))?;
    let file = work.join("rules.yaml");
    fs::write(&file, format!("groups:\n{groups}"))?;
    let said =
        output(&mut cmd(tool(paths, &pins::rulecheck())?, [&file])).context("Prometheus rejects the alert rules")?;
    Ok(said.trim().to_owned())
}

fn tool(paths: &Paths, pin: &Pin) -> Result<PathBuf> {
    let folder = paths.cache.join(pin.name).join(&pin.version);
    golang::build(paths, pin, &folder)?;
    Ok(folder.join(pin.name))
}
