//! The row of a pod in `kubectl get pods`: ready containers, status and restarts.

use jiff::Timestamp;
use serde_json::Value;

use super::read::{age, items, number, or_none, since, text};

/// The cells of a pod, name first.
pub(super) fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let summary = summarize(pod, now);
    let gates = items(pod, "/spec/readinessGates");
    let passed = gates
        .iter()
        .filter(|gate| condition(pod, text(gate, "/conditionType")).is_some_and(|c| text(c, "/status") == "True"))
        .count();
    vec![
        text(pod, "/metadata/name").into(),
        summary.ready.into(),
        summary.status.into(),
        summary.restarts.into(),
        age(pod.pointer("/metadata/creationTimestamp"), now).into(),
        or_none(text(pod, "/status/podIPs/0/ip")).into(),
        or_none(text(pod, "/spec/nodeName")).into(),
        or_none(text(pod, "/status/nominatedNodeName")).into(),
        if gates.is_empty() {
            "<none>".into()
        } else {
            format!("{passed}/{}", gates.len()).into()
        },
    ]
}

struct Summary {
    ready: String,
    status: String,
    restarts: String,
}

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a Value> {
    items(pod, "/status/conditions")
        .iter()
        .find(|c| text(c, "/type") == kind)
}

fn is_true(pod: &Value, kind: &str) -> bool {
    condition(pod, kind).is_some_and(|c| text(c, "/status") == "True")
}

/// Counts restarts and remembers the latest.
#[derive(Default)]
struct Restarts {
    count: i64,
    last: Option<Timestamp>,
}

impl Restarts {
    fn add(&mut self, status: &Value) {
        self.count += number(status, "/restartCount");
        let finished = text(status, "/lastState/terminated/finishedAt").parse().ok();
        self.last = self.last.max(finished);
    }
}

fn summarize(pod: &Value, now: Timestamp) -> Summary {
    let phase = text(pod, "/status/phase");
    let mut reason = match text(pod, "/status/reason") {
        "" => phase.to_owned(),
        reason => reason.to_owned(),
    };
    if condition(pod, "PodScheduled").is_some_and(|c| text(c, "/reason") == "SchedulingGated") {
        reason = "SchedulingGated".to_owned();
    }
    let init_specs = items(pod, "/spec/initContainers");
    let sidecar = |name: &str| {
        let spec = init_specs.iter().find(|c| text(c, "/name") == name);
        spec.is_some_and(|c| text(c, "/restartPolicy") == "Always")
    };
    let sidecars = init_specs
        .iter()
        .filter(|c| text(c, "/restartPolicy") == "Always")
        .count();
    let total = items(pod, "/spec/containers").len() + sidecars;
    let (mut ready, mut restarts, mut sidecar_restarts) = (0, Restarts::default(), Restarts::default());

    let mut initializing = false;
    for (index, status) in items(pod, "/status/initContainerStatuses").iter().enumerate() {
        let is_sidecar = sidecar(text(status, "/name"));
        restarts.add(status);
        if is_sidecar {
            sidecar_restarts.add(status);
        }
        let terminated = status.pointer("/state/terminated").filter(|t| t.is_object());
        if terminated.is_some_and(|t| number(t, "/exitCode") == 0) {
            continue;
        }
        if is_sidecar && status["started"] == true {
            ready += usize::from(status["ready"] == true);
            continue;
        }
        let waiting = text(status, "/state/waiting/reason");
        reason = match terminated {
            Some(terminated) => format!("Init:{}", end_of(terminated)),
            None if !waiting.is_empty() && waiting != "PodInitializing" => format!("Init:{waiting}"),
            None => format!("Init:{index}/{}", init_specs.len()),
        };
        initializing = true;
        break;
    }

    if !initializing || is_true(pod, "Initialized") {
        restarts = sidecar_restarts;
        let mut running = false;
        let mut failed = None;
        for status in items(pod, "/status/containerStatuses").iter().rev() {
            restarts.add(status);
            let waiting = text(status, "/state/waiting/reason");
            if !waiting.is_empty() {
                reason = waiting.to_owned();
            } else if let Some(terminated) = status.pointer("/state/terminated").filter(|t| t.is_object()) {
                reason = end_of(terminated);
                if number(terminated, "/exitCode") != 0 {
                    failed = Some(reason.clone());
                }
            } else if status["ready"] == true && status.pointer("/state/running").is_some_and(Value::is_object) {
                running = true;
                ready += 1;
            }
        }
        // Some containers are done, others may still run.
        if reason == "Completed" {
            if running && is_true(pod, "Ready") {
                reason = "Running".to_owned();
            } else if let Some(failed) = failed {
                reason = failed;
            } else if running {
                reason = "NotReady".to_owned();
            }
        }
    }

    if pod.pointer("/metadata/deletionTimestamp").is_some_and(|t| !t.is_null()) {
        if text(pod, "/status/reason") == "NodeLost" {
            reason = "Unknown".to_owned();
        } else if !matches!(phase, "Succeeded" | "Failed") {
            reason = "Terminating".to_owned();
        }
    }
    let restarts = match restarts.last {
        Some(last) if restarts.count != 0 => format!("{} ({} ago)", restarts.count, since(last, now)),
        _ => restarts.count.to_string(),
    };
    Summary {
        ready: format!("{ready}/{total}"),
        status: reason,
        restarts,
    }
}

/// How a container ended: its reason, else its signal or exit code.
fn end_of(terminated: &Value) -> String {
    match (text(terminated, "/reason"), number(terminated, "/signal")) {
        ("", 0) => format!("ExitCode:{}", number(terminated, "/exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}
