//! A pod as the facts that decisions need, whatever engine runs in it.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use crate::Uid;
use crate::agent::Failure;

/// What Kubernetes shows of a pod with one main container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Its UID: what a deletion is guarded by.
    pub uid: Uid,
    /// When it was created.
    pub created: Timestamp,
    /// The node it was bound to.
    pub node: Option<String>,
    /// Its address, once it has one.
    pub address: Option<String>,
    /// Its main container is running now.
    pub running: bool,
    /// Since when it is.
    pub running_since: Option<Timestamp>,
    /// Its main container has been running at some time in this pod's life.
    pub ever_ran: bool,
    /// Kubernetes holds it for ready.
    pub ready: bool,
    /// Since when.
    pub ready_since: Option<Timestamp>,
    /// It has a deletion timestamp.
    pub terminating: bool,
    /// It ended for good (phase Failed or Succeeded: evicted, for example).
    pub ended: bool,
    /// Its kubelet says that its main container has ended and is not started again. Kubernetes also sets the phase of pods whose
    /// node it gave up; that alone says nothing of their processes.
    pub stopped: bool,
    /// How often the container was restarted.
    pub restarts: u32,
    /// Why the last container ended, with the tail of its log.
    pub last_exit: Option<Exit>,
    /// Why it does not run: Unschedulable, ImagePullBackOff, CrashLoopBackOff, …
    pub blocked: Option<Blocked>,
}

/// The end of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit code.
    pub code: i32,
    /// The last lines of its log.
    pub message: String,
    /// When.
    pub at: Timestamp,
}

/// Why a pod's container does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// Kubernetes' reason.
    pub reason: String,
    /// Kubernetes' message.
    pub message: String,
    /// Since when it has not run for this reason, as far as the pod tells.
    pub since: Option<Timestamp>,
}

impl Facts {
    /// Reads a pod whose main container has this name.
    pub fn of(pod: &Pod, main: &str) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let containers = status.container_statuses.unwrap_or_default();
        let main = containers.iter().find(|container| container.name == main);
        let state = main.and_then(|main| main.state.as_ref());
        let last = main
            .and_then(|main| main.last_state.as_ref())
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
        Self {
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
            ever_ran: running
                || last.is_some()
                || ended_now.is_some()
                || main.is_some_and(|main| main.restart_count > 0),
            ready: ready.is_some(),
            ready_since: ready
                .and_then(|condition| condition.last_transition_time.as_ref())
                .map(|time| time.0),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            ended,
            stopped: ended && ended_now.is_some() && !collected,
            restarts: main.map_or(0, |main| u32::try_from(main.restart_count).unwrap_or(0)),
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
        }
    }
}

/// What an agent says in its termination message when it fails.
#[derive(serde::Deserialize)]
struct Failed {
    failed: Failure<String>,
}

/// Why an init container does not come to its end: its own last words, where it had some, else Kubernetes'.
fn failing_init(containers: &Option<Vec<ContainerStatus>>) -> Option<(Option<String>, Option<String>)> {
    containers.iter().flatten().find_map(|container| {
        let states = [container.state.as_ref(), container.last_state.as_ref()];
        let ended = states
            .into_iter()
            .flatten()
            .find_map(|state| state.terminated.as_ref().filter(|end| end.exit_code != 0));
        if let Some(end) = ended.filter(|_| !container.ready) {
            let said = end.message.clone().unwrap_or_default();
            return Some(match serde_json::from_str(said.trim()) {
                Ok(Failed { failed: failure }) => (Some(failure.reason), Some(failure.message)),
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
                    "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": container,
                }],
            },
        });
        let object: Pod = serde_json::from_value(object).expect("a pod");
        Facts::of(&object, "main").stopped
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
