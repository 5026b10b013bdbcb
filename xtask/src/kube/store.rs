//! The images that every node has from the start, as a containerd store that is filled once. Each node starts with a
//! copy: the index is copied and the content is linked, so three nodes with every etcd cost neither time nor disk
//! space.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::build::Parts;
use super::process::wait_for;
use crate::image;
use crate::paths::Paths;
use crate::shell::{cmd, output};

/// The names that containerd uses inside its root folder.
const INDEX: &str = "io.containerd.metadata.v1.bolt/meta.db";
const CONTENT: &str = "io.containerd.content.v1.content/blobs/sha256";

/// Fills a store with `pause` and every etcd in the cache, unless that was done before.
pub(crate) fn ensure(paths: &Paths, parts: &Parts) -> Result<PathBuf> {
    let archives = [image::pause(paths)?, image::etcds(paths)?];
    let names = archives
        .iter()
        .filter_map(|archive| archive.file_stem()?.to_str())
        .collect::<Vec<_>>()
        .join("+");
    let store = paths.cache.join("images").join(format!("store-{names}"));
    if !store.exists() {
        let work = tempfile::Builder::new()
            .prefix("store-")
            .tempdir_in(paths.cache.join("images"))?;
        fill(parts, work.path(), &archives).context("cannot import the images")?;
        fs::rename(work.path().join("root"), &store)?;
    }
    Ok(store)
}

/// Copies the store for a node, unless the node already has a copy.
pub(crate) fn copy(paths: &Paths, parts: &Parts, root: &Path) -> Result<()> {
    if root.join(INDEX).exists() {
        return Ok(());
    }
    let store = ensure(paths, parts)?;
    fs::create_dir_all(root.join(CONTENT))?;
    for blob in fs::read_dir(store.join(CONTENT))? {
        let blob = blob?;
        fs::hard_link(blob.path(), root.join(CONTENT).join(blob.file_name()))?;
    }
    fs::create_dir_all(root.join(INDEX).parent().unwrap_or(root))?;
    fs::copy(store.join(INDEX), root.join(INDEX))?;
    Ok(())
}

/// Runs a containerd for the duration of the import. Without the plugins that run pods, it opens nothing but its
/// socket.
fn fill(parts: &Parts, work: &Path, archives: &[PathBuf]) -> Result<()> {
    let (socket, config) = (work.join("socket"), work.join("config.toml"));
    let settings = format!(
        "version = 2\nroot = \"{0}/root\"\nstate = \"{0}/state\"\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\", \
         \"io.containerd.internal.v1.opt\"]\n[grpc]\n  address = \"{0}/socket\"\n",
        work.display()
    );
    fs::write(&config, settings)?;
    let log = fs::File::create(work.join("log"))?;
    let mut containerd = cmd(parts.containerd("containerd"), ["--config"])
        .arg(&config)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start containerd")?;
    let ctr = || parts.ctr(&socket);
    let result = wait_for("containerd", Duration::from_secs(60), || output(ctr().arg("version"))).and_then(|_| {
        // Layers stay packed until a pod needs them, because most images are never started on most nodes.
        let mut import = archives
            .iter()
            .map(|archive| output(ctr().args(["images", "import", "--no-unpack"]).arg(archive)));
        import.try_for_each(|imported| imported.map(drop))
    });
    kill(Pid::from_raw(i32::try_from(containerd.id())?), Signal::SIGTERM)?; // so that it closes its files
    containerd.wait()?;
    result
}
