//! `./x image`: builds container images as OCI archives in the cache, without a Docker engine: the operator's own, and
//! for the real environment the etcd images, `pause` and an S3 server.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::oci::{self, Image};
use crate::paths::Paths;
use crate::shell::{cmd, output};
use crate::{cargo, kube, pins, store};

/// The image that holds a pod's namespaces; containerd is told this name.
pub(crate) const PAUSE: &str = "stateward.local/pause:1";

/// The S3 server of tests on the real environment; the tag is its version.
const MINIO: &str = "stateward.local/minio";

/// The operator's own image.
const OPERATOR: &str = "ghcr.io/stateward/stateward";

/// Where manifests look for etcd: the old operator's default, and etcd's own today. Tags are `v` and the version.
const ETCD_REPOSITORIES: [&str; 2] = ["quay.io/coreos/etcd", "gcr.io/etcd-development/etcd"];

/// Options of `./x image`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also the etcd images of the real environment
    #[arg(long)]
    etcd: bool,
    /// Optimize the operator, as a release does; takes longer
    #[arg(long)]
    release: bool,
}

pub(crate) fn run(paths: &Paths, args: &Args) -> Result<()> {
    println!(
        "{}",
        operator(paths, if args.release { "release" } else { "dev" })?.display()
    );
    if args.etcd {
        kube::etcds(paths)?;
        println!("{}", etcds(paths)?.display());
    }
    Ok(())
}

/// The operator of this checkout.
pub(crate) fn operator(paths: &Paths, profile: &str) -> Result<PathBuf> {
    let version = env!("CARGO_PKG_VERSION");
    let archive = paths.cache.join("images").join(format!("stateward-{version}.tar"));
    let program = program(paths, &paths.checkout, profile)?;
    write(program, &[version, "latest"], &archive)?;
    Ok(archive)
}

/// The operator of the previous release, and its manifests. `None`: its commit is not in this clone.
pub(crate) fn previous(paths: &Paths) -> Result<Option<(PathBuf, PathBuf)>> {
    let commit = pins::PREVIOUS;
    let short = &commit[..12];
    let archive = paths
        .cache
        .join("images")
        .join(format!("stateward-previous-{short}.tar"));
    let manifests = archive.with_extension("yaml");
    if archive.exists() && manifests.exists() {
        return Ok(Some((archive, manifests)));
    }
    let git = |words: &[&str]| output(cmd("git", words).current_dir(&paths.checkout));
    if git(&["cat-file", "-e", commit]).is_err() {
        return Ok(None);
    }
    let tree = tempfile::tempdir_in(&paths.cache)?;
    let packed = tree.path().join("tree.tar");
    let packed_name = packed.to_str().context("the cache folder's name is not UTF-8")?;
    git(&["archive", "--output", packed_name, commit])?;
    tar::Archive::new(std::fs::File::open(&packed)?).unpack(tree.path())?;
    let program = program(paths, tree.path(), "dev")?;
    let image = format!("{OPERATOR}:previous");
    std::fs::write(
        &manifests,
        output(&mut cmd(&program, ["manifests", "--image", &image]))?,
    )?;
    write(program, &["previous"], &archive)?;
    Ok(Some((archive, manifests)))
}

/// The operator as a static program: it needs no library and no shell.
pub(crate) fn program(paths: &Paths, checkout: &Path, profile: &str) -> Result<PathBuf> {
    // Folders of its own: these flags would otherwise make every other build start anew. Naming the target keeps them
    // away from build scripts and procedural macros, which cannot be static.
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let folder = paths.cache.join("target-static");
    let folder = folder.to_str().context("the cache folder's name is not UTF-8")?;
    let manifest = checkout.join("Cargo.toml");
    let manifest = manifest.to_str().context("the checkout's name is not UTF-8")?;
    let mut arguments = vec!["build", "--package=stateward", "--manifest-path", manifest];
    arguments.extend(["--target", &target, "--target-dir", folder, "--profile", profile]);
    cargo::compile(&arguments, &[("RUSTFLAGS", "-C target-feature=+crt-static")])
}

