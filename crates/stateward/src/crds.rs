//! `stateward crds`: the CustomResourceDefinitions as YAML.

use anyhow::{Context, Result};

/// Options of `stateward crds`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write one file per kind into this folder instead of printing
    #[arg(long)]
    folder: Option<std::path::PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    for (name, content) in files() {
        match &options.folder {
            Some(folder) => std::fs::write(folder.join(&name), content)
                .with_context(|| format!("cannot write {name} into {}", folder.display()))?,
            None => print!("---\n{content}"),
        }
    }
    Ok(())
}

/// The files of `deploy/crds/`: name and content of each.
pub(crate) fn files() -> impl Iterator<Item = (String, String)> {
    let mut crds = stateward::crds();
    crds.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
    crds.into_iter().map(|crd| stateward_core::crd::file(&crd))
}
