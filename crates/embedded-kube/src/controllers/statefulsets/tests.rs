//! Whole histories of a set, step by step, without a cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::revisions::{self, Settled};
use super::step::{self, Action, Seen};

/// A namespace with one set in it. Pods become ready only when the test says so.
struct Town {
    set: StatefulSet,
    revisions: Vec<Arc<ControllerRevision>>,
    pods: BTreeMap<String, Arc<Pod>>,
    claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    now: Timestamp,
}

impl Town {
    fn new(spec: Value) -> Self {
        let mut set = json!({
            "metadata": {"name": "web", "namespace": "default", "uid": "set", "generation": 1},
            "spec": {
                "replicas": 3, "serviceName": "nginx", "selector": {"matchLabels": {"app": "nginx"}},
                "template": {"metadata": {"labels": {"app": "nginx"}},
                             "spec": {"containers": [{"name": "nginx", "image": "nginx:1"}]}},
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
                "volumeClaimTemplates": [{"metadata": {"name": "www"}, "spec": {"accessModes": ["ReadWriteOnce"]}}],
            },
        });
        json_patch::merge(&mut set["spec"], &spec);
        Town {
            set: serde_json::from_value(set).unwrap(),
            revisions: Vec::new(),
            pods: BTreeMap::new(),
            claims: BTreeMap::new(),
            now: Timestamp::UNIX_EPOCH,
        }
    }

    fn change(&mut self, spec: Value) {
        let mut set = serde_json::to_value(&self.set).unwrap();
        json_patch::merge(&mut set["spec"], &spec);
        self.set = serde_json::from_value(set).unwrap();
    }

    fn image(&mut self, image: &str) {
        self.change(json!({"template": {"spec": {"containers": [{"name": "nginx", "image": image}]}}}));
    }

    /// Executes one step and returns a description of it.
    fn step(&mut self) -> Vec<String> {
        let (current, update) = loop {
            match revisions::settle(&self.set, &self.revisions) {
                Settled::As { current, update } => break (current, update),
                Settled::Create(revision) => self.revisions.push(Arc::new(*revision)),
                Settled::Renumber(old, number) => {
                    let place = self
                        .revisions
                        .iter()
                        .position(|found| found.name_any() == old.name_any())
                        .unwrap();
                    self.revisions[place] = Arc::new(ControllerRevision {
                        revision: Some(number),
                        ..(*old).clone()
                    });
                }
            }
        };
        let pods: Vec<_> = self.pods.values().cloned().collect();
        let step = step::next(&Seen {
            set: &self.set,
            pods: &pods,
            claim: &|name: &str| self.claims.get(name).cloned(),
            current: &current,
            update: &update,
            now: self.now,
        });
        self.set.status = Some(step.status);
        step.actions
            .into_iter()
            .map(|action| match action {
                Action::CreateClaim(claim, _) => {
                    let name = claim.name_any();
                    self.claims.insert(name.clone(), Arc::new(*claim));
                    format!("claim {name}")
                }
                Action::OwnClaim(claim, owners) => {
                    let name = claim.name_any();
                    let mut new = (*claim).clone();
                    new.metadata.owner_references = Some(owners.clone());
                    self.claims.insert(name.clone(), Arc::new(new));
                    let kinds: Vec<_> = owners.iter().map(|owner| owner.kind.as_str()).collect();
                    format!("own {name} by [{}]", kinds.join(" "))
                }
                Action::CreatePod(mut pod) => {
                    let name = pod.name_any();
                    pod.metadata.uid = Some(format!("uid of {name}"));
                    pod.status = Some(serde_json::from_value(json!({"phase": "Pending"})).unwrap());
                    self.pods.insert(name.clone(), Arc::new(*pod));
                    format!("create {name}")
                }
                Action::DeletePod(pod) => {
                    self.pods.remove(&pod.name_any());
                    format!("delete {}", pod.name_any())
                }
            })
            .collect()
    }

    fn ready(&mut self, name: &str, ready: bool) {
        let mut pod = (*self.pods[name]).clone();
        let status = if ready { "True" } else { "False" };
        pod.status = Some(
            serde_json::from_value(json!({"phase": "Running", "conditions": [
                {"type": "Ready", "status": status, "lastTransitionTime": self.now}]}))
            .unwrap(),
        );
        self.pods.insert(name.to_owned(), Arc::new(pod));
    }

    /// Steps until nothing more happens, with every new pod becoming ready; returns all steps except claims.
    fn settle(&mut self) -> Vec<String> {
        let mut done = Vec::new();
        for _ in 0..50 {
            let actions = self.step();
            let unready: Vec<_> = self
                .pods
                .values()
                .filter(|pod| !super::super::endpoints::is_ready(pod))
                .map(|pod| pod.name_any())
                .collect();
            if actions.is_empty() && unready.is_empty() {
                return done;
            }
            done.extend(actions.into_iter().filter(|action| !action.starts_with("claim")));
            for name in unready {
                self.ready(&name, true);
            }
        }
        panic!("does not settle: {done:?}");
    }

