//! PURE. What to do next for one set: the order of starts, stops and updates.
//!
//! With `OrderedReady` one thing happens at a time: pod N+1 is created when pod N is ready, the highest is deleted
//! first when shrinking, and a pod that is not ready stops everything after it. An update replaces pods from the
//! highest ordinal down to the partition, each when the one before it is ready again; so an update that breaks a pod
//! stops there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use super::super::endpoints::is_ready;
use super::{identity, revisions};

/// The input of the decision.
pub(super) struct Seen<'a> {
    pub(super) set: &'a StatefulSet,
    /// The pods this set controls.
    pub(super) pods: &'a [Arc<Pod>],
    pub(super) claim: &'a dyn Fn(&str) -> Option<Arc<PersistentVolumeClaim>>,
    /// The template of pods until an update is complete.
    pub(super) current: &'a ControllerRevision,
    /// The present template.
    pub(super) update: &'a ControllerRevision,
    pub(super) now: Timestamp,
}

#[derive(Debug)]
pub(super) enum Action {
    /// With the name of its pod.
    CreateClaim(Box<PersistentVolumeClaim>, String),
    OwnClaim(Arc<PersistentVolumeClaim>, Vec<OwnerReference>),
    CreatePod(Box<Pod>),
    DeletePod(Arc<Pod>),
}

pub(super) struct Step {
    pub(super) actions: Vec<Action>,
    pub(super) status: StatefulSetStatus,
    /// When a pod becomes available without any event.
    pub(super) again_after: Option<Duration>,
}

pub(super) fn next(seen: &Seen<'_>) -> Step {
    let mut actions = Vec::new();
    let mut again_after = None;
    decide(seen, &mut actions, &mut again_after);
    let status = status(seen, &mut again_after);
    Step {
        actions,
        status,
        again_after,
    }
}

/// Returns early where it has to wait.
fn decide(seen: &Seen<'_>, actions: &mut Vec<Action>, again_after: &mut Option<Duration>) {
    let spec = &seen.set.spec;
    let one_by_one = spec.pod_management_policy.as_deref() != Some("Parallel");
    let start = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0);
    let end = start.saturating_add(spec.replicas.unwrap_or(1).max(0));
    let (members, condemned) = by_ordinal(seen, start, end);

    for ordinal in start..end {
        let Some(pod) = members.get(&ordinal) else {
            create(seen, ordinal, actions);
            if one_by_one {
                return;
            }
            continue;
        };
        if is_over(pod) {
            if !is_terminating(pod) {
                actions.push(Action::DeletePod(pod.clone()));
            }
            if one_by_one {
                return;
            }
            continue;
        }
        own_claims(seen, pod, ordinal, false, actions);
        if one_by_one && (is_terminating(pod) || !is_available(seen, pod, again_after)) {
            return;
        }
    }

    let first_unhealthy = members
        .values()
        .chain(condemned.values())
        .find(|pod| is_terminating(pod) || !is_available(seen, pod, again_after));
    for (ordinal, pod) in condemned.iter().rev() {
        own_claims(seen, pod, *ordinal, true, actions);
    }
    for pod in condemned.values().rev() {
        let is_the_first = first_unhealthy.is_some_and(|first| first.uid() == pod.uid());
        if is_terminating(pod) || one_by_one && !is_the_first && !is_available(seen, pod, again_after) {
            if one_by_one {
                return;
            }
            continue;
        }
        actions.push(Action::DeletePod(pod.clone()));
        if one_by_one {
            return;
        }
    }

    if !is_rolling(seen.set) {
        return;
    }
    update(seen, &members, start..end, one_by_one, actions, again_after);
}

