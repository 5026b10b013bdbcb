//! `./x release`: everything that is published with a version, in one folder: the program as an archive, the image, the
//! manifests, the chart, the OLM bundle, the krew manifest, a bill of materials, and checksums. The version is the
//! workspace's.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::oci::architecture;
use crate::paths::Paths;
use crate::shell::{cmd, output, run as show};
use crate::{cargo, chart, image, published};

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder to create
    #[arg(long, default_value = "release")]
    folder: PathBuf,
    /// Do not optimize, for trying this out
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(paths: &Paths, args: &Args) -> Result<()> {
    cargo::generate(paths, &cargo::Generate { check: true })?;
    let folder = &args.folder;
    if folder.exists() && fs::read_dir(folder)?.next().is_some() {
        bail!("{} is not empty; choose another --folder", folder.display());
    }
    fs::create_dir_all(folder)?;

    let profile = if args.quick { "dev" } else { "release" };
    let program = image::program(paths, &paths.checkout, profile)?;
    let archive = format!("stateward-{VERSION}-linux-{}.tar.gz", architecture());
    pack(&program, &paths.checkout, &folder.join(&archive))?;
    let image = folder.join(format!("stateward-{VERSION}-image.tar"));
    fs::copy(image::operator(paths, profile)?, &image)?;
    fs::set_permissions(&image, fs::Permissions::from_mode(0o644))?; // in the cache, only the builder can read it
    fs::copy(paths.checkout.join("deploy/install.yaml"), folder.join("install.yaml"))?;
    fs::copy(
        paths.checkout.join("deploy/namespaced.yaml"),
        folder.join("namespaced.yaml"),
    )?;
    let mut helm = cmd(chart::helm(paths)?, ["package", "--destination"]);
    show(helm.arg(folder).arg(paths.checkout.join("charts/stateward")))?;

    let work = tempfile::tempdir()?;
    show(cmd(&program, ["manifests", "--bundle"]).arg(work.path()))?;
    published::bundle(paths, work.path())?;
    let bundle = folder.join(format!("stateward-{VERSION}-olm-bundle.tar.gz"));
    output(
        cmd("tar", ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "-czf"])
            .arg(&bundle)
            .arg("-C")
            .arg(work.path())
            .arg("."),
    )?;

    let digest = digest(&folder.join(&archive))?;
    // krew requires the file to have the plugin's name.
    let plugin = folder.join("stateward.yaml");
    fs::write(&plugin, krew(&archive, &digest)?)?;
    published::plugin(paths, &plugin)?;
    let materials = serde_json::to_string_pretty(&bill_of_materials(paths)?)?;
    fs::write(folder.join(format!("stateward-{VERSION}.spdx.json")), materials)?;
    checksums(folder)?;
    prove(paths, folder, &archive)?;

    println!("release {VERSION} is in {}", folder.display());
    println!(
        "after publishing: copy deploy/crds/*.yaml to crates/engines/etcd/tests/released/ and empty new-rules.yaml there, set PREVIOUS in xtask/src/pins.rs to this commit, raise the version in Cargo.toml"
    );
    Ok(())
}

/// Packs the program, under its own name and as a kubectl plugin, with the license.
fn pack(program: &Path, checkout: &Path, archive: &Path) -> Result<()> {
    let work = tempfile::tempdir()?;
    fs::copy(program, work.path().join("stateward"))?;
    std::os::unix::fs::symlink("stateward", work.path().join("kubectl-stateward"))?;
    fs::copy(checkout.join("LICENSE"), work.path().join("LICENSE")).context("no LICENSE in the checkout")?;
    let mut tar = cmd("tar", ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "-czf"]);
    output(
        tar.arg(archive)
            .arg("-C")
            .arg(work.path())
            .args(["LICENSE", "kubectl-stateward", "stateward"]),
    )
    .map(drop)
}

