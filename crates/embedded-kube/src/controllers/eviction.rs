//! Removes pods from nodes with a NoExecute taint, by their tolerations, and from nodes that do not exist any more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, ResourceExt};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Error;
use super::events::Recorder;
use super::scheduling::covers;
use super::world::{World, full_name, lock, passes, unless_moved_on};

/// The taint that confirms that a node is down for good and its volumes may be used elsewhere: its terminating pods are
/// removed.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Nodes that pods name and that do not exist, with the time when that was first observed.
type Missing = Mutex<HashMap<String, Instant>>;

/// `grace`: pods of a node that does not exist are removed only after it has been missing for so long, as in Kubernetes.
pub(crate) async fn run(world: Arc<World>, grace: Duration, stop: CancellationToken) {
    let wake = Arc::new(Notify::new());
    world.nodes.wakes(&wake);
    world.pods.wakes(&wake);
    let recorder = Recorder::new(world.client.clone(), "taint-eviction-controller");
    let missing = Missing::default();
    passes("eviction", wake, stop, || pass(&world, &recorder, &missing, grace)).await;
}

async fn pass(
    world: &World,
    recorder: &Recorder,
    missing: &Missing,
    grace: Duration,
) -> Result<Option<Duration>, Error> {
    let now = Timestamp::now();
    let mut next: Option<Duration> = None;
    lock(missing).retain(|name, _| world.nodes.named(name).is_none());
    for pod in world.pods.all() {
        let Some(name) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) else {
            continue;
        };
        let terminating = pod.metadata.deletion_timestamp.is_some();
        let Some(node) = world.nodes.named(name) else {
            let since = *lock(missing).entry(name.to_owned()).or_insert_with(Instant::now);
            let left = grace.saturating_sub(since.elapsed());
            if !left.is_zero() {
                next = Some(next.map_or(left, |next| next.min(left)));
            } else if Api::<Node>::all(world.client.clone()).get_opt(name).await?.is_none() {
                // Only a read from the API counts: the watch of pods may be ahead of that of nodes.
                delete(world, &pod, true).await?;
            }
            continue;
        };
        let taints = node
            .spec
            .as_ref()
            .and_then(|spec| spec.taints.as_deref())
            .unwrap_or_default();
        if terminating {
            if taints.iter().any(|taint| taint.key == OUT_OF_SERVICE) {
                delete(world, &pod, true).await?;
            }
            continue;
        }
        match stay(
            pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten()),
            taints,
            now,
        ) {
            Stay::Forever => {}
            Stay::For(left) => next = Some(next.map_or(left, |next| next.min(left))),
            Stay::NoLonger => {
                let message = format!("Marking for deletion Pod {}", full_name(&*pod));
                recorder.normal(&*pod, "TaintManagerEviction", &message);
                delete(world, &pod, false).await?;
            }
        }
    }
    Ok(next)
}

async fn delete(world: &World, pod: &Pod, at_once: bool) -> Result<(), Error> {
    let params = DeleteParams {
        grace_period_seconds: at_once.then_some(0),
        preconditions: Some(Preconditions {
            uid: pod.uid(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let api: Api<Pod> = Api::namespaced(world.client.clone(), &pod.namespace().unwrap_or_default());
    unless_moved_on(api.delete(&pod.name_any(), &params).await)?;
    Ok(())
}

#[derive(Debug, PartialEq)]
enum Stay {
    Forever,
    For(Duration),
    NoLonger,
}

/// PURE. How long a pod may stay under these taints: the shortest time that its tolerations allow.
fn stay<'a>(tolerations: impl Iterator<Item = &'a Toleration> + Clone, taints: &[Taint], now: Timestamp) -> Stay {
    let mut shortest: Option<Duration> = None;
    for taint in taints.iter().filter(|taint| taint.effect == "NoExecute") {
        let mut covering = tolerations
            .clone()
            .filter(|toleration| covers(toleration, taint))
            .peekable();
        if covering.peek().is_none() {
            return Stay::NoLonger;
        }
        let Some(granted) = covering.filter_map(|toleration| toleration.toleration_seconds).min() else {
            continue;
        };
        let since = taint.time_added.as_ref().map_or(now, |time| time.0);
        let passed = now.duration_since(since).as_millis().max(0);
        let left = i128::from(granted.max(0)) * 1000 - passed;
        let Some(left) = u64::try_from(left).ok().filter(|left| *left > 0) else {
            return Stay::NoLonger;
        };
        let left = Duration::from_millis(left);
        shortest = Some(shortest.map_or(left, |shortest| shortest.min(left)));
    }
    shortest.map_or(Stay::Forever, Stay::For)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_stays_as_long_as_its_tolerations_grant() {
        let taint: Taint = serde_json::from_value(
            json!({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2030-01-01T00:00:00Z"}),
        )
        .unwrap();
        let now: Timestamp = "2030-01-01T00:00:10Z".parse().unwrap();
        for (tolerations, expected) in [
            (json!([]), Stay::NoLonger),
            (json!([{"key": "other", "operator": "Exists"}]), Stay::NoLonger),
            (json!([{"operator": "Exists"}]), Stay::Forever),
            (
                json!([{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute",
                        "tolerationSeconds": 30}]),
                Stay::For(Duration::from_secs(20)),
            ),
            (json!([{"operator": "Exists", "tolerationSeconds": 5}]), Stay::NoLonger),
        ] {
            let tolerations: Vec<Toleration> = serde_json::from_value(tolerations).unwrap();
            assert_eq!(
                stay(tolerations.iter(), std::slice::from_ref(&taint), now),
                expected,
                "{tolerations:?}"
            );
        }
        assert_eq!(stay([].iter(), &[], now), Stay::Forever);
    }
}
