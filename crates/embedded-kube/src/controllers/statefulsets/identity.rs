//! PURE. The pod and the claims of one ordinal.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};

const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";
/// On a pod: the name of the revision from which it was created.
pub(super) const REVISION: &str = "controller-revision-hash";

/// `web-2` of `web` is 2; `None` for any other pod.
pub(super) fn ordinal(set: &StatefulSet, pod: &str) -> Option<i32> {
    let digits = pod.strip_prefix(&set.name_any())?.strip_prefix('-')?;
    let ordinal: i32 = digits.parse().ok()?;
    (ordinal >= 0 && ordinal.to_string() == digits).then_some(ordinal)
}

pub(super) fn pod_name(set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{ordinal}", set.name_any())
}

pub(super) fn owner(set: &StatefulSet) -> OwnerReference {
    OwnerReference {
        controller: Some(true),
        block_owner_deletion: Some(true),
        ..set.owner_ref(&()).unwrap_or_default()
    }
}

/// The pod of this ordinal, made from a revision's template.
pub(super) fn pod(set: &StatefulSet, ordinal: i32, template: &PodTemplateSpec, revision: &str) -> Pod {
    let name = pod_name(set, ordinal);
    let from = template.metadata.clone().unwrap_or_default();
    let mut labels = from.labels.unwrap_or_default();
    labels.insert(POD_NAME.to_owned(), name.clone());
    labels.insert(POD_INDEX.to_owned(), ordinal.to_string());
    labels.insert(REVISION.to_owned(), revision.to_owned());
    let mut spec = template.spec.clone().unwrap_or_default();
    spec.hostname = Some(name.clone());
    spec.subdomain = set.spec.service_name.clone().filter(|name| !name.is_empty());
    let templates = claim_templates(set);
    let mut volumes = spec.volumes.unwrap_or_default();
    volumes.retain(|volume| !templates.iter().any(|template| template.name_any() == volume.name));
    volumes.extend(templates.iter().map(|template| Volume {
        name: template.name_any(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim_name(set, template, ordinal),
            read_only: None,
        }),
        ..Volume::default()
    }));
    spec.volumes = (!volumes.is_empty()).then_some(volumes);
    Pod {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: set.namespace(),
            labels: Some(labels),
            annotations: from.annotations,
            finalizers: from.finalizers,
            owner_references: Some(vec![owner(set)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// The claims of this ordinal.
pub(super) fn claims(set: &StatefulSet, ordinal: i32) -> Vec<PersistentVolumeClaim> {
    let selector = set.spec.selector.match_labels.clone().unwrap_or_default();
    claim_templates(set)
        .iter()
        .map(|template| {
            let mut labels = template.labels().clone();
            labels.extend(selector.clone());
            PersistentVolumeClaim {
                metadata: ObjectMeta {
                    name: Some(claim_name(set, template, ordinal)),
                    namespace: set.namespace(),
                    labels: Some(labels),
                    annotations: template.metadata.annotations.clone(),
                    owner_references: keeps_until_deleted(set).then(|| vec![owner(set)]),
                    ..ObjectMeta::default()
                },
                spec: template.spec.clone(),
                status: None,
            }
        })
        .collect()
}

fn claim_templates(set: &StatefulSet) -> &[PersistentVolumeClaim] {
    set.spec.volume_claim_templates.as_deref().unwrap_or_default()
}

fn claim_name(set: &StatefulSet, template: &PersistentVolumeClaim, ordinal: i32) -> String {
    format!("{}-{}", template.name_any(), pod_name(set, ordinal))
}

/// Whether claims are deleted with the set (`whenDeleted: Delete`).
fn keeps_until_deleted(set: &StatefulSet) -> bool {
    let policy = set.spec.persistent_volume_claim_retention_policy.as_ref();
    policy.and_then(|policy| policy.when_deleted.as_deref()) == Some("Delete")
}

/// Whether a claim is deleted with its pod when the set shrinks (`whenScaled: Delete`).
fn goes_when_scaled(set: &StatefulSet) -> bool {
    let policy = set.spec.persistent_volume_claim_retention_policy.as_ref();
    policy.and_then(|policy| policy.when_scaled.as_deref()) == Some("Delete")
}

/// The owners that this claim should have by the retention policy, if they differ from its present ones. The claim of a
/// condemned pod belongs to the pod, so that garbage collection removes it after the pod.
pub(super) fn claim_owners(
    set: &StatefulSet,
    pod: &Pod,
    condemned: bool,
    claim: &PersistentVolumeClaim,
) -> Option<Vec<OwnerReference>> {
    let old = claim.owner_references();
    let is_set = |owner: &OwnerReference| owner.kind == "StatefulSet" && owner.name == set.name_any();
    let is_pod = |owner: &OwnerReference| owner.kind == "Pod" && owner.name == pod.name_any();
    let wanted = if condemned && goes_when_scaled(set) {
        Some(OwnerReference {
            controller: Some(true),
            block_owner_deletion: Some(true),
            ..pod.owner_ref(&()).unwrap_or_default()
        })
    } else if keeps_until_deleted(set) {
        Some(owner(set))
    } else {
        None
    };
    let mut new: Vec<OwnerReference> = old
        .iter()
        .filter(|owner| !is_set(owner) && !is_pod(owner))
        .cloned()
        .collect();
    new.extend(wanted);
    let uids = |owners: &[OwnerReference]| owners.iter().map(|owner| owner.uid.clone()).collect::<Vec<_>>();
    (uids(&new) != uids(old)).then_some(new)
}
