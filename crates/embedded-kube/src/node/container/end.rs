//! Staying with a running container until it has ended, by itself or in good order, and telling how.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, Pod};
use nix::sys::signal::Signal;
use tokio::time::Instant;

use super::super::events::Weight;
use super::super::logs::{self, RunLog};
use super::super::probes::{self, Target};
use super::super::status::terminated;
use super::{End, Keeper, Order, next_order, now};

impl Keeper {
    /// Stays with a running container until it has ended.
    pub(super) async fn attend(&mut self, spec: &Container, target: &Target) -> End {
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

    pub(super) async fn ended(&self, spec: &Container, code: i32, log: &RunLog, started: Instant) {
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
