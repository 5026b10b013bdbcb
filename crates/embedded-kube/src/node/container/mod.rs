//! One container of a pod: made, started, asked for its health, ended, restarted.

mod end;
mod pauses;
mod start;
mod stdin;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::sync::watch;
use tokio::time::Instant;

use super::environment::Facts;
use super::events::Weight;
use super::logs::RunLog;
use super::machine::Machine;
use super::pod_state::PodState;
use super::process::Process;
use super::sources::Sources;
use super::status::ContainerView;
use super::volumes;
use crate::network::{Namespace, Place};
pub(crate) use start::user;
use stdin::Stdin;

/// After so long without a crash the back-off starts anew.
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);

/// Waits for an order to end.
pub(crate) async fn next_order(orders: &mut watch::Receiver<Order>) -> Order {
    orders
        .wait_for(|order| *order != Order::Run)
        .await
        .map_or(Order::PowerOff, |order| *order)
}

/// What a pod's containers are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Run,
    /// End in good order within this time.
    End(Duration),
    /// The node has lost its power: end at once and tell nobody.
    PowerOff,
}

/// A container that runs now, for logs, exec and faults.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) process: Process,
    pub(crate) user_namespace: bool,
    /// The pod's network.
    pub(crate) namespace: Namespace,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) log: RunLog,
    /// Where what is typed goes, if the container asked for it.
    pub(crate) stdin: Option<Arc<Stdin>>,
}

/// The containers of one pod that run now, by name.
#[derive(Default)]
pub(crate) struct RunningContainers {
    containers: Mutex<HashMap<String, Running>>,
    /// Where the pod is in the network, once it is.
    pub(crate) place: OnceLock<Place>,
}

impl RunningContainers {
    fn set(&self, name: &str, running: Option<Running>) {
        let mut map = self.containers.lock().unwrap_or_else(PoisonError::into_inner);
        match running {
            Some(running) => map.insert(name.to_string(), running),
            None => map.remove(name),
        };
    }
    pub(crate) fn get(&self, name: &str) -> Option<Running> {
        self.containers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned()
    }
    pub(crate) fn all(&self) -> Vec<Running> {
        self.containers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect()
    }
}

/// What the containers of a pod share.
pub(crate) struct PodContext {
    pub(crate) machine: Arc<Machine>,
    pub(crate) pod: watch::Receiver<Arc<Pod>>,
    pub(crate) state: Arc<PodState>,
    pub(crate) facts: Facts,
    /// Where the pod is in the network.
    pub(crate) place: Place,
    pub(crate) folder: PathBuf,
    pub(crate) volumes: volumes::Folders,
    pub(crate) running: Arc<RunningContainers>,
    /// What was last read for the pod, so that tokens are kept.
    pub(crate) sources: tokio::sync::Mutex<Sources>,
}

/// What kind of container it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Init,
    Sidecar,
    Main,
}

/// Why a container cannot be started now.
struct Trouble {
    reason: &'static str,
    message: String,
}

enum End {
    /// It ended by itself.
    Ended(i32),
    /// We ended it; it is to be started again at once or by the usual rules.
    Restart {
        code: i32,
        at_once: bool,
    },
    /// It was told to end.
    Ordered(i32),
    PowerOff,
}

pub(crate) struct Keeper {
    pub(crate) context: Arc<PodContext>,
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) orders: watch::Receiver<Order>,
}

fn now() -> Time {
    // Kubernetes' times have whole seconds.
    let now = jiff::Timestamp::now();
    Time(jiff::Timestamp::from_second(now.as_second()).unwrap_or(now))
}

impl Keeper {
    fn pod(&self) -> Arc<Pod> {
        self.context.pod.borrow().clone()
    }

    fn spec(&self, pod: &Pod) -> Option<Container> {
        let spec = pod.spec.as_ref()?;
        spec.containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
            .find(|c| c.name == self.name)
            .cloned()
    }

    fn view(&self, change: impl FnOnce(&mut ContainerView)) {
        self.context.state.change(|view| {
            if let Some(container) = view.container(&self.name) {
                change(container);
            }
        });
    }

    fn event(&self, weight: Weight, reason: &'static str, message: String) {
        self.context
            .machine
            .events
            .pod(&self.pod(), Some(&self.name), weight, reason, message);
    }

    fn restarts(&self, code: i32) -> bool {
        let pod = self.pod();
        let policy = pod.spec.as_ref().and_then(|spec| spec.restart_policy.clone());
        match (self.role, policy.as_deref().unwrap_or("Always")) {
            (Role::Sidecar, _) | (Role::Main, "Always") => true,
            (Role::Init, "Never") | (Role::Main, "Never") => false,
            _ => code != 0,
        }
    }

    /// Runs the container until it is not to be started again.
    pub(crate) async fn keep(mut self) {
        let mut crashes: u32 = 0;
        let mut failed_starts: u32 = 0;
        let mut forget_crashes = false;
        loop {
            if *self.orders.borrow() != Order::Run || self.context.machine.is_shutting_down() {
                return;
            }
            let Some(spec) = self.spec(&self.pod()) else { return };
            let (target, log) = match self.start(&spec).await {
                Ok(started) => {
                    failed_starts = 0;
                    started
                }
                Err(trouble) => {
                    self.wait_for_better(trouble, failed_starts).await;
                    failed_starts += 1;
                    continue;
                }
            };
            let started_at = Instant::now();
            let end = self.attend(&spec, &target).await;
            self.context.running.set(&self.name, None);
            if self.context.machine.is_shutting_down() {
                return;
            }
            let (code, at_once) = match end {
                End::PowerOff => return,
                End::Ordered(code) => {
                    self.ended(&spec, code, &log, started_at).await;
                    return;
                }
                End::Ended(code) => (code, false),
                End::Restart { code, at_once } => (code, at_once),
            };
            self.ended(&spec, code, &log, started_at).await;
            if !at_once && !self.restarts(code) {
                return;
            }
            if at_once || forget_crashes || started_at.elapsed() > FORGIVEN_AFTER {
                crashes = 0;
            }
            forget_crashes = at_once;
            if !at_once {
                self.back_off(crashes).await;
                crashes += 1;
            }
            self.view(|view| view.restart_count += 1);
        }
    }
}
