//! EtcdRestore control, step by step.

use crate::api::agent::{Failure, FailureReason, Inspected, Outcome};
use serde_json::{Value, json};

use super::*;
use crate::agent::State;

fn restore(spec: Value, status: Option<&EtcdRestoreStatus>) -> EtcdRestore {
    let mut object: EtcdRestore = serde_json::from_value(json!({
        "apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdRestore",
        "metadata": {"name": "c", "namespace": "n", "uid": "r1", "generation": 1}, "spec": spec,
    }))
    .expect("an EtcdRestore");
    object.status = status.cloned();
    object
}

fn from_file() -> Value {
    json!({"etcdCluster": {"name": "c"}, "file": {"claimName": "backups", "path": "a/b"}})
}

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().expect("a time")
}

fn agent(state: State) -> Agent {
    Agent {
        uid: Uid("p".into()),
        component: "inspect".into(),
        task: String::new(),
        created: now(),
        terminating: None,
        address: None,
        node_dead: None,
        state,
    }
}

/// The name of an attempt's pod.
fn name(attempt: i64) -> String {
    format!("c-inspect-{}-{attempt}", &stateward_core::manifests::hash(&"r1")[..5])
}

fn said(outcome: Outcome) -> State {
    State::Said(Box::new(outcome))
}

fn makes_a_pod(plan: &Plan) -> bool {
    plan.effects.iter().any(|effect| matches!(effect, Effect::CreatePod(_)))
}

/// A world in which the pod of the first attempt is like this.
fn with_agent(state: State) -> World {
    World {
        agents: [(name(1), agent(state))].into(),
        ..World::default()
    }
}

#[test]
fn a_backup_is_proven_before_the_cluster_may_be_touched() {
    // given a new EtcdRestore: its pod is recorded and made
    let first = plan(&restore(from_file(), None), &World::default(), now());
    assert_eq!(first.status.agent, name(1));
    assert!(makes_a_pod(&first));
    // when the pod has found the backup good
    let found = Inspected {
        location: "a/b".into(),
        revision: 7,
        sha256: "ab".into(),
        ..Inspected::default()
    };
    let second = plan(
        &restore(from_file(), Some(&first.status)),
        &with_agent(said(Outcome::Inspected(found))),
        now(),
    );
    // then everything that is needed is in the status, and not before
    assert!(first.status.source.is_none());
    let source = second.status.source.clone().expect("proven");
    assert_eq!((source.revision, source.revision_bump), (7, 1_000_000_000));
    assert_eq!(second.status.phase, Some(RestorePhase::Replacing));
    // and without a cluster it says what to do
    let third = plan(&restore(from_file(), Some(&second.status)), &World::default(), now());
    assert!(third.status.waiting.contains("create it"), "{}", third.status.waiting);
    assert_eq!(third.status.source, second.status.source);
}

#[test]
fn a_corrupt_backup_ends_it_and_a_store_that_is_down_does_not() {
    let first = plan(&restore(from_file(), None), &World::default(), now());
    let failure = |retry| {
        said(Outcome::Failed(Failure {
            reason: FailureReason::BackupCorrupt,
            message: "it ends early".into(),
            retry,
        }))
    };
    let object = restore(from_file(), Some(&first.status));
    let corrupt = plan(&object, &with_agent(failure(false)), now());
    assert_eq!(corrupt.status.phase, Some(RestorePhase::Failed));
    assert_eq!(corrupt.status.reason, "it ends early");
    let again = plan(&restore(from_file(), Some(&corrupt.status)), &World::default(), now());
    assert!(
        again.effects.is_empty() && again.status == corrupt.status,
        "it stays so"
    );
    let down = plan(&object, &with_agent(failure(true)), now());
    assert_eq!(down.status.phase, Some(RestorePhase::Fetching));
    let soon = plan(&restore(from_file(), Some(&down.status)), &World::default(), now());
    assert!(!makes_a_pod(&soon) && soon.wake.is_some());
    let then = "2026-01-01T00:00:06Z".parse().expect("a time");
    let later = plan(&restore(from_file(), Some(&down.status)), &World::default(), then);
    assert_eq!(later.status.agent, name(2));
    assert!(makes_a_pod(&later));
}

#[test]
fn it_has_succeeded_when_the_cluster_says_so() {
    let mut status = EtcdRestoreStatus {
        phase: Some(RestorePhase::Replacing),
        observed_generation: Some(1),
        source: Some(Default::default()),
        ..EtcdRestoreStatus::default()
    };
    let cluster = |phase: &str| -> EtcdCluster {
        serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "n", "uid": "u"}, "spec": {"size": 3},
            "status": {"phase": "Running", "size": 1, "restore": {"restoreUID": "r1", "phase": phase, "seed": "c-x"}, "waiting": "words"},
        }))
        .expect("a cluster")
    };
    for (phase, succeeded) in [("Replacing", false), ("Seeding", false), ("Complete", true)] {
        let cluster = cluster(phase);
        let world = World {
            cluster: Some(Arc::new(cluster)),
            ..World::default()
        };
        let plan = plan(&restore(from_file(), Some(&status)), &world, now());
        assert_eq!(plan.status.succeeded, succeeded);
        assert_eq!(format!("{:?}", plan.status.phase), format!("Some({phase})"));
        status = plan.status;
    }
    // and it is not seen as a request any more
    assert_eq!(
        request(&restore(from_file(), Some(&status)), &cluster("Complete")),
        None
    );
}

