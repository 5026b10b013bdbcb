//! `./x setup`: fetches what the embedded Kubernetes runs, without a compiler: two versions of etcd, and the oldest
//! supported kubectl. Every verb that needs them calls this first; it does nothing if everything exists.

use anyhow::Result;

use crate::debian;
use crate::paths::Paths;

/// What each Debian release carries: release, version, programs.
const ETCDS: [(&str, &str, &[&str]); 2] = [
    ("bookworm", "3.4.23", &["usr/bin/etcd", "usr/bin/etcdctl"]),
    (
        "trixie",
        "3.5.16",
        &["usr/bin/etcd", "usr/bin/etcdctl", "usr/bin/etcdutl"],
    ),
];

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
    let packages = ["etcd-server", "etcd-client"];
    let results = ETCDS
        .map(|(release, version, programs)| debian::files(paths, release, &packages, programs, &paths.etcd(version)));
    if results.iter().all(Result::is_err) {
        return results.into_iter().collect();
    }
    results
        .into_iter()
        .filter_map(Result::err)
        .for_each(|error| eprintln!("continuing without: {error:#}"));
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
