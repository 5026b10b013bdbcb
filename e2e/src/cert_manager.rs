//! A real cert-manager at work: its definitions, and its controller as a process of the test that looks after one namespace.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};

use crate::test::Test;
use crate::wait::until;

/// Why a ground may lack it.
pub(crate) const NOT_BUILT: &str = "there is no cert-manager; ./x kube up builds one";

/// The folder with its controller and its definitions.
fn folder() -> Option<PathBuf> {
    let cache = PathBuf::from(std::env::var_os("STATEWARD_CACHE")?).join("cert-manager");
    let mut versions = std::fs::read_dir(cache).ok()?.flatten().map(|entry| entry.path());
    versions.find(|folder| folder.join("controller").is_file() && folder.join("crds").is_dir())
}

pub(crate) fn is_built() -> bool {
    folder().is_some()
}

fn definitions() -> Result<Vec<CustomResourceDefinition>> {
    let folder = folder().context(NOT_BUILT)?.join("crds");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        all.push(serde_yaml_ng::from_str(&std::fs::read_to_string(entry?.path())?)?);
    }
    Ok(all)
}

/// Takes its definitions away, with every object of them.
pub(crate) async fn uninstall(test: &Test) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(test.client.clone());
    for definition in definitions()? {
        let name = definition.name_any();
        if api.get_opt(&name).await?.is_some() {
            api.delete(&name, &DeleteParams::default()).await?;
            until(&format!("{name} to go away"), 60, async || {
                Ok(api.get_opt(&name).await?.is_none().then_some(()))
            })
            .await?;
        }
    }
    Ok(())
}

/// Brings its definitions.
pub(crate) async fn install(test: &Test) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(test.client.clone());
    for definition in definitions()? {
        let name = definition.name_any();
        if api.get_opt(&name).await?.is_none() {
            api.create(&PostParams::default(), &definition)
                .await
                .with_context(|| format!("cannot create {name}"))?;
        }
        until(&format!("{name} to be served"), 60, async || {
            let status = api.get(&name).await?.status.unwrap_or_default();
            let conditions = status.conditions.unwrap_or_default();
            let served = conditions
                .iter()
                .any(|one| one.type_ == "Established" && one.status == "True");
            Ok(served.then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// Its controller. It ends with this value.
pub(crate) struct Controller {
    process: tokio::process::Child,
    log: tempfile::NamedTempFile,
}

/// Starts it for the test's namespace.
pub(crate) fn start(test: &Test) -> Result<Controller> {
    let program = folder().context(NOT_BUILT)?.join("controller");
    let log = tempfile::NamedTempFile::new()?;
    let process = tokio::process::Command::new(program)
        .args(["--namespace", &test.namespace, "--leader-elect=false"])
        .args(["--metrics-listen-address", "127.0.0.1:0", "--v", "2"])
        .arg("--kubeconfig")
        .arg(test.ground.kubeconfig())
        .stdin(Stdio::null())
        .stdout(log.reopen()?)
        .stderr(log.reopen()?)
        .kill_on_drop(true)
        .spawn()
        .context("cannot start cert-manager")?;
    Ok(Controller { process, log })
}

impl Controller {
    /// Fails when it has ended, with its last words.
    pub(crate) fn must_run(&mut self) -> Result<()> {
        if let Some(status) = self.process.try_wait()? {
            bail!("cert-manager ended ({status}): {}", self.last_words());
        }
        Ok(())
    }

    /// The end of its log.
    pub(crate) fn last_words(&self) -> String {
        let text = std::fs::read_to_string(self.log.path()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}