    fn images(&self) -> Vec<String> {
        let image = |pod: &Pod| pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
        self.pods.values().map(|pod| image(pod)).collect()
    }
}

#[test]
fn pods_start_in_order_each_when_the_one_before_is_ready() {
    let mut town = Town::new(json!({}));
    assert_eq!(town.step(), ["claim www-web-0", "create web-0"]);
    assert!(town.step().is_empty(), "web-0 is not ready");
    town.ready("web-0", true);
    assert_eq!(town.step(), ["claim www-web-1", "create web-1"]);
    town.ready("web-1", true);
    town.ready("web-0", false);
    assert!(town.step().is_empty(), "web-0 is not ready any more");
    town.ready("web-0", true);
    assert_eq!(town.step(), ["claim www-web-2", "create web-2"]);
    let pod = &town.pods["web-2"];
    assert_eq!(pod.spec.as_ref().unwrap().hostname.as_deref(), Some("web-2"));
    assert_eq!(pod.spec.as_ref().unwrap().subdomain.as_deref(), Some("nginx"));
    assert_eq!(pod.labels()["statefulset.kubernetes.io/pod-name"], "web-2");
}

#[test]
fn parallel_sets_start_and_stop_at_once() {
    let mut town = Town::new(json!({"podManagementPolicy": "Parallel", "volumeClaimTemplates": []}));
    assert_eq!(town.step(), ["create web-0", "create web-1", "create web-2"]);
    town.change(json!({"replicas": 0}));
    assert_eq!(town.step(), ["delete web-2", "delete web-1", "delete web-0"]);
}

#[test]
fn a_set_shrinks_from_the_highest_and_claims_outlive_their_pods() {
    let mut town = Town::new(json!({}));
    town.settle();
    town.change(json!({"replicas": 1}));
    assert_eq!(town.settle(), ["delete web-2", "delete web-1"]);
    assert_eq!(town.claims.len(), 3);
    town.change(json!({"replicas": 3}));
    assert_eq!(
        town.settle(),
        ["create web-1", "create web-2"],
        "the same claims are used again"
    );
}

#[test]
fn an_update_goes_from_the_highest_ordinal_down() {
    let mut town = Town::new(json!({}));
    town.settle();
    let before = town.set.status.clone().unwrap().current_revision;
    town.image("nginx:2");
    assert_eq!(
        town.settle(),
        [
            "delete web-2",
            "create web-2",
            "delete web-1",
            "create web-1",
            "delete web-0",
            "create web-0"
        ]
    );
    let status = town.set.status.clone().unwrap();
    assert_ne!(status.current_revision, before);
    assert_eq!(status.current_revision, status.update_revision);
    assert_eq!(
        (status.replicas, status.ready_replicas, status.updated_replicas),
        (3, Some(3), Some(3))
    );
}

#[test]
fn an_update_stops_at_a_pod_that_does_not_become_ready() {
    let mut town = Town::new(json!({}));
    town.settle();
    town.image("nginx:broken");
    assert_eq!(town.step(), ["delete web-2"]);
    assert_eq!(town.step(), ["create web-2"]);
    assert!(town.step().is_empty());
    assert_eq!(town.images(), ["nginx:1", "nginx:1", "nginx:broken"]);
    let status = town.set.status.clone().unwrap();
    assert_ne!(status.current_revision, status.update_revision);
    assert_eq!((status.ready_replicas, status.updated_replicas), (Some(2), Some(1)));
}

#[test]
fn an_update_stops_as_many_pods_at_once_as_may_be_unavailable() {
    for (most, expected) in [
        (json!(2), &["delete web-4", "delete web-3"][..]),
        // Rounded down, but at least one.
        (json!("50%"), &["delete web-4", "delete web-3"]),
        (json!("10%"), &["delete web-4"]),
    ] {
        let mut town = Town::new(json!({"replicas": 5, "updateStrategy": {"rollingUpdate": {"maxUnavailable": most}}}));
        town.settle();
        town.image("nginx:2");
        assert_eq!(town.step(), expected, "{most}");
    }
}

#[test]
fn an_update_of_a_parallel_set_begins_with_the_pods_that_are_unavailable_anyway() {
    let mut town = Town::new(json!({"replicas": 4, "podManagementPolicy": "Parallel", "volumeClaimTemplates": []}));
    town.settle();
    for name in ["web-0", "web-1"] {
        town.ready(name, false);
    }
    town.image("nginx:2");
    assert_eq!(town.step(), ["delete web-1", "delete web-0"], "the others are needed");
    assert_eq!(town.step(), ["create web-0", "create web-1"]);
    assert!(town.step().is_empty(), "two are unavailable");
    for name in ["web-0", "web-1"] {
        town.ready(name, true);
    }
    assert_eq!(town.step(), ["delete web-3"]);
}