/// Deletes pods of an older revision, from the highest ordinal down to the partition, as long as no more than `maxUnavailable` pods
/// are unavailable. With `Parallel`, those that are unavailable anyway go first and cost nothing.
fn update(
    seen: &Seen<'_>,
    members: &ByOrdinal,
    range: Range<i32>,
    one_by_one: bool,
    actions: &mut Vec<Action>,
    again_after: &mut Option<Duration>,
) {
    let is_unavailable: BTreeMap<i32, bool> = members
        .iter()
        .map(|(ordinal, pod)| (*ordinal, is_terminating(pod) || !is_available(seen, pod, again_after)))
        .collect();
    // A pod that was created in this very step is not available either.
    let available = is_unavailable
        .values()
        .filter(|is_unavailable| !**is_unavailable)
        .count();
    let unavailable = range.len().saturating_sub(available);
    let mut budget = max_unavailable(seen.set).saturating_sub(unavailable);
    let target = seen.update.name_any();
    let outdated: Vec<(bool, &Arc<Pod>)> = (range.start.saturating_add(partition(seen.set))..range.end)
        .rev()
        .filter_map(|ordinal| Some((*is_unavailable.get(&ordinal)?, members.get(&ordinal)?)))
        .filter(|(_, pod)| revision(pod) != Some(&target) && !is_terminating(pod))
        .collect();
    for (is_unavailable, pod) in outdated {
        let is_free = is_unavailable && !one_by_one;
        if is_free || budget > 0 {
            actions.push(Action::DeletePod(pod.clone()));
            budget -= usize::from(!is_free);
        }
    }
}

type ByOrdinal = BTreeMap<i32, Arc<Pod>>;

/// The pods that the set should have, and the excess.
fn by_ordinal(seen: &Seen<'_>, start: i32, end: i32) -> (ByOrdinal, ByOrdinal) {
    let all = seen
        .pods
        .iter()
        .filter_map(|pod| Some((identity::ordinal(seen.set, &pod.name_any())?, pod.clone())));
    all.partition(|(ordinal, _)| (start..end).contains(ordinal))
}

fn create(seen: &Seen<'_>, ordinal: i32, actions: &mut Vec<Action>) {
    let revision = if needs_current(seen, ordinal) {
        seen.current
    } else {
        seen.update
    };
    let Some(template) = revisions::template(revision) else {
        return;
    };
    let name = identity::pod_name(seen.set, ordinal);
    for claim in identity::claims(seen.set, ordinal) {
        match (seen.claim)(&claim.name_any()) {
            None => actions.push(Action::CreateClaim(Box::new(claim), name.clone())),
            // A terminating claim cannot be used; the pod waits until it is deleted and created again.
            Some(old) if old.metadata.deletion_timestamp.is_some() => return,
            Some(_) => {}
        }
    }
    actions.push(Action::CreatePod(Box::new(identity::pod(
        seen.set,
        ordinal,
        &template,
        &revision.name_any(),
    ))));
}

/// Below the partition a pod is created again from the old template.
fn needs_current(seen: &Seen<'_>, ordinal: i32) -> bool {
    let status = seen.set.status.clone().unwrap_or_default();
    let spec = &seen.set.spec;
    let start = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0);
    if !is_rolling(seen.set) || seen.current.name_any() == seen.update.name_any() {
        return false;
    }
    let rolling = spec
        .update_strategy
        .as_ref()
        .and_then(|strategy| strategy.rolling_update.as_ref());
    let unchanged = match rolling.and_then(|rolling| rolling.partition) {
        Some(partition) => partition,
        None => status.current_replicas.unwrap_or(0),
    };
    ordinal < start.saturating_add(unchanged)
}

fn own_claims(seen: &Seen<'_>, pod: &Pod, ordinal: i32, condemned: bool, actions: &mut Vec<Action>) {
    for wanted in identity::claims(seen.set, ordinal) {
        let Some(claim) = (seen.claim)(&wanted.name_any()) else {
            // A pod that is pending may be waiting for a claim that was deleted under it.
            if !condemned && phase(pod) == "Pending" && !is_terminating(pod) {
                actions.push(Action::CreateClaim(Box::new(wanted), pod.name_any()));
            }
            continue;
        };
        if let Some(owners) = identity::claim_owners(seen.set, pod, condemned, &claim) {
            actions.push(Action::OwnClaim(claim, owners));
        }
    }
}

