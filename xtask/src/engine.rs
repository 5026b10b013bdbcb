//! `./x engine new NAME`: a new engine that compiles and passes its tests, made from the example (docs/writing-an-engine.md).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::paths::Paths;

#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// Make crates/engines/NAME from the example engine
    New {
        /// The name: one word in small letters
        name: String,
    },
}

pub(crate) fn run(paths: &Paths, verb: &Verb) -> Result<()> {
    let Verb::New { name } = verb;
    let made = new(&paths.checkout, name)?;
    println!("{} is there. Next:  cargo test -p stateward-{name}", made.display());
    Ok(())
}

fn new(checkout: &Path, name: &str) -> Result<PathBuf> {
    if name.is_empty() || !name.chars().all(|letter| letter.is_ascii_lowercase()) {
        bail!("write the name as one word in small letters");
    }
    let target = checkout.join("crates/engines").join(name);
    if target.exists() {
        bail!("{} is there already", target.display());
    }
    copy(&checkout.join("crates/engines/example"), &target, name)?;
    let manifest = checkout.join("Cargo.toml");
    let text = fs::read_to_string(&manifest)?;
    let (example, both) = (
        r#""crates/engines/example","#,
        format!(r#""crates/engines/example", "crates/engines/{name}","#),
    );
    if !text.contains(example) {
        bail!("Cargo.toml does not name the example engine among its members");
    }
    fs::write(&manifest, text.replacen(example, &both, 1))?;
    Ok(target)
}

/// Copies a folder, with the example's names replaced in files and their names. The test of the guide is the example's own.
fn copy(from: &Path, to: &Path, name: &str) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        if file == "guide.rs" {
            continue;
        }
        let target = to.join(renamed(&file, name));
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target, name)?;
        } else {
            fs::write(target, renamed(&fs::read_to_string(entry.path())?, name))?;
        }
    }
    Ok(())
}

fn renamed(text: &str, name: &str) -> String {
    let mut kind = name.to_owned();
    if let Some(first) = kind.get_mut(0..1) {
        first.make_ascii_uppercase();
    }
    text.replace("stateward-example", &format!("stateward-{name}"))
        .replace("stateward_example", &format!("stateward_{name}"))
        .replace("example.stateward.dev", &format!("{name}.stateward.dev"))
        .replace("Mirror", &kind)
        .replace("mirror", name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_engine_has_names_of_its_own() {
        let text = "use stateward_example::api::Mirror; // kind Mirror of example.stateward.dev, program mirror";
        assert_eq!(
            renamed(text, "cache"),
            "use stateward_cache::api::Cache; // kind Cache of cache.stateward.dev, program cache"
        );
    }
}
