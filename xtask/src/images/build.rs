//! Building one image of the catalogue: its folder holds `image.json`, and `root` or `programs`, as the embedded Kubernetes reads
//! them, and `packages.txt` with what it was made of. It is made beside its place and renamed there at the end: what is at its
//! place is complete.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::json;

use super::catalogue::{Definition, Layer, VERSION};
use super::maven;
use crate::paths::Paths;
use crate::{debian, golang, pins};

/// Builds an image unless it is there, and returns its folder.
pub(crate) fn build(paths: &Paths, image: &Definition) -> Result<PathBuf> {
    let place = image.folder(&paths.images());
    if is_built(&place) {
        // Of two images with one reference the later description wins: that of the checkout that asked last.
        fs::File::options()
            .append(true)
            .open(place.join("image.json"))?
            .set_modified(std::time::SystemTime::now())?;
        return Ok(place);
    }
    let started = Instant::now();
    fs::create_dir_all(paths.images())?;
    let work = tempfile::Builder::new()
        .prefix(".building-")
        .tempdir_in(paths.images())?;
    let made = work.path().join("image");
    make(paths, image, &made).with_context(|| format!("cannot build the image {}", image.title()))?;
    if let Err(error) = fs::rename(&made, &place)
        && !is_built(&place)
    {
        return Err(error).with_context(|| format!("cannot move the image to {}", place.display()));
    }
    eprintln!(
        "built the image {} in {:.0} s",
        image.title(),
        started.elapsed().as_secs_f64()
    );
    Ok(place)
}

/// What the description of a built image says that its definition does not know.
#[derive(Deserialize)]
pub(crate) struct Built {
    /// What it is called, with the version where the catalogue asks for it.
    pub(crate) references: Vec<String>,
    #[serde(default)]
    built: Found,
}

#[derive(Default, Deserialize)]
struct Found {
    version: Option<String>,
}

impl Built {
    /// Reads it from an image's folder.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("image.json");
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is wrong", path.display()))
    }

    /// The version of its program, where its packages told.
    pub(crate) fn version(self) -> Option<String> {
        self.built.version
    }
}

/// Whether an image is at its place.
pub(crate) fn is_built(place: &Path) -> bool {
    place.join("image.json").exists()
}

/// Whether an image can be made without a compiler: all that one would make of it is in the cache.
pub(crate) fn needs_no_build(paths: &Paths, image: &Definition) -> bool {
    image.layers.iter().all(|layer| match layer {
        Layer::Go { pin, version, programs } => {
            let folder = paths.cache.join(pin).join(version);
            programs.iter().all(|name| folder.join(name).exists())
        }
        _ => true,
    })
}

fn make(paths: &Paths, image: &Definition, folder: &Path) -> Result<()> {
    let tree = folder.join(if image.over_host { "programs" } else { "root" });
    fs::create_dir_all(&tree)?;
    let (mut contents, mut version) = (Vec::new(), None);
    for layer in &image.layers {
        let found = lay(paths, image, layer, &tree, &mut contents)?;
        version = version.or(found);
    }
    if !image.over_host {
        finish_root(image, &tree)?;
    }
    fs::write(folder.join("packages.txt"), contents.join("\n") + "\n")?;
    let root = if image.over_host { "programs" } else { "root" };
    let filled = |reference: &String| reference.replace(VERSION, version.as_deref().unwrap_or_default());
    let references: Vec<_> = image.references.iter().map(filled).collect();
    let mut description = json!({ "references": references, root: root, "config": image.config.oci() });
    if let Some(version) = version {
        description["built"] = json!({ "version": version });
    }
    Ok(fs::write(
        folder.join("image.json"),
        serde_json::to_vec_pretty(&description)?,
    )?)
}

/// Adds what a layer holds, and returns the version of its program where a layer of packages names one.
fn lay(
    paths: &Paths,
    image: &Definition,
    layer: &Layer,
    tree: &Path,
    contents: &mut Vec<String>,
) -> Result<Option<String>> {
    let programs = if image.over_host {
        tree.to_owned()
    } else {
        tree.join("usr/local/bin")
    };
    match layer {
        Layer::Packages { suite, names, version } => {
            let made_of = debian::root(paths, suite, names, tree, &image.title())?;
            let found = match (version, names.first()) {
                (Some(version), Some(first)) => Some(upstream_version(&made_of, first, version, suite)?),
                _ => None,
            };
            contents.extend(made_of);
            return Ok(found);
        }
        Layer::Programs { suite, packages, files } => {
            let packages: Vec<_> = packages.iter().map(String::as_str).collect();
            let files: Vec<_> = files.iter().map(String::as_str).collect();
            let folder = paths.cache.join(&image.name).join(&image.tag);
            contents.extend(debian::recorded_files(paths, suite, &packages, &files, &folder)?);
            for file in files {
                let name = Path::new(file).file_name().context("a file without a name")?;
                link(&folder.join(name), &programs)?;
            }
        }
        Layer::Go {
            pin,
            version,
            programs: names,
        } => {
            let folder = paths.cache.join(pin).join(version);
            if names.iter().any(|name| !folder.join(name).exists()) {
                golang::build(paths, &pins::named(pin, version)?, &folder)?;
            }
            for name in names {
                link(&folder.join(name), &programs)?;
            }
            contents.push(format!("{pin} {version}"));
        }
        Layer::Maven { artifact, sha512, to } => {
            maven::unpack(paths, artifact, sha512, &below(tree, to), &image.title())?;
            contents.push(artifact.clone());
        }
        Layer::Files(files) => {
            for (place, text) in files {
                let path = below(tree, place);
                fs::create_dir_all(path.parent().unwrap_or(tree))?;
                fs::write(&path, text)?;
                // What begins as a script is one.
                let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
                fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            }
        }
        Layer::Links(links) => {
            for (place, to) in links {
                let path = below(tree, place);
                fs::create_dir_all(path.parent().unwrap_or(tree))?;
                std::os::unix::fs::symlink(to, &path).with_context(|| format!("cannot link {place}"))?;
            }
        }
        Layer::Folders(folders) => {
            for folder in folders {
                fs::create_dir_all(below(tree, folder))?;
            }
        }
    }
    Ok(None)
}

