//! `./x store`: real object stores. MinIO and an emulator of Google Cloud Storage are built by Go into the cache; the tests
//! that need them are ignored by plain `./x test`, which must work without a Go compiler.

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;

use crate::paths::Paths;
use crate::pins::{self, Pin};
use crate::shell::{cmd, run as show};
use crate::{golang, setup};

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Build the servers and print where they are
    Build,
    /// Run the tests of backups against them
    Test {
        /// Given to the test programs
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
            let mut test = cmd(
                "cargo",
                ["test", "--package", "stateward-store", "--package", "stateward-agent"],
            );
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
    let place = |pin: &Pin| paths.cache.join(pin.name).join(&pin.version);
    let pins = [pins::minio(), pins::fake_gcs()];
    for pin in &pins {
        golang::build(paths, pin, &place(pin))?;
    }
    Ok(pins.iter().map(|pin| place(pin).join(pin.name)).collect())
}
