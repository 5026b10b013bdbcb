//! CustomResourceDefinitions of other projects (cert-manager and the Prometheus operator), as `./x` took them from
//! their Go modules.

use std::path::PathBuf;

use anyhow::{Context, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};

use crate::test::Test;
use crate::wait::until;

pub(crate) const CERT_MANAGER: &str = "cert-manager";
pub(crate) const PROMETHEUS: &str = "prometheus-operator";

/// The folder in the cache with the definitions of a project.
pub(crate) fn folder(of: &str) -> Option<PathBuf> {
    let cache = PathBuf::from(std::env::var_os("STATEWARD_CACHE")?).join(of);
    let mut versions = std::fs::read_dir(cache).ok()?.flatten().map(|entry| entry.path());
    versions.find(|folder| folder.join("crds").is_dir())
}

fn all(of: &str) -> Result<Vec<CustomResourceDefinition>> {
    let folder = folder(of).with_context(|| format!("there are no definitions of {of}"))?;
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder.join("crds"))? {
        all.push(serde_yaml_ng::from_str(&std::fs::read_to_string(entry?.path())?)?);
    }
    Ok(all)
}

/// Deletes them, and with them every object of their kinds.
pub(crate) async fn uninstall(test: &Test, of: &str) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(test.client.clone());
    for definition in all(of)? {
        let name = definition.name_any();
        if api.get_opt(&name).await?.is_some() {
            api.delete(&name, &DeleteParams::default()).await?;
            until(&format!("{name} to be deleted"), 60, async || {
                Ok(api.get_opt(&name).await?.is_none().then_some(()))
            })
            .await?;
        }
    }
    Ok(())
}

/// Creates them.
pub(crate) async fn install(test: &Test, of: &str) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(test.client.clone());
    for definition in all(of)? {
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