fn digest(file: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    let mut file = fs::File::open(file)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => hash.update(&buffer[..count]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn checksums(folder: &Path) -> Result<()> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<Result<Vec<_>>>()?;
    names.sort();
    let mut text = String::new();
    for name in names {
        text += &format!("{}  {name}\n", digest(&folder.join(&name))?);
    }
    Ok(fs::write(folder.join("SHA256SUMS"), text)?)
}

/// Checks what a user would do first: the plugin in the archive starts and prints the version, and Helm accepts the
/// chart.
fn prove(paths: &Paths, folder: &Path, archive: &str) -> Result<()> {
    let work = tempfile::tempdir()?;
    output(
        cmd("tar", ["-xzf"])
            .arg(folder.join(archive))
            .arg("-C")
            .arg(work.path()),
    )?;
    let said = output(&mut cmd(work.path().join("kubectl-stateward"), ["--version"]))?;
    if !said.trim().ends_with(VERSION) {
        bail!("the program in {archive} reports version {}", said.trim());
    }
    let chart = folder.join(format!("stateward-{VERSION}.tgz"));
    output(cmd(chart::helm(paths)?, ["lint", "--strict"]).arg(chart)).map(drop)
}

/// The manifest from which krew installs `kubectl stateward`.
pub(crate) fn krew(archive: &str, digest: &str) -> Result<String> {
    let repository = env!("CARGO_PKG_REPOSITORY");
    let manifest = json!({
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "stateward"},
        "spec": {
            "version": format!("v{VERSION}"),
            "homepage": repository,
            "shortDescription": "Show the clusters that Stateward manages",
            "description": "Shows the state of an etcd cluster, what the operator is doing, and what it is waiting for.\n",
            "platforms": [{
                "selector": {"matchLabels": {"os": "linux", "arch": architecture()}},
                "uri": format!("{repository}/releases/download/v{VERSION}/{archive}"),
                "sha256": digest,
                "bin": "stateward",
                "files": [{"from": "stateward", "to": "."}, {"from": "LICENSE", "to": "."}],
            }],
        },
    });
    Ok(serde_yaml_ng::to_string(&manifest)?)
}

/// Every crate that is linked into the program, as SPDX 2.3, from cargo's metadata.
fn bill_of_materials(paths: &Paths) -> Result<Value> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let words = [
        "metadata",
        "--format-version=1",
        "--locked",
        "--filter-platform",
        &target,
    ];
    let metadata: Value = serde_json::from_str(&output(cmd("cargo", words).current_dir(&paths.checkout))?)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let nodes = list(&metadata["resolve"]["nodes"]);
    let packages = list(&metadata["packages"]);
    let root = packages.iter().find(|package| package["name"] == "stateward");
    let root = root.context("cargo knows no package stateward")?["id"].clone();
    let mut linked = BTreeSet::new();
    let mut open = vec![root.as_str().unwrap_or_default().to_owned()];
    while let Some(id) = open.pop() {
        let Some(node) = nodes.iter().find(|node| node["id"] == id.as_str()) else {
            continue;
        };
        if !linked.insert(id) {
            continue;
        }
        let normal = |dependency: &&Value| list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
        let dependencies = list(&node["deps"]);
        open.extend(
            dependencies
                .iter()
                .filter(normal)
                .filter_map(|dependency| Some(dependency["pkg"].as_str()?.to_owned())),
        );
    }
    let mut listed = Vec::new();
    let mut relations = Vec::new();
    for package in packages
        .iter()
        .filter(|package| linked.contains(package["id"].as_str().unwrap_or_default()))
    {
        let (name, version) = (
            package["name"].as_str().unwrap_or_default(),
            package["version"].as_str().unwrap_or_default(),
        );
        let id = format!(
            "SPDXRef-{name}-{}",
            version.replace(|sign: char| !sign.is_ascii_alphanumeric() && sign != '.', "-")
        );
        let from_registry = package["source"].is_string();
        let license = package["license"].as_str().map(|license| license.replace('/', " OR "));
        listed.push(json!({
            "SPDXID": id, "name": name, "versionInfo": version,
            "downloadLocation": if from_registry { format!("https://crates.io/api/v1/crates/{name}/{version}/download") } else { "NOASSERTION".into() },
            "licenseDeclared": license.unwrap_or_else(|| "NOASSERTION".into()), "licenseConcluded": "NOASSERTION",
            "copyrightText": "NOASSERTION", "filesAnalyzed": false,
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": format!("pkg:cargo/{name}@{version}")}],
        }));
        let kind = if package["id"] == root { "DESCRIBES" } else { "CONTAINS" };
        let from = if package["id"] == root {
            "SPDXRef-DOCUMENT".to_owned()
        } else {
            format!("SPDXRef-stateward-{VERSION}")
        };
        relations.push(json!({"spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": id}));
    }
    let words = ["log", "-1", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", "--format=%H %cd"];
    let commit = output(cmd("git", words).env("TZ", "UTC").current_dir(&paths.checkout))?;
    let (commit, date) = commit.trim().split_once(' ').context("git knows no commit")?;
    Ok(json!({
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("stateward-{VERSION}"),
        "documentNamespace": format!("{}/sbom/{VERSION}/{commit}", env!("CARGO_PKG_REPOSITORY")),
        "creationInfo": {"created": date, "creators": ["Tool: stateward-xtask"]},
        "packages": listed, "relationships": relations,
    }))
}
