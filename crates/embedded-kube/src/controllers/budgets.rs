//! PodDisruptionBudgets: how many pods may be evicted now. Evictions themselves are the API server's.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Error;
use super::endpoints::is_ready;
use super::scheduling::selects;
use super::world::{World, is_code, passes, unless_moved_on};

/// An eviction that the API server allowed counts against the budget until its pod is deleted, at most so long.
const GRANT_LASTS: Duration = Duration::from_secs(120);

pub(crate) async fn run(world: Arc<World>, stop: CancellationToken) {
    let wake = Arc::new(Notify::new());
    world.budgets.wakes(&wake);
    world.pods.wakes(&wake);
    world.sets.wakes(&wake);
    passes("disruption budgets", wake, stop, || pass(&world)).await;
}

async fn pass(world: &World) -> Result<Option<Duration>, Error> {
    let budgets = world.budgets.all();
    if budgets.is_empty() {
        return Ok(None);
    }
    let pods = world.pods.all();
    let now = Timestamp::now();
    let (mut next, mut failed): (Option<Duration>, _) = (None, None);
    for budget in budgets {
        let covered: Vec<&Pod> = pods
            .iter()
            .map(AsRef::as_ref)
            .filter(|pod| {
                let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
                pod.namespace() == budget.namespace() && selects(selector, pod.labels())
            })
            .collect();
        let expected = match expected_pods(world, &budget, &covered).await {
            Ok(expected) => expected,
            Err(error) => {
                failed = Some(error);
                continue;
            }
        };
        let status = status(
            &budget,
            &covered,
            expected.as_ref().map_err(String::as_str).copied(),
            now,
        );
        if status.disrupted_pods.as_ref().is_some_and(|grants| !grants.is_empty()) {
            next = Some(GRANT_LASTS);
        }
        if budget.status.as_ref() == Some(&status) {
            continue;
        }
        // Replaced as a whole, so that old grants are removed. The resourceVersion protects one that is added just now.
        let patch = json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": budget.metadata.resource_version},
            {"op": "add", "path": "/status", "value": status},
        ]);
        let api: Api<PodDisruptionBudget> =
            Api::namespaced(world.client.clone(), &budget.namespace().unwrap_or_default());
        let patch: Patch<PodDisruptionBudget> = Patch::Json(serde_json::from_value(patch)?);
        match unless_moved_on(
            api.patch_status(&budget.name_any(), &PatchParams::default(), &patch)
                .await,
        ) {
            // 422: the test failed, which is a conflict.
            Err(error) if !is_code(&error, 422) => failed = Some(error.into()),
            _ => {}
        }
    }
    failed.map_or(Ok(next), Err)
}

/// The number of pods that their controllers want. `Err` inside: why it is unknown.
async fn expected_pods(
    world: &World,
    budget: &PodDisruptionBudget,
    pods: &[&Pod],
) -> Result<Result<i32, String>, Error> {
    let spec = budget.spec.clone().unwrap_or_default();
    if spec.max_unavailable.is_none() && !matches!(spec.min_available, Some(IntOrString::String(_))) {
        return Ok(Ok(count(pods.len())));
    }
    let mut controllers: Vec<&OwnerReference> = Vec::new();
    for pod in pods {
        let controller = pod
            .owner_references()
            .iter()
            .find(|owner| owner.controller == Some(true));
        let Some(controller) = controller else {
            return Ok(Err(format!("found no controller ref for pod \"{}\"", pod.name_any())));
        };
        if !controllers.iter().any(|known| known.uid == controller.uid) {
            controllers.push(controller);
        }
    }
    let mut total = 0;
    for controller in controllers {
        match replicas(world, &budget.namespace().unwrap_or_default(), controller).await? {
            Some(replicas) => total += replicas,
            None => {
                return Ok(Err(format!(
                    "{} does not implement the scale subresource",
                    controller.kind
                )));
            }
        }
    }
    Ok(Ok(total))
}

