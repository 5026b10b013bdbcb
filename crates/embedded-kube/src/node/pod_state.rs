//! What a pod does, shared between its containers, and written to the API whenever it changes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use tokio::sync::{Notify, watch};

use super::machine::Machine;
use super::status::{self, PodView};

/// The shared view of one pod.
pub(crate) struct PodState {
    view: Mutex<PodView>,
    changed: Notify,
    written: tokio::sync::Mutex<Option<PodStatus>>,
    machine: Arc<Machine>,
    pod: watch::Receiver<Arc<Pod>>,
    progress: watch::Sender<u64>,
}

impl PodState {
    pub(crate) fn new(machine: Arc<Machine>, pod: watch::Receiver<Arc<Pod>>, view: PodView) -> Self {
        Self {
            view: Mutex::new(view),
            changed: Notify::new(),
            written: tokio::sync::Mutex::default(),
            machine,
            pod,
            progress: watch::channel(0).0,
        }
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut PodView)) {
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        let before = view.clone();
        change(&mut view);
        if *view != before {
            drop(view);
            self.progress.send_modify(|count| *count += 1);
            self.changed.notify_one();
        }
    }

    pub(crate) fn view(&self) -> PodView {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the view is as wanted.
    pub(crate) async fn until(&self, wanted: impl Fn(&PodView) -> bool) {
        let mut progress = self.progress.subscribe();
        while !wanted(&self.view()) {
            if progress.changed().await.is_err() {
                return;
            }
        }
    }

    /// Writes the status whenever it has changed. Ends when the pod is gone.
    pub(crate) async fn keep_written(&self) {
        let mut pods = self.pod.clone();
        loop {
            match self.write().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::debug!(%error, "a pod's status could not be written");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    continue;
                }
            }
            tokio::select! {
                () = self.changed.notified() => {}
                // Readiness gates are conditions that others write.
                changed = pods.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Writes the status if it differs from what was written before. False when the pod is gone.
    pub(crate) async fn write(&self) -> Result<bool, kube::Error> {
        let mut written = self.written.lock().await;
        let node = self.pod.borrow().spec.as_ref().and_then(|spec| spec.node_name.clone());
        self.machine.in_touch(&node.unwrap_or_default()).await;
        let pod = self.pod.borrow().clone();
        let former = written.clone().or_else(|| pod.status.clone()).unwrap_or_default();
        let status = status::status(&pod, &self.view(), &former, &now());
        if written.as_ref() == Some(&status) {
            return Ok(true);
        }
        let uid = pod.uid().unwrap_or_default();
        let patch = status::patch(&uid, &status).map_err(kube::Error::SerdeError)?;
        let api: Api<Pod> = Api::namespaced(self.machine.client.clone(), &pod.namespace().unwrap_or_default());
        match api
            .patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(patch))
            .await
        {
            Ok(_) => {
                *written = Some(status);
                Ok(true)
            }
            Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn now() -> Time {
    let now = jiff::Timestamp::now();
    Time(jiff::Timestamp::from_second(now.as_second()).unwrap_or(now))
}
