//! One pod on its node, from being bound to being gone.

use std::fs;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::container::{Keeper, Order, PodContext, Role, RunningContainers, next_order, user};
use super::environment::Facts;
use super::events::Weight;
use super::machine::{Machine, PodNames};
use super::pod_state::PodState;
use super::sources::Sources;
use super::status::{ContainerView, PodView, terminated, waiting};
use super::volumes::{self, Folders};

/// A pod whose object was removed by force gets this long to end.
const FORCED_GRACE: Duration = Duration::from_secs(1);

/// What a worker needs to know.
pub(crate) struct Worker {
    pub(crate) machine: Arc<Machine>,
    pub(crate) pod: watch::Receiver<Arc<Pod>>,
    pub(crate) running: Arc<RunningContainers>,
    pub(crate) node: NodeFacts,
    /// The object is gone.
    pub(crate) gone: CancellationToken,
    /// The node has lost its power.
    pub(crate) power_off: CancellationToken,
}

/// What pods see of their node.
#[derive(Clone, Debug)]
pub(crate) struct NodeFacts {
    pub(crate) address: IpAddr,
    pub(crate) allocatable: std::collections::BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
}

fn is_over(pod: &Pod) -> bool {
    matches!(
        pod.status.as_ref().and_then(|status| status.phase.as_deref()),
        Some("Succeeded" | "Failed")
    )
}

fn now() -> Time {
    let now = jiff::Timestamp::now();
    Time(jiff::Timestamp::from_second(now.as_second()).unwrap_or(now))
}

impl Worker {
    fn pod(&self) -> Arc<Pod> {
        self.pod.borrow().clone()
    }

    /// Runs the pod. `predecessor` is an older pod of the same name that must have ended first.
    pub(crate) async fn run(self, predecessor: Option<watch::Receiver<bool>>) {
        if let Some(mut predecessor) = predecessor {
            tokio::select! {
                _ = predecessor.wait_for(|ended| *ended) => {}
                () = self.power_off.cancelled() => return,
            }
        }
        if is_over(&self.pod()) || self.pod().metadata.deletion_timestamp.is_some() {
            // Nothing of it runs: only its end is left to be recorded.
            tokio::select! {
                () = self.power_off.cancelled() => return,
                () = self.gone.cancelled() => {}
                () = self.deletion() => {}
            }
            self.clean_up().await;
            return;
        }
        match self.live().await {
            Ok(true) => self.clean_up().await,
            Ok(false) => {}
            Err(error) => {
                let message = format!("Failed to create pod sandbox: {error}");
                self.machine
                    .events
                    .pod(&self.pod(), None, Weight::Warning, "FailedCreatePodSandBox", message);
                tokio::select! {
                    () = self.power_off.cancelled() => return,
                    () = self.gone.cancelled() => {}
                    () = self.deletion() => {}
                }
                self.clean_up().await;
            }
        }
    }

    /// Waits until somebody has asked for the pod's deletion.
    async fn deletion(&self) {
        let mut pods = self.pod.clone();
        if pods
            .wait_for(|pod| pod.metadata.deletion_timestamp.is_some())
            .await
            .is_err()
        {
            std::future::pending::<()>().await;
        }
    }

