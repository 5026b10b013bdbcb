//! StatefulSets: pods with stable names and one claim each, started, stopped and updated in order.
//!
//! - [`step`]: PURE, what to do next for one set
//! - [`identity`]: PURE, the pod and the claims of one ordinal
//! - [`revisions`]: PURE, the history of the pod template

mod identity;
mod revisions;
mod step;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Error;
use super::events::Recorder;
use super::scheduling::selects;
use super::world::{World, lock, passes, unless_moved_on};
use step::{Action, Seen};

pub(crate) async fn run(world: Arc<World>, stop: CancellationToken) {
    let wake = Arc::new(Notify::new());
    world.sets.wakes(&wake);
    world.pods.wakes(&wake);
    world.claims.wakes(&wake);
    world.revisions.wakes(&wake);
    let recorder = Recorder::new(world.client.clone(), "statefulset-controller");
    let controller = Controller {
        world,
        recorder,
        deleted: Mutex::default(),
    };
    passes("statefulsets", wake, stop, || controller.pass()).await;
}

struct Controller {
    world: Arc<World>,
    recorder: Recorder,
    /// Pods whose deletion the API has accepted and that the cache still has, by UID.
    deleted: Mutex<HashSet<String>>,
}

impl Controller {
    async fn pass(&self) -> Result<Option<Duration>, Error> {
        let pods = self.world.pods.all();
        {
            let mut deleted = lock(&self.deleted);
            deleted.retain(|uid| {
                let pod = pods.iter().find(|pod| pod.uid().as_ref() == Some(uid));
                pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none())
            });
        }
        let (mut next, mut failed): (Option<Duration>, _) = (None, None);
        for set in self.world.sets.all() {
            match self.look_at(&set, &pods).await {
                Ok(Some(after)) => next = Some(next.map_or(after, |next| next.min(after))),
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(next), Err)
    }

    async fn look_at(&self, set: &StatefulSet, pods: &[Arc<Pod>]) -> Result<Option<Duration>, Error> {
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(None); // garbage collection removes what it owned
        }
        let Some(mine) = self.claim_pods(set, pods).await? else {
            return Ok(None);
        };
        {
            let deleted = lock(&self.deleted);
            if mine.iter().any(|pod| deleted.contains(&pod.uid().unwrap_or_default())) {
                return Ok(None); // the cache is behind this controller's own deletion
            }
        }
        let Some((current, update)) = self.settle_revisions(set, &mine).await? else {
            return Ok(None);
        };
        let step = step::next(&Seen {
            set,
            pods: &mine,
            claim: &|name: &str| self.world.claims.get(&set.namespace().unwrap_or_default(), name),
            current: &current,
            update: &update,
            now: Timestamp::now(),
        });
        // Status first: it names the revisions that the actions depend on.
        if set.status.as_ref() != Some(&step.status) {
            // A merge patch removes what is null, and counts of zero are absent.
            let mut status = json!({"readyReplicas": null, "currentReplicas": null, "updatedReplicas": null});
            json_patch::merge(&mut status, &json!(step.status));
            let patch = json!({"metadata": {"uid": set.metadata.uid}, "status": status});
            let api: Api<StatefulSet> = self.api(set);
            unless_moved_on(
                api.patch_status(&set.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
                    .await,
            )?;
        }
        for action in step.actions {
            if !self.carry_out(set, action).await? {
                break; // what comes after rests on this
            }
        }
        Ok(step.again_after)
    }

    /// The pods of this set, adopting orphans of its name and labels. `None`: wait until the adoption is observed.
    async fn claim_pods(&self, set: &StatefulSet, pods: &[Arc<Pod>]) -> Result<Option<Vec<Arc<Pod>>>, Error> {
        let mut mine = Vec::new();
        let mut adopted = false;
        for pod in pods.iter().filter(|pod| pod.namespace() == set.namespace()) {
            if identity::ordinal(set, &pod.name_any()).is_none() {
                continue;
            }
            match pod
                .owner_references()
                .iter()
                .find(|owner| owner.controller == Some(true))
            {
                Some(owner) if Some(&owner.uid) == set.uid().as_ref() => mine.push(pod.clone()),
                Some(_) => {}
                None if pod.metadata.deletion_timestamp.is_none()
                    && selects(Some(&set.spec.selector), pod.labels()) =>
                {
                    let api: Api<Pod> = self.api(set);
                    let owners = with_owner(pod.owner_references(), set);
                    let patch = json!({"metadata": {"uid": pod.metadata.uid, "ownerReferences": owners}});
                    unless_moved_on(
                        api.patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
                            .await,
                    )?;
                    adopted = true;
                }
                None => {}
            }
        }
        Ok((!adopted).then_some(mine))
    }

