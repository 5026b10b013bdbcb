//! `./x setup`: fetches what the embedded Kubernetes runs, without a compiler: images of two versions of etcd and of those
//! that were compiled before, and kubectl. Every verb that needs them calls this first; it does nothing
//! if everything exists.

use anyhow::{Context, Result};

use crate::debian;
use crate::images::{self, Catalogue};
use crate::paths::Paths;
use crate::pins;

#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(paths: &Paths, _args: &Args) -> Result<()> {
    ensure(paths)?;
    println!("etcd    {}", versions(&paths.cache.join("etcd")));
    println!("kubectl {}", versions(&paths.cache.join("kubectl")));
    println!("in      {}", paths.cache.display());
    Ok(())
}

/// Fetches what is missing. One etcd is enough to continue, because a mirror may carry only one Debian release.
pub(crate) fn ensure(paths: &Paths) -> Result<()> {
    let catalogue = Catalogue::read(&paths.checkout)?;
    let etcds = catalogue.find(&["etcd".to_owned()])?;
    let (mut built, mut failed) = (0, Vec::new());
    for image in etcds.into_iter().filter(|image| images::needs_no_build(paths, image)) {
        match images::build(paths, image) {
            Ok(_) => built += 1,
            Err(error) => failed.push(error),
        }
    }
    if built == 0 {
        return Err(failed.pop().context("the catalogue has no etcd that can be fetched")?);
    }
    for error in failed {
        eprintln!("continuing without: {error:#}");
    }
    debian::files(
        paths,
        "trixie",
        &["kubectl"],
        &["usr/bin/kubectl"],
        &paths.kubectl(pins::KUBECTL),
    )
}

/// Images that tests of the workspace run beside etcd.
const TESTED: [&str; 1] = ["mysql:9.7"];

/// Fetches what tests need beside [`ensure`]. A test whose image is missing fails and names it.
pub(crate) fn ensure_for_tests(paths: &Paths) -> Result<()> {
    let catalogue = Catalogue::read(&paths.checkout)?;
    for image in catalogue.find(&TESTED.map(str::to_owned))? {
        if let Err(error) = images::build(paths, image) {
            eprintln!("continuing without: {error:#}");
        }
    }
    Ok(())
}

fn versions(folder: &std::path::Path) -> String {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names.join(", ")
}
