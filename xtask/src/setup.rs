//! `./x setup`: what the embedded Kubernetes runs, without a compiler: etcd in two versions, and the oldest kubectl that
//! must work, and the images of each etcd that needs no compiler or was compiled before. Every other verb that needs them calls this first; when all is there it only looks.

use anyhow::Result;

use crate::debian;
use crate::images::{self, Catalogue};
use crate::paths::Paths;

/// Options of `./x setup`.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(paths: &Paths, _args: &Args) -> Result<()> {
    ensure(paths)?;
    println!("etcd    {}", versions(&paths.cache.join("etcd")));
    println!("kubectl {}", versions(&paths.cache.join("kubectl")));
    println!("in      {}", paths.cache.display());
    Ok(())
}

/// Fetches what is missing. One etcd is enough to go on with: a mirror may carry one release of Debian only.
pub(crate) fn ensure(paths: &Paths) -> Result<()> {
    let catalogue = Catalogue::read(&paths.checkout)?;
    let etcds = catalogue.find(&["etcd".to_owned()])?;
    let wanted = etcds.into_iter().filter(|image| images::needs_no_build(paths, image));
    let results: Vec<Result<_>> = wanted.map(|image| images::build(paths, image)).collect();
    if results.iter().all(Result::is_err) {
        return results.into_iter().map(|result| result.map(drop)).collect();
    }
    results
        .into_iter()
        .filter_map(Result::err)
        .for_each(|error| eprintln!("going on without: {error:#}"));
    debian::files(
        paths,
        "bookworm",
        &["kubernetes-client"],
        &["usr/bin/kubectl"],
        &paths.kubectl("1.20"),
    )
}

fn versions(folder: &std::path::Path) -> String {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names.join(", ")
}