fn is_rolling(set: &StatefulSet) -> bool {
    let strategy = set.spec.update_strategy.as_ref();
    strategy
        .and_then(|strategy| strategy.type_.as_deref())
        .unwrap_or("RollingUpdate")
        == "RollingUpdate"
}

fn partition(set: &StatefulSet) -> i32 {
    let strategy = set.spec.update_strategy.as_ref();
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    rolling.and_then(|rolling| rolling.partition).unwrap_or(0)
}

/// Of the set's pods, at least one; a percentage is rounded down.
fn max_unavailable(set: &StatefulSet) -> usize {
    let strategy = set.spec.update_strategy.as_ref();
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let number = match rolling.and_then(|rolling| rolling.max_unavailable.as_ref()) {
        Some(IntOrString::Int(number)) => i64::from(*number),
        Some(IntOrString::String(text)) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            i64::from(set.spec.replicas.unwrap_or(1)) * percent / 100
        }
        None => 1,
    };
    usize::try_from(number).unwrap_or(1).max(1)
}

fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

fn is_over(pod: &Pod) -> bool {
    matches!(phase(pod), "Failed" | "Succeeded")
}

fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

fn is_running_and_ready(pod: &Pod) -> bool {
    phase(pod) == "Running" && is_ready(pod)
}

fn revision(pod: &Pod) -> Option<&String> {
    pod.labels().get(identity::REVISION)
}

/// Ready for `minReadySeconds`.
fn is_available(seen: &Seen<'_>, pod: &Pod, again_after: &mut Option<Duration>) -> bool {
    if !is_running_and_ready(pod) {
        return false;
    }
    let least = seen.set.spec.min_ready_seconds.unwrap_or(0);
    if least <= 0 {
        return true;
    }
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "Ready");
    let since = ready
        .and_then(|ready| ready.last_transition_time.as_ref())
        .map_or(seen.now, |time| time.0);
    let passed = seen.now.duration_since(since).as_millis().max(0);
    let left = u64::try_from(i128::from(least) * 1000 - passed).unwrap_or(0);
    if left > 0 {
        let left = Duration::from_millis(left);
        *again_after = Some(again_after.map_or(left, |sooner| sooner.min(left)));
    }
    left == 0
}

fn status(seen: &Seen<'_>, again_after: &mut Option<Duration>) -> StatefulSetStatus {
    let old = seen.set.status.clone().unwrap_or_default();
    let (current, update) = (seen.current.name_any(), seen.update.name_any());
    let count = |counts: &dyn Fn(&Pod) -> bool| {
        i32::try_from(seen.pods.iter().filter(|pod| counts(pod)).count()).unwrap_or(i32::MAX)
    };
    // As in Kubernetes, these are absent instead of zero.
    let some = |count: i32| (count != 0).then_some(count);
    let replicas = count(&|_| true);
    let ready = count(&is_running_and_ready);
    let updated = count(&|pod| !is_terminating(pod) && revision(pod) == Some(&update));
    let available = seen
        .pods
        .iter()
        .filter(|pod| is_available(seen, pod, again_after))
        .count();
    let mut status = StatefulSetStatus {
        observed_generation: seen.set.metadata.generation,
        replicas,
        ready_replicas: some(ready),
        available_replicas: i32::try_from(available).ok(),
        current_replicas: some(count(&|pod| !is_terminating(pod) && revision(pod) == Some(&current))),
        updated_replicas: some(updated),
        current_revision: Some(current),
        update_revision: Some(update),
        collision_count: Some(old.collision_count.unwrap_or(0)),
        conditions: old.conditions,
    };
    // The update is complete: the update revision becomes the current one.
    let wanted = seen.set.spec.replicas.unwrap_or(1);
    if [replicas, ready, updated] == [wanted; 3] {
        status.current_revision = status.update_revision.clone();
        status.current_replicas = status.updated_replicas;
    }
    status
}
