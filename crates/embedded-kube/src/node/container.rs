//! One container of a pod: made, started, asked for its health, ended, restarted.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use nix::sys::signal::Signal;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::Instant;

use super::environment::{self, Facts};
use super::events::Weight;
use super::images::Found;
use super::logs::{self, RunLog};
use super::machine::Machine;
use super::pod_state::PodState;
use super::probes::{self, Target};
use super::process::Process;
use super::sandbox::{Mount, PROGRAMS, Sandbox, needs_user_namespace};
use super::sources::Sources;
use super::status::{ContainerView, running, terminated, waiting};
use super::volumes;

const LONGEST_BACK_OFF: Duration = Duration::from_secs(300);
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
    pub(crate) env: Vec<(String, String)>,
    pub(crate) log: RunLog,
}

/// The containers of one pod that run now, by name.
#[derive(Default)]
pub(crate) struct RunningContainers(Mutex<HashMap<String, Running>>);

impl RunningContainers {
    fn set(&self, name: &str, running: Option<Running>) {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match running {
            Some(running) => map.insert(name.to_string(), running),
            None => map.remove(name),
        };
    }
    pub(crate) fn get(&self, name: &str) -> Option<Running> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }
    pub(crate) fn all(&self) -> Vec<Running> {
        self.0
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

    /// The first restart is at once, as kubelet's is; then 10 s, doubled each time, up to five minutes.
    async fn back_off(&mut self, crashes: u32) {
        let Some(doublings) = crashes.checked_sub(1) else {
            return;
        };
        let pause = self
            .context
            .machine
            .back_off
            .saturating_mul(2_u32.saturating_pow(doublings))
            .min(LONGEST_BACK_OFF);
        let pod = self.pod();
        let whom = format!(
            "container={} pod={}_{}({})",
            self.name,
            pod.name_any(),
            pod.namespace().unwrap_or_default(),
            pod.uid().unwrap_or_default()
        );
        let message = format!("back-off {} restarting failed {whom}", seconds(pause));
        self.view(|view| {
            view.last_state = Some(std::mem::replace(
                &mut view.state,
                waiting("CrashLoopBackOff", Some(message)),
            ));
        });
        let whom = whom.replace("container=", "container ").replace(" pod=", " in pod ");
        self.event(Weight::Warning, "BackOff", format!("Back-off restarting failed {whom}"));
        self.pause(pause, false).await;
    }

    /// Waits, but not longer than until an order comes, or, where asked, until the pod or an image changes.
    async fn pause(&mut self, pause: Duration, or_change: bool) {
        let mut orders = self.orders.clone();
        let mut images = self.context.machine.images.changes();
        images.borrow_and_update();
        let mut pods = self.context.pod.clone();
        let image = self.spec(&self.pod()).and_then(|spec| spec.image);
        // Not any change: our own status comes back as one.
        let changed = async {
            let other = |pod: &Arc<Pod>| self.spec(pod).and_then(|spec| spec.image) != image;
            let _ = pods.wait_for(other).await;
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = next_order(&mut orders) => {}
            () = changed, if or_change => {}
            _ = images.changed(), if or_change => {}
        }
    }

    async fn wait_for_better(&mut self, trouble: Trouble, failures: u32) {
        let image = trouble.reason == "ErrImagePull";
        let spec_image = self.spec(&self.pod()).and_then(|spec| spec.image).unwrap_or_default();
        if image {
            self.event(
                Weight::Warning,
                "Failed",
                format!("Failed to pull image \"{spec_image}\": {}", trouble.message),
            );
            self.event(Weight::Warning, "Failed", "Error: ErrImagePull".to_string());
        } else {
            self.event(Weight::Warning, "Failed", format!("Error: {}", trouble.message));
        }
        self.view(|view| {
            if view.state.terminated.is_some() {
                view.last_state = Some(view.state.clone());
            }
            view.state = waiting(trouble.reason, Some(trouble.message.clone()));
        });
        if !image {
            self.pause(Duration::from_millis(250) * 2_u32.pow(failures.min(4)), true)
                .await;
            return;
        }
        // kubelet shows the error for a moment, then that it waits.
        self.pause(Duration::from_millis(200), true).await;
        if *self.orders.borrow() == Order::Run && self.context.machine.images.find(&spec_image).is_err() {
            let message = format!(
                "Back-off pulling image \"{spec_image}\": ErrImagePull: {}",
                trouble.message
            );
            self.view(|view| view.state = waiting("ImagePullBackOff", Some(message)));
            self.event(
                Weight::Normal,
                "BackOff",
                format!("Back-off pulling image \"{spec_image}\""),
            );
            self.event(Weight::Warning, "Failed", "Error: ImagePullBackOff".to_string());
            let pause = self
                .context
                .machine
                .back_off
                .saturating_mul(2_u32.saturating_pow(failures))
                .min(LONGEST_BACK_OFF);
            self.pause(pause, true).await;
        }
    }

    async fn start(&self, spec: &Container) -> Result<(Target, RunLog), Trouble> {
        let machine = &self.context.machine;
        let reference = spec.image.clone().unwrap_or_default();
        let found = machine.images.find(&reference).map_err(|error| {
            let never = spec.image_pull_policy.as_deref() == Some("Never");
            Trouble {
                reason: if never { "ErrImageNeverPull" } else { "ErrImagePull" },
                message: error.to_string(),
            }
        })?;
        if let Some(asked) = &found.instead_of {
            let message = format!(
                "Image \"{asked}\" is not registered here; running the nearest version \"{}\" instead",
                found.reference
            );
            self.event(Weight::Warning, "NearestImage", message);
        }
        self.event(
            Weight::Normal,
            "Pulled",
            format!("Container image \"{reference}\" already present on machine"),
        );
        let pod = self.pod();
        let config = |message: String| Trouble {
            reason: "CreateContainerConfigError",
            message,
        };
        let sources = {
            let mut known = self.context.sources.lock().await;
            let read = Sources::load(&machine.client, &pod, &known)
                .await
                .map_err(|error| config(error.to_string()))?;
            *known = read.clone();
            read
        };
        let (facts, folders) = (&self.context.facts, &self.context.volumes);
        let made = volumes::prepare(&pod, folders, facts, &sources).map_err(|error| config(error.to_string()))?;
        let namespace = pod.namespace().unwrap_or_default();
        let services = machine.directory.services(Some(&namespace));
        let mut env = environment::variables(&pod, spec, facts, &sources, &services)
            .map_err(|error| config(error.to_string()))?;
        for (name, value) in found.image.env.iter().rev() {
            if !env.iter().any(|(have, _)| have == name) {
                env.insert(0, (name.clone(), value.clone()));
            }
        }
        let mounts = volumes::mounts(&pod, spec, &made, &env).map_err(|error| config(error.to_string()))?;
        let failed = |error: io::Error| Trouble {
            reason: "RunContainerError",
            message: error.to_string(),
        };
        self.launch(&pod, spec, &found, env, mounts).await.map_err(failed)
    }

    fn container_folder(&self) -> PathBuf {
        self.context.folder.join("containers").join(&self.name)
    }

    async fn launch(
        &self,
        pod: &Pod,
        spec: &Container,
        found: &Found,
        mut env: Vec<(String, String)>,
        mut mounts: Vec<Mount>,
    ) -> io::Result<(Target, RunLog)> {
        let facts = &self.context.facts;
        let folder = self.container_folder();
        fs::create_dir_all(&folder)?;
        let message_file = folder.join("termination-log");
        fs::write(&message_file, "")?;
        let message_path = spec
            .termination_message_path
            .clone()
            .unwrap_or_else(|| "/dev/termination-log".to_string());
        mounts.push(Mount {
            source: message_file,
            target: message_path.into(),
            read_only: false,
        });
        if let Some(programs) = &found.image.folder {
            mounts.push(Mount {
                source: programs.clone(),
                target: PROGRAMS.into(),
                read_only: true,
            });
        }
        let (uid, gid) = user(pod, spec);
        if !env.iter().any(|(name, _)| name == "HOME") {
            env.push(("HOME".to_string(), if uid == 0 { "/root" } else { "/" }.to_string()));
        }
        let command = environment::command_line(spec, &found.image.entrypoint, &found.image.cmd, &env, facts.pod_ip);
        let sandbox = Sandbox {
            hostname: facts.hostname.clone(),
            uid,
            gid,
            etc: self.context.folder.join("etc"),
            mounts,
            read_only_root: spec.security_context.as_ref().and_then(|c| c.read_only_root_filesystem) == Some(true),
            working_dir: spec
                .working_dir
                .clone()
                .filter(|folder| !folder.is_empty())
                .map(PathBuf::from),
            env: env.clone(),
            command,
        };
        let mut command = sandbox.command();
        let (stdout, stdout_end) = io::pipe()?;
        let (stderr, stderr_end) = io::pipe()?;
        command
            .stdin(std::process::Stdio::null())
            .stdout(stdout_end)
            .stderr(stderr_end);
        let run = self.run_number();
        self.event(Weight::Normal, "Created", format!("Container created: {}", self.name));
        let process = self.context.machine.spawner.spawn(command).await?;
        let (stdout, stderr): (OwnedFd, OwnedFd) = (stdout.into(), stderr.into());
        let log = logs::record(
            &folder.join("logs"),
            run,
            pipe::Receiver::from_owned_fd(stdout)?,
            pipe::Receiver::from_owned_fd(stderr)?,
        )?;
        let user_namespace = needs_user_namespace(uid);
        let running_now = Running {
            process: process.clone(),
            user_namespace,
            env: env.clone(),
            log: log.clone(),
        };
        self.context.running.set(&self.name, Some(running_now));
        let id = format!("embedded://{}", uuid::Uuid::new_v4().simple());
        self.view(|view| {
            let former = std::mem::replace(&mut view.state, running(now()));
            if former.terminated.is_some() {
                view.last_state = Some(former);
            }
            view.container_id = Some(id);
            view.image = found.reference.clone();
            view.image_id = found.id.clone();
            view.started = false;
            view.ready = false;
        });
        self.event(Weight::Normal, "Started", format!("Container started: {}", self.name));
        let target = Target {
            spawner: self.context.machine.spawner.clone(),
            process,
            user_namespace,
            env,
            pod_ip: facts.pod_ip,
            container: spec.clone(),
        };
        Ok((target, log))
    }

    fn run_number(&self) -> i32 {
        let mut number = 0;
        self.view(|view| number = view.restart_count);
        number
    }

    /// Stays with a running container until it has ended.
    async fn attend(&mut self, spec: &Container, target: &Target) -> End {
        let keeper = &*self;
        let mut orders = self.orders.clone();
        let mut pods = self.context.pod.clone();
        let hooked = async {
            let handler = spec
                .lifecycle
                .as_ref()
                .and_then(|lifecycle| lifecycle.post_start.as_ref());
            let Some(handler) = handler else {
                return std::future::pending().await;
            };
            match probes::hook(handler, target).await {
                Ok(()) => std::future::pending().await,
                Err(message) => message,
            }
        };
        let changed = async {
            let image = |pod: &Arc<Pod>| keeper.spec(pod).is_none_or(|new| new.image != spec.image);
            let _ = pods.wait_for(image).await;
        };
        let (reason, grace, at_once) = tokio::select! {
            biased;
            code = target.process.wait() => return End::Ended(code),
            order = next_order(&mut orders) => return keeper.obey(order, spec, target).await,
            (kind, reason) = probes::watch(target, keeper) => {
                let probe = if kind == probes::Kind::Startup { &spec.startup_probe } else { &spec.liveness_probe };
                let own = probe.as_ref().and_then(|probe| probe.termination_grace_period_seconds);
                (format!("Container {} {reason}, will be restarted", keeper.name), own, false)
            }
            message = hooked => {
                keeper.event(Weight::Warning, "FailedPostStartHook", format!("PostStartHook failed: {message}"));
                (format!("FailedPostStartHook: {message}"), None, false)
            }
            () = changed => (format!("Container {} definition changed, will be restarted", keeper.name), None, true),
        };
        keeper.event(Weight::Normal, "Killing", reason);
        let grace = grace.or(keeper
            .pod()
            .spec
            .as_ref()
            .and_then(|spec| spec.termination_grace_period_seconds));
        let grace = Duration::from_secs(grace.and_then(|s| u64::try_from(s).ok()).unwrap_or(30));
        match keeper.end(spec, target, grace).await {
            Some(code) => End::Restart { code, at_once },
            None => End::PowerOff,
        }
    }

    async fn obey(&self, order: Order, spec: &Container, target: &Target) -> End {
        match order {
            Order::End(grace) => {
                self.event(Weight::Normal, "Killing", format!("Stopping container {}", self.name));
                match self.end(spec, target, grace).await {
                    Some(code) => End::Ordered(code),
                    None => End::PowerOff,
                }
            }
            Order::Run | Order::PowerOff => {
                target.process.kill_sandbox();
                target.process.wait().await;
                End::PowerOff
            }
        }
    }

    /// Ends a container in good order: its `preStop` hook, SIGTERM, and SIGKILL when its time is over. None when the node
    /// lost its power meanwhile.
    async fn end(&self, spec: &Container, target: &Target, grace: Duration) -> Option<i32> {
        let deadline = Instant::now() + grace;
        let mut orders = self.orders.clone();
        // A second, shorter order shortens the time that is left.
        let hurried = async {
            loop {
                if orders.changed().await.is_err() {
                    return true;
                }
                let order = *orders.borrow_and_update();
                match order {
                    Order::PowerOff => return true,
                    Order::End(grace) if Instant::now() + grace < deadline => {
                        tokio::time::sleep(grace).await;
                        return false;
                    }
                    Order::End(_) | Order::Run => {}
                }
            }
        };
        let orderly = async {
            let handler = spec
                .lifecycle
                .as_ref()
                .and_then(|lifecycle| lifecycle.pre_stop.as_ref());
            if let Some(handler) = handler.filter(|_| !grace.is_zero())
                && let Ok(Err(message)) = tokio::time::timeout_at(deadline, probes::hook(handler, target)).await
            {
                self.event(
                    Weight::Warning,
                    "FailedPreStopHook",
                    format!("PreStopHook failed: {message}"),
                );
            }
            let signal = spec
                .lifecycle
                .as_ref()
                .and_then(|lifecycle| lifecycle.stop_signal.as_ref());
            let signal = signal.and_then(|name| name.parse().ok()).unwrap_or(Signal::SIGTERM);
            target.process.signal_main(signal).await;
            // At least two seconds, also when the hook used up all of its time.
            let least = Instant::now() + Duration::from_secs(2).min(grace);
            let _ = tokio::time::timeout_at(deadline.max(least), target.process.wait()).await;
        };
        let power_off = tokio::select! {
            _ = target.process.wait() => false,
            () = orderly => false,
            power_off = hurried => power_off,
        };
        target.process.kill_sandbox();
        let code = target.process.wait().await;
        (!power_off).then_some(code)
    }

    async fn ended(&self, spec: &Container, code: i32, log: &RunLog, started: Instant) {
        // The sandbox is gone, so its output ends at once.
        let _ = tokio::time::timeout(Duration::from_secs(2), log.closed()).await;
        let mut end = ContainerStateTerminated {
            exit_code: code,
            reason: Some(if code == 0 { "Completed" } else { "Error" }.to_string()),
            message: self.last_words(spec, code, log.path()),
            finished_at: Some(now()),
            ..ContainerStateTerminated::default()
        };
        if code == 1
            && started.elapsed() < Duration::from_secs(5)
            && let Some(problem) = logs::tail(log.path(), 1024, 1).trim().strip_prefix("bwrap: ")
        {
            end.exit_code = 128;
            end.reason = Some("StartError".to_string());
            let message = format!("failed to start container \"{}\": {problem}", self.name);
            self.event(Weight::Warning, "Failed", format!("Error: {message}"));
            end.message = Some(message);
        }
        self.view(|view| {
            end.started_at = view
                .state
                .running
                .as_ref()
                .and_then(|running| running.started_at.clone());
            end.container_id = view.container_id.clone();
            view.state = terminated(end);
            view.started = false;
            view.ready = false;
        });
    }

    fn last_words(&self, spec: &Container, code: i32, log: &Path) -> Option<String> {
        let written = fs::read(self.container_folder().join("termination-log")).unwrap_or_default();
        let start = written.len().saturating_sub(4096);
        let mut text = String::from_utf8_lossy(&written[start..]).into_owned();
        if text.is_empty() && code != 0 && spec.termination_message_policy.as_deref() == Some("FallbackToLogsOnError") {
            text = logs::tail(log, 2048, 80);
        }
        (!text.is_empty()).then_some(text)
    }
}

