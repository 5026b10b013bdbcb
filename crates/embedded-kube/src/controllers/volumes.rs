//! PersistentVolumes: their phase, and what happens when their claim is deleted.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Error;
use super::claims::{PROVISIONED_BY, PROVISIONER};
use super::world::{World, passes, unless_moved_on};

pub(crate) const PROTECTION: &str = "kubernetes.io/pv-protection";

pub(crate) async fn run(world: Arc<World>, folder: PathBuf, stop: CancellationToken) {
    let wake = Arc::new(Notify::new());
    world.volumes.wakes(&wake);
    world.claims.wakes(&wake);
    passes("volumes", wake, stop, || pass(&world, &folder)).await;
}

async fn pass(world: &World, folder: &Path) -> Result<Option<Duration>, Error> {
    let mut failed = None;
    for volume in world.volumes.all() {
        if let Err(error) = look_at(world, folder, &volume).await {
            failed = Some(error);
        }
    }
    failed.map_or(Ok(None), Err)
}

async fn look_at(world: &World, folder: &Path, volume: &PersistentVolume) -> Result<(), Error> {
    let deleting = volume.metadata.deletion_timestamp.is_some();
    let protected = volume.finalizers().iter().any(|finalizer| finalizer == PROTECTION);
    if !protected && !deleting {
        let mut finalizers = volume.finalizers().to_vec();
        finalizers.push(PROTECTION.to_owned());
        return patch(world, volume, json!({"metadata": {"finalizers": finalizers}})).await;
    }
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone());
    let phase = match &reference {
        None => "Available",
        // Reserved for a claim that may be created later.
        Some(reference) if reference.uid.as_deref().unwrap_or_default().is_empty() => "Available",
        Some(reference) if claim_is_deleted(world, reference).await? => "Released",
        Some(_) => "Bound",
    };
    let old = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    if old != Some(phase) {
        let status = json!({"metadata": {"uid": volume.metadata.uid}, "status": {"phase": phase}});
        let api: Api<PersistentVolume> = Api::all(world.client.clone());
        unless_moved_on(
            api.patch_status(&volume.name_any(), &PatchParams::default(), &Patch::Merge(&status))
                .await,
        )?;
    }
    let policy = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    let disposable = policy == Some("Delete")
        && volume
            .annotations()
            .get(PROVISIONED_BY)
            .is_some_and(|by| by == PROVISIONER);
    if phase == "Released" && disposable && !deleting {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: volume.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let api: Api<PersistentVolume> = Api::all(world.client.clone());
        unless_moved_on(api.delete(&volume.name_any(), &params).await)?;
    }
    if deleting && protected && phase != "Bound" {
        if disposable {
            remove_folder(folder, &volume.name_any()).await?;
        }
        let finalizers: Vec<_> = volume
            .finalizers()
            .iter()
            .filter(|finalizer| *finalizer != PROTECTION)
            .collect();
        return patch(world, volume, json!({"metadata": {"finalizers": finalizers}})).await;
    }
    Ok(())
}

/// The cache may not have the claim yet; data is deleted only after the API confirmed its absence.
async fn claim_is_deleted(world: &World, reference: &ObjectReference) -> Result<bool, Error> {
    let namespace = reference.namespace.as_deref().unwrap_or_default();
    let name = reference.name.as_deref().unwrap_or_default();
    if world
        .claims
        .get(namespace, name)
        .is_some_and(|claim| claim.uid() == reference.uid)
    {
        return Ok(false);
    }
    let api: Api<PersistentVolumeClaim> = Api::namespaced(world.client.clone(), namespace);
    Ok(api
        .get_opt(name)
        .await?
        .is_none_or(|claim| claim.uid() != reference.uid))
}

/// A volume's folder is named after it, and nothing else is ever removed.
async fn remove_folder(folder: &Path, volume: &str) -> Result<(), Error> {
    match tokio::fs::remove_dir_all(folder.join(volume)).await {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(Error::Folder {
            volume: volume.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}

async fn patch(world: &World, volume: &PersistentVolume, mut patch: Value) -> Result<(), Error> {
    patch["metadata"]["uid"] = json!(volume.metadata.uid);
    patch["metadata"]["resourceVersion"] = json!(volume.metadata.resource_version);
    let api: Api<PersistentVolume> = Api::all(world.client.clone());
    unless_moved_on(
        api.patch(&volume.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
            .await,
    )?;
    Ok(())
}