#[test]
fn a_partition_is_a_canary_and_pods_below_it_come_back_as_they_were() {
    let mut town = Town::new(json!({"updateStrategy": {"rollingUpdate": {"partition": 2}}}));
    town.settle();
    town.image("nginx:2");
    assert_eq!(town.settle(), ["delete web-2", "create web-2"]);
    town.pods.remove("web-0");
    assert_eq!(town.settle(), ["create web-0"]);
    assert_eq!(town.images(), ["nginx:1", "nginx:1", "nginx:2"]);
    town.pods.remove("web-2");
    town.settle();
    assert_eq!(town.images(), ["nginx:1", "nginx:1", "nginx:2"]);
    town.change(json!({"updateStrategy": {"rollingUpdate": {"partition": 0}}}));
    town.settle();
    assert_eq!(town.images(), ["nginx:2", "nginx:2", "nginx:2"]);
}

#[test]
fn on_delete_updates_only_what_is_deleted_by_hand() {
    let mut town = Town::new(json!({"updateStrategy": {"type": "OnDelete", "rollingUpdate": null}}));
    town.settle();
    town.image("nginx:2");
    assert!(town.settle().is_empty());
    town.pods.remove("web-1");
    town.settle();
    assert_eq!(town.images(), ["nginx:1", "nginx:2", "nginx:1"]);
    for name in ["web-0", "web-2"] {
        town.pods.remove(name);
        town.settle();
    }
    let status = town.set.status.clone().unwrap();
    assert_eq!(
        status.current_revision, status.update_revision,
        "the update is complete"
    );
}

#[test]
fn rolling_back_renumbers_the_old_revision_instead_of_adding_one() {
    let mut town = Town::new(json!({}));
    town.settle();
    town.image("nginx:2");
    town.settle();
    town.image("nginx:1");
    town.settle();
    let mut numbers: Vec<_> = town
        .revisions
        .iter()
        .map(|revision| revisions::number(revision))
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [2, 3]);
    assert_eq!(town.images(), ["nginx:1"; 3]);
}

#[test]
fn old_revisions_beyond_the_limit_are_expendable_but_not_those_in_use() {
    let mut town = Town::new(json!({"revisionHistoryLimit": 1}));
    for version in 1..5 {
        town.image(&format!("nginx:{version}"));
        town.settle();
    }
    let pods: Vec<_> = town.pods.values().cloned().collect();
    let Settled::As { current, update } = revisions::settle(&town.set, &town.revisions) else {
        panic!("not settled")
    };
    let old = revisions::expendable(&town.set, &town.revisions, &pods, &current, &update);
    assert_eq!(
        old.iter()
            .map(|revision| revisions::number(revision))
            .collect::<Vec<_>>(),
        [1, 2]
    );
}

#[test]
fn a_failed_pod_is_made_anew() {
    let mut town = Town::new(json!({"volumeClaimTemplates": []}));
    town.settle();
    let mut pod = (*town.pods["web-1"]).clone();
    pod.status.as_mut().unwrap().phase = Some("Failed".to_owned());
    town.pods.insert("web-1".to_owned(), Arc::new(pod));
    assert_eq!(town.step(), ["delete web-1"]);
    assert_eq!(town.step(), ["create web-1"]);
}

#[test]
fn claims_follow_the_retention_policy() {
    let policy = json!({"whenDeleted": "Delete", "whenScaled": "Delete"});
    let mut town = Town::new(json!({"replicas": 2, "persistentVolumeClaimRetentionPolicy": policy}));
    town.settle();
    assert_eq!(town.claims["www-web-0"].owner_references()[0].kind, "StatefulSet");
    town.change(json!({"replicas": 1}));
    assert_eq!(town.step(), ["own www-web-1 by [Pod]", "delete web-1"]);
    town.change(json!({"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"}}));
    assert_eq!(town.step(), ["own www-web-0 by []"]);
}

#[test]
fn min_ready_seconds_holds_the_next_pod_back_and_asks_to_be_woken() {
    let mut town = Town::new(json!({"minReadySeconds": 10, "volumeClaimTemplates": []}));
    town.step();
    town.ready("web-0", true);
    assert!(town.step().is_empty());
    assert_eq!(town.set.status.as_ref().unwrap().available_replicas, Some(0));
    town.now = Timestamp::from_second(11).unwrap();
    assert_eq!(town.step(), ["create web-1"]);
}

#[test]
fn ordinals_may_start_elsewhere() {
    let mut town = Town::new(json!({"ordinals": {"start": 5}, "replicas": 2, "volumeClaimTemplates": []}));
    assert_eq!(town.settle(), ["create web-5", "create web-6"]);
}
