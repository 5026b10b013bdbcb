//! PURE. Chooses the node for a pod, or explains why no node fits, with the rules and messages of the Kubernetes
//! scheduler.
//!
//! A node passes through the filters in the scheduler's order; the first that rejects it gives the reason. Nodes that
//! pass are scored; ties go to the node with the fewest pods, then to the first by name, so that the same input gives
//! the same result.

mod by_node;
mod by_pods;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use kube::core::{Selector, SelectorExt};

pub(crate) use by_node::covers;

/// The input of the decision.
#[derive(Default)]
pub(crate) struct Scene {
    pub(crate) nodes: Vec<Arc<Node>>,
    /// Placed pods, with the names of their nodes.
    pub(crate) placed: Vec<(Arc<Pod>, String)>,
    /// By namespace and name.
    pub(crate) claims: HashMap<(String, String), Arc<PersistentVolumeClaim>>,
    pub(crate) volumes: HashMap<String, Arc<PersistentVolume>>,
    pub(crate) namespaces: HashMap<String, BTreeMap<String, String>>,
}

/// Why a node does not fit.
struct Refusal {
    reasons: Vec<String>,
    /// Whether removing other pods from the node could change that. Nothing is ever preempted here, but the message
    /// distinguishes the two.
    preemption_could_help: bool,
}

impl Refusal {
    fn of_node(reason: impl Into<String>) -> Self {
        Refusal {
            reasons: vec![reason.into()],
            preemption_could_help: false,
        }
    }

    fn of_pods(reason: impl Into<String>) -> Self {
        Refusal {
            reasons: vec![reason.into()],
            preemption_could_help: true,
        }
    }
}

/// The node for this pod, or the message of its `Unschedulable` condition.
pub(crate) fn place(pod: &Pod, scene: &Scene) -> Result<String, String> {
    if scene.nodes.is_empty() {
        return Err("no nodes available to schedule pods".to_owned());
    }
    let all = scene.nodes.len();
    let volumes = volumes_of(pod, scene).map_err(|reason| {
        format!(
            "0/{all} nodes are available: {reason}. preemption: 0/{all} nodes are available: \
             {all} Preemption is not helpful for scheduling."
        )
    })?;
    let constraints = by_pods::Constraints::new(pod, scene);
    let mut fitting = Vec::new();
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut helpless = 0;
    for node in &scene.nodes {
        let verdict = by_node::filter(pod, node, scene)
            .and_then(|()| by_node::filter_volumes(&volumes, node))
            .and_then(|()| constraints.filter(node));
        match verdict {
            Ok(()) => fitting.push(node),
            Err(rejection) => {
                helpless += usize::from(!rejection.preemption_could_help);
                for reason in rejection.reasons {
                    *reasons.entry(reason).or_default() += 1;
                }
            }
        }
    }
    if fitting.is_empty() {
        return Err(message(all, helpless, &reasons));
    }
    let best = fitting.into_iter().min_by_key(|node| {
        let score = by_node::score(pod, node, scene) + constraints.score(node);
        let pods = scene.placed.iter().filter(|(_, on)| *on == node.name_any()).count();
        (std::cmp::Reverse(score), pods, node.name_any())
    });
    best.map(|node| node.name_any())
        .ok_or_else(|| message(all, helpless, &reasons))
}

/// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) …. preemption: …`, as the scheduler writes it.
fn message(all: usize, helpless: usize, reasons: &BTreeMap<String, usize>) -> String {
    let mut parts: Vec<String> = reasons
        .iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    parts.sort();
    let mut preemption = Vec::new();
    if all > helpless {
        preemption.push(format!(
            "{} No preemption victims found for incoming pod",
            all - helpless
        ));
    }
    if helpless > 0 {
        preemption.push(format!("{helpless} Preemption is not helpful for scheduling"));
    }
    preemption.sort();
    format!(
        "0/{all} nodes are available: {}. preemption: 0/{all} nodes are available: {}.",
        parts.join(", "),
        preemption.join(", ")
    )
}

/// The volumes the pod's claims are bound to; an unbound or absent claim keeps the pod waiting.
fn volumes_of(pod: &Pod, scene: &Scene) -> Result<Vec<Arc<PersistentVolume>>, String> {
    let namespace = pod.namespace().unwrap_or_default();
    let mut volumes = Vec::new();
    for name in claim_names(pod) {
        let claim = scene
            .claims
            .get(&(namespace.clone(), name.clone()))
            .ok_or_else(|| format!("persistentvolumeclaim \"{name}\" not found"))?;
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(format!("persistentvolumeclaim \"{name}\" is being deleted"));
        }
        let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        let volume = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.volume_name.as_ref())
            .filter(|_| bound);
        match volume {
            Some(volume) => volumes.extend(scene.volumes.get(volume).cloned()),
            None => return Err("pod has unbound immediate PersistentVolumeClaims".to_owned()),
        }
    }
    Ok(volumes)
}

/// The claims a pod mounts, by name.
pub(crate) fn claim_names(pod: &Pod) -> impl Iterator<Item = String> + '_ {
    let own = pod.name_any();
    pod.spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten())
        .filter_map(move |volume| {
            let claim = volume
                .persistent_volume_claim
                .as_ref()
                .map(|source| source.claim_name.clone());
            // A generic ephemeral volume is a claim named after the pod and the volume.
            claim.or_else(|| volume.ephemeral.as_ref().map(|_| format!("{own}-{}", volume.name)))
        })
}

/// Whether a label selector matches labels. `None` selects nothing, an empty one everything, an invalid one nothing.
pub(crate) fn selects(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> bool {
    selector
        .and_then(|selector| Selector::try_from(selector.clone()).ok())
        .is_some_and(|selector| selector.matches(labels))
}
