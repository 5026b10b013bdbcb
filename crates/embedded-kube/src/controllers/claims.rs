//! PersistentVolumeClaims: each is bound to a volume that fits, or to one created for it, and expanded on request.
//!
//! A volume of the class `standard` is a folder. A claim in use by pods stays until they are deleted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    HostPathVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, Pod,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Error;
use super::events::Recorder;
use super::quantity::millis;
use super::scheduling::{claim_names, selects};
use super::world::{World, passes, unless_moved_on};

/// The provisioner of classes whose volumes are created here.
pub(crate) const PROVISIONER: &str = "embedded";
/// On a volume: which provisioner created it and may remove its folder.
pub(crate) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const PROTECTION: &str = "kubernetes.io/pvc-protection";
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

pub(crate) async fn run(world: Arc<World>, folder: PathBuf, stop: CancellationToken) {
    let wake = Arc::new(Notify::new());
    world.claims.wakes(&wake);
    world.volumes.wakes(&wake);
    world.classes.wakes(&wake);
    world.pods.wakes(&wake);
    let recorder = Recorder::new(world.client.clone(), "persistentvolume-controller");
    let binder = Binder {
        world,
        recorder,
        folder,
    };
    if let Err(error) = binder.ensure_standard_class().await {
        tracing::warn!(%error, "the storage class `standard` could not be made");
    }
    passes("claims", wake, stop, || binder.pass()).await;
}

struct Binder {
    world: Arc<World>,
    recorder: Recorder,
    folder: PathBuf,
}

impl Binder {
    async fn ensure_standard_class(&self) -> Result<(), Error> {
        if !self.world.classes.all().is_empty() {
            return Ok(());
        }
        let class = StorageClass {
            metadata: ObjectMeta {
                name: Some("standard".to_owned()),
                annotations: Some(BTreeMap::from([(DEFAULT_CLASS.to_owned(), "true".to_owned())])),
                ..ObjectMeta::default()
            },
            provisioner: PROVISIONER.to_owned(),
            reclaim_policy: Some("Delete".to_owned()),
            volume_binding_mode: Some("Immediate".to_owned()),
            allow_volume_expansion: Some(true),
            ..StorageClass::default()
        };
        let api: Api<StorageClass> = Api::all(self.world.client.clone());
        unless_moved_on(api.create(&PostParams::default(), &class).await)?;
        Ok(())
    }

    async fn pass(&self) -> Result<Option<Duration>, Error> {
        let mut claims = self.world.claims.all();
        claims.sort_by_key(|claim| (claim.creation_timestamp(), claim.name_any()));
        let mut failed = None;
        // Volumes assigned in this pass: the cache does not have that yet.
        let mut taken: Vec<String> = Vec::new();
        for claim in claims {
            if let Err(error) = self.look_at(&claim, &mut taken).await {
                failed = Some(error);
            }
        }
        failed.map_or(Ok(None), Err)
    }

    async fn look_at(&self, claim: &PersistentVolumeClaim, taken: &mut Vec<String>) -> Result<(), Error> {
        if claim.metadata.deletion_timestamp.is_some() {
            return self.release(claim).await;
        }
        if !claim.finalizers().iter().any(|finalizer| finalizer == PROTECTION) {
            let mut finalizers = claim.finalizers().to_vec();
            finalizers.push(PROTECTION.to_owned());
            return self.patch(claim, json!({"metadata": {"finalizers": finalizers}})).await;
        }
        let spec = claim.spec.clone().unwrap_or_default();
        if spec.storage_class_name.is_none()
            && spec.volume_name.is_none()
            && let Some(class) = self.default_class()
        {
            return self
                .patch(claim, json!({"spec": {"storageClassName": class.name_any()}}))
                .await;
        }
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        if let Some(name) = spec.volume_name.as_deref().filter(|name| !name.is_empty()) {
            return match self.world.volumes.named(name) {
                Some(volume) => self.bind(claim, &volume).await,
                // A new volume may not be in the cache yet; a bound one that does not exist is lost.
                None if phase == Some("Bound") => self.lose(claim, name).await,
                None => self.set_pending(claim).await,
            };
        }
        let volumes = self.world.volumes.all();
        if let Some(volume) = best_volume(claim, &volumes, taken) {
            taken.push(volume.name_any());
            return self.bind(claim, &volume).await;
        }
        self.set_pending(claim).await?;
        self.provision(claim).await
    }

    fn default_class(&self) -> Option<Arc<StorageClass>> {
        let mut classes = self.world.classes.all();
        classes.retain(|class| {
            class
                .annotations()
                .get(DEFAULT_CLASS)
                .is_some_and(|value| value == "true")
        });
        // The newest, as Kubernetes chooses.
        classes
            .into_iter()
            .max_by_key(|class| (class.creation_timestamp(), std::cmp::Reverse(class.name_any())))
    }