/// The replicas that a controller wants; for custom ones by the scale subresource. `None`: it has none.
async fn replicas(world: &World, namespace: &str, owner: &OwnerReference) -> Result<Option<i32>, Error> {
    let (group, version) = owner.api_version.split_once('/').unwrap_or(("", &owner.api_version));
    if group == "apps" && owner.kind == "StatefulSet" {
        let set = world.sets.get(namespace, &owner.name);
        return Ok(Some(set.and_then(|set| set.spec.replicas).unwrap_or(0)));
    }
    let definitions = world.definitions.all();
    let definition = definitions
        .iter()
        .find(|found| found.spec.group == group && found.spec.names.kind == owner.kind);
    let Some(definition) = definition else { return Ok(None) };
    let resource = ApiResource {
        plural: definition.spec.names.plural.clone(),
        ..ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(group, version, &owner.kind))
    };
    let api: Api<DynamicObject> = Api::namespaced_with(world.client.clone(), namespace, &resource);
    match api.get_scale(&owner.name).await {
        Ok(scale) => Ok(scale.spec.and_then(|spec| spec.replicas)),
        Err(error) if is_code(&error, 404) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// PURE.
fn status(
    budget: &PodDisruptionBudget,
    pods: &[&Pod],
    expected: Result<i32, &str>,
    now: Timestamp,
) -> PodDisruptionBudgetStatus {
    let spec = budget.spec.clone().unwrap_or_default();
    let old = budget.status.clone().unwrap_or_default();
    let mut grants = old.disrupted_pods.unwrap_or_default();
    grants.retain(|name, granted| {
        let pod = pods.iter().find(|pod| pod.name_any() == *name);
        let fresh = now.duration_since(granted.0).unsigned_abs() < GRANT_LASTS;
        pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none()) && fresh
    });
    let healthy = pods
        .iter()
        .filter(|pod| {
            pod.metadata.deletion_timestamp.is_none() && is_ready(pod) && !grants.contains_key(&pod.name_any())
        })
        .count();
    let healthy = count(healthy);
    let (expected, failure) = match expected {
        Ok(expected) => (expected, None),
        Err(reason) => (0, Some(reason)),
    };
    let desired = match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => (expected - scaled(most, expected)).max(0),
        (None, Some(least)) => scaled(least, expected),
        (None, None) => 1,
    };
    let allowed = if failure.is_some() || expected <= 0 {
        0
    } else {
        (healthy - desired).max(0)
    };
    let (state, reason, message) = match failure {
        Some(failure) => ("False", "SyncFailed", failure),
        None if allowed > 0 => ("True", "SufficientPods", ""),
        None => ("False", "InsufficientPods", ""),
    };
    let previous = old
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "DisruptionAllowed");
    let since = previous
        .filter(|previous| previous.status == state)
        .map(|previous| previous.last_transition_time.clone());
    PodDisruptionBudgetStatus {
        current_healthy: Some(healthy),
        desired_healthy: Some(desired),
        expected_pods: Some(expected),
        disruptions_allowed: Some(allowed),
        observed_generation: budget.metadata.generation,
        disrupted_pods: (!grants.is_empty()).then_some(grants),
        conditions: Some(vec![Condition {
            type_: "DisruptionAllowed".to_owned(),
            status: state.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            observed_generation: budget.metadata.generation,
            // In whole seconds, as stored, so that the same status compares equal.
            last_transition_time: since.unwrap_or_else(|| Time(whole_second(now))),
        }]),
    }
}

fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn count(pods: usize) -> i32 {
    i32::try_from(pods).unwrap_or(i32::MAX)
}

/// A number, or a percentage of `of`, rounded up as Kubernetes does for budgets.
fn scaled(value: &IntOrString, of: i32) -> i32 {
    match value {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            i32::try_from((percent * i64::from(of) + 99) / 100).unwrap_or(i32::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn allowed(spec: Value, ready: usize, unready: usize, expected: i32) -> (i32, i32) {
        let budget: PodDisruptionBudget =
            serde_json::from_value(json!({"metadata": {"name": "b"}, "spec": spec})).unwrap();
        let pod = |state: &str| -> Pod {
            serde_json::from_value(
                json!({"metadata": {"name": "p"}, "status": {"conditions": [{"type": "Ready", "status": state}]}}),
            )
            .unwrap()
        };
        let pods: Vec<Pod> = std::iter::repeat_n(pod("True"), ready)
            .chain(std::iter::repeat_n(pod("False"), unready))
            .collect();
        let pods: Vec<&Pod> = pods.iter().collect();
        let status = status(&budget, &pods, Ok(expected), Timestamp::UNIX_EPOCH);
        (status.desired_healthy.unwrap(), status.disruptions_allowed.unwrap())
    }

    #[test]
    fn a_budget_allows_what_is_above_the_least() {
        assert_eq!(allowed(json!({"minAvailable": 2}), 3, 0, 3), (2, 1));
        assert_eq!(allowed(json!({"minAvailable": 2}), 2, 1, 3), (2, 0));
        assert_eq!(allowed(json!({"minAvailable": "50%"}), 3, 0, 3), (2, 1));
        assert_eq!(allowed(json!({"maxUnavailable": 1}), 3, 0, 3), (2, 1));
        assert_eq!(
            allowed(json!({"maxUnavailable": 1}), 2, 0, 3),
            (2, 0),
            "one is missing already"
        );
        assert_eq!(allowed(json!({"maxUnavailable": 1}), 0, 0, 0), (0, 0));
    }
}
