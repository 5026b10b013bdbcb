//! Runs the programs that people use with Kubernetes: kubectl and Helm.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Whether a program is on the search path.
pub(crate) fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Runs a program with a kubeconfig and input, and returns its output. Its error output becomes the error.
pub(crate) async fn run(program: &str, kubeconfig: &Path, words: &[&str], input: Option<&str>) -> Result<String> {
    let described = || format!("{program} {}", words.join(" "));
    let mut child = Command::new(program)
        .args(words)
        .env("KUBECONFIG", kubeconfig)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(described)?;
    let mut stdin = child.stdin.take().with_context(described)?;
    // The program may exit without reading its input; its exit status then decides.
    let _ = stdin.write_all(input.unwrap_or_default().as_bytes()).await;
    drop(stdin);
    let output = child.wait_with_output().await.with_context(described)?;
    if !output.status.success() {
        bail!("{}: {}", described(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
