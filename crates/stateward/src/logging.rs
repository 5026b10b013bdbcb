//! Logs: to standard error, or into a file while the terminal has a live view.

use std::io::IsTerminal;
use std::path::Path;

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;

fn filter(default: &str) -> EnvFilter {
    EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default))
}

/// For programs without a live view. `RUST_LOG` sets the filter.
pub(crate) fn to_stderr(default: &str) {
    let _already = tracing_subscriber::fmt()
        .with_env_filter(filter(default))
        // A pod's log is a file: no colours there.
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .try_init();
}

/// For programs with a live view.
pub(crate) fn to_file(path: &Path) -> Result<()> {
    let file = std::fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let _already = tracing_subscriber::fmt()
        .with_env_filter(filter("info"))
        .with_ansi(false)
        .with_writer(std::sync::Mutex::new(file))
        .try_init();
    Ok(())
}
