//! A real cert-manager: its controller runs as a process of the test and serves one namespace.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::definitions::{self, CERT_MANAGER};
use crate::test::Test;

/// Why an environment may lack it.
pub(crate) const NOT_BUILT: &str = "there is no cert-manager; ./x kube test --build-only builds one";

fn controller() -> Option<PathBuf> {
    let program = definitions::folder(CERT_MANAGER)?.join("controller");
    program.is_file().then_some(program)
}

pub(crate) fn is_built() -> bool {
    controller().is_some()
}

/// The running controller. Dropping this value ends it.
pub(crate) struct Controller {
    process: tokio::process::Child,
    log: tempfile::NamedTempFile,
}

pub(crate) fn start(test: &Test) -> Result<Controller> {
    let program = controller().context(NOT_BUILT)?;
    let log = tempfile::NamedTempFile::new()?;
    let process = tokio::process::Command::new(program)
        .args(["--namespace", &test.namespace, "--leader-elect=false"])
        .args(["--metrics-listen-address", "127.0.0.1:0", "--v", "2"])
        .arg("--kubeconfig")
        .arg(test.environment.kubeconfig())
        .stdin(Stdio::null())
        .stdout(log.reopen()?)
        .stderr(log.reopen()?)
        .kill_on_drop(true)
        .spawn()
        .context("cannot start cert-manager")?;
    Ok(Controller { process, log })
}

impl Controller {
    /// Fails with the end of its log if it has exited.
    pub(crate) fn must_run(&mut self) -> Result<()> {
        if let Some(status) = self.process.try_wait()? {
            bail!("cert-manager ended ({status}): {}", self.last_words());
        }
        Ok(())
    }

    pub(crate) fn last_words(&self) -> String {
        let text = std::fs::read_to_string(self.log.path()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}
