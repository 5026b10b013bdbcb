//! Objects in Kubernetes: created, tried, applied, patched and deleted, each by the UID that the decision rests on. What the
//! API server answers is put into the caches at once.

mod refusal;

use std::fmt::Debug;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::serde::Serialize;
use k8s_openapi::serde::de::DeserializeOwned;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use stateward_core::{Uid, fields, names};

use crate::{Failure, Index, Key, Runtime, as_manager};

/// What the kinds that are written have in common.
pub trait Object:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> Object for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// Whose an object is that has the name of one to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Made before, by this or another operator, for the same object.
    Ours,
    /// On its way out, with whatever it was made for.
    Leaving,
    /// Somebody else's.
    Theirs,
}

/// Whose an object is by its owners alone: what an object that is gone owned goes too.
pub fn by_owner(uid: &str) -> impl Fn(&ObjectMeta) -> Whose {
    move |meta| {
        let mut owners = meta.owner_references.iter().flatten().peekable();
        if owners.peek().is_none() {
            Whose::Theirs
        } else if owners.any(|owner| owner.uid == uid) {
            Whose::Ours
        } else {
            Whose::Leaving
        }
    }
}

/// Makes an object.
pub async fn create<K: Object>(
    runtime: &Runtime,
    object: &K,
    index: &Index<K>,
    whose: impl Fn(&ObjectMeta) -> Whose,
) -> Result<(), Failure> {
    let name = object.name_any();
    let api = runtime.api::<K>(&object.namespace().unwrap_or_default());
    match api.create(&as_manager(), object).await {
        Ok(created) => {
            index.put(created);
            Ok(())
        }
        Err(error) if is_code(&error, 409) => {
            // The watch is late, or somebody else has it: the next reconcile knows.
            let Some(there) = api.get_opt(&name).await? else {
                return Err(error.into());
            };
            Err(match whose(there.meta()) {
                Whose::Ours => {
                    index.put(there);
                    Failure::GuardFailed(format!("{name} exists already"))
                }
                Whose::Leaving => Failure::GuardFailed(format!("{name} of an earlier object is still there")),
                Whose::Theirs => Failure::NameTaken(name),
            })
        }
        Err(error) => Err(error.into()),
    }
}

/// Makes a pod, as this Kubernetes admits it. One that is refused for what it is fails with its own reason.
pub async fn create_pod(
    runtime: &Runtime,
    pod: &Pod,
    index: &Index<Pod>,
    whose: impl Fn(&ObjectMeta) -> Whose,
) -> Result<(), Failure> {
    let pod = runtime.platform.adapt(&runtime.client, pod.clone()).await?;
    let created = create(runtime, &pod, index, whose).await;
    created.map_err(|failure| refusal::named(failure, &pod.name_any()))
}

/// Asks the API server whether it would take a pod, without making it: before its predecessor is stopped.
pub async fn try_pod(runtime: &Runtime, pod: &Pod) -> Result<(), Failure> {
    let pod = runtime.platform.adapt(&runtime.client, pod.clone()).await?;
    let api = runtime.api::<Pod>(&pod.namespace().unwrap_or_default());
    let params = PostParams {
        dry_run: true,
        ..as_manager()
    };
    match api.create(&params, &pod).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if refusal::passes(&status) => Ok(()),
        Err(error) => Err(refusal::named(error.into(), &pod.name_any())),
    }
}

/// Server-side apply, of an object that is ours or not there.
pub async fn apply<K: Object>(
    runtime: &Runtime,
    mut object: K,
    index: Option<(&Index<K>, &Key)>,
    is_ours: impl Fn(&ObjectMeta) -> bool,
) -> Result<(), Failure> {
    let name = object.name_any();
    let api = runtime.api::<K>(&object.namespace().unwrap_or_default());
    let known = index.and_then(|(index, owner)| index.named(owner, &name));
    let known = match known {
        Some(known) => Some(known.meta().clone()),
        None => api.get_opt(&name).await?.map(|there| there.meta().clone()),
    };
    if let Some(known) = known {
        if !is_ours(&known) {
            return Err(Failure::NameTaken(match index {
                Some(_) => name,
                None => format!("{} {name}", K::kind(&())),
            }));
        }
        object.meta_mut().uid = known.uid;
    }
    let mut value = serde_json::to_value(&object).map_err(kube::Error::SerdeError)?;
    value["apiVersion"] = json!(K::api_version(&()));
    value["kind"] = json!(K::kind(&()));
    let params = PatchParams::apply(names::MANAGER).force();
    let applied = api.patch(&name, &params, &Patch::Apply(&value)).await?;
    if let Some((index, _)) = index {
        index.put(applied);
    }
    Ok(())
}

