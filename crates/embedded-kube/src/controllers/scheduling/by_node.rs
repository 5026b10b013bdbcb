//! The filters and scores of a node itself: taints, labels, resources, and volume topology.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Container, Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, Pod, Taint, Toleration,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;

use super::super::quantity::millis;
use super::{Refusal, Scene};

/// Unschedulable, taints, labels, resources: in the scheduler's order.
pub(super) fn filter(pod: &Pod, node: &Node, scene: &Scene) -> Result<(), Refusal> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let node_spec = node.spec.clone().unwrap_or_default();
    let cordon = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    if node_spec.unschedulable == Some(true) && !tolerates(tolerations, &cordon) {
        return Err(Refusal::of_node("node(s) were unschedulable"));
    }
    let untolerated =
        node_spec.taints.iter().flatten().find(|taint| {
            matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute") && !tolerates(tolerations, taint)
        });
    if let Some(taint) = untolerated {
        let value = taint.value.as_deref().unwrap_or_default();
        return Err(Refusal::of_node(format!(
            "node(s) had untolerated taint {{{}: {value}}}",
            taint.key
        )));
    }
    if !matches_affinity(pod, node) {
        return Err(Refusal::of_node("node(s) didn't match Pod's node affinity/selector"));
    }
    fits(pod, node, scene)
}

/// The pod's node selector and its required node affinity.
pub(super) fn matches_affinity(pod: &Pod, node: &Node) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let labels = node.labels();
    let selected = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key).is_some_and(|found| found == value));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    selected && required.is_none_or(|required| matches_selector(required, node))
}

/// A volume that is on some nodes only restricts its pod to them.
pub(super) fn filter_volumes(volumes: &[Arc<PersistentVolume>], node: &Node) -> Result<(), Refusal> {
    let elsewhere = volumes.iter().any(|volume| {
        let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
        let required = affinity.and_then(|affinity| affinity.required.as_ref());
        required.is_some_and(|required| !matches_selector(required, node))
    });
    if elsewhere {
        Err(Refusal::of_node("node(s) had volume node affinity conflict"))
    } else {
        Ok(())
    }
}

/// Preferred node affinity, soft taints, and free resources, on the scheduler's scale of 0 to 100 times its weights.
pub(super) fn score(pod: &Pod, node: &Node, scene: &Scene) -> i64 {
    let Some(spec) = &pod.spec else { return 0 };
    let preferred = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| affinity.preferred_during_scheduling_ignored_during_execution.as_ref());
    let wanted: i64 = preferred
        .iter()
        .flat_map(|terms| terms.iter())
        .filter(|term| matches_term(&term.preference, node))
        .map(|term| i64::from(term.weight))
        .sum();
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let disliked = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten())
        .filter(|taint| taint.effect == "PreferNoSchedule" && !tolerates(tolerations, taint))
        .count();
    let disliked = i64::try_from(disliked).unwrap_or(i64::MAX / 1000);
    2 * wanted - 300 * disliked + room_left(pod, node, scene)
}

fn matches_selector(selector: &NodeSelector, node: &Node) -> bool {
    selector.node_selector_terms.iter().any(|term| matches_term(term, node))
}

/// A term without any requirement matches nothing (Kubernetes' rule).
fn matches_term(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let own_name = BTreeMap::from([("metadata.name".to_owned(), node.name_any())]);
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|requirement| holds(requirement, node.labels()))
        && fields.iter().all(|requirement| holds(requirement, &own_name))
}

fn holds(requirement: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let found = labels.get(&requirement.key);
    let numbers = || Some((found?.parse::<i64>().ok()?, values.first()?.parse::<i64>().ok()?));
    match requirement.operator.as_str() {
        "In" => found.is_some_and(|value| values.contains(value)),
        "NotIn" => found.is_none_or(|value| !values.contains(value)),
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        "Gt" => numbers().is_some_and(|(found, bound)| found > bound),
        "Lt" => numbers().is_some_and(|(found, bound)| found < bound),
        _ => false,
    }
}

