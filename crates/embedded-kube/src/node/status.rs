//! A pod's status, computed from what its containers do, by kubelet's rules. Pure.

use std::net::{IpAddr, Ipv4Addr};

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, HostIP,
    Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

/// What one container does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ContainerView {
    pub(crate) name: String,
    /// As the spec says, or as it was found.
    pub(crate) image: String,
    pub(crate) image_id: String,
    pub(crate) container_id: Option<String>,
    pub(crate) restart_count: i32,
    pub(crate) state: ContainerState,
    pub(crate) last_state: Option<ContainerState>,
    pub(crate) started: bool,
    pub(crate) ready: bool,
    /// An init container that stays: it is counted among the running ones.
    pub(crate) sidecar: bool,
}

/// What one pod does.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PodView {
    pub(crate) init: Vec<ContainerView>,
    pub(crate) main: Vec<ContainerView>,
    pub(crate) pod_ip: Option<Ipv4Addr>,
    pub(crate) host_ip: Option<IpAddr>,
    pub(crate) start_time: Option<Time>,
    /// The pod was ended from outside: reason and message.
    pub(crate) failed: Option<(String, String)>,
    /// Nothing of it runs or is started again.
    pub(crate) over: bool,
}

impl PodView {
    pub(crate) fn container(&mut self, name: &str) -> Option<&mut ContainerView> {
        self.init
            .iter_mut()
            .chain(&mut self.main)
            .find(|container| container.name == name)
    }
}

pub(crate) fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    let waiting = ContainerStateWaiting {
        reason: Some(reason.to_string()),
        message,
    };
    ContainerState {
        waiting: Some(waiting),
        ..ContainerState::default()
    }
}

pub(crate) fn running(since: Time) -> ContainerState {
    ContainerState {
        running: Some(ContainerStateRunning {
            started_at: Some(since),
        }),
        ..ContainerState::default()
    }
}

pub(crate) fn terminated(end: ContainerStateTerminated) -> ContainerState {
    ContainerState {
        terminated: Some(end),
        ..ContainerState::default()
    }
}

impl ContainerView {
    fn succeeded(&self) -> bool {
        self.state.terminated.as_ref().is_some_and(|end| end.exit_code == 0)
    }
    fn initialized(&self) -> bool {
        if self.sidecar { self.started } else { self.succeeded() }
    }
    fn status(&self) -> ContainerStatus {
        ContainerStatus {
            name: self.name.clone(),
            image: self.image.clone(),
            image_id: self.image_id.clone(),
            container_id: self.container_id.clone(),
            restart_count: self.restart_count,
            state: Some(self.state.clone()),
            last_state: Some(self.last_state.clone().unwrap_or_default()),
            started: Some(self.started),
            ready: self.ready,
            ..ContainerStatus::default()
        }
    }
}

/// The pod's phase.
pub(crate) fn phase(policy: &str, view: &PodView) -> &'static str {
    if view.failed.is_some() {
        return "Failed";
    }
    let init_failed =
        |c: &&ContainerView| !c.sidecar && c.state.terminated.as_ref().is_some_and(|end| end.exit_code != 0);
    if policy == "Never" && view.init.iter().any(|container| init_failed(&container)) {
        return "Failed";
    }
    if !view.init.iter().all(ContainerView::initialized) && view.main.iter().all(never_ran) {
        return "Pending";
    }
    if view
        .main
        .iter()
        .any(|container| container.state.waiting.is_some() && never_ran(container))
    {
        return "Pending";
    }
    if view.main.iter().any(|container| container.state.running.is_some()) {
        return "Running";
    }
    let all_ended = view.main.iter().all(|container| container.state.terminated.is_some());
    match policy {
        "Never" | "OnFailure" if all_ended && view.main.iter().all(ContainerView::succeeded) => "Succeeded",
        "Never" if all_ended => "Failed",
        // A pod that is deleted comes to its last phase before its object goes (kubelet 1.27 and later).
        _ if view.over && all_ended && view.main.iter().all(ContainerView::succeeded) => "Succeeded",
        _ if view.over && all_ended => "Failed",
        _ => "Running",
    }
}

fn never_ran(container: &ContainerView) -> bool {
    let ended = container
        .last_state
        .as_ref()
        .is_some_and(|state| state.terminated.is_some());
    container.state.running.is_none() && container.state.terminated.is_none() && !ended
}

