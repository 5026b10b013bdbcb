//! Garbage collection by owner references: an object is deleted when none of its owners exists any more.
//!
//! - Background: the owner is deleted immediately, its dependents afterwards.
//! - Foreground (finalizer `foregroundDeletion`): dependents first; the owner waits for those that block it.
//! - Orphan (finalizer `orphan`): dependents lose the reference and stay.
//!
//! An owner is identified by its UID: a new object of the same name does not own the old one's dependents. Watches of
//! different kinds are not synchronized, so before an object is removed because its owner is absent, the owner is read
//! from the API once more.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Error;
use super::objects::{Graph, Item, Objects, Uid};
use super::world::{World, lock, passes, unless_moved_on};

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// UIDs are never reused, so an absent one stays absent. Beyond this many entries the cache starts over.
const REMEMBERED_ABSENT: usize = 10_000;

pub(crate) async fn run(world: Arc<World>, objects: Arc<Objects>, stop: CancellationToken) {
    let wake = Arc::new(Notify::new());
    objects.wakes(&wake);
    let collector = Collector {
        world: world.clone(),
        objects: objects.clone(),
        absent: Mutex::default(),
    };
    let definitions = Arc::new(Notify::new());
    world.definitions.wakes(&definitions);
    let discovering = passes("discovery", definitions, stop.clone(), || async {
        objects.discover(&world.client, &stop).await?;
        Ok(None)
    });
    let collecting = passes("garbage collection", wake, stop.clone(), || collector.pass());
    tokio::join!(discovering, collecting);
}

/// The action for one object.
#[derive(Debug, PartialEq)]
enum Decision {
    Nothing,
    Delete(PropagationPolicy),
    /// Some owners exist: only these references are removed.
    DropOwners(BTreeSet<Uid>),
    /// Dependents no longer block it, or have been orphaned.
    DropFinalizer(&'static str),
    /// These dependents lose their reference to it, then the finalizer is removed.
    Orphan(Vec<Uid>),
}

/// PURE. `absent` are owners that are known not to exist.
fn decide(graph: &Graph, uid: &str, absent: &HashSet<Uid>) -> Decision {
    let Some(item) = graph.items.get(uid) else {
        return Decision::Nothing;
    };
    let has = |finalizer: &str| item.finalizers.iter().any(|found| found == finalizer);
    if item.deleting {
        if has(ORPHAN) {
            let dependents: Vec<Uid> = graph.dependents(uid).map(|dependent| dependent.uid.clone()).collect();
            return if dependents.is_empty() {
                Decision::DropFinalizer(ORPHAN)
            } else {
                Decision::Orphan(dependents)
            };
        }
        if has(FOREGROUND) {
            let blocked = graph.dependents(uid).any(|dependent| blocks(dependent, uid));
            return if blocked {
                Decision::Nothing
            } else {
                Decision::DropFinalizer(FOREGROUND)
            };
        }
        return Decision::Nothing;
    }
    if item.owners.is_empty() {
        return Decision::Nothing;
    }
    let (mut solid, mut losing, mut waiting) = (0, BTreeSet::new(), false);
    for owner in &item.owners {
        match graph.items.get(&owner.uid) {
            // A cluster-wide object cannot have a namespaced owner, nor can an owner be in another namespace. The
            // first is left alone as Kubernetes does; the second does not exist where the reference points to.
            Some(found)
                if item.namespace.is_some() && found.namespace.is_some() && found.namespace != item.namespace =>
            {
                losing.insert(owner.uid.clone());
            }
            Some(found) if found.deleting && found.finalizers.iter().any(|finalizer| finalizer == FOREGROUND) => {
                losing.insert(owner.uid.clone());
                waiting = true;
            }
            None if absent.contains(&owner.uid) => {
                losing.insert(owner.uid.clone());
            }
            _ => solid += 1,
        }
    }
    if losing.is_empty() {
        Decision::Nothing
    } else if solid > 0 {
        Decision::DropOwners(losing)
    } else if has(ORPHAN) {
        Decision::Delete(PropagationPolicy::Orphan)
    } else if has(FOREGROUND) || waiting && graph.dependents(uid).next().is_some() {
        Decision::Delete(PropagationPolicy::Foreground)
    } else {
        Decision::Delete(PropagationPolicy::Background)
    }
}

fn blocks(dependent: &Item, owner: &str) -> bool {
    dependent
        .owners
        .iter()
        .any(|reference| reference.uid == owner && reference.block_owner_deletion == Some(true))
}

struct Collector {
    world: Arc<World>,
    objects: Arc<Objects>,
    absent: Mutex<HashSet<Uid>>,
}

impl Collector {
    async fn pass(&self) -> Result<Option<Duration>, Error> {
        let dirty = std::mem::take(&mut self.objects.graph().dirty);
        let mut failed = None;
        for uid in dirty {
            if let Err(error) = self.look_at(&uid).await {
                self.objects.graph().dirty.insert(uid);
                failed = Some(error);
            }
        }
        failed.map_or(Ok(None), Err)
    }