    /// Updates the history to the present template. `None`: the history changed, and the watch will report it.
    async fn settle_revisions(
        &self,
        set: &StatefulSet,
        pods: &[Arc<Pod>],
    ) -> Result<Option<(Arc<ControllerRevision>, Arc<ControllerRevision>)>, Error> {
        let api: Api<ControllerRevision> = self.api(set);
        let params = PatchParams::default();
        let mut mine = Vec::new();
        for revision in self.world.revisions.all() {
            if revision.namespace() != set.namespace() {
                continue;
            }
            match revision
                .owner_references()
                .iter()
                .find(|owner| owner.controller == Some(true))
            {
                Some(owner) if Some(&owner.uid) == set.uid().as_ref() => mine.push(revision),
                None if revision.name_any().starts_with(&format!("{}-", set.name_any()))
                    && selects(Some(&set.spec.selector), revision.labels()) =>
                {
                    let owners = with_owner(revision.owner_references(), set);
                    let patch = Patch::Merge(json!({"metadata": {"ownerReferences": owners}}));
                    unless_moved_on(api.patch(&revision.name_any(), &params, &patch).await)?;
                    return Ok(None);
                }
                _ => {}
            }
        }
        match revisions::settle(set, &mine) {
            revisions::Settled::As { current, update } => {
                for old in revisions::expendable(set, &mine, pods, &current, &update) {
                    unless_moved_on(api.delete(&old.name_any(), &DeleteParams::default()).await)?;
                }
                Ok(Some((current, update)))
            }
            revisions::Settled::Renumber(revision, number) => {
                let patch = Patch::Merge(json!({ "revision": number }));
                unless_moved_on(api.patch(&revision.name_any(), &params, &patch).await)?;
                Ok(None)
            }
            revisions::Settled::Create(revision) => {
                unless_moved_on(api.create(&PostParams::default(), &revision).await)?;
                Ok(None)
            }
        }
    }

    /// Whether it took effect.
    async fn carry_out(&self, set: &StatefulSet, action: Action) -> Result<bool, Error> {
        let of = format!("in StatefulSet {}", set.name_any());
        match action {
            Action::CreateClaim(claim, pod) => {
                let api: Api<PersistentVolumeClaim> = self.api(set);
                if unless_moved_on(api.create(&PostParams::default(), &claim).await)?.is_some() {
                    let message = format!("create Claim {} Pod {pod} {of} success", claim.name_any());
                    self.recorder.normal(set, "SuccessfulCreate", &message);
                }
                Ok(true)
            }
            Action::OwnClaim(claim, owners) => {
                let api: Api<PersistentVolumeClaim> = self.api(set);
                let metadata = json!({
                    "uid": claim.metadata.uid,
                    "resourceVersion": claim.metadata.resource_version,
                    "ownerReferences": (!owners.is_empty()).then_some(owners),
                });
                let patch = Patch::Merge(json!({ "metadata": metadata }));
                Ok(unless_moved_on(api.patch(&claim.name_any(), &PatchParams::default(), &patch).await)?.is_some())
            }
            Action::CreatePod(pod) => {
                let api: Api<Pod> = self.api(set);
                let name = pod.name_any();
                match api.create(&PostParams::default(), &pod).await {
                    Ok(_) => {
                        let message = format!("create Pod {name} {of} successful");
                        self.recorder.normal(set, "SuccessfulCreate", &message);
                        Ok(true)
                    }
                    // A terminating pod of this name, or one that is not in the cache yet.
                    Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
                    Err(error) => {
                        let message = format!("create Pod {name} {of} failed error: {error}");
                        self.recorder.warning_once(set, "FailedCreate", &message);
                        Err(error.into())
                    }
                }
            }
            Action::DeletePod(pod) => {
                let api: Api<Pod> = self.api(set);
                let params = DeleteParams {
                    preconditions: Some(Preconditions {
                        uid: pod.uid(),
                        resource_version: None,
                    }),
                    ..DeleteParams::default()
                };
                if unless_moved_on(api.delete(&pod.name_any(), &params).await)?.is_some() {
                    lock(&self.deleted).insert(pod.uid().unwrap_or_default());
                    let message = format!("delete Pod {} {of} successful", pod.name_any());
                    self.recorder.normal(set, "SuccessfulDelete", &message);
                }
                Ok(true)
            }
        }
    }

    fn api<K>(&self, set: &StatefulSet) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.world.client.clone(), &set.namespace().unwrap_or_default())
    }
}

fn with_owner(owners: &[OwnerReference], set: &StatefulSet) -> Vec<OwnerReference> {
    owners.iter().cloned().chain([identity::owner(set)]).collect()
}
