//! Node health: a node that no longer renews its Lease is unreachable, and is tainted accordingly.
//!
//! The time of a renewal is when this process observed it, so clocks need not agree. Pods on a lost node are marked
//! unready, so that services stop sending to them; [`super::eviction`] then removes them by their tolerations.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Error;
use super::endpoints::is_ready;
use super::events::Recorder;
use super::world::{World, lock, passes, unless_moved_on};

const LEASES: &str = "kube-node-lease";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// The conditions that a kubelet reports: all become Unknown when it stops reporting.
const CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

pub(crate) async fn run(world: Arc<World>, grace: Duration, stop: CancellationToken) {
    let wake = Arc::new(Notify::new());
    world.nodes.wakes(&wake);
    world.leases.wakes(&wake);
    world.pods.wakes(&wake);
    let monitor = Monitor {
        recorder: Recorder::new(world.client.clone(), "node-controller"),
        world,
        grace,
        seen: Mutex::default(),
    };
    passes("node health", wake, stop, || monitor.pass()).await;
}

#[derive(Clone, PartialEq)]
struct Sign {
    renewed: Option<MicroTime>,
    heartbeat: Option<Time>,
}

struct Monitor {
    world: Arc<World>,
    recorder: Recorder,
    grace: Duration,
    /// The last heartbeat of each node, by UID, and when it was first observed.
    seen: Mutex<HashMap<String, (Sign, Instant)>>,
}

impl Monitor {
    async fn pass(&self) -> Result<Option<Duration>, Error> {
        let nodes = self.world.nodes.all();
        let now = Instant::now();
        let mut next: Option<Duration> = None;
        for node in &nodes {
            let elapsed = now.saturating_duration_since(self.last_sign(node, now));
            let lost = elapsed >= self.grace;
            if !lost {
                let left = self.grace - elapsed;
                next = Some(next.map_or(left, |next| next.min(left)));
            }
            let node = if lost {
                self.mark_unknown(node).await?
            } else {
                node.clone()
            };
            self.write_taints(&node).await?;
            if condition(&node, "Ready").is_some_and(|ready| ready.status != "True") {
                self.mark_pods_unready(&node).await?;
            }
        }
        let mut seen = lock(&self.seen);
        seen.retain(|uid, _| nodes.iter().any(|node| node.uid().as_ref() == Some(uid)));
        Ok(next)
    }

    fn last_sign(&self, node: &Node, now: Instant) -> Instant {
        let lease = self.world.leases.get(LEASES, &node.name_any());
        let sign = Sign {
            renewed: lease.and_then(|lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone())),
            heartbeat: condition(node, "Ready").and_then(|ready| ready.last_heartbeat_time.clone()),
        };
        let mut seen = lock(&self.seen);
        let entry = seen
            .entry(node.uid().unwrap_or_default())
            .or_insert_with(|| (sign.clone(), now));
        if entry.0 != sign {
            *entry = (sign, now);
        }
        entry.1
    }

    async fn mark_unknown(&self, node: &Arc<Node>) -> Result<Arc<Node>, Error> {
        let now = Time(Timestamp::now());
        let changed: Vec<NodeCondition> = CONDITIONS
            .iter()
            .filter_map(|type_| {
                let old = condition(node, type_);
                if old.is_some_and(|old| old.status == "Unknown") || old.is_none() && *type_ != "Ready" {
                    return None;
                }
                let never = old.is_none();
                Some(NodeCondition {
                    type_: (*type_).to_owned(),
                    status: "Unknown".to_owned(),
                    reason: Some(
                        if never {
                            "NodeStatusNeverUpdated"
                        } else {
                            "NodeStatusUnknown"
                        }
                        .to_owned(),
                    ),
                    message: Some(
                        if never {
                            "Kubelet never posted node status."
                        } else {
                            "Kubelet stopped posting node status."
                        }
                        .to_owned(),
                    ),
                    // Kept, so that this write does not count as a heartbeat.
                    last_heartbeat_time: old.and_then(|old| old.last_heartbeat_time.clone()),
                    last_transition_time: Some(now.clone()),
                })
            })
            .collect();
        if changed.is_empty() {
            return Ok(node.clone());
        }
        let patch = json!({"metadata": {"uid": node.metadata.uid}, "status": {"conditions": changed}});
        let api: Api<Node> = Api::all(self.world.client.clone());
        let name = node.name_any();
        let written = api
            .patch_status(&name, &PatchParams::default(), &Patch::Strategic(&patch))
            .await;
        let Some(written) = unless_moved_on(written)? else {
            return Ok(node.clone());
        };
        let message = format!("Node {name} status is now: NodeNotReady");
        self.recorder.normal(&written, "NodeNotReady", &message);
        Ok(Arc::new(written))
    }

    async fn write_taints(&self, node: &Node) -> Result<(), Error> {
        let old = node
            .spec
            .as_ref()
            .and_then(|spec| spec.taints.clone())
            .unwrap_or_default();
        let new = taints(node, &old, &Time(Timestamp::now()));
        if new == old {
            return Ok(());
        }
        // The resourceVersion protects a taint that another client adds at this moment.
        let patch = json!({
            "metadata": {"uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version},
            "spec": {"taints": new},
        });
        let api: Api<Node> = Api::all(self.world.client.clone());
        unless_moved_on(
            api.patch(&node.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
                .await,
        )?;
        Ok(())
    }

    async fn mark_pods_unready(&self, node: &Node) -> Result<(), Error> {
        let name = node.name_any();
        for pod in self.world.pods.all() {
            let here = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(&name);
            // A node that reports itself as not ready still reports its pods.
            let unreachable = condition(node, "Ready").is_some_and(|ready| ready.status == "Unknown");
            if !(here && unreachable && is_ready(&pod)) {
                continue;
            }
            let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [{
                "type": "Ready", "status": "False", "reason": "NodeNotReady", "message": "Node is not ready",
                "lastTransitionTime": Time(Timestamp::now()),
            }]}});
            let api: Api<Pod> = Api::namespaced(self.world.client.clone(), &pod.namespace().unwrap_or_default());
            let written = api
                .patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(&patch))
                .await;
            if unless_moved_on(written)?.is_some() {
                self.recorder.warning(&*pod, "NodeNotReady", "Node is not ready");
            }
        }
        Ok(())
    }
}