/// Makes the labels and annotations of an object with this UID what they should be: server-side apply, by a manager of their own,
/// so that those which are no longer desired go with their owner. Those that the creating request set are removed before; of
/// them, annotations that `keeps` says stay. The API server, not a cache, says who owns which.
pub async fn apply_metadata<K: Object>(
    runtime: &Runtime,
    desired: &ObjectMeta,
    index: &Index<K>,
    keeps: impl Fn(&str) -> bool,
) -> Result<(), Failure> {
    let key = Key::new(
        desired.namespace.clone().unwrap_or_default(),
        desired.name.clone().unwrap_or_default(),
    );
    let api = runtime.api::<K>(&key.namespace);
    let live = api.get_opt(&key.name).await?;
    let Some(live) = live.filter(|live| live.meta().uid == desired.uid) else {
        return Err(another(&key));
    };
    if let Some(mut removal) = fields::removal(live.meta(), desired, names::MANAGER, keeps) {
        removal["metadata"]["uid"] = json!(desired.uid);
        patch(runtime, &key, &removal, |patched| index.put(patched)).await?;
    }
    let value = json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": desired});
    let params = PatchParams::apply(names::METADATA_MANAGER).force();
    match api.patch(&key.name, &params, &Patch::Apply(&value)).await {
        Ok(applied) => {
            index.put(applied);
            Ok(())
        }
        Err(error) if is_code(&error, 404) || is_code(&error, 409) => Err(another(&key)),
        Err(error) => Err(error.into()),
    }
}

fn another(key: &Key) -> Failure {
    Failure::GuardFailed(format!("{} is gone or another one now", key.name))
}

/// Changes some fields of an object. The patch holds what it rests on: the UID, or the resource version.
pub async fn patch<K: Object>(runtime: &Runtime, key: &Key, patch: &Value, put: impl FnOnce(K)) -> Result<(), Failure> {
    let params = PatchParams {
        field_manager: Some(names::MANAGER.into()),
        ..PatchParams::default()
    };
    let api = runtime.api::<K>(&key.namespace);
    match api.patch(&key.name, &params, &Patch::Merge(patch)).await {
        Ok(patched) => {
            put(patched);
            Ok(())
        }
        Err(error) if is_code(&error, 404) || is_code(&error, 409) => Err(another(key)),
        Err(error) => Err(error.into()),
    }
}

/// Deletes an object that has this UID, and this resource version where one is given. What is gone already is well.
pub async fn delete<K: Object>(
    runtime: &Runtime,
    key: &Key,
    uid: &Uid,
    version: Option<String>,
    params: DeleteParams,
    (index, owner): (&Index<K>, &Key),
) -> Result<(), Failure> {
    let params = params.preconditions(Preconditions {
        uid: Some(uid.0.clone()),
        resource_version: version,
    });
    let name = &key.name;
    match runtime.api::<K>(&key.namespace).delete(name, &params).await {
        // What is there until it has stopped comes back with its deletion timestamp.
        Ok(deleted) => {
            let stops = |object: &K| object.meta().deletion_timestamp.is_some();
            match deleted.left().filter(stops) {
                Some(stopping) => index.put(stopping),
                None => index.forget(owner, name, &uid.0),
            }
            Ok(())
        }
        Err(error) if is_code(&error, 404) => {
            index.forget(owner, name, &uid.0);
            Ok(())
        }
        Err(error) if is_code(&error, 409) => Err(Failure::GuardFailed(format!("{name} is another one now"))),
        Err(error) => Err(error.into()),
    }
}

/// The API server answered with this code.
pub fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}
