//! The StatefulSet. It keeps pods alive without the operator; the operator decides who stops (`OnDelete`).

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetUpdateStrategy};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PodTemplateSpec, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{annotations, pod, pod_hash, set_metadata_hash};
use crate::intent::Intent;
use crate::names;

/// The claim of a member, in the pod.
pub(super) const CLAIM: &str = "data";

/// The StatefulSet with this many pods. `agent_image` has the `stateward` program. `existing` is the StatefulSet that is there:
/// Kubernetes lets nobody change what its claims are made from, so that stays. A claim's size and owner are set on the claim itself.
pub fn stateful_set(intent: &Intent, replicas: u32, agent_image: &str, existing: Option<&StatefulSet>) -> StatefulSet {
    let claims = existing.and_then(|set| set.spec.volume_claim_templates.clone());
    let mut metadata = super::metadata(intent, intent.name.clone());
    metadata.annotations = Some(annotations(intent, set_metadata_hash(intent)));
    StatefulSet {
        metadata,
        spec: StatefulSetSpec {
            replicas: Some(i32::try_from(replicas).unwrap_or(i32::MAX)),
            service_name: Some(intent.name.clone()),
            selector: super::selector(intent),
            pod_management_policy: Some("Parallel".into()),
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("OnDelete".into()),
                rolling_update: None,
            }),
            template: template(intent, agent_image),
            volume_claim_templates: Some(claims.unwrap_or_else(|| vec![claim(intent)])),
            ..StatefulSetSpec::default()
        },
        status: None,
    }
}

fn template(intent: &Intent, agent_image: &str) -> PodTemplateSpec {
    let mut labels = intent.pod.labels.clone();
    labels.extend(names::labels(&intent.name));
    let mut annotations = intent.pod.annotations.clone();
    annotations.extend([
        (names::ANNOTATION_POD_HASH.to_owned(), pod_hash(intent)),
        (names::ANNOTATION_VERSION.to_owned(), intent.version.to_string()),
        (names::ANNOTATION_CLUSTER_UID.to_owned(), intent.uid.0.clone()),
    ]);
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        }),
        spec: Some(pod::spec(intent, agent_image)),
    }
}

fn claim(intent: &Intent) -> PersistentVolumeClaim {
    let size = Quantity(intent.storage.bytes.to_string());
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(CLAIM.into()),
            labels: Some(names::labels(&intent.name)),
            annotations: Some(BTreeMap::from([(
                names::ANNOTATION_CLUSTER_UID.to_owned(),
                intent.uid.0.clone(),
            )])),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".into()]),
            storage_class_name: intent.storage.class.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([("storage".to_owned(), size)])),
                limits: None,
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}
