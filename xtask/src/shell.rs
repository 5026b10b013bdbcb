//! Runs other programs, with errors that contain the command and its output.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Builds a command: `cmd("ip", ["netns", "add", name])`.
pub(crate) fn cmd<I, S>(program: impl AsRef<std::ffi::OsStr>, args: I) -> Command
where
    I: IntoIterator<Item = S>,
    S: AsRef<std::ffi::OsStr>,
{
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// Runs a command whose output the user sees.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {}", describe(command)))?;
    if !status.success() {
        bail!("{} failed ({status})", describe(command));
    }
    Ok(())
}

/// Runs a command and returns its output. Its standard error becomes part of the error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let result = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", describe(command)))?;
    if !result.status.success() {
        let said = String::from_utf8_lossy(&result.stderr);
        bail!("{} failed ({}): {}", describe(command), result.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&result.stdout).into_owned())
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
