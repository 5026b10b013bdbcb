//! `./x store`: real object stores in the cache: MinIO, built with Go, and Azurite, from npm. The tests that need them
//! are ignored by `./x test`, which must work without either. Google's XML API is the S3 API with another signature, so
//! its client is tested with MinIO too, behind a proxy that checks the token. fake-gcs-server supports neither
//! multipart uploads nor listing by prefix.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Subcommand;

use crate::paths::Paths;
use crate::shell::{cmd, run as show};
use crate::{golang, pins, setup};

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Build the servers and print where they are
    Build,
    /// Run the backup tests with them
    Test {
        /// Arguments of the test programs
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

pub(crate) fn run(paths: &Paths, verb: &Verb) -> Result<()> {
    let servers = build(paths)?;
    match verb {
        Verb::Build => {
            servers.iter().for_each(|server| println!("{}", server.display()));
            Ok(())
        }
        Verb::Test { arguments } => {
            setup::ensure(paths)?;
            let words = ["test", "--package", "stateward-etcd-driver", "--test", "object_stores"];
            let mut test = cmd("cargo", words);
            test.args(["--", "--ignored"]).args(arguments);
            show(
                test.env("STATEWARD_CACHE", &paths.cache)
                    .env("STATEWARD_ETCD_DIR", paths.cache.join("etcd")),
            )
        }
    }
}

/// Builds what is missing.
pub(crate) fn build(paths: &Paths) -> Result<Vec<PathBuf>> {
    Ok(vec![minio(paths)?, azurite(paths)?])
}

/// An S3 server, linked statically, so that it also runs in an image without libraries.
pub(crate) fn minio(paths: &Paths) -> Result<PathBuf> {
    let pin = pins::minio();
    let folder = paths.cache.join(pin.name).join(&pin.version);
    golang::build(paths, &pin, &folder)?;
    Ok(folder.join(pin.name))
}

/// Azurite consists of scripts for Node.js, which must be installed. The lock file pins its versions and hashes.
fn azurite(paths: &Paths) -> Result<PathBuf> {
    let folder = paths.cache.join("azurite").join(pins::AZURITE);
    let program = folder.join("azurite");
    if !program.exists() {
        let pinned = paths.checkout.join(format!("pins/npm/azurite-{}", pins::AZURITE));
        fs::create_dir_all(&folder)?;
        for file in ["package.json", "package-lock.json"] {
            fs::copy(pinned.join(file), folder.join(file)).with_context(|| format!("{file} of azurite"))?;
        }
        let words = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"];
        show(cmd("npm", words).current_dir(&folder)).context("azurite needs node and npm: install them")?;
        // Written last, so that an interrupted installation does not count as finished.
        fs::write(&program, "see node_modules\n")?;
    }
    Ok(program)
}
