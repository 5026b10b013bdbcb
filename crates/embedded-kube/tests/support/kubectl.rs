//! Runs real kubectl, with command lines as a person would type them.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

/// The timeout of a command.
const PATIENCE: Duration = Duration::from_secs(120);

/// The kubectls to test: those that the variable KUBECTLS lists (separated by `:`), else the one in the PATH.
pub(crate) fn kubectls() -> Vec<PathBuf> {
    let listed = std::env::var_os("KUBECTLS").unwrap_or_default();
    let listed: Vec<PathBuf> = std::env::split_paths(&listed).filter(|path| path.is_file()).collect();
    if !listed.is_empty() {
        return listed;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join("kubectl"))
        .find(|path| path.is_file());
    let found: Vec<PathBuf> = found.into_iter().collect();
    assert!(
        !found.is_empty(),
        "no kubectl to test with: set KUBECTLS, or run ./x test, which does"
    );
    found
}

pub(crate) struct Kubectl {
    program: PathBuf,
    config: tempfile::NamedTempFile,
    namespace: String,
}

impl Kubectl {
    pub(crate) fn new(program: &Path, config: &str, namespace: &str) -> Self {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), config).expect("a kubeconfig");
        Kubectl {
            program: program.to_owned(),
            config: file,
            namespace: namespace.to_owned(),
        }
    }

    fn command(&self, line: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("--kubeconfig")
            .arg(self.config.path())
            .args(["--namespace", &self.namespace])
            .args(line);
        command.env("HOME", std::env::temp_dir()).kill_on_drop(true);
        command.env("KUBE_EDITOR", "sed -i s/first/second/"); // the person at the editor of `kubectl edit`
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// The arguments of a line are separated by spaces; an argument with spaces goes into `rest`. Returns whether it
    /// succeeded, and all its output.
    pub(crate) async fn try_with(&self, line: &str, rest: &[&str], input: &str) -> (bool, String) {
        let words: Vec<&str> = line.split_whitespace().chain(rest.iter().copied()).collect();
        let mut child = self.command(&words).spawn().expect("kubectl");
        let mut stdin = child.stdin.take().expect("a pipe");
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
        let output = output
            .unwrap_or_else(|_| panic!("kubectl {line}: not done in time"))
            .expect("kubectl's output");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    }

    pub(crate) async fn with(&self, line: &str, rest: &[&str], input: &str) -> String {
        let (success, output) = self.try_with(line, rest, input).await;
        assert!(success, "{}: kubectl {line} {rest:?}: {output}", self.program.display());
        output
    }

    pub(crate) async fn run(&self, line: &str) -> String {
        self.with(line, &[], "").await
    }

    /// Runs a command in a pod's shell.
    pub(crate) async fn shell(&self, pod: &str, command: &str) -> String {
        self.with(&format!("exec {pod} -- sh -c"), &[command], "").await
    }

    /// Leaves it running.
    pub(crate) fn start(&self, line: &str) -> Child {
        let words: Vec<&str> = line.split_whitespace().collect();
        self.command(&words).spawn().expect("kubectl")
    }
}