impl probes::Listener for Keeper {
    fn started(&self, started: bool) {
        self.view(|view| view.started = started);
    }
    fn ready(&self, ready: bool) {
        self.view(|view| view.ready = ready);
    }
    fn unhealthy(&self, message: String) {
        self.event(Weight::Warning, "Unhealthy", message);
    }
}

fn seconds(duration: Duration) -> String {
    match duration.as_secs() {
        0 => format!("{}ms", duration.as_millis()),
        seconds if seconds < 60 => format!("{seconds}s"),
        seconds => format!("{}m{}s", seconds / 60, seconds % 60),
    }
}

/// The user a container runs as: its own setting, the pod's, else root, unless root is forbidden.
pub(crate) fn user(pod: &Pod, container: &Container) -> (u32, u32) {
    let own = container.security_context.clone().unwrap_or_default();
    let pods = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.clone())
        .unwrap_or_default();
    let number = |value: Option<i64>| value.and_then(|value| u32::try_from(value).ok());
    let non_root = own.run_as_non_root.or(pods.run_as_non_root) == Some(true);
    let uid = number(own.run_as_user.or(pods.run_as_user)).unwrap_or(if non_root { 65532 } else { 0 });
    let gid = number(own.run_as_group.or(pods.run_as_group).or(pods.fs_group)).unwrap_or(uid);
    (uid, gid)
}
