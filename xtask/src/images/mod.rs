//! `./x images`: builds images of the catalogue (`pins/images.yaml`), which the embedded Kubernetes runs as they are and a real one as
//! OCI archives. Nothing is built that was not asked for.

mod build;
mod catalogue;
mod maven;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::paths::Paths;
use crate::progress::Step;
use crate::shell::cmd;
use crate::{cargo, oci};

pub(crate) use build::{Built, build, needs_no_build};
pub(crate) use catalogue::Catalogue;
use catalogue::{Definition, Test};

/// Options of `./x images`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to build: names such as `mysql` or `mysql:9.7`
    names: Vec<String>,
    /// Show the catalogue and what of it is built
    #[arg(long)]
    list: bool,
    /// Also write each image as an OCI archive, for `./x kube load`
    #[arg(long)]
    archive: bool,
    /// Start each image in a pod of the embedded Kubernetes and talk to it
    #[arg(long)]
    test: bool,
}

pub(crate) fn run(paths: &Paths, args: &Args) -> Result<()> {
    let catalogue = Catalogue::read(&paths.checkout)?;
    if args.list {
        return list(paths, &catalogue);
    }
    if args.names.is_empty() {
        bail!("name images to build, for example ./x images mysql; --list shows all of them");
    }
    for image in catalogue.find(&args.names)? {
        let folder = build(paths, image)?;
        println!("{} {}", image.title(), folder.display());
        if args.archive {
            println!("{} {}", image.title(), archive(image, &folder)?.display());
        }
        if args.test {
            let test = image.test.as_ref();
            let test = test.with_context(|| format!("{} has no test in the catalogue", image.title()))?;
            check(paths, &image.title(), &folder, test)?;
        }
    }
    Ok(())
}

/// Builds one image, unless it is there, and returns its folder.
pub(crate) fn provide(paths: &Paths, name: &str) -> Result<PathBuf> {
    let catalogue = Catalogue::read(&paths.checkout)?;
    let found = catalogue.find(&[name.to_owned()])?;
    build(paths, found.first().context("no image has this name")?)
}

/// The same as an OCI archive.
pub(crate) fn provide_archive(paths: &Paths, name: &str) -> Result<PathBuf> {
    let catalogue = Catalogue::read(&paths.checkout)?;
    let found = catalogue.find(&[name.to_owned()])?;
    let image = found.first().context("no image has this name")?;
    archive(image, &build(paths, image)?)
}

fn list(paths: &Paths, catalogue: &Catalogue) -> Result<()> {
    let mut about = "";
    for image in catalogue.all() {
        if image.about != about {
            println!("{}: {}", image.name, image.about);
            about = &image.about;
        }
        let folder = image.folder(&paths.images());
        let state = if build::is_built(&folder) {
            folder.display().to_string()
        } else {
            "not built".to_owned()
        };
        println!("  {:<22} {state}", image.title());
    }
    Ok(())
}

/// Writes a built image as an OCI archive beside its folder.
fn archive(image: &Definition, folder: &Path) -> Result<PathBuf> {
    let mut name = folder.as_os_str().to_owned();
    name.push(".tar");
    let archive = PathBuf::from(name);
    if !archive.exists() {
        let step = Step::new(&image.title());
        step.say("writing the archive");
        let (root, files) = if image.over_host {
            (None, crate::image::programs(&folder.join("programs"))?)
        } else {
            (Some(folder.join("root")), Vec::new())
        };
        let image = oci::Image {
            references: Built::read(folder)?.references,
            config: image.config.oci(),
            root,
            files,
            ..oci::Image::default()
        };
        oci::write(&[image], &archive)?;
    }
    Ok(archive)
}

/// Runs the image in a pod: by the same code as any other pod, so that what is seen here holds there.
fn check(paths: &Paths, title: &str, folder: &Path, test: &Test) -> Result<()> {
    let program: PathBuf = cargo::build_example("try_image")?;
    let built = Built::read(folder)?;
    let reference = built.references.first().context("it has no reference")?;
    let mut command = cmd(program, ["--images"]);
    command.arg(paths.images()).args(["--image", reference]);
    command.arg("--test").arg(serde_json::to_string(test)?);
    crate::shell::run(&mut command).with_context(|| format!("the image {title} does not work"))
}
