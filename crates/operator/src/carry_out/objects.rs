//! Objects in Kubernetes: made, applied, patched and deleted, each by the UID that the decision rests on. What the API server
//! answers is put into the caches at once.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use stateward_api::{EtcdBackup, names};
use stateward_plan::etcd::Uid;

use super::{Failure, Hands};
use crate::caches::{Index, Key};
use crate::observe::is_owned;

impl Hands<'_> {
    pub(super) fn api<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.shared.client.clone(), &self.key.namespace)
    }

    pub(super) async fn create<K: Object>(&self, object: K, index: &Index<K>) -> Result<(), Failure> {
        let name = object.name_any();
        let params = PostParams {
            field_manager: Some(names::MANAGER.into()),
            ..PostParams::default()
        };
        let api = self.api::<K>();
        match api.create(&params, &object).await {
            Ok(created) => {
                index.put(created);
                Ok(())
            }
            Err(error) if is_code(&error, 409) => {
                // The watch is late, or somebody else has it: the next round knows.
                match api.get_opt(&name).await? {
                    Some(there) if !is_owned(there.meta(), &self.intent.uid.0) => Err(Failure::NameTaken(name)),
                    Some(there) => {
                        index.put(there);
                        Err(Failure::GuardFailed(format!("{name} exists already")))
                    }
                    None => Err(error.into()),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Server-side apply, of an object that is ours or not there.
    pub(super) async fn apply<K: Object>(&self, mut object: K, index: &Index<K>) -> Result<(), Failure> {
        let name = object.name_any();
        let api = self.api::<K>();
        let known = match index.named(self.key, &name) {
            Some(known) => Some(known.meta().clone()),
            None => api.get_opt(&name).await?.map(|there| there.meta().clone()),
        };
        if let Some(known) = known {
            if !is_owned(&known, &self.intent.uid.0) {
                return Err(Failure::NameTaken(name));
            }
            object.meta_mut().uid = known.uid;
        }
        let mut value = serde_json::to_value(&object).map_err(kube::Error::SerdeError)?;
        value["apiVersion"] = json!(K::api_version(&()));
        value["kind"] = json!(K::kind(&()));
        let params = PatchParams::apply(names::MANAGER).force();
        index.put(api.patch(&name, &params, &Patch::Apply(&value)).await?);
        Ok(())
    }

    /// Makes an EtcdBackup, or makes it what the cluster's spec says. The watch brings it to its own loop: it is not put into
    /// the caches here, or that loop would never be told.
    pub(super) async fn apply_backup(&self, mut backup: EtcdBackup) -> Result<(), Failure> {
        let name = backup.name_any();
        let api = self.api::<EtcdBackup>();
        if let Some(there) = api.get_opt(&name).await? {
            if !is_owned(&there.metadata, &self.intent.uid.0) {
                return Err(Failure::NameTaken(format!("EtcdBackup {name}")));
            }
            backup.metadata.uid = there.metadata.uid;
        }
        let params = PatchParams::apply(names::MANAGER).force();
        api.patch(&name, &params, &Patch::Apply(&backup)).await?;
        Ok(())
    }

    pub(super) async fn drop_backup(&self, name: &str, uid: &Uid) -> Result<(), Failure> {
        let params = DeleteParams::background().preconditions(Preconditions {
            uid: Some(uid.0.clone()),
            resource_version: None,
        });
        let backups = &self.shared.caches.backups;
        match self.api::<EtcdBackup>().delete(name, &params).await {
            Ok(_) => Ok(()),
            Err(error) if is_code(&error, 404) => {
                backups.forget(&Key::new(self.key.namespace.clone(), name), name, &uid.0);
                Ok(())
            }
            Err(error) if is_code(&error, 409) => Err(Failure::GuardFailed(format!("{name} is another one now"))),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn patch<K: Object>(
        &self,
        name: &str,
        patch: &serde_json::Value,
        index: &Index<K>,
    ) -> Result<(), Failure> {
        let params = PatchParams {
            field_manager: Some(names::MANAGER.into()),
            ..PatchParams::default()
        };
        match self.api::<K>().patch(name, &params, &Patch::Merge(patch)).await {
            Ok(patched) => {
                index.put(patched);
                Ok(())
            }
            Err(error) if is_code(&error, 404) || is_code(&error, 409) => {
                Err(Failure::GuardFailed(format!("{name} is gone or another one now")))
            }
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn delete<K: Object>(
        &self,
        name: &str,
        uid: &Uid,
        version: Option<String>,
        params: DeleteParams,
        index: &Index<K>,
    ) -> Result<(), Failure> {
        let params = params.preconditions(Preconditions {
            uid: Some(uid.0.clone()),
            resource_version: version,
        });
        match self.api::<K>().delete(name, &params).await {
            // What is there until it has stopped comes back with its deletion timestamp.
            Ok(deleted) => {
                match deleted
                    .left()
                    .filter(|object| object.meta().deletion_timestamp.is_some())
                {
                    Some(stopping) => index.put(stopping),
                    None => index.forget(self.key, name, &uid.0),
                }
                Ok(())
            }
            Err(error) if is_code(&error, 404) => {
                index.forget(self.key, name, &uid.0);
                Ok(())
            }
            Err(error) if is_code(&error, 409) => Err(Failure::GuardFailed(format!("{name} is another one now"))),
            Err(error) => Err(error.into()),
        }
    }
}

/// What the kinds that are written have in common.
pub(super) trait Object:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()>
    + Clone
    + std::fmt::Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}
impl Object for Pod {}
impl Object for PersistentVolumeClaim {}
impl Object for Service {}
impl Object for PodDisruptionBudget {}

pub(super) fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}
