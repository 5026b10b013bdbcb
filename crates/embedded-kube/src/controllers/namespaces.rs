//! Namespaces: their default content (the default ServiceAccount and the CA of the cluster), and deleting their content
//! before they are deleted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, NamespaceCondition, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::discovery::verbs;
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Error;
use super::objects::{Kind, Objects};
use super::world::{World, is_code, passes, unless_moved_on};

/// The ConfigMap with the CA for pods.
const ROOT_CA: &str = "kube-root-ca.crt";

pub(crate) async fn run(world: Arc<World>, objects: Arc<Objects>, ca_pem: String, stop: CancellationToken) {
    let furnishing = Arc::new(Notify::new());
    world.namespaces.wakes(&furnishing);
    world.accounts.wakes(&furnishing);
    world.root_ca_maps.wakes(&furnishing);
    let clearing = Arc::new(Notify::new());
    world.namespaces.wakes(&clearing);
    objects.wakes(&clearing);
    tokio::join!(
        passes("namespace contents", furnishing, stop.clone(), || furnish(
            &world, &ca_pem
        )),
        passes("namespace deletion", clearing, stop, || clear(&world, &objects)),
    );
}

async fn furnish(world: &World, ca_pem: &str) -> Result<Option<Duration>, Error> {
    for namespace in world.namespaces.all() {
        if namespace.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let name = namespace.name_any();
        if world.accounts.get(&name, "default").is_none() {
            let account = ServiceAccount {
                metadata: ObjectMeta {
                    name: Some("default".to_owned()),
                    ..ObjectMeta::default()
                },
                ..ServiceAccount::default()
            };
            let api: Api<ServiceAccount> = Api::namespaced(world.client.clone(), &name);
            unless_rejected(api.create(&PostParams::default(), &account).await)?;
        }
        let wanted = BTreeMap::from([("ca.crt".to_owned(), ca_pem.to_owned())]);
        let api: Api<ConfigMap> = Api::namespaced(world.client.clone(), &name);
        match world.root_ca_maps.get(&name, ROOT_CA) {
            None => {
                let map = ConfigMap {
                    metadata: ObjectMeta {
                        name: Some(ROOT_CA.to_owned()),
                        ..ObjectMeta::default()
                    },
                    data: Some(wanted),
                    ..ConfigMap::default()
                };
                unless_rejected(api.create(&PostParams::default(), &map).await)?;
            }
            Some(map) if map.data.as_ref() != Some(&wanted) => {
                let patch = Patch::Merge(json!({ "data": wanted }));
                unless_moved_on(api.patch(ROOT_CA, &PatchParams::default(), &patch).await)?;
            }
            Some(_) => {}
        }
    }
    Ok(None)
}

/// 403: the namespace is being deleted meanwhile, and nothing new can be created in it.
fn unless_rejected<T>(result: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match unless_moved_on(result) {
        Err(error) if !is_code(&error, 403) => Err(error),
        _ => Ok(()),
    }
}

async fn clear(world: &World, objects: &Objects) -> Result<Option<Duration>, Error> {
    if objects.kinds().is_empty() {
        return Ok(None); // Not yet known what a namespace may hold; the discovery wakes this loop.
    }
    for namespace in world.namespaces.all() {
        if namespace.metadata.deletion_timestamp.is_none() {
            continue;
        }
        let left = clear_one(world, objects, &namespace.name_any()).await?;
        if left.is_empty() {
            finalize(world, &namespace).await?;
        } else {
            explain(world, &namespace, &left).await?;
        }
    }
    // The rest is deleted through watches of its own kinds, each of which wakes this loop.
    Ok(None)
}

/// Deletes all content; returns a description of what remains.
async fn clear_one(world: &World, objects: &Objects, namespace: &str) -> Result<Vec<String>, Error> {
    let kinds = objects.kinds();
    let clearings = kinds
        .iter()
        .filter(|kind| kind.namespaced)
        .map(|kind| clear_kind(world, kind, namespace));
    Ok(try_join_all(clearings).await?.into_iter().flatten().collect())
}

async fn clear_kind(world: &World, kind: &Kind, namespace: &str) -> Result<Option<String>, Error> {
    let api = kind.api(world.client.clone(), Some(namespace));
    let list = ListParams::default();
    let found = match api.list(&list).await {
        Ok(found) => found.items,
        Err(error) if is_code(&error, 404) || is_code(&error, 405) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if found.is_empty() {
        return Ok(None);
    }
    if found.iter().any(|object| object.metadata.deletion_timestamp.is_none()) {
        if kind.can(verbs::DELETE_COLLECTION) {
            api.delete_collection(&DeleteParams::background(), &list).await?;
        } else {
            for object in &found {
                unless_moved_on(api.delete(&object.name_any(), &DeleteParams::background()).await)?;
            }
        }
    }
    let left = api.list(&list).await?.items.len();
    let plural = &kind.resource.plural;
    let suffix = if kind.resource.group.is_empty() {
        String::new()
    } else {
        format!(".{}", kind.resource.group)
    };
    Ok((left > 0).then(|| format!("{plural}{suffix} has {left} resource instances")))
}

async fn finalize(world: &World, namespace: &Namespace) -> Result<(), Error> {
    let mut finalized = namespace.clone();
    finalized.spec.get_or_insert_default().finalizers = Some(Vec::new());
    let api: Api<Namespace> = Api::all(world.client.clone());
    let name = namespace.name_any();
    unless_moved_on(
        api.replace_subresource("finalize", &name, &PostParams::default(), &finalized)
            .await,
    )?;
    Ok(())
}

/// Reports in the status what keeps the namespace, as Kubernetes does.
async fn explain(world: &World, namespace: &Namespace, left: &[String]) -> Result<(), Error> {
    let mut left = left.to_vec();
    left.sort();
    let message = format!("Some resources are remaining: {}", left.join(", "));
    let status = namespace.status.clone().unwrap_or_default();
    let old = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "NamespaceContentRemaining");
    if old.is_some_and(|old| old.message.as_deref() == Some(&message)) {
        return Ok(());
    }
    let condition = NamespaceCondition {
        type_: "NamespaceContentRemaining".to_owned(),
        status: "True".to_owned(),
        reason: Some("SomeResourcesRemain".to_owned()),
        message: Some(message),
        last_transition_time: Some(Time(Timestamp::now())),
    };
    let patch = json!({"metadata": {"uid": namespace.metadata.uid}, "status": {"conditions": [condition]}});
    let api: Api<Namespace> = Api::all(world.client.clone());
    unless_moved_on(
        api.patch_status(&namespace.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
            .await,
    )?;
    Ok(())
}