    async fn look_at(&self, uid: &str) -> Result<(), Error> {
        let Some(item) = self.objects.graph().items.get(uid).cloned() else {
            return Ok(());
        };
        let unseen: Vec<OwnerReference> = {
            let graph = self.objects.graph();
            item.owners
                .iter()
                .filter(|owner| !graph.items.contains_key(&owner.uid))
                .cloned()
                .collect()
        };
        for owner in unseen {
            self.ask_for(&item, &owner).await?;
        }
        let decision = {
            let absent = lock(&self.absent);
            decide(&self.objects.graph(), uid, &absent)
        };
        match decision {
            Decision::Nothing => {}
            Decision::Delete(policy) => self.delete(&item, policy).await?,
            Decision::DropOwners(owners) => self.drop_owners(&item, &owners).await?,
            Decision::DropFinalizer(finalizer) => self.drop_finalizer(&item, finalizer).await?,
            Decision::Orphan(dependents) => {
                let owners = BTreeSet::from([uid.to_owned()]);
                for dependent in dependents {
                    let dependent = self.objects.graph().items.get(&dependent).cloned();
                    if let Some(dependent) = dependent {
                        self.drop_owners(&dependent, &owners).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Records the owner as absent if the API says so. An owner of an unknown kind stays undecided.
    async fn ask_for(&self, item: &Item, owner: &OwnerReference) -> Result<(), Error> {
        if lock(&self.absent).contains(&owner.uid) {
            return Ok(());
        }
        let Some(kind) = self.objects.kind_of(owner) else {
            return Ok(());
        };
        if kind.namespaced && item.namespace.is_none() {
            return Ok(());
        }
        let found = kind
            .api(self.world.client.clone(), item.namespace.as_deref())
            .get_opt(&owner.name)
            .await?;
        if found.is_none_or(|found| found.uid().as_deref() != Some(owner.uid.as_str())) {
            let mut absent = lock(&self.absent);
            if absent.len() > REMEMBERED_ABSENT {
                absent.clear();
            }
            absent.insert(owner.uid.clone());
        }
        Ok(())
    }

    async fn delete(&self, item: &Item, policy: PropagationPolicy) -> Result<(), Error> {
        let params = DeleteParams {
            propagation_policy: Some(policy),
            preconditions: Some(Preconditions {
                uid: Some(item.uid.clone()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let api = item.kind.api(self.world.client.clone(), item.namespace.as_deref());
        unless_moved_on(api.delete(&item.name, &params).await)?;
        Ok(())
    }

    async fn drop_owners(&self, item: &Item, owners: &BTreeSet<Uid>) -> Result<(), Error> {
        let left: Vec<_> = item
            .owners
            .iter()
            .filter(|owner| !owners.contains(&owner.uid))
            .collect();
        self.patch(item, json!({"ownerReferences": left})).await
    }

    async fn drop_finalizer(&self, item: &Item, finalizer: &str) -> Result<(), Error> {
        let left: Vec<_> = item.finalizers.iter().filter(|found| *found != finalizer).collect();
        self.patch(item, json!({"finalizers": left})).await
    }

    /// The resourceVersion detects a change in between: then the watch triggers this again.
    async fn patch(&self, item: &Item, mut metadata: Value) -> Result<(), Error> {
        metadata["uid"] = json!(item.uid);
        metadata["resourceVersion"] = json!(item.version);
        let api = item.kind.api(self.world.client.clone(), item.namespace.as_deref());
        let patch = json!({ "metadata": metadata });
        unless_moved_on(
            api.patch(&item.name, &PatchParams::default(), &Patch::Merge(&patch))
                .await,
        )?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::objects::fixtures;
    use super::*;

    fn item(uid: &str, owners: &[(&str, bool)]) -> Item {
        Item {
            kind: fixtures::kind("ConfigMap", true),
            namespace: Some("default".to_owned()),
            name: uid.to_owned(),
            uid: uid.to_owned(),
            version: None,
            owners: owners
                .iter()
                .map(|(uid, blocks)| OwnerReference {
                    uid: (*uid).to_owned(),
                    block_owner_deletion: Some(*blocks),
                    ..OwnerReference::default()
                })
                .collect(),
            finalizers: Vec::new(),
            deleting: false,
        }
    }

    fn deleting(uid: &str, owners: &[(&str, bool)], finalizer: &str) -> Item {
        Item {
            deleting: true,
            finalizers: vec![finalizer.to_owned()],
            ..item(uid, owners)
        }
    }

    fn graph(items: Vec<Item>) -> Graph {
        let mut graph = Graph::default();
        for item in items {
            graph.set(item);
        }
        graph
    }

    fn answer(items: Vec<Item>, uid: &str, absent: &[&str]) -> Decision {
        decide(
            &graph(items),
            uid,
            &absent.iter().map(|uid| (*uid).to_owned()).collect(),
        )
    }

    #[test]
    fn an_object_goes_only_when_all_owners_are_absent() {
        let two = || vec![item("a", &[]), item("x", &[("a", false), ("b", false)])];
        assert_eq!(
            answer(two(), "x", &[]),
            Decision::Nothing,
            "an owner not yet asked for is in doubt"
        );
        assert_eq!(
            answer(two(), "x", &["b"]),
            Decision::DropOwners(BTreeSet::from(["b".to_owned()]))
        );
        let one = vec![item("x", &[("b", false)])];
        assert_eq!(
            answer(one, "x", &["b"]),
            Decision::Delete(PropagationPolicy::Background)
        );
        assert_eq!(answer(vec![item("x", &[])], "x", &[]), Decision::Nothing);
    }

    #[test]
    fn foreground_deletion_waits_for_blocking_dependents_only() {
        let owner = || deleting("a", &[], FOREGROUND);
        assert_eq!(
            answer(vec![owner(), item("x", &[("a", true)])], "a", &[]),
            Decision::Nothing
        );
        assert_eq!(
            answer(vec![owner(), item("x", &[("a", true)])], "x", &[]),
            Decision::Delete(PropagationPolicy::Background)
        );
        assert_eq!(
            answer(vec![owner(), item("x", &[("a", false)])], "a", &[]),
            Decision::DropFinalizer(FOREGROUND)
        );
    }

    #[test]
    fn foreground_deletion_goes_down_the_tree() {
        let items = vec![
            deleting("a", &[], FOREGROUND),
            item("x", &[("a", true)]),
            item("y", &[("x", true)]),
        ];
        assert_eq!(answer(items, "x", &[]), Decision::Delete(PropagationPolicy::Foreground));
    }

    #[test]
    fn a_second_living_owner_keeps_a_dependent_of_a_foreground_deletion() {
        let items = vec![
            deleting("a", &[], FOREGROUND),
            item("b", &[]),
            item("x", &[("a", true), ("b", true)]),
        ];
        assert_eq!(
            answer(items, "x", &[]),
            Decision::DropOwners(BTreeSet::from(["a".to_owned()]))
        );
    }

    #[test]
    fn orphaning_frees_dependents_before_the_owner_goes() {
        let items = vec![deleting("a", &[], ORPHAN), item("x", &[("a", true)])];
        assert_eq!(answer(items, "a", &[]), Decision::Orphan(vec!["x".to_owned()]));
        assert_eq!(
            answer(vec![deleting("a", &[], ORPHAN)], "a", &[]),
            Decision::DropFinalizer(ORPHAN)
        );
    }

    #[test]
    fn an_owner_in_another_namespace_does_not_count() {
        let mut owner = item("a", &[]);
        owner.namespace = Some("elsewhere".to_owned());
        let items = vec![owner, item("x", &[("a", true)])];
        assert_eq!(answer(items, "x", &[]), Decision::Delete(PropagationPolicy::Background));
    }

    #[test]
    fn removing_an_owner_marks_its_dependents() {
        let mut graph = graph(vec![item("a", &[]), item("x", &[("a", true)])]);
        graph.dirty.clear();
        graph.remove("a");
        assert_eq!(graph.dirty, BTreeSet::from(["x".to_owned()]));
    }
}
