//! Building one image of the catalogue: its folder holds `image.json`, and `root` or `programs`, as the embedded Kubernetes reads
//! them, and `packages.txt` with what it was made of. It is made beside its place and renamed there at the end: what is at its
//! place is complete.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::catalogue::{Definition, Layer};
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
    let mut contents = Vec::new();
    for layer in &image.layers {
        lay(paths, image, layer, &tree, &mut contents)?;
    }
    if !image.over_host {
        finish_root(image, &tree)?;
    }
    fs::write(folder.join("packages.txt"), contents.join("\n") + "\n")?;
    let root = if image.over_host { "programs" } else { "root" };
    let description = json!({ "references": image.references, root: root, "config": image.config.oci() });
    Ok(fs::write(
        folder.join("image.json"),
        serde_json::to_vec_pretty(&description)?,
    )?)
}

fn lay(paths: &Paths, image: &Definition, layer: &Layer, tree: &Path, contents: &mut Vec<String>) -> Result<()> {
    let programs = if image.over_host {
        tree.to_owned()
    } else {
        tree.join("usr/local/bin")
    };
    match layer {
        Layer::Packages { suite, names, version } => {
            let made_of = debian::root(paths, suite, names, tree, &image.title())?;
            if let (Some(version), Some(first)) = (version, names.first()) {
                check_version(&made_of, first, version, suite)?;
            }
            contents.extend(made_of);
        }
        Layer::Programs { suite, packages, files } => {
            let packages: Vec<_> = packages.iter().map(String::as_str).collect();
            let files: Vec<_> = files.iter().map(String::as_str).collect();
            let folder = paths.cache.join(&image.name).join(&image.tag);
            debian::files(paths, suite, &packages, &files, &folder)?;
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
    Ok(())
}

/// A release of Debian may have moved on to a version that the tag does not stand for.
fn check_version(made_of: &[String], package: &str, wanted: &str, suite: &str) -> Result<()> {
    let found = made_of
        .iter()
        .find_map(|line| line.strip_prefix(&format!("{package} ")));
    let found = found.with_context(|| format!("{package} is not among its own packages"))?;
    let upstream = found.split_once(':').map_or(found, |(_epoch, version)| version);
    ensure!(
        upstream.starts_with(wanted),
        "Debian {suite} has {package} {upstream} now, and not {wanted}*: change the tag in pins/images.yaml"
    );
    Ok(())
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
    fn a_version_that_the_tag_does_not_stand_for_is_refused() {
        let made_of = ["bash 5.3-4 amd64".to_owned(), "db-server 1:9.7.4-2 amd64".to_owned()];
        check_version(&made_of, "db-server", "9.7.", "sid").unwrap();
        let error = check_version(&made_of, "db-server", "9.5.", "sid").unwrap_err();
        assert!(error.to_string().contains("9.7.4-2"), "{error}");
    }
}
