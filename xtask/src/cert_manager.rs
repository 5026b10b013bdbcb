//! cert-manager for tests: its controller, built from the Go module proxy, and its CRDs, which are in the same module.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::paths::Paths;
use crate::{golang, pins};

/// Builds what is missing, and returns the folder with `controller` and `crds/`.
pub(crate) fn build(paths: &Paths) -> Result<PathBuf> {
    let pin = pins::cert_manager();
    let folder = paths.cert_manager();
    golang::build(paths, &pin, &folder)?;
    let definitions = folder.join("crds");
    if definitions.exists() {
        return Ok(folder);
    }
    let module = golang::module(paths, pin.name, &pin.version, "github.com/cert-manager/cert-manager")?;
    let module = module.join("deploy/crds");
    let unfinished = folder.join("crds.unfinished");
    std::fs::create_dir_all(&unfinished)?;
    for entry in std::fs::read_dir(&module).context("cannot read cert-manager's CRDs")? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            // They are templates of its chart, but only in their labels.
            let text = std::fs::read_to_string(&path)?;
            let lines: Vec<&str> = text.lines().filter(|line| !line.contains("{{")).collect();
            let name = path.file_name().context("a file has a name")?;
            std::fs::write(
                unfinished.join(name),
                lines.join("\n").replace("\n  labels:\nspec:", "\nspec:"),
            )?;
        }
    }
    std::fs::rename(unfinished, definitions)?;
    Ok(folder)
}
