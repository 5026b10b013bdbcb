//! The effect of placed pods on a new one: affinity, anti-affinity, and topology spread.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::api::core::v1::{Node, Pod, PodAffinityTerm, TopologySpreadConstraint, WeightedPodAffinityTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;
use kube::ResourceExt;

use super::{Refusal, Scene, by_node, selects};

/// A topology domain: label key and value.
type Domain = (String, String);

/// The relevant facts about the other pods, computed once for all nodes.
pub(super) struct Constraints<'a> {
    pod: &'a Pod,
    /// Required affinity terms, each with the domains that hold a matching pod.
    wanted: Vec<(PodAffinityTerm, BTreeSet<Domain>)>,
    /// Domains the pod's own anti-affinity rules out.
    avoided: BTreeSet<Domain>,
    /// Domains that the anti-affinity of placed pods rules out for this pod.
    closed: BTreeSet<Domain>,
    /// Preferred affinity (positive) and anti-affinity (negative), of this pod and of placed ones toward it.
    weights: HashMap<Domain, i64>,
    spread: Vec<Spread>,
    /// Pods of the same owner by node name: spreads siblings unless something else decides.
    siblings: HashMap<String, i64>,
}

struct Spread {
    constraint: TopologySpreadConstraint,
    /// Matching pods by domain value; every eligible domain has an entry.
    counts: BTreeMap<String, i64>,
    matches_itself: bool,
}

impl<'a> Constraints<'a> {
    pub(super) fn new(pod: &'a Pod, scene: &Scene) -> Self {
        let nodes: HashMap<String, &Node> = scene
            .nodes
            .iter()
            .map(|node| (node.name_any(), node.as_ref()))
            .collect();
        let domain = |node: &str, key: &str| {
            nodes
                .get(node)
                .and_then(|node| node.labels().get(key))
                .map(|value| (key.to_owned(), value.clone()))
        };
        let mut wanted: Vec<(PodAffinityTerm, BTreeSet<Domain>)> = required(pod, Side::Toward)
            .iter()
            .map(|term| (term.clone(), BTreeSet::new()))
            .collect();
        let against = required(pod, Side::Away);
        let (mut avoided, mut closed) = (BTreeSet::new(), BTreeSet::new());
        let mut weights: HashMap<Domain, i64> = HashMap::new();
        let mut siblings: HashMap<String, i64> = HashMap::new();
        let mut weigh = |domain: Option<Domain>, weight: i64| {
            if let Some(domain) = domain {
                *weights.entry(domain).or_default() += weight;
            }
        };
        let own_controller = controller(pod);
        for (placed, on) in &scene.placed {
            for (term, domains) in &mut wanted {
                if term_matches(term, pod, placed, scene) {
                    domains.extend(domain(on, &term.topology_key));
                }
            }
            for term in &against {
                if term_matches(term, pod, placed, scene) {
                    avoided.extend(domain(on, &term.topology_key));
                }
            }
            for term in required(placed, Side::Away) {
                if term_matches(&term, placed, pod, scene) {
                    closed.extend(domain(on, &term.topology_key));
                }
            }
            for (side, sign) in [(Side::Toward, 1), (Side::Away, -1)] {
                for preferred in preferred(pod, side) {
                    let term = &preferred.pod_affinity_term;
                    if term_matches(term, pod, placed, scene) {
                        weigh(domain(on, &term.topology_key), sign * i64::from(preferred.weight));
                    }
                }
                for preferred in preferred(placed, side) {
                    let term = &preferred.pod_affinity_term;
                    if term_matches(term, placed, pod, scene) {
                        weigh(domain(on, &term.topology_key), sign * i64::from(preferred.weight));
                    }
                }
            }
            if own_controller.is_some() && controller(placed) == own_controller {
                *siblings.entry(on.clone()).or_default() += 1;
            }
        }
        Constraints {
            pod,
            wanted,
            avoided,
            closed,
            weights,
            spread: spreads(pod, scene),
            siblings,
        }
    }

    pub(super) fn filter(&self, node: &Node) -> Result<(), Refusal> {
        for spread in self
            .spread
            .iter()
            .filter(|spread| spread.constraint.when_unsatisfiable == "DoNotSchedule")
        {
            let Some(value) = node.labels().get(&spread.constraint.topology_key) else {
                return Err(Refusal::of_node(
                    "node(s) didn't match pod topology spread constraints (missing required label)",
                ));
            };
            if spread.skew_with(value) > i64::from(spread.constraint.max_skew) {
                return Err(Refusal::of_pods("node(s) didn't match pod topology spread constraints"));
            }
        }
        for (term, domains) in &self.wanted {
            let here = node
                .labels()
                .get(&term.topology_key)
                .map(|value| (term.topology_key.clone(), value.clone()));
            // The first pod of a group with affinity to itself can run anywhere.
            let first_of_its_kind = domains.is_empty() && own_term_matches(term, self.pod);
            if here.is_none() || !(first_of_its_kind || here.is_some_and(|here| domains.contains(&here))) {
                return Err(Refusal::of_node("node(s) didn't match pod affinity rules"));
            }
        }
        let in_one_of = |domains: &BTreeSet<Domain>| {
            domains
                .iter()
                .any(|(key, value)| node.labels().get(key).is_some_and(|found| found == value))
        };
        if in_one_of(&self.avoided) {
            return Err(Refusal::of_pods("node(s) didn't match pod anti-affinity rules"));
        }
        if in_one_of(&self.closed) {
            return Err(Refusal::of_pods(
                "node(s) didn't satisfy existing pods anti-affinity rules",
            ));
        }
        Ok(())
    }