fn condition<'a>(node: &'a Node, type_: &str) -> Option<&'a NodeCondition> {
    node.status
        .as_ref()?
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == type_)
}

/// PURE. The taints for the node's state, beside those that others set. A node that never reported is not ready.
fn taints(node: &Node, old: &[Taint], now: &Time) -> Vec<Taint> {
    let ready = condition(node, "Ready").map_or("False", |ready| ready.status.as_str());
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    let wanted = [
        (NOT_READY, "NoSchedule", ready == "False"),
        (NOT_READY, "NoExecute", ready == "False"),
        (UNREACHABLE, "NoSchedule", ready == "Unknown"),
        (UNREACHABLE, "NoExecute", ready == "Unknown"),
        (UNSCHEDULABLE, "NoSchedule", cordoned),
    ];
    let is = |taint: &Taint, key: &str, effect: &str| taint.key == key && taint.effect == effect;
    let mut new: Vec<Taint> = old
        .iter()
        .filter(|t| !wanted.iter().any(|(key, effect, on)| is(t, key, effect) && !on))
        .cloned()
        .collect();
    for (key, effect, on) in wanted {
        if on && !new.iter().any(|taint| is(taint, key, effect)) {
            new.push(Taint {
                key: key.to_owned(),
                effect: effect.to_owned(),
                value: None,
                time_added: (effect == "NoExecute" || key != UNSCHEDULABLE).then(|| now.clone()),
            });
        }
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(ready: &str, cordoned: bool) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n"},
            "spec": {"unschedulable": cordoned},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    fn keys(taints: &[Taint]) -> Vec<String> {
        taints
            .iter()
            .map(|taint| format!("{}:{}", taint.key, taint.effect))
            .collect()
    }

    #[test]
    fn taints_follow_the_ready_condition_and_leave_others_alone() {
        let now = Time(Timestamp::UNIX_EPOCH);
        let own = Taint {
            key: "dedicated".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        let lost = taints(&node("Unknown", false), std::slice::from_ref(&own), &now);
        assert_eq!(
            keys(&lost),
            [
                "dedicated:NoSchedule",
                "node.kubernetes.io/unreachable:NoSchedule",
                "node.kubernetes.io/unreachable:NoExecute"
            ]
        );
        assert_eq!(
            taints(&node("Unknown", false), &lost, &now),
            lost,
            "nothing to write twice"
        );
        assert_eq!(taints(&node("True", false), &lost, &now), [own]);
        assert_eq!(
            keys(&taints(&node("True", true), &[], &now)),
            ["node.kubernetes.io/unschedulable:NoSchedule"]
        );
        assert_eq!(
            keys(&taints(&node("False", false), &[], &now))[1],
            "node.kubernetes.io/not-ready:NoExecute"
        );
    }
}
