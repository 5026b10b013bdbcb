//! How long a container waits before it is started again, as kubelet waits.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::super::events::Weight;
use super::super::status::waiting;
use super::{Keeper, Order, Trouble, next_order};

const LONGEST_BACK_OFF: Duration = Duration::from_secs(300);

impl Keeper {
    /// The first restart is at once, as kubelet's is; then 10 s, doubled each time, up to five minutes.
    pub(super) async fn back_off(&mut self, crashes: u32) {
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

    pub(super) async fn wait_for_better(&mut self, trouble: Trouble, failures: u32) {
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
}

fn seconds(duration: Duration) -> String {
    match duration.as_secs() {
        0 => format!("{}ms", duration.as_millis()),
        seconds if seconds < 60 => format!("{seconds}s"),
        seconds => format!("{}m{}s", seconds / 60, seconds % 60),
    }
}