/// The whole status. `former` is what was last written or seen: times move only when something changed.
pub(crate) fn status(pod: &Pod, view: &PodView, former: &PodStatus, now: &Time) -> PodStatus {
    let spec = pod.spec.clone().unwrap_or_default();
    let phase = phase(spec.restart_policy.as_deref().unwrap_or("Always"), view);
    let over = match phase {
        "Succeeded" => Some("PodCompleted"),
        "Failed" => Some("PodFailed"),
        _ => None,
    };
    let condition = |kind: &str, unmet: Option<(&str, Option<String>)>| {
        let status = if unmet.is_none() { "True" } else { "False" };
        let before = former
            .conditions
            .iter()
            .flatten()
            .find(|c| c.type_ == kind && c.status == status);
        PodCondition {
            type_: kind.to_string(),
            status: status.to_string(),
            last_transition_time: before
                .and_then(|c| c.last_transition_time.clone())
                .or_else(|| Some(now.clone())),
            reason: unmet.as_ref().map(|(reason, _)| (*reason).to_string()),
            message: unmet.and_then(|(_, message)| message),
            ..PodCondition::default()
        }
    };
    let list = |names: Vec<&str>| format!("[{}]", names.join(" "));
    let uninitialized: Vec<&str> = view
        .init
        .iter()
        .filter(|c| !c.initialized())
        .map(|c| c.name.as_str())
        .collect();
    let not_initialized = (!uninitialized.is_empty() && phase != "Succeeded").then(|| {
        (
            "ContainersNotInitialized",
            Some(format!("containers with incomplete status: {}", list(uninitialized))),
        )
    });
    let staying = view.init.iter().filter(|c| c.sidecar).chain(&view.main);
    let unready: Vec<&str> = staying.filter(|c| !c.ready).map(|c| c.name.as_str()).collect();
    let not_ready = match over {
        Some(reason) => Some((reason, None)),
        None if unready.is_empty() => None,
        None => Some((
            "ContainersNotReady",
            Some(format!("containers with unready status: {}", list(unready))),
        )),
    };
    let gates: Vec<String> = spec
        .readiness_gates
        .iter()
        .flatten()
        .filter(|gate| {
            let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            !conditions
                .into_iter()
                .any(|c| c.type_ == gate.condition_type && c.status == "True")
        })
        .map(|gate| {
            format!(
                "corresponding condition of pod readiness gate \"{}\" does not exist or is not \"True\".",
                gate.condition_type
            )
        })
        .collect();
    let gated = (!gates.is_empty()).then(|| ("ReadinessGatesNotReady", Some(gates.join(", "))));
    let sandbox = view.pod_ip.is_none().then_some(("", None)).filter(|_| over.is_none());
    let mut conditions = vec![
        condition(
            "PodReadyToStartContainers",
            if over.is_some() { Some(("", None)) } else { sandbox },
        ),
        condition("Initialized", not_initialized),
        condition("Ready", not_ready.clone().or(gated)),
        condition("ContainersReady", not_ready),
    ];
    for condition in &mut conditions {
        condition.reason.take_if(|reason| reason.is_empty());
    }
    let mut init: Vec<ContainerStatus> = view.init.iter().map(ContainerView::status).collect();
    for (status, container) in init.iter_mut().zip(&view.init) {
        // A finished init container is ready by definition.
        status.ready = container.ready || (!container.sidecar && container.succeeded());
    }
    PodStatus {
        phase: Some(phase.to_string()),
        reason: view.failed.as_ref().map(|(reason, _)| reason.clone()),
        message: view.failed.as_ref().map(|(_, message)| message.clone()),
        conditions: Some(conditions),
        host_ip: view.host_ip.map(|ip| ip.to_string()),
        host_ips: view.host_ip.map(|ip| vec![HostIP { ip: ip.to_string() }]),
        pod_ip: view.pod_ip.map(|ip| ip.to_string()),
        pod_ips: view.pod_ip.map(|ip| vec![PodIP { ip: ip.to_string() }]),
        start_time: view.start_time.clone(),
        init_container_statuses: (!init.is_empty()).then_some(init),
        container_statuses: Some(view.main.iter().map(ContainerView::status).collect()),
        ..PodStatus::default()
    }
}

