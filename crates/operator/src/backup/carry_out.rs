//! Carrying out: effects in their order, each behind its guard. The first that fails ends the round.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::json;
use stateward_api::{EtcdBackup, names};
use stateward_plan::backup::Effect;
use stateward_plan::etcd::Uid;

use crate::Shared;
use crate::caches::{Key, owner_key};
use crate::metrics::EffectLabel;

/// Why an effect was not carried out.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// What the decision rests on has changed: the next round decides anew.
    #[error("{0}")]
    GuardFailed(String),
    /// A pod of this name belongs to somebody else.
    #[error("pod {0} exists and belongs to somebody else: delete it")]
    NameTaken(String),
    /// Kubernetes refused or did not answer.
    #[error(transparent)]
    Kubernetes(#[from] kube::Error),
}

/// One round's means.
pub(super) struct Hands<'a> {
    pub(super) shared: &'a Shared,
    pub(super) key: &'a Key,
    pub(super) backup: &'a EtcdBackup,
}

/// It is more than words.
pub(super) fn changes_something(effect: &Effect) -> bool {
    !matches!(effect, Effect::Tell(_))
}

impl Hands<'_> {
    /// Carries all out. `fresh`: the object was written in this round, so it is known to be the newest.
    pub(super) async fn carry_out(&self, effects: &[Effect], fresh: bool) -> Result<(), (Effect, Failure)> {
        if let Some(effect) = effects.iter().find(|effect| changes_something(effect))
            && !fresh
        {
            self.look_afresh().await.map_err(|failure| (effect.clone(), failure))?;
        }
        for effect in effects {
            self.one(effect).await.map_err(|failure| (effect.clone(), failure))?;
        }
        Ok(())
    }

    /// A quorum read of the EtcdBackup: it must be the one that was planned with.
    async fn look_afresh(&self) -> Result<(), Failure> {
        let api: Api<EtcdBackup> = self.api();
        let now = api.get_opt(&self.key.name).await?;
        let same = now.as_ref().is_some_and(|now| {
            now.metadata.uid == self.backup.metadata.uid
                && now.metadata.resource_version == self.backup.metadata.resource_version
        });
        match now {
            Some(now) => self.shared.put_backup(self.key, now),
            None => {
                let uid = self.backup.metadata.uid.as_deref().unwrap_or_default();
                self.shared.caches.backups.forget(self.key, &self.key.name, uid);
            }
        }
        if same {
            Ok(())
        } else {
            Err(Failure::GuardFailed("the EtcdBackup has changed meanwhile".into()))
        }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.shared.client.clone(), &self.key.namespace)
    }

    async fn one(&self, effect: &Effect) -> Result<(), Failure> {
        if !self.shared.tenure.holds() {
            return Err(Failure::GuardFailed("another operator leads".into()));
        }
        let kind = match effect {
            Effect::SetFinalizers(finalizers) => {
                self.set_finalizers(finalizers).await?;
                "set_finalizers"
            }
            Effect::CreatePod(pod) => {
                self.create(pod).await?;
                "create_agent"
            }
            Effect::DeletePod { name, uid } => {
                self.delete(name, uid, DeleteParams::default()).await?;
                "delete_agent"
            }
            Effect::ForgetPod { name, uid } => {
                self.delete(name, uid, DeleteParams::default().grace_period(0)).await?;
                "forget_agent"
            }
            Effect::Tell(note) => {
                self.shared.events.tell(self.backup, note);
                "tell"
            }
        };
        if changes_something(effect) {
            tracing::info!(backup = %self.key, "done: {effect}");
        }
        self.shared
            .metrics
            .effects
            .get_or_create(&EffectLabel { effect: kind })
            .inc();
        Ok(())
    }

    async fn set_finalizers(&self, finalizers: &[String]) -> Result<(), Failure> {
        let meta = &self.backup.metadata;
        let patch =
            json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers}});
        let params = PatchParams {
            field_manager: Some(names::MANAGER.into()),
            ..PatchParams::default()
        };
        let api: Api<EtcdBackup> = self.api();
        match api.patch(&self.key.name, &params, &Patch::Merge(&patch)).await {
            Ok(patched) => {
                self.shared.put_backup(self.key, patched);
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => {
                self.look_afresh().await?;
                Err(Failure::GuardFailed("the EtcdBackup has changed meanwhile".into()))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn create(&self, pod: &Pod) -> Result<(), Failure> {
        let api: Api<Pod> = self.api();
        let params = PostParams {
            field_manager: Some(names::MANAGER.into()),
            ..PostParams::default()
        };
        let pod = &self.shared.platform.adapt(&self.shared.client, pod.clone()).await?;
        match api.create(&params, pod).await {
            Ok(created) => {
                self.shared.caches.agents.put(created);
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                // The watch is late, or somebody else has it: the next round knows.
                let name = pod.name_any();
                let uid = self.backup.metadata.uid.as_deref().unwrap_or_default();
                match api.get_opt(&name).await? {
                    Some(there) if there.owner_references().iter().any(|owner| owner.uid == uid) => {
                        self.shared.caches.agents.put(there);
                        Err(Failure::GuardFailed(format!("{name} exists already")))
                    }
                    // What an object of the same name owned before is on its way out.
                    Some(there) if !there.owner_references().is_empty() => Err(Failure::GuardFailed(format!(
                        "{name} of an earlier object is still there"
                    ))),
                    Some(_) => Err(Failure::NameTaken(name)),
                    None => Err(kube::Error::Api(status).into()),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn delete(&self, name: &str, uid: &Uid, params: DeleteParams) -> Result<(), Failure> {
        let api: Api<Pod> = self.api();
        let params = params.preconditions(Preconditions {
            uid: Some(uid.0.clone()),
            resource_version: None,
        });
        let agents = &self.shared.caches.agents;
        let of_us = owner_key(&self.key.namespace, "EtcdBackup", &self.key.name);
        match api.delete(name, &params).await {
            Ok(deleted) => {
                match deleted.left().filter(|pod| pod.metadata.deletion_timestamp.is_some()) {
                    Some(stopping) => agents.put(stopping),
                    None => agents.forget(&of_us, name, &uid.0),
                }
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                agents.forget(&of_us, name, &uid.0);
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                Err(Failure::GuardFailed(format!("{name} is another one now")))
            }
            Err(error) => Err(error.into()),
        }
    }
}
