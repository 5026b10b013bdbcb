//! The real kubectl, as a user types it.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::test::Test;

/// Where it is: in `KUBECTL`, or where `./x setup` puts it.
fn program() -> PathBuf {
    std::env::var_os("KUBECTL").map(PathBuf::from).unwrap_or_else(|| {
        let cache = std::env::var_os("STATEWARD_CACHE")
            .map(PathBuf::from)
            .unwrap_or_default();
        cache.join("kubectl/1.20/kubectl")
    })
}

impl Test {
    /// Runs `kubectl` in the scenario's namespace with these words, and gives `input` to it. Returns what it prints.
    pub(crate) async fn kubectl(&self, words: &[&str], input: &str) -> Result<String> {
        let folder = tempfile::tempdir()?;
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, self.ground.kubeconfig()?)?;
        let mut child = Command::new(program())
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .arg("--cache-dir")
            .arg(folder.path().join("cache"))
            .args(["--namespace", &self.namespace])
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}; run ./x setup", program().display()))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes()).await?;
        }
        let output = child.wait_with_output().await?;
        if !output.status.success() {
            bail!(
                "kubectl {}: {}",
                words.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