#[test]
fn what_the_old_operator_did_is_not_done_again() {
    let status = EtcdRestoreStatus {
        succeeded: true,
        ..EtcdRestoreStatus::default()
    };
    let object = restore(from_file(), Some(&status));
    let plan = plan(&object, &World::default(), now());
    assert!(plan.effects.is_empty() && plan.status == status);
}

#[test]
fn a_backup_of_a_newer_minor_version_is_refused_before_anything_is_touched() {
    let cluster = |version: &str| -> EtcdCluster {
        serde_json::from_value(json!({
            "apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdCluster",
            "metadata": {"name": "c", "namespace": "n", "uid": "c1"}, "spec": {"size": 3, "version": version},
        }))
        .expect("an EtcdCluster")
    };
    let (older, newer) = (cluster("3.5.35"), cluster("3.6.16"));
    let begun = plan(&restore(from_file(), None), &World::default(), now()).status;
    let proven = |cluster: Option<&EtcdCluster>| {
        let found = Inspected {
            cluster_version: "3.6.0".into(),
            ..Inspected::default()
        };
        let world = World {
            cluster: cluster.cloned().map(Arc::new),
            ..with_agent(said(Outcome::Inspected(found)))
        };
        plan(&restore(from_file(), Some(&begun)), &world, now()).status
    };
    // given the cluster runs the same minor version, then it is taken
    let good = proven(Some(&newer));
    assert_eq!(good.phase, Some(RestorePhase::Replacing));
    assert!(matches!(
        request(&restore(from_file(), Some(&good)), &newer).map(|request| request.state),
        Some(RequestState::Proven(_))
    ));
    // given the cluster is on its way there, then it is waited for
    let mut upgrading = newer.clone();
    upgrading.status = serde_json::from_value(json!({
        "phase": "Running", "size": 3, "currentVersion": "3.5.35", "targetVersion": "3.6.16", "waiting": "2 of 3 members",
    }))
    .expect("a status");
    let world = World {
        cluster: Some(Arc::new(upgrading)),
        ..World::default()
    };
    let waits = plan(&restore(from_file(), Some(&good)), &world, now()).status.waiting;
    assert!(
        waits.contains("replaced after its upgrade; it is at: 2 of 3 members"),
        "{waits}"
    );
    // given an older one, then it is refused in words
    let refused = proven(Some(&older));
    assert_eq!(refused.phase, Some(RestorePhase::Failed));
    assert!(
        refused
            .reason
            .contains("set spec.version of the EtcdCluster to 3.6 or later"),
        "{}",
        refused.reason
    );
    assert!(refused.source.is_none());
    // given the cluster came later, then neither control follows it
    let early = proven(None);
    let object = restore(from_file(), Some(&early));
    let state = request(&object, &older).map(|request| request.state);
    assert!(matches!(state, Some(RequestState::Failed(_))), "{state:?}");
    let world = World {
        cluster: Some(Arc::new(older)),
        ..World::default()
    };
    assert_eq!(plan(&object, &world, now()).status.phase, Some(RestorePhase::Failed));
}

#[test]
fn a_pod_whose_node_dies_is_replaced() {
    let first = plan(&restore(from_file(), None), &World::default(), now());
    let object = restore(from_file(), Some(&first.status));
    let later = |seconds: i64| now() + jiff::SignedDuration::from_secs(seconds);
    for state in [State::Running, State::Waiting(None)] {
        // given a pod that is seen to be on a dead node, and one that was deleted there and is still shown
        let dead = Agent {
            node_dead: Some(now()),
            ..agent(state.clone())
        };
        let stuck = Agent {
            terminating: Some(now()),
            ..agent(state)
        };
        for lost in [dead, stuck] {
            let world = World {
                agents: [(name(1), lost)].into(),
                ..World::default()
            };
            let waits = plan(&object, &world, later(1));
            assert!(
                waits.status.agent == name(1) && waits.wake.is_some(),
                "{:?}",
                waits.wake
            );
            // when nothing is heard of it for a minute, then another one, under another name, does its work
            let given_up = plan(&object, &world, later(61));
            assert!(
                given_up.status.reason.contains("does not answer"),
                "{}",
                given_up.status.reason
            );
            let again = plan(&restore(from_file(), Some(&given_up.status)), &world, later(70));
            assert_eq!(again.status.agent, name(2));
            assert!(makes_a_pod(&again));
        }
    }
    // and what it said before its node died counts
    let found = Inspected {
        location: "a/b".into(),
        revision: 7,
        sha256: "ab".into(),
        ..Inspected::default()
    };
    let over = Agent {
        node_dead: Some(now()),
        ..agent(said(Outcome::Inspected(found)))
    };
    let world = World {
        agents: [(name(1), over)].into(),
        ..World::default()
    };
    assert!(plan(&object, &world, later(100)).status.source.is_some());
}
