//! PURE. The history of a set's pod template, as ControllerRevisions, for `kubectl rollout history` and `undo`.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::identity;

const HASH: &str = "controller.kubernetes.io/hash";

/// The change of the history after which its last entry is the set's template.
pub(super) enum Settled {
    As {
        current: Arc<ControllerRevision>,
        update: Arc<ControllerRevision>,
    },
    /// The template is an older one again (a rollback): that entry becomes the newest.
    Renumber(Arc<ControllerRevision>, i64),
    Create(Box<ControllerRevision>),
}

pub(super) fn settle(set: &StatefulSet, owned: &[Arc<ControllerRevision>]) -> Settled {
    let data = data(set);
    let next = owned.iter().map(|revision| number(revision)).max().unwrap_or(0) + 1;
    let same = owned
        .iter()
        .filter(|revision| revision.data.0 == data)
        .max_by_key(|revision| number(revision));
    let update = match same {
        None => return Settled::Create(Box::new(new(set, data, next))),
        Some(same) if number(same) + 1 < next => return Settled::Renumber(same.clone(), next),
        Some(same) => same.clone(),
    };
    let named = set
        .status
        .as_ref()
        .and_then(|status| status.current_revision.as_deref());
    let current = owned
        .iter()
        .find(|revision| Some(revision.name_any().as_str()) == named)
        .unwrap_or(&update)
        .clone();
    Settled::As { current, update }
}

/// Entries beyond the limit that nothing uses, oldest first.
pub(super) fn expendable(
    set: &StatefulSet,
    owned: &[Arc<ControllerRevision>],
    pods: &[Arc<Pod>],
    current: &ControllerRevision,
    update: &ControllerRevision,
) -> Vec<Arc<ControllerRevision>> {
    let limit = set.spec.revision_history_limit.unwrap_or(10).max(0);
    let mut unused: Vec<_> = owned
        .iter()
        .filter(|revision| {
            let name = revision.name_any();
            let used = pods
                .iter()
                .any(|pod| pod.labels().get(identity::REVISION) == Some(&name));
            !used && name != current.name_any() && name != update.name_any()
        })
        .cloned()
        .collect();
    unused.sort_by_key(|revision| number(revision));
    let surplus = unused.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    unused.truncate(surplus);
    unused
}

/// A strategic merge patch that restores the template, for `kubectl rollout undo`.
fn data(set: &StatefulSet) -> Value {
    let mut template = serde_json::to_value(&set.spec.template).unwrap_or_else(|_| json!({}));
    template["$patch"] = json!("replace");
    json!({"spec": {"template": template}})
}

/// The template a revision holds.
pub(super) fn template(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut template = revision.data.0.pointer("/spec/template")?.clone();
    template.as_object_mut()?.remove("$patch");
    serde_json::from_value(template).ok()
}

fn new(set: &StatefulSet, data: Value, number: i64) -> ControllerRevision {
    let hash = hash(&data);
    let template = set.spec.template.metadata.clone().unwrap_or_default();
    let mut labels = template.labels.unwrap_or_default();
    labels.insert(HASH.to_owned(), hash.clone());
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", set.name_any())),
            namespace: set.namespace(),
            labels: Some(labels),
            annotations: set.metadata.annotations.clone(),
            owner_references: Some(vec![identity::owner(set)]),
            ..ObjectMeta::default()
        },
        data: RawExtension(data),
        revision: Some(number),
    }
}

/// Its place in the history.
pub(super) fn number(revision: &ControllerRevision) -> i64 {
    revision.revision.unwrap_or(0)
}

/// Ten characters without vowels, as Kubernetes uses in names.
fn hash(data: &Value) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let digest = Sha256::digest(data.to_string());
    digest
        .iter()
        .take(10)
        .map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]))
        .collect()
}