/// The version of a package without what Debian adds to it: an epoch before, a revision and a mark of repacking after it. It must begin
/// with what is wanted, because a release of Debian may have moved on to a version that the tag does not stand for.
fn upstream_version(made_of: &[String], package: &str, wanted: &str, suite: &str) -> Result<String> {
    let mut lines = made_of.iter().map(|line| line.split(' '));
    let found = lines.find_map(|mut words| (words.next() == Some(package)).then(|| words.next()).flatten());
    let found = found.with_context(|| format!("{package} is not among its own packages"))?;
    let version = found.split_once(':').map_or(found, |(_epoch, version)| version);
    ensure!(
        version.starts_with(wanted),
        "Debian {suite} has {package} {version} now, and not {wanted}*: change the tag in pins/images.yaml"
    );
    let upstream = version
        .rsplit_once('-')
        .map_or(version, |(upstream, _revision)| upstream);
    let end = upstream.find(['+', '~']).unwrap_or(upstream.len());
    Ok(upstream[..end].to_owned())
}

/// Folders and files that every root has, whatever it is made of.
fn finish_root(image: &Definition, tree: &Path) -> Result<()> {
    for folder in ["dev", "etc", "proc", "run", "sys", "tmp", "var/tmp"] {
        fs::create_dir_all(tree.join(folder))?;
    }
    for folder in ["tmp", "var/tmp"] {
        fs::set_permissions(tree.join(folder), fs::Permissions::from_mode(0o1777))?;
    }
    // A folder in some releases, and a link once maintainer scripts have run. Relative: nobody must follow it out of this tree.
    let run = tree.join("var/run");
    if fs::remove_dir(&run).is_ok() || fs::symlink_metadata(&run).is_err() {
        std::os::unix::fs::symlink("../run", &run)?;
    }
    // So that they are in the archive, too, and belong to the image's user there.
    for volume in &image.config.volumes {
        fs::create_dir_all(below(tree, volume))?;
    }
    let (uid, gid) = image.config.user.split_once(':').unwrap_or(("0", "0"));
    let mut passwd = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n".to_owned();
    let mut group = "root:x:0:\nnogroup:x:65534:\n".to_owned();
    if uid != "0" {
        let name = &image.name;
        passwd.push_str(&format!("{name}:x:{uid}:{gid}::/:/bin/sh\n"));
        group.push_str(&format!("{name}:x:{gid}:\n"));
    }
    for (file, text) in [("etc/passwd", passwd), ("etc/group", group)] {
        if !tree.join(file).exists() {
            fs::write(tree.join(file), text)?;
        }
    }
    Ok(())
}

fn below(tree: &Path, place: &str) -> PathBuf {
    tree.join(place.trim_start_matches('/'))
}

/// Puts a program into a folder, without a second copy where the file system can.
fn link(program: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let Some(name) = program.file_name() else {
        bail!("{} has no name", program.display());
    };
    let place = folder.join(name);
    fs::hard_link(program, &place)
        .or_else(|_| fs::copy(program, &place).map(drop))
        .with_context(|| format!("cannot copy {}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_without_what_debian_adds() {
        let version = |package: &str, wanted: &str| {
            let made_of = [
                "db-server-core 2.0-1 amd64",
                "db-server 1:9.7.4-2 amd64",
                "cache 2.42.0+ds-5+b5 amd64",
                "native 3.1 all",
            ];
            upstream_version(&made_of.map(str::to_owned), package, wanted, "sid")
        };
        assert_eq!(version("db-server", "9.7.").unwrap(), "9.7.4");
        assert_eq!(version("cache", "2.42").unwrap(), "2.42.0");
        assert_eq!(version("native", "3.").unwrap(), "3.1");
        // A release that moved on is not taken for what the tag says.
        let error = version("db-server", "9.5.").unwrap_err();
        assert!(error.to_string().contains("9.7.4-2"), "{error}");
        assert!(version("db", "9.7.").is_err());
    }
}