/// Whether one of the tolerations matches the taint.
pub(crate) fn tolerates(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerations.iter().any(|toleration| covers(toleration, taint))
}

pub(crate) fn covers(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    let value_matches = match toleration.operator.as_deref().unwrap_or("Equal") {
        "Exists" => true,
        "Equal" | "" => toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default(),
        _ => false,
    };
    (effect.is_empty() || effect == taint.effect)
        && (key.is_empty() && toleration.operator.as_deref() == Some("Exists") || key == taint.key)
        && value_matches
}

type Amounts = BTreeMap<String, i128>;

fn fits(pod: &Pod, node: &Node, scene: &Scene) -> Result<(), Refusal> {
    let (free, pods) = free(node, scene);
    let mut short: Vec<String> = Vec::new();
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let most_pods = allocatable.and_then(|amounts| amounts.get("pods")).and_then(millis);
    if most_pods.is_some_and(|most| (pods + 1) * 1000 > most) {
        short.push("Too many pods".to_owned());
    }
    for (resource, wanted) in requests(pod) {
        if wanted > 0 && free.get(&resource).copied().unwrap_or(0) < wanted {
            short.push(format!("Insufficient {resource}"));
        }
    }
    if short.is_empty() {
        Ok(())
    } else {
        Err(Refusal {
            reasons: short,
            preemption_could_help: true,
        })
    }
}

/// The free amount of each resource, and the number of pods.
fn free(node: &Node, scene: &Scene) -> (Amounts, i128) {
    let name = node.name_any();
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let mut free: Amounts = allocatable.map(amounts).unwrap_or_default();
    let mut pods = 0;
    for (placed, _) in scene.placed.iter().filter(|(_, on)| *on == name) {
        pods += 1;
        for (resource, taken) in requests(placed) {
            *free.entry(resource).or_default() -= taken;
        }
    }
    (free, pods)
}

/// The mean share of cpu and memory still free with this pod there, 0 to 100.
fn room_left(pod: &Pod, node: &Node, scene: &Scene) -> i64 {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let whole: Amounts = allocatable.map(amounts).unwrap_or_default();
    let (free, _) = free(node, scene);
    let wanted = requests(pod);
    let share = |resource: &str| {
        let whole = whole.get(resource).copied().filter(|whole| *whole > 0)?;
        let left = free.get(resource).copied().unwrap_or(0) - wanted.get(resource).copied().unwrap_or(0);
        i64::try_from(left.max(0) * 100 / whole).ok()
    };
    let shares: Vec<i64> = ["cpu", "memory"].into_iter().filter_map(share).collect();
    shares.iter().sum::<i64>() / i64::try_from(shares.len().max(1)).unwrap_or(1)
}

fn amounts(quantities: &BTreeMap<String, Quantity>) -> Amounts {
    quantities
        .iter()
        .filter_map(|(name, quantity)| Some((name.clone(), millis(quantity)?)))
        .collect()
}

/// The resources that a pod needs: the larger of the sum over its containers and sidecars, and the largest init
/// container (with the sidecars started before it), plus its overhead.
fn requests(pod: &Pod) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let of = |container: &Container| {
        let requests = container
            .resources
            .as_ref()
            .and_then(|resources| resources.requests.as_ref());
        requests.map(amounts).unwrap_or_default()
    };
    let mut total = Amounts::new();
    for container in &spec.containers {
        add(&mut total, &of(container));
    }
    let mut sidecars = Amounts::new();
    let mut peak = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        let own = of(container);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut sidecars, &own);
            add(&mut total, &own);
            raise(&mut peak, &sidecars);
        } else {
            let mut during = sidecars.clone();
            add(&mut during, &own);
            raise(&mut peak, &during);
        }
    }
    raise(&mut total, &peak);
    add(&mut total, &spec.overhead.as_ref().map(amounts).unwrap_or_default());
    total
}

fn add(total: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        *total.entry(name.clone()).or_default() += amount;
    }
}

fn raise(total: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let entry = total.entry(name.clone()).or_default();
        *entry = (*entry).max(*amount);
    }
}