    /// Releases a deleted claim once no pod uses it. Pods are read from the API: a cache could miss the newest.
    async fn release(&self, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        if !claim.finalizers().iter().any(|finalizer| finalizer == PROTECTION) {
            return Ok(());
        }
        let name = claim.name_any();
        let uses = |pod: &Pod| {
            let over = matches!(
                pod.status.as_ref().and_then(|status| status.phase.as_deref()),
                Some("Succeeded" | "Failed")
            );
            let placed = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
            placed && !over && claim_names(pod).any(|used| used == name)
        };
        let namespace = claim.namespace().unwrap_or_default();
        let in_cache = self.world.pods.all();
        if in_cache
            .iter()
            .any(|pod| pod.namespace().as_deref() == Some(&namespace) && uses(pod))
        {
            return Ok(());
        }
        let pods: Api<Pod> = Api::namespaced(self.world.client.clone(), &namespace);
        if pods.list(&ListParams::default()).await?.items.iter().any(uses) {
            return Ok(());
        }
        let finalizers: Vec<_> = claim
            .finalizers()
            .iter()
            .filter(|finalizer| *finalizer != PROTECTION)
            .collect();
        self.patch(claim, json!({"metadata": {"finalizers": finalizers}})).await
    }

    /// Binds the volume to the claim: first the volume names the claim, then the claim names the volume, then both
    /// phases are set.
    async fn bind(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Result<(), Error> {
        let name = volume.name_any();
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone());
        let ours = reference.as_ref().is_some_and(|reference| reference.uid == claim.uid());
        if !ours {
            if reference.is_some_and(|reference| !refers_to(&reference, claim)) {
                return self.set_pending(claim).await; // someone else's
            }
            let reference = ObjectReference {
                resource_version: None,
                ..claim.object_ref(&())
            };
            let patch = json!({
                "metadata": {"uid": volume.metadata.uid, "resourceVersion": volume.metadata.resource_version,
                             "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}},
                "spec": {"claimRef": reference},
            });
            let api: Api<PersistentVolume> = Api::all(self.world.client.clone());
            unless_moved_on(api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await)?;
            return Ok(()); // the volume's change wakes this loop
        }
        let spec = claim.spec.clone().unwrap_or_default();
        if spec.volume_name.as_deref() != Some(&name) {
            let annotations = json!({
                "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"
            });
            return self
                .patch(
                    claim,
                    json!({"metadata": {"annotations": annotations}, "spec": {"volumeName": name}}),
                )
                .await;
        }
        self.grow(claim, volume).await
    }

    /// Expands the volume if more is requested and its class allows it, and reports the claim's capacity.
    async fn grow(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Result<(), Error> {
        let spec = claim.spec.clone().unwrap_or_default();
        let volume_spec = volume.spec.clone().unwrap_or_default();
        let asked = storage(
            spec.resources
                .as_ref()
                .and_then(|resources| resources.requests.as_ref()),
        );
        let has = storage(volume_spec.capacity.as_ref());
        let class = spec
            .storage_class_name
            .as_deref()
            .and_then(|name| self.world.classes.named(name));
        let may_grow = class.is_some_and(|class| class.allow_volume_expansion == Some(true));
        let amount = |quantity: &Option<Quantity>| quantity.as_ref().and_then(millis).unwrap_or(0);
        if may_grow && amount(&asked) > amount(&has) {
            let patch = json!({"spec": {"capacity": {"storage": asked}}});
            let api: Api<PersistentVolume> = Api::all(self.world.client.clone());
            unless_moved_on(
                api.patch(&volume.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
                    .await,
            )?;
            let message = format!(
                "ExpandVolume succeeded for volume {}/{}",
                claim.namespace().unwrap_or_default(),
                claim.name_any()
            );
            self.recorder.normal(claim, "VolumeResizeSuccessful", &message);
            return Ok(());
        }
        let status = claim.status.clone().unwrap_or_default();
        let wanted_modes = volume_spec.access_modes.or(spec.access_modes);
        let same_size = amount(&storage(status.capacity.as_ref())) == amount(&has);
        if status.phase.as_deref() == Some("Bound") && same_size && status.access_modes == wanted_modes {
            return Ok(());
        }
        let new = json!({"phase": "Bound", "accessModes": wanted_modes, "capacity": {"storage": has}});
        self.patch_status(claim, new).await
    }

    async fn lose(&self, claim: &PersistentVolumeClaim, volume: &str) -> Result<(), Error> {
        // The cache of volumes may be older than that of claims: the API decides.
        if Api::<PersistentVolume>::all(self.world.client.clone())
            .get_opt(volume)
            .await?
            .is_some()
        {
            return Ok(());
        }
        self.patch_status(claim, json!({"phase": "Lost"})).await?;
        let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
        self.recorder.warning(claim, "ClaimLost", message);
        Ok(())
    }

    async fn set_pending(&self, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        match claim.status.as_ref().and_then(|status| status.phase.as_deref()) {
            Some(_) => Ok(()),
            None => self.patch_status(claim, json!({"phase": "Pending"})).await,
        }
    }

    async fn provision(&self, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        let spec = claim.spec.clone().unwrap_or_default();
        let name = spec.storage_class_name.unwrap_or_default();
        if name.is_empty() {
            let message = "no persistent volumes available for this claim and no storage class is set";
            self.recorder.warning_once(claim, "FailedBinding", message);
            return Ok(());
        }
        let Some(class) = self.world.classes.named(&name) else {
            let message = format!("storageclass.storage.k8s.io \"{name}\" not found");
            self.recorder.warning_once(claim, "ProvisioningFailed", &message);
            return Ok(());
        };
        if class.provisioner != PROVISIONER {
            let message = format!(
                "Waiting for a volume to be created either by the external provisioner '{}' or manually by the system \
                 administrator. If volume creation is delayed, please verify that the provisioner is running and \
                 correctly registered.",
                class.provisioner
            );
            self.recorder.warning_once(claim, "ExternalProvisioning", &message);
            return Ok(());
        }
        if class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer") && !self.is_wanted(claim) {
            let message = "waiting for first consumer to be created before binding";
            self.recorder.warning_once(claim, "WaitForFirstConsumer", message);
            return Ok(());
        }
        let volume = new_volume(claim, &class, &self.folder);
        let name = volume.name_any();
        make_folder(&self.folder.join(&name))
            .await
            .map_err(|source| Error::Folder {
                volume: name.clone(),
                source,
            })?;
        let api: Api<PersistentVolume> = Api::all(self.world.client.clone());
        if unless_moved_on(api.create(&PostParams::default(), &volume).await)?.is_some() {
            let message = format!("Successfully provisioned volume {name}");
            self.recorder.normal(claim, "ProvisioningSucceeded", &message);
        }
        Ok(())
    }

    fn is_wanted(&self, claim: &PersistentVolumeClaim) -> bool {
        let name = claim.name_any();
        self.world
            .pods
            .all()
            .iter()
            .any(|pod| pod.namespace() == claim.namespace() && claim_names(pod).any(|used| used == name))
    }

    async fn patch(&self, claim: &PersistentVolumeClaim, mut patch: Value) -> Result<(), Error> {
        patch["metadata"]["uid"] = json!(claim.metadata.uid);
        patch["metadata"]["resourceVersion"] = json!(claim.metadata.resource_version);
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(self.world.client.clone(), &claim.namespace().unwrap_or_default());
        unless_moved_on(
            api.patch(&claim.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
                .await,
        )?;
        Ok(())
    }

    async fn patch_status(&self, claim: &PersistentVolumeClaim, status: Value) -> Result<(), Error> {
        let patch = json!({"metadata": {"uid": claim.metadata.uid}, "status": status});
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(self.world.client.clone(), &claim.namespace().unwrap_or_default());
        unless_moved_on(
            api.patch_status(&claim.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
                .await,
        )?;
        Ok(())
    }
}

/// Accessible to all users: containers run under any user ID, and the folder above it is not accessible.
async fn make_folder(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    tokio::fs::create_dir_all(path).await?;
    tokio::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).await
}

fn storage(amounts: Option<&BTreeMap<String, Quantity>>) -> Option<Quantity> {
    amounts.and_then(|amounts| amounts.get("storage")).cloned()
}

/// A reference without a UID was written by a person who reserves the volume for a claim of that name.
fn refers_to(reference: &ObjectReference, claim: &PersistentVolumeClaim) -> bool {
    reference.namespace == claim.metadata.namespace
        && reference.name == claim.metadata.name
        && (reference.uid.as_deref().unwrap_or_default().is_empty() || reference.uid == claim.metadata.uid)
}

/// PURE. The volume reserved for the claim, else the smallest free one that fits.
fn best_volume(
    claim: &PersistentVolumeClaim,
    volumes: &[Arc<PersistentVolume>],
    taken: &[String],
) -> Option<Arc<PersistentVolume>> {
    let usable = |volume: &&Arc<PersistentVolume>| {
        volume.metadata.deletion_timestamp.is_none() && !taken.contains(&volume.name_any())
    };
    let reference = |volume: &PersistentVolume| volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone());
    let reserved = volumes
        .iter()
        .filter(usable)
        .find(|volume| reference(volume).is_some_and(|reference| refers_to(&reference, claim)));
    if let Some(volume) = reserved {
        return Some(volume.clone());
    }
    let spec = claim.spec.clone().unwrap_or_default();
    let asked = storage(
        spec.resources
            .as_ref()
            .and_then(|resources| resources.requests.as_ref()),
    );
    let asked = asked.as_ref().and_then(millis).unwrap_or(0);
    let size = |volume: &PersistentVolume| {
        storage(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()))
            .as_ref()
            .and_then(millis)
            .unwrap_or(0)
    };
    let fits = |volume: &&Arc<PersistentVolume>| {
        let offer = volume.spec.clone().unwrap_or_default();
        let modes = offer.access_modes.unwrap_or_default();
        offer.claim_ref.is_none()
            && offer.storage_class_name.unwrap_or_default() == spec.storage_class_name.clone().unwrap_or_default()
            && offer.volume_mode.as_deref().unwrap_or("Filesystem")
                == spec.volume_mode.as_deref().unwrap_or("Filesystem")
            && spec.access_modes.iter().flatten().all(|mode| modes.contains(mode))
            && spec
                .selector
                .as_ref()
                .is_none_or(|selector| selects(Some(selector), volume.labels()))
            && size(volume) >= asked
    };
    volumes
        .iter()
        .filter(usable)
        .filter(fits)
        .min_by_key(|volume| (size(volume), volume.name_any()))
        .cloned()
}

fn new_volume(claim: &PersistentVolumeClaim, class: &StorageClass, folder: &Path) -> PersistentVolume {
    let name = format!("pvc-{}", claim.uid().unwrap_or_default());
    let spec = claim.spec.clone().unwrap_or_default();
    let asked = storage(
        spec.resources
            .as_ref()
            .and_then(|resources| resources.requests.as_ref()),
    );
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            annotations: Some(BTreeMap::from([(PROVISIONED_BY.to_owned(), PROVISIONER.to_owned())])),
            finalizers: Some(vec![super::volumes::PROTECTION.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes,
            capacity: Some(BTreeMap::from([(
                "storage".to_owned(),
                asked.unwrap_or_else(|| Quantity("1Gi".to_owned())),
            )])),
            claim_ref: Some(ObjectReference {
                resource_version: None,
                ..claim.object_ref(&())
            }),
            host_path: Some(HostPathVolumeSource {
                path: folder.join(&name).to_string_lossy().into_owned(),
                type_: Some("DirectoryOrCreate".to_owned()),
            }),
            persistent_volume_reclaim_policy: class.reclaim_policy.clone().or_else(|| Some("Delete".to_owned())),
            storage_class_name: class.metadata.name.clone(),
            volume_mode: spec.volume_mode.or_else(|| Some("Filesystem".to_owned())),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(spec: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "n", "uid": "u"}, "spec": spec})).unwrap()
    }

    fn volume(name: &str, spec: Value) -> Arc<PersistentVolume> {
        Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap())
    }

    fn best(claim: &PersistentVolumeClaim, volumes: &[Arc<PersistentVolume>]) -> Option<String> {
        best_volume(claim, volumes, &[]).map(|volume| volume.name_any())
    }

    #[test]
    fn the_smallest_free_volume_that_fits_is_taken() {
        let claim = claim(json!({"storageClassName": "slow", "accessModes": ["ReadWriteOnce"],
                                 "resources": {"requests": {"storage": "2Gi"}}}));
        let offer = |name: &str, size: &str, class: &str, mode: &str| {
            volume(
                name,
                json!({"storageClassName": class, "accessModes": [mode], "capacity": {"storage": size}}),
            )
        };
        let volumes = [
            offer("big", "10Gi", "slow", "ReadWriteOnce"),
            offer("fits", "3Gi", "slow", "ReadWriteOnce"),
            offer("small", "1Gi", "slow", "ReadWriteOnce"),
            offer("class", "2Gi", "fast", "ReadWriteOnce"),
            offer("mode", "2Gi", "slow", "ReadOnlyMany"),
        ];
        assert_eq!(best(&claim, &volumes).as_deref(), Some("fits"));
        assert_eq!(
            best_volume(&claim, &volumes, &["fits".to_owned()]).unwrap().name_any(),
            "big"
        );
        assert_eq!(best(&claim, &volumes[2..]), None);
    }

    #[test]
    fn a_reserved_volume_is_taken_by_its_claim_only() {
        let reserved = |uid: Value| volume("r", json!({"claimRef": {"namespace": "n", "name": "c", "uid": uid}}));
        let claim = claim(json!({}));
        assert_eq!(best(&claim, &[reserved(json!(""))]).as_deref(), Some("r"));
        assert_eq!(best(&claim, &[reserved(json!("u"))]).as_deref(), Some("r"));
        assert_eq!(best(&claim, &[reserved(json!("an older claim of that name"))]), None);
    }
}
