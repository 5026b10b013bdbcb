//! Kubernetes' objects as the facts that decisions need.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use stateward_api::agent::Outcome;
use stateward_api::{EtcdVersion, names};

use super::manifests::{ANNOTATION_METADATA, launch};
use super::world::{Blocked, Claim, Exit, Pod, TlsStage, Uid};

/// The etcd whose image makes a data directory for a server of this version: its own where `etcdutl` can raise the
/// revision (3.5.10 and later), else the oldest line that can. Servers of 3.4 serve what etcdutl of 3.5 makes.
pub fn restore_tool_version(version: &EtcdVersion) -> EtcdVersion {
    if version.at_least(3, 5, 10) {
        version.clone()
    } else {
        EtcdVersion::new(3, 5, 16)
    }
}

/// Why an etcd cannot read a backup: it refuses the data of a newer minor version. One that says none is tried.
pub fn cannot_read(cluster_version: &str, runs: &EtcdVersion) -> Option<String> {
    let of_backup: EtcdVersion = cluster_version.parse().ok()?;
    let (major, minor) = (of_backup.major(), of_backup.minor());
    ((major, minor) > (runs.major(), runs.minor())).then(|| {
        format!(
            "the backup is of a cluster of etcd {major}.{minor}, and etcd {runs} cannot read it: set spec.version of the \
             EtcdCluster to {major}.{minor} or later"
        )
    })
}

/// A member's pod.
pub fn pod(pod: &core::Pod) -> Pod {
    let empty = BTreeMap::new();
    let annotations = pod.metadata.annotations.as_ref().unwrap_or(&empty);
    let text = |key: &str| annotations.get(key).cloned().unwrap_or_default();
    let status = pod.status.clone().unwrap_or_default();
    let containers = status.container_statuses.unwrap_or_default();
    let etcd = containers.iter().find(|container| container.name == names::CONTAINER);
    let state = etcd.and_then(|etcd| etcd.state.as_ref());
    let last = etcd
        .and_then(|etcd| etcd.last_state.as_ref())
        .and_then(|state| state.terminated.as_ref());
    let ended_now = state.and_then(|state| state.terminated.as_ref());
    let running = state.is_some_and(|state| state.running.is_some());
    let conditions = status.conditions.unwrap_or_default();
    // A kubelet (1.27 and later) brings a deleted pod to its last phase when all its containers have ended, and only then lets
    // the object go. The pod garbage collector sets the same phase for pods of nodes that are gone, and leaves the statuses of
    // the containers as they were.
    let ended = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
    let collected = conditions.iter().any(|condition| {
        condition.type_ == "DisruptionTarget" && condition.reason.as_deref() == Some("DeletionByPodGC")
    });
    let ready = conditions
        .iter()
        .find(|condition| condition.type_ == "Ready" && condition.status == "True");
    let unscheduled = conditions
        .iter()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    let waiting = state.and_then(|state| state.waiting.as_ref());
    // A waiting container does not tell since when. It cannot be from before its pod had a node, or its last end.
    let scheduled = conditions.iter().find(|condition| condition.type_ == "PodScheduled");
    let blocked_since = last
        .and_then(|end| end.finished_at.as_ref())
        .or_else(|| scheduled.and_then(|condition| condition.last_transition_time.as_ref()))
        .or(pod.metadata.creation_timestamp.as_ref())
        .map(|time| time.0);
    let blocked = waiting
        .filter(|waiting| {
            !matches!(
                waiting.reason.as_deref(),
                None | Some("ContainerCreating" | "PodInitializing")
            )
        })
        .map(|waiting| (waiting.reason.clone(), waiting.message.clone()))
        .or_else(|| failing_init(&status.init_container_statuses))
        .or_else(|| unscheduled.map(|condition| (condition.reason.clone(), condition.message.clone())));
    Pod {
        uid: Uid(pod.metadata.uid.clone().unwrap_or_default()),
        created: pod
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        address: status.pod_ip,
        running,
        running_since: state
            .and_then(|state| state.running.as_ref())
            .and_then(|running| running.started_at.as_ref())
            .map(|time| time.0),
        ever_ran: running || last.is_some() || ended_now.is_some() || etcd.is_some_and(|etcd| etcd.restart_count > 0),
        ready: ready.is_some(),
        ready_since: ready
            .and_then(|condition| condition.last_transition_time.as_ref())
            .map(|time| time.0),
        terminating: pod.metadata.deletion_timestamp.is_some(),
        ended,
        stopped: ended && ended_now.is_some() && !collected,
        restarts: etcd.map_or(0, |etcd| u32::try_from(etcd.restart_count).unwrap_or(0)),
        last_exit: ended_now.or(last).map(|end| Exit {
            code: end.exit_code,
            message: end.message.clone().unwrap_or_default(),
            at: end.finished_at.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        }),
        blocked: blocked.map(|(reason, message)| Blocked {
            reason: reason.unwrap_or_default(),
            message: message.unwrap_or_default(),
            since: blocked_since,
        }),
        version: text(names::ANNOTATION_ETCD_VERSION)
            .parse()
            .unwrap_or_else(|_| stateward_api::EtcdVersion::new(3, 2, 0)),
        template: text(names::ANNOTATION_POD_HASH),
        metadata: text(ANNOTATION_METADATA),
        launch: launch::kind(annotations),
        initial_cluster: launch::members(annotations),
        tls: match text(launch::TLS).as_str() {
            "On" => TlsStage::On,
            "Prepared" => TlsStage::Prepared,
            _ => TlsStage::Off,
        },
        trusts: annotations.get(launch::TRUSTS).map(|all| {
            let names = all.split(',').filter(|name| !name.is_empty());
            names.map(str::to_owned).collect()
        }),
        marked_to_leave: annotations
            .get(names::ANNOTATION_REMOVE_FIRST)
            .is_some_and(|value| value != "false"),
    }
}