    /// Lives the pod's life. False when the node lost its power: then nothing is recorded.
    async fn live(&self) -> std::io::Result<bool> {
        let context = Arc::new(self.prepare().await?);
        let (main_orders, main_watch) = watch::channel(Order::Run);
        let writer = tokio::spawn({
            let state = context.state.clone();
            async move { state.keep_written().await }
        });
        let refresher = tokio::spawn(refresh(context.clone()));
        let life = self.containers(context.clone(), main_watch);
        tokio::pin!(life);
        let mut ordered = false;
        let mut powered = true;
        let deadline = self.pod().spec.as_ref().and_then(|spec| spec.active_deadline_seconds);
        let deadline = deadline.and_then(|seconds| u64::try_from(seconds).ok());
        let overdue = tokio::time::sleep(Duration::from_secs(deadline.unwrap_or_default()));
        tokio::pin!(overdue);
        let mut pods = self.pod.clone();
        loop {
            let order = tokio::select! {
                () = &mut life => break,
                () = self.power_off.cancelled(), if powered => {
                    powered = false;
                    Order::PowerOff
                }
                () = self.gone.cancelled(), if powered && !(ordered && self.gone_is_handled(&main_orders)) => {
                    ordered = true;
                    Order::End(FORCED_GRACE)
                }
                () = &mut overdue, if deadline.is_some() && !ordered && powered => {
                    ordered = true;
                    let message = "Pod was active on the node longer than the specified deadline".to_string();
                    context.state.change(|view| view.failed = Some(("DeadlineExceeded".to_string(), message)));
                    Order::End(grace(&self.pod()))
                }
                changed = pods.changed(), if powered => match changed {
                    Ok(()) if pods.borrow().metadata.deletion_timestamp.is_some() => {
                        ordered = true;
                        let pod = pods.borrow().clone();
                        Order::End(grace(&pod))
                    }
                    _ => continue,
                },
            };
            main_orders.send_if_modified(|present| replace(present, order));
        }
        refresher.abort();
        writer.abort();
        if !powered || self.machine.is_shutting_down() {
            return Ok(false);
        }
        // Nothing of it is started again: its phase is the last one.
        context.state.change(|view| view.over = true);
        // The last status must be there before the object goes, and while it stays.
        let write = async {
            for _ in 0..20 {
                if context.state.write().await.is_ok() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            () = self.power_off.cancelled() => return Ok(false),
            () = write => {}
        }
        tokio::select! {
            () = self.power_off.cancelled() => return Ok(false),
            () = self.gone.cancelled() => {}
            () = self.deletion() => {}
        }
        Ok(true)
    }

    fn gone_is_handled(&self, orders: &watch::Sender<Order>) -> bool {
        matches!(*orders.borrow(), Order::End(grace) if grace <= FORCED_GRACE)
    }

    async fn prepare(&self) -> std::io::Result<PodContext> {
        let pod = self.pod();
        let uid = pod.uid().unwrap_or_default();
        let spec = pod.spec.clone().unwrap_or_default();
        let former = pod
            .status
            .as_ref()
            .and_then(|status| status.pod_ip.as_ref()?.parse().ok());
        let address = self.machine.addresses.assign(&uid, former);
        let address = address.ok_or_else(|| std::io::Error::other("no address is left in this network"))?;
        let plane = self.machine.plane.clone();
        let connecting = tokio::task::spawn_blocking(move || plane.connect(address));
        let place = connecting.await.map_err(std::io::Error::other)??;
        // Set once: a worker prepares once.
        let _ = self.running.place.set(place.clone());
        self.machine.directory.pod_address(&uid, address);
        let folder = self.machine.pod_folder(&uid);
        let hostname = spec.hostname.clone().unwrap_or_else(|| pod.name_any());
        let hostname: String = hostname.chars().take(63).collect();
        let names = pod_names(&pod, &hostname, address);
        let containers: Vec<&Container> = spec.init_containers.iter().flatten().chain(&spec.containers).collect();
        let image_user = |container: &Container| {
            let found = self.machine.images.find(container.image.as_deref()?).ok()?;
            found.image.user
        };
        let users = containers
            .iter()
            .map(|container| user(&pod, container, image_user(container)).0);
        let users: Vec<u32> = users.collect();
        self.machine.write_etc(&folder.join("etc"), &names, &users)?;
        let volumes = Folders {
            disk: folder.join("volumes"),
            memory: self.machine.memory.join(&uid),
        };
        let mut view = first_view(&pod);
        view.pod_ip = Some(address);
        view.host_ip = Some(self.node.address);
        view.start_time = pod
            .status
            .as_ref()
            .and_then(|status| status.start_time.clone())
            .or_else(|| Some(now()));
        Ok(PodContext {
            state: Arc::new(PodState::new(self.machine.clone(), self.pod.clone(), view)),
            machine: self.machine.clone(),
            pod: self.pod.clone(),
            facts: Facts {
                pod_ip: address,
                host_ip: self.node.address,
                hostname,
                api: self.machine.api,
                allocatable: self.node.allocatable.clone(),
            },
            place,
            folder,
            volumes,
            running: self.running.clone(),
            sources: tokio::sync::Mutex::default(),
        })
    }

    /// Runs all containers in their order, until all have ended for good.
    async fn containers(&self, context: Arc<PodContext>, orders: watch::Receiver<Order>) {
        if !self.volumes(&context, &orders).await {
            return;
        }
        let (side_orders, side_watch) = watch::channel(Order::Run);
        let spec = self.pod().spec.clone().unwrap_or_default();
        let keeper = |name: &str, role: Role, orders: &watch::Receiver<Order>| Keeper {
            context: context.clone(),
            name: name.to_string(),
            role,
            orders: orders.clone(),
        };
        let mut staying = JoinSet::new();
        let stopped = || *orders.borrow() != Order::Run;
        for container in spec.init_containers.iter().flatten() {
            if stopped() {
                break;
            }
            if container.restart_policy.as_deref() == Some("Always") {
                staying.spawn(keeper(&container.name, Role::Sidecar, &side_watch).keep());
                let mut orders = orders.clone();
                tokio::select! {
                    () = context.state.until(|view| view.init.iter().any(|c| c.name == container.name && c.started)) => {}
                    _ = next_order(&mut orders) => {}
                }
                continue;
            }
            keeper(&container.name, Role::Init, &orders).keep().await;
            let done =
                context.state.view().init.iter().any(|c| {
                    c.name == container.name && c.state.terminated.as_ref().is_some_and(|end| end.exit_code == 0)
                });
            if !done {
                break;
            }
        }
        let view = context.state.view();
        let initialized = view.init.iter().all(|c| {
            if c.sidecar {
                c.started
            } else {
                c.state.terminated.as_ref().is_some_and(|end| end.exit_code == 0)
            }
        });
        if initialized && !stopped() {
            context.state.change(|view| {
                for container in view.main.iter_mut().filter(|c| c.state.waiting.is_some()) {
                    container.state = waiting("ContainerCreating", None);
                }
            });
            let mut main = JoinSet::new();
            for container in &spec.containers {
                let kept = context
                    .state
                    .view()
                    .main
                    .iter()
                    .any(|c| c.name == container.name && c.state.terminated.is_some());
                if !kept {
                    main.spawn(keeper(&container.name, Role::Main, &orders).keep());
                }
            }
            while main.join_next().await.is_some() {}
        }
        // Those that serve the others end after them.
        let last = match *orders.borrow() {
            Order::Run => Order::End(grace(&self.pod())),
            order => order,
        };
        side_orders.send_replace(last);
        while staying.join_next().await.is_some() {}
    }

    /// Makes the volumes, waiting for what they need. False when the pod is to end first.
    async fn volumes(&self, context: &Arc<PodContext>, orders: &watch::Receiver<Order>) -> bool {
        let mut orders = orders.clone();
        let mut pause = Duration::from_millis(50);
        let mut told = String::new();
        loop {
            let pod = self.pod();
            let mut known = context.sources.lock().await;
            let made = match Sources::load(&self.machine.client, &pod, &known).await {
                Ok(sources) => {
                    *known = sources;
                    volumes::prepare(&pod, &context.volumes, &context.facts, &known).map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            drop(known);
            let Err(message) = made else { return true };
            if told != message {
                self.machine
                    .events
                    .pod(&pod, None, Weight::Warning, "FailedMount", message.clone());
                told = message;
            }
            let mut changes = self.machine.config_changes.subscribe();
            tokio::select! {
                _ = next_order(&mut orders) => return false,
                () = tokio::time::sleep(pause) => {}
                _ = changes.recv() => {}
            }
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }

    /// Removes what the pod had here, then its object.
    async fn clean_up(&self) {
        let pod = self.pod();
        let uid = pod.uid().unwrap_or_default();
        for folder in [self.machine.pod_folder(&uid), self.machine.memory.join(&uid)] {
            let _ = tokio::task::spawn_blocking(move || fs::remove_dir_all(folder)).await;
        }
        self.machine.addresses.release(&uid);
        let api: Api<Pod> = Api::namespaced(self.machine.client.clone(), &pod.namespace().unwrap_or_default());
        let only_this = Preconditions {
            uid: Some(uid),
            resource_version: None,
        };
        let now = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(only_this),
            ..DeleteParams::default()
        };
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let node = node.unwrap_or_default();
        tokio::select! {
            () = self.machine.in_touch(&node) => {}
            () = self.power_off.cancelled() => return,
        }
        while !self.gone.is_cancelled() {
            match api.delete(&pod.name_any(), &now).await {
                Ok(_) => return,
                Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => return,
                Err(error) => tracing::warn!(%error, pod = pod.name_any(), "a pod's object could not be removed"),
            }
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(500)) => {}
                () = self.power_off.cancelled() => return,
            }
        }
    }
}

fn replace(present: &mut Order, order: Order) -> bool {
    let changes = *present != order && *present != Order::PowerOff;
    if changes {
        *present = order;
    }
    changes
}

fn grace(pod: &Pod) -> Duration {
    let seconds = pod.metadata.deletion_grace_period_seconds;
    let seconds = seconds
        .or_else(|| pod.spec.as_ref()?.termination_grace_period_seconds)
        .unwrap_or(30);
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

pub(crate) fn pod_names(pod: &Pod, hostname: &str, address: std::net::Ipv4Addr) -> PodNames {
    let spec = pod.spec.clone().unwrap_or_default();
    PodNames {
        namespace: pod.namespace().unwrap_or_default(),
        hostname: hostname.to_string(),
        subdomain: spec.subdomain,
        address,
        aliases: spec
            .host_aliases
            .into_iter()
            .flatten()
            .map(|a| (a.ip, a.hostnames.unwrap_or_default()))
            .collect(),
    }
}

/// Where the pod stands before anything is started here: a new pod, or one that ran here before the machine went down.
fn first_view(pod: &Pod) -> PodView {
    let spec = pod.spec.clone().unwrap_or_default();
    let status = pod.status.clone().unwrap_or_default();
    let policy = spec.restart_policy.as_deref().unwrap_or("Always");
    let has_init = spec.init_containers.as_ref().is_some_and(|init| !init.is_empty());
    let view = |container: &Container, role: Role| {
        let formers = status
            .container_statuses
            .iter()
            .chain(&status.init_container_statuses)
            .flatten();
        let former = formers.into_iter().find(|former| former.name == container.name);
        let reason = if has_init && role == Role::Main {
            "PodInitializing"
        } else {
            "ContainerCreating"
        };
        let mut view = ContainerView {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            image_id: String::new(),
            container_id: None,
            restart_count: 0,
            state: waiting(reason, None),
            last_state: None,
            started: false,
            ready: false,
            sidecar: role == Role::Sidecar,
        };
        let Some(former) = former.filter(|former| former.container_id.is_some()) else {
            return view;
        };
        let state = former.state.clone().unwrap_or_default();
        view.restart_count = former.restart_count;
        let ended_well = state.terminated.as_ref().is_some_and(|end| end.exit_code == 0);
        let stays_ended = role == Role::Main && (policy == "Never" || (policy == "OnFailure" && ended_well));
        let end = state.terminated.clone().unwrap_or_else(|| ContainerStateTerminated {
            exit_code: 255,
            reason: Some("Unknown".to_string()),
            message: Some("The container was running when the node went down".to_string()),
            container_id: former.container_id.clone(),
            started_at: state.running.and_then(|running| running.started_at),
            finished_at: Some(now()),
            ..ContainerStateTerminated::default()
        });
        view.container_id = former.container_id.clone();
        view.image_id = former.image_id.clone();
        if stays_ended {
            view.state = terminated(end);
            view.last_state = former.last_state.clone();
        } else {
            view.last_state = Some(terminated(end));
            view.restart_count += 1;
        }
        view
    };
    let init = spec.init_containers.iter().flatten().map(|container| {
        let sidecar = container.restart_policy.as_deref() == Some("Always");
        view(container, if sidecar { Role::Sidecar } else { Role::Init })
    });
    PodView {
        init: init.collect(),
        main: spec
            .containers
            .iter()
            .map(|container| view(container, Role::Main))
            .collect(),
        ..PodView::default()
    }
}

/// Brings volumes up to date while the pod runs: when a ConfigMap, a Secret or the pod's own labels change, and in time for
/// tokens.
async fn refresh(context: Arc<PodContext>) {
    let mut changes = context.machine.config_changes.subscribe();
    let mut pods = context.pod.clone();
    let mut minutes = tokio::time::interval(Duration::from_secs(60));
    minutes.reset();
    loop {
        let pod = context.pod.borrow().clone();
        let mutable = Sources::is_mutable(&pod);
        let namespace = pod.namespace().unwrap_or_default();
        tokio::select! {
            change = changes.recv() => match change {
                Ok((kind, in_namespace, name)) if in_namespace != namespace || !Sources::refers(&pod, kind, &name) => continue,
                Ok(_) | Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {}
                Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
            },
            changed = pods.changed() => {
                let new = pods.borrow_and_update().clone();
                if changed.is_err() {
                    return;
                }
                if new.metadata.labels == pod.metadata.labels && new.metadata.annotations == pod.metadata.annotations {
                    continue;
                }
            }
            _ = minutes.tick(), if mutable => {}
        }
        let pod = context.pod.borrow().clone();
        let mut known = context.sources.lock().await;
        if let Ok(sources) = Sources::load(&context.machine.client, &pod, &known).await {
            // What was deleted since stays as it was, as kubelet leaves it.
            if volumes::prepare(&pod, &context.volumes, &context.facts, &sources).is_ok() {
                *known = sources;
            }
        }
    }
}