    pub(super) fn score(&self, node: &Node) -> i64 {
        let labels = node.labels();
        let weight: i64 = self
            .weights
            .iter()
            .filter(|((key, value), _)| labels.get(key).is_some_and(|found| found == value))
            .map(|(_, weight)| *weight)
            .sum();
        let crowd: i64 = self
            .spread
            .iter()
            .filter(|spread| spread.constraint.when_unsatisfiable == "ScheduleAnyway")
            .map(|spread| {
                let value = labels.get(&spread.constraint.topology_key);
                value.map_or(1000, |value| spread.counts.get(value).copied().unwrap_or(0))
            })
            .sum();
        let siblings = self.siblings.get(&node.name_any()).copied().unwrap_or(0);
        2 * weight - 200 * crowd - 100 * siblings
    }
}

impl Spread {
    fn skew_with(&self, value: &str) -> i64 {
        let here = self.counts.get(value).copied().unwrap_or(0) + i64::from(self.matches_itself);
        let domains = i32::try_from(self.counts.len()).unwrap_or(i32::MAX);
        // With fewer domains than required, the minimum counts as zero (Kubernetes' rule of minDomains).
        let too_few = self.constraint.min_domains.is_some_and(|least| domains < least);
        let least = if too_few {
            0
        } else {
            self.counts.values().copied().min().unwrap_or(0)
        };
        here - least
    }
}

fn spreads(pod: &Pod, scene: &Scene) -> Vec<Spread> {
    let constraints = pod
        .spec
        .iter()
        .flat_map(|spec| spec.topology_spread_constraints.iter().flatten());
    constraints
        .map(|constraint| {
            let mut selector = constraint.label_selector.clone();
            if let Some(selector) = &mut selector {
                for key in constraint.match_label_keys.iter().flatten() {
                    if let Some(value) = pod.labels().get(key) {
                        selector
                            .match_expressions
                            .get_or_insert_default()
                            .push(LabelSelectorRequirement {
                                key: key.clone(),
                                operator: "In".to_owned(),
                                values: Some(vec![value.clone()]),
                            });
                    }
                }
            }
            let mut counts = BTreeMap::new();
            for node in &scene.nodes {
                let Some(value) = node.labels().get(&constraint.topology_key) else {
                    continue;
                };
                let by_affinity = constraint.node_affinity_policy.as_deref() != Some("Ignore");
                let by_taints = constraint.node_taints_policy.as_deref() == Some("Honor");
                if by_affinity && !by_node::matches_affinity(pod, node) || by_taints && !untainted_for(pod, node) {
                    continue;
                }
                let name = node.name_any();
                let here = scene.placed.iter().filter(|(placed, on)| {
                    *on == name
                        && placed.metadata.deletion_timestamp.is_none()
                        && placed.namespace() == pod.namespace()
                        && selects(selector.as_ref(), placed.labels())
                });
                *counts.entry(value.clone()).or_insert(0) += i64::try_from(here.count()).unwrap_or(i64::MAX);
            }
            let matches_itself = selects(selector.as_ref(), pod.labels());
            Spread {
                constraint: constraint.clone(),
                counts,
                matches_itself,
            }
        })
        .collect()
}

fn untainted_for(pod: &Pod, node: &Node) -> bool {
    let tolerations = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.tolerations.as_deref())
        .unwrap_or_default();
    node.spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten())
        .all(|taint| taint.effect == "PreferNoSchedule" || by_node::tolerates(tolerations, taint))
}

#[derive(Clone, Copy)]
enum Side {
    Toward,
    Away,
}

fn required(pod: &Pod, side: Side) -> Vec<PodAffinityTerm> {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    let terms = match side {
        Side::Toward => affinity
            .and_then(|affinity| affinity.pod_affinity.as_ref())
            .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.clone()),
        Side::Away => affinity
            .and_then(|affinity| affinity.pod_anti_affinity.as_ref())
            .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.clone()),
    };
    terms.unwrap_or_default()
}

fn preferred(pod: &Pod, side: Side) -> Vec<WeightedPodAffinityTerm> {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    let terms = match side {
        Side::Toward => affinity
            .and_then(|affinity| affinity.pod_affinity.as_ref())
            .and_then(|affinity| affinity.preferred_during_scheduling_ignored_during_execution.clone()),
        Side::Away => affinity
            .and_then(|affinity| affinity.pod_anti_affinity.as_ref())
            .and_then(|affinity| affinity.preferred_during_scheduling_ignored_during_execution.clone()),
    };
    terms.unwrap_or_default()
}

/// Whether `term` of pod `of` applies to pod `about`.
fn term_matches(term: &PodAffinityTerm, of: &Pod, about: &Pod, scene: &Scene) -> bool {
    let namespace = about.namespace().unwrap_or_default();
    let listed = term.namespaces.as_deref().unwrap_or_default();
    let in_scope = if listed.is_empty() && term.namespace_selector.is_none() {
        of.namespace().unwrap_or_default() == namespace
    } else {
        let labels = scene.namespaces.get(&namespace).cloned().unwrap_or_default();
        listed.contains(&namespace) || selects(term.namespace_selector.as_ref(), &labels)
    };
    in_scope && selects(term.label_selector.as_ref(), about.labels())
}

fn own_term_matches(term: &PodAffinityTerm, pod: &Pod) -> bool {
    selects(term.label_selector.as_ref(), pod.labels())
}

fn controller(pod: &Pod) -> Option<&str> {
    pod.owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true))
        .map(|owner| owner.uid.as_str())
}