/// Why an init container does not come to its end: its own last words, where it had some, else Kubernetes'.
fn failing_init(containers: &Option<Vec<core::ContainerStatus>>) -> Option<(Option<String>, Option<String>)> {
    containers.iter().flatten().find_map(|container| {
        let states = [container.state.as_ref(), container.last_state.as_ref()];
        let ended = states
            .into_iter()
            .flatten()
            .find_map(|state| state.terminated.as_ref().filter(|end| end.exit_code != 0));
        if let Some(end) = ended.filter(|_| !container.ready) {
            let said = end.message.clone().unwrap_or_default();
            return Some(match serde_json::from_str(said.trim()) {
                Ok(Outcome::Failed(failure)) => (Some(failure.reason), Some(failure.message)),
                _ => {
                    let last = said.trim().lines().last().unwrap_or_default().to_owned();
                    (
                        Some(format!("container {} ended with {}", container.name, end.exit_code)),
                        Some(last),
                    )
                }
            });
        }
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref()?;
        let normal = matches!(reason, "ContainerCreating" | "PodInitializing");
        (!normal).then(|| (waiting.reason.clone(), waiting.message.clone()))
    })
}

/// A member's claim. `problem` is what Kubernetes last said about it (an event), as the claim itself does not tell.
pub fn claim(claim: &core::PersistentVolumeClaim, problem: Option<String>) -> Claim {
    let phase = claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("Pending");
    let requests = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.resources.as_ref())
        .and_then(|resources| resources.requests.as_ref());
    Claim {
        uid: Uid(claim.metadata.uid.clone().unwrap_or_default()),
        bound: phase == "Bound",
        terminating: claim.metadata.deletion_timestamp.is_some(),
        problem: problem.filter(|_| phase == "Pending"),
        requested: requests
            .and_then(|requests| requests.get("storage"))
            .and_then(super::intent::bytes)
            .unwrap_or(0),
        lost: phase == "Lost",
        volume: claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()),
        created: claim
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped(phase: &str, container: serde_json::Value, conditions: serde_json::Value) -> bool {
        let object = serde_json::json!({
            "metadata": {"name": "c-1", "uid": "u"},
            "status": {
                "phase": phase,
                "conditions": conditions,
                "containerStatuses": [{
                    "name": names::CONTAINER, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": container,
                }],
            },
        });
        let object: core::Pod = serde_json::from_value(object).expect("a pod");
        pod(&object).stopped
    }

    #[test]
    fn only_a_kubelet_can_say_that_a_pod_has_ended() {
        let none = || serde_json::json!([]);
        let ended = || serde_json::json!({"terminated": {"exitCode": 0}});
        // given a deleted pod whose containers have ended, by its kubelet's word
        assert!(stopped("Succeeded", ended(), none()));
        assert!(stopped(
            "Failed",
            serde_json::json!({"terminated": {"exitCode": 137}}),
            none()
        ));
        // a container that crashed is started again, also by a kubelet that nobody hears
        assert!(!stopped("Running", ended(), none()));
        // the garbage collector sets the phase of pods of lost nodes, whatever runs there
        assert!(!stopped("Failed", serde_json::json!({"running": {}}), none()));
        let collected =
            serde_json::json!([{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]);
        assert!(!stopped("Failed", ended(), collected));
    }
}