/// The status as a strategic merge patch: conditions of others are left alone, fields of ours that are no longer set are
/// removed, and a pod of the same name but another UID is refused by the API server.
pub(crate) fn patch(uid: &str, status: &PodStatus) -> Result<Value, serde_json::Error> {
    let mut value = serde_json::to_value(status)?;
    for key in ["reason", "message"] {
        if value.get(key).is_none() {
            value[key] = Value::Null;
        }
    }
    for condition in value["conditions"].as_array_mut().into_iter().flatten() {
        for key in ["reason", "message"] {
            if condition.get(key).is_none() {
                condition[key] = Value::Null;
            }
        }
    }
    Ok(json!({"metadata": {"uid": uid}, "status": value}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(state: ContainerState) -> ContainerView {
        ContainerView {
            name: "c".into(),
            image: "i".into(),
            image_id: String::new(),
            container_id: None,
            restart_count: 0,
            ready: state.running.is_some(),
            started: state.running.is_some(),
            state,
            last_state: None,
            sidecar: false,
        }
    }

    fn now() -> Time {
        Time("2026-01-01T00:00:00Z".parse().unwrap())
    }

    fn exit(code: i32) -> ContainerState {
        terminated(ContainerStateTerminated {
            exit_code: code,
            ..Default::default()
        })
    }

    #[test]
    fn phases_follow_kubelet() {
        let crashed = ContainerView {
            last_state: Some(exit(1)),
            ..container(waiting("CrashLoopBackOff", None))
        };
        let cases = [
            ("Always", vec![container(waiting("ContainerCreating", None))], "Pending"),
            ("Always", vec![container(running(now()))], "Running"),
            ("Always", vec![crashed], "Running"),
            ("Always", vec![container(exit(0))], "Running"),
            ("Never", vec![container(exit(0))], "Succeeded"),
            ("Never", vec![container(exit(1)), container(exit(0))], "Failed"),
            ("OnFailure", vec![container(exit(1))], "Running"),
            ("OnFailure", vec![container(exit(0))], "Succeeded"),
            ("Never", vec![container(exit(1)), container(running(now()))], "Running"),
        ];
        for (policy, main, expected) in cases {
            assert_eq!(
                phase(
                    policy,
                    &PodView {
                        main,
                        ..PodView::default()
                    }
                ),
                expected
            );
        }
        let init = |state, policy| {
            let main = vec![container(waiting("PodInitializing", None))];
            phase(
                policy,
                &PodView {
                    init: vec![container(state)],
                    main,
                    ..PodView::default()
                },
            )
        };
        assert_eq!(init(running(now()), "Always"), "Pending");
        assert_eq!(init(exit(1), "Always"), "Pending");
        assert_eq!(init(exit(1), "Never"), "Failed");
    }

    #[test]
    fn conditions_keep_their_times_until_they_change() {
        let pod = Pod::default();
        let mut view = PodView {
            main: vec![container(running(now()))],
            pod_ip: Some([10, 7, 64, 1].into()),
            ..PodView::default()
        };
        let first = status(&pod, &view, &PodStatus::default(), &now());
        let later = Time("2026-01-02T00:00:00Z".parse().unwrap());
        assert_eq!(status(&pod, &view, &first, &later), first);
        view.main[0].ready = false;
        let second = status(&pod, &view, &first, &later);
        let of = |status: &PodStatus, kind: &str| {
            status
                .conditions
                .iter()
                .flatten()
                .find(|c| c.type_ == kind)
                .cloned()
                .unwrap()
        };
        assert_eq!(of(&second, "Ready").last_transition_time, Some(later));
        assert_eq!(
            of(&second, "Ready").message.as_deref(),
            Some("containers with unready status: [c]")
        );
        assert_eq!(of(&second, "Initialized").last_transition_time, Some(now()));
    }

    #[test]
    fn readiness_gates_hold_the_pod_back() {
        let mut pod: Pod = serde_json::from_value(
            json!({"metadata": {}, "spec": {"containers": [], "readinessGates": [{"conditionType": "x/y"}]}}),
        )
        .unwrap();
        let view = PodView {
            main: vec![container(running(now()))],
            ..PodView::default()
        };
        let ready = |pod: &Pod| {
            let status = status(pod, &view, &PodStatus::default(), &now());
            let find = |kind: &str| {
                status
                    .conditions
                    .iter()
                    .flatten()
                    .find(|c| c.type_ == kind)
                    .unwrap()
                    .status
                    .clone()
            };
            (find("ContainersReady"), find("Ready"))
        };
        assert_eq!(ready(&pod), ("True".into(), "False".into()));
        pod.status = serde_json::from_value(json!({"conditions": [{"type": "x/y", "status": "True"}]})).unwrap();
        assert_eq!(ready(&pod), ("True".into(), "True".into()));
    }
}