/// Runs as nobody in particular, and writes nothing.
fn write(program: PathBuf, tags: &[&str], archive: &Path) -> Result<()> {
    let image = Image {
        references: tags.iter().map(|tag| format!("{OPERATOR}:{tag}")).collect(),
        entrypoint: vec!["/stateward".into()],
        user: "65532:65532".into(),
        labels: vec![
            ("org.opencontainers.image.title".into(), "stateward".into()),
            ("org.opencontainers.image.version".into(), tags[0].into()),
            ("org.opencontainers.image.licenses".into(), "Apache-2.0".into()),
        ],
        files: vec![(program, "/stateward".into())],
        ..Image::default()
    };
    oci::write(&[image], archive)
}

/// The image that every pod of the real environment starts with.
pub(crate) fn pause(paths: &Paths) -> Result<PathBuf> {
    let archive = paths.cache.join("images/pause-1.tar");
    if !archive.exists() {
        let work = tempfile::tempdir()?;
        let program = work.path().join("pause");
        let flags = [
            "--edition",
            "2024",
            "-O",
            "-C",
            "strip=symbols",
            "-C",
            "target-feature=+crt-static",
            "-o",
        ];
        output(
            cmd("rustc", flags)
                .arg(&program)
                .arg(paths.checkout.join("pins/pause.rs")),
        )?;
        let files = vec![(program, "/pause".into())];
        let image = Image {
            references: vec![PAUSE.into()],
            entrypoint: vec!["/pause".into()],
            files,
            ..Image::default()
        };
        oci::write(&[image], &archive)?;
    }
    Ok(archive)
}

/// An S3 server for the real environment: its archive and its reference.
pub(crate) fn minio(paths: &Paths) -> Result<(PathBuf, String)> {
    let version = pins::MINIO;
    let reference = format!("{MINIO}:{version}");
    let archive = paths.cache.join("images").join(format!("minio-{version}.tar"));
    if !archive.exists() {
        let image = Image {
            references: vec![reference.clone()],
            entrypoint: vec!["/minio".into()],
            user: "65532:65532".into(),
            files: vec![(store::minio(paths)?, "/minio".into())],
            ..Image::default()
        };
        oci::write(&[image], &archive)?;
    }
    Ok((archive, reference))
}

/// One archive with an image for each etcd in the cache: one import on each node instead of many.
pub(crate) fn etcds(paths: &Paths) -> Result<PathBuf> {
    let entries = std::fs::read_dir(paths.cache.join("etcd"))?;
    let mut folders = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    folders.retain(|folder| folder.join("etcd").exists());
    folders.sort();
    let version = |folder: &Path| folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = folders
        .iter()
        .map(|folder| version(folder))
        .collect::<Vec<_>>()
        .join("-");
    let archive = paths.cache.join("images").join(format!("etcd-{name}.tar"));
    if !archive.exists() {
        let image = |folder: &PathBuf| -> Result<Image> {
            let tag = version(folder);
            let references = ETCD_REPOSITORIES
                .map(|repository| format!("{repository}:v{tag}"))
                .to_vec();
            let entrypoint = vec!["/usr/local/bin/etcd".into()];
            Ok(Image {
                references,
                entrypoint,
                files: programs(folder)?,
                ..Image::default()
            })
        };
        oci::write(&folders.iter().map(image).collect::<Result<Vec<_>>>()?, &archive)?;
    }
    Ok(archive)
}

/// The programs of a folder, and the libraries that they were linked with: those from Debian's packages are not static.
pub(crate) fn programs(folder: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut files = Vec::new();
    let mut libraries = std::collections::BTreeSet::new();
    for name in ["etcd", "etcdctl", "etcdutl"] {
        let program = folder.join(name);
        if program.exists() {
            // Fails for a static program, which needs none.
            let needs = output(cmd("ldd", [&program]).env("LC_ALL", "C")).unwrap_or_default();
            libraries.extend(
                needs
                    .split_whitespace()
                    .filter(|word| word.starts_with('/'))
                    .map(str::to_owned),
            );
            files.push((program, format!("/usr/local/bin/{name}")));
        }
    }
    files.extend(libraries.into_iter().map(|library| (PathBuf::from(&library), library)));
    Ok(files)
}
