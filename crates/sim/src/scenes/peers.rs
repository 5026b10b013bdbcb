//! Bugs that other operators had, one scene each.

use stateward_etcd::cluster::{Intent, LaunchKind, Storage};

use super::{MINUTE, at_rest, cluster_id, follower, ids, pass, rests, scene, three, until};
use crate::etcd::peer_url;
use crate::profile::Profile;
use crate::queue::Event;
use crate::sim::Sim;
use crate::subject::REAL;

#[test]
fn killed_after_every_step_of_a_create() {
    for steps in 0..40 {
        let mut sim = scene(steps);
        sim.operators[0].crashes_in = Some(u32::try_from(steps).unwrap_or(0));
        pass(&mut sim, MINUTE);
        rests(&mut sim);
        assert_eq!(sim.truth.bootstrapped.len(), 1);
    }
}

#[test]
fn killed_after_every_step_of_a_replacement() {
    for steps in 0..24 {
        let mut sim = at_rest(steps);
        let before = ids(&sim);
        sim.operators[0].crashes_in = Some(u32::try_from(steps).unwrap_or(0));
        let pod = follower(&sim);
        let volume = sim.processes[&pod].volume;
        sim.wipe(pod, volume);
        pass(&mut sim, MINUTE);
        rests(&mut sim);
        assert_eq!(
            ids(&sim).intersection(&before).count(),
            2,
            "one member is replaced, the others stay"
        );
    }
}

#[test]
fn a_timed_out_add_leaves_no_ghost() {
    let mut sim = at_rest(1);
    pass(&mut sim, 6000);
    let cluster = cluster_id(&sim);
    sim.add_member(cluster, &peer_url(&"demo-ghost".into()), true)
        .expect("added");
    rests(&mut sim);
    assert_eq!(sim.truth.conf.len(), 3);
}

#[test]
fn a_join_that_was_never_started_is_undone_when_the_size_goes_back() {
    let mut sim = at_rest(2);
    pass(&mut sim, 6000);
    sim.edit(|intent| intent.size = 5);
    until(&mut sim, "add a member", |sim| sim.truth.conf.len() > 3);
    sim.kill_operator(0);
    sim.edit(|intent| intent.size = 3);
    rests(&mut sim);
    assert_eq!(sim.truth.conf.len(), 3);
}

#[test]
fn recreated_under_the_same_name_the_past_deletes_nothing_of_the_present() {
    for retain in [false, true] {
        let mut sim = at_rest(3);
        sim.profile.retain_claims = retain;
        let past = sim.kube.now.clone();
        sim.delete_cluster();
        pass(&mut sim, 500);
        sim.revert();
        sim.edit(|intent| intent.ignore_old_claims = true);
        until(&mut sim, "bootstrap the new cluster", |sim| {
            !sim.truth.bootstrapped.is_empty()
        });
        // A restarted operator reads the old object again.
        sim.kube.past.clear();
        sim.kube.past.push_back(past);
        sim.profile.stale = 1000;
        sim.kill_operator(0);
        pass(&mut sim, MINUTE);
        sim.profile.stale = 0;
        sim.edit(|_| {});
        let old: Vec<_> = sim
            .kube
            .now
            .claims
            .values()
            .filter(|claim| claim.owner != sim.truth.owner)
            .collect();
        assert_eq!(!old.is_empty(), retain, "kept claims are kept");
        rests(&mut sim);
    }
}

#[test]
fn three_to_one_to_three_with_a_stale_size_removes_no_member() {
    let mut sim = at_rest(4);
    let before = ids(&sim);
    sim.kill_operator(0);
    sim.edit(|intent| intent.size = 1);
    let past = sim.kube.now.clone();
    sim.edit(|intent| intent.size = 3);
    sim.kube.past.clear();
    sim.kube.past.push_back(past);
    sim.profile.stale = 1000;
    pass(&mut sim, MINUTE);
    assert_eq!(ids(&sim), before);
    sim.profile.stale = 0;
    rests(&mut sim);
    assert_eq!(ids(&sim), before);
}

#[test]
fn missed_events_leave_nothing_too_few_or_too_many() {
    let mut sim = scene(5);
    sim.profile.missed_events = 1000;
    pass(&mut sim, 3 * MINUTE);
    sim.edit(|intent| intent.size = 5);
    pass(&mut sim, 3 * MINUTE);
    let pod = sim.kube.now.pods.keys().next().cloned().expect("a pod");
    sim.delete_pod(&pod, None);
    pass(&mut sim, 3 * MINUTE);
    assert_eq!(
        (sim.kube.now.pods.len(), sim.kube.now.claims.len(), sim.truth.conf.len()),
        (5, 5, 5)
    );
}

#[test]
fn an_edit_that_is_reverted_in_mid_step_leaves_no_member_behind() {
    for (first, second) in [(2, 3), (5, 3), (1, 3), (5, 1)] {
        let mut sim = at_rest(6);
        pass(&mut sim, 6000);
        sim.edit(|intent| intent.size = first);
        until(&mut sim, "begin", |sim| sim.truth.conf.len() != 3);
        sim.edit(|intent| intent.size = second);
        rests(&mut sim);
        assert_eq!(sim.truth.conf.len(), second);
    }
}

#[test]
fn hibernation_and_back_in_mid_step() {
    for wait in [0, 100, 1000, 5000, 30_000] {
        let mut sim = at_rest(7);
        let before = ids(&sim);
        sim.edit(|intent| intent.hibernate = true);
        pass(&mut sim, wait);
        sim.edit(|intent| intent.hibernate = false);
        rests(&mut sim);
        assert_eq!(ids(&sim), before, "the same members come back");
    }
}

#[test]
fn bad_values_are_undone_by_reverting_them() {
    for bad in ["bad-image", "bad-selector", "bad-flag"] {
        for wait in [200, 5000, 120_000] {
            let mut sim = at_rest(8);
            let before = ids(&sim);
            sim.edit(|intent| intent.template = format!("t1-{bad}"));
            pass(&mut sim, wait);
            let serving = sim.processes.values().filter(|process| process.serves).count();
            assert!(serving >= 2, "a bad value stops one member at most");
            sim.edit(|intent| intent.template = "t0".into());
            rests(&mut sim);
            assert_eq!(ids(&sim), before);
        }
    }
}

#[test]
fn no_member_is_stopped_for_a_pod_that_the_api_server_rejects() {
    for storage in [Storage::Durable { bytes: 1 << 30 }, Storage::Ephemeral] {
        // given a cluster at rest
        let mut sim = Sim::new(8, Profile::gentle(), &REAL, true);
        sim.create_cluster(Intent { storage, ..three() });
        sim.wake_operator(0, 5);
        rests(&mut sim);
        sim.calm = false;
        let (before, starts) = (ids(&sim), sim.incarnations);
        // when the API server rejects the pods of its new spec
        sim.edit(|intent| intent.template = "t1-bad-label".into());
        pass(&mut sim, 2 * MINUTE);
        // then all members continue to serve, and no member was added that could not start
        assert_eq!(sim.processes.values().filter(|process| process.serves).count(), 3);
        assert_eq!((ids(&sim), sim.incarnations), (before.clone(), starts));
        // and reverting the spec heals the cluster without a restart
        sim.edit(|intent| intent.template = "t0".into());
        rests(&mut sim);
        assert_eq!((ids(&sim), sim.incarnations), (before, starts));
    }
}

#[test]
fn a_bad_value_in_the_first_spec_is_reverted_too() {
    for bad in ["bad-image", "bad-selector", "bad-flag", "bad-label"] {
        let mut sim = Sim::new(9, Profile::gentle(), &REAL, true);
        sim.create_cluster(Intent {
            template: format!("t0-{bad}"),
            ..three()
        });
        sim.wake_operator(0, 5);
        pass(&mut sim, MINUTE);
        sim.edit(|intent| intent.template = "t1".into());
        rests(&mut sim);
    }
}

#[test]
fn labels_that_are_removed_disappear_without_a_restart() {
    let mut sim = at_rest(10);
    let starts = sim.incarnations;
    sim.edit(|intent| intent.metadata = "m1".into());
    rests(&mut sim);
    assert!(sim.kube.now.pods.values().all(|pod| pod.shown.metadata == "m1"));
    assert_eq!(sim.incarnations, starts);
}

#[test]
fn storage_growth_is_applied() {
    let mut sim = at_rest(11);
    sim.edit(|intent| intent.storage = Storage::Durable { bytes: 2 << 30 });
    rests(&mut sim);
    assert!(
        sim.kube
            .now
            .claims
            .values()
            .all(|claim| claim.shown.requested == 2 << 30)
    );
}

#[test]
fn one_broken_member_does_not_condemn_the_others() {
    let mut sim = at_rest(12);
    let (before, starts) = (ids(&sim), sim.incarnations);
    // The operator reaches only one member, and that one is cut off from the others.
    let pod = follower(&sim);
    let node = sim.processes[&pod].node;
    for other in 0..sim.nodes.len() {
        sim.nodes[other].cut_from_operator = other != node;
        sim.nodes[other].side = u8::from(other != node);
    }
    pass(&mut sim, 10 * MINUTE);
    assert_eq!((ids(&sim), sim.incarnations), (before, starts), "nothing is changed");
    sim.reconnect();
    rests(&mut sim);
}

#[test]
fn a_lost_member_is_removed_through_the_others_and_its_pod_is_not_waited_for() {
    let mut sim = at_rest(13);
    sim.edit(|intent| intent.replace_after = std::time::Duration::from_secs(60));
    let pod = follower(&sim);
    let node = sim.processes[&pod].node;
    sim.node_down(node);
    sim.nodes[node].gone = true;
    until(&mut sim, "replace it", |sim| {
        sim.truth.conf.len() == 3 && sim.processes.values().filter(|process| process.serves).count() == 3
    });
    rests(&mut sim);
}

#[test]
fn a_pod_is_not_stopped_when_leaving_failed() {
    let mut sim = at_rest(14);
    // One of three is frozen: etcd rejects the removal of another one.
    let pod = follower(&sim);
    let until_then = sim.now + 2 * MINUTE;
    if let Some(process) = sim.processes.get_mut(&pod) {
        process.frozen_until = until_then;
    }
    sim.edit(|intent| intent.size = 1);
    pass(&mut sim, 100_000);
    let serving = sim.processes.values().filter(|process| process.serves).count();
    assert!(
        serving >= sim.truth.conf.len().min(2),
        "no pod is deleted before its member is removed"
    );
    rests(&mut sim);
    assert_eq!(sim.truth.conf.len(), 1);
}

#[test]
fn an_operator_that_restarts_restarts_no_member() {
    let mut sim = at_rest(15);
    let starts = sim.incarnations;
    for _ in 0..5 {
        sim.kill_operator(0);
        pass(&mut sim, MINUTE);
    }
    rests(&mut sim);
    assert_eq!(sim.incarnations, starts);
}

#[test]
fn two_operators_at_once_do_no_harm() {
    for seed in 0..30 {
        let mut sim = scene(seed);
        sim.operators[1].leads = true;
        sim.wake_operator(1, 6 + seed * 37);
        pass(&mut sim, MINUTE / 2);
        sim.edit(|intent| intent.size = 5);
        pass(&mut sim, MINUTE / 2);
        sim.edit(|intent| {
            intent.size = 3;
            intent.template = "t1".into();
        });
        pass(&mut sim, MINUTE);
        sim.queue.at(sim.now + 1, Event::Yield(1));
        pass(&mut sim, 1000);
        rests(&mut sim);
        assert_eq!(sim.truth.bootstrapped.len(), 1);
    }
}

#[test]
fn all_pods_deleted_the_same_cluster_comes_back() {
    let mut sim = at_rest(16);
    let (before, cluster) = (ids(&sim), cluster_id(&sim));
    let writes = sim.truth.acknowledged.len();
    let names: Vec<_> = sim.kube.now.pods.keys().cloned().collect();
    for name in names {
        sim.delete_pod(&name, None);
    }
    rests(&mut sim);
    assert_eq!((ids(&sim), cluster_id(&sim)), (before, cluster));
    assert!(sim.truth.acknowledged.len() > writes);
}

#[test]
fn the_next_member_waits_until_the_last_was_ready_for_long_enough() {
    let mut sim = at_rest(20);
    sim.edit(|intent| {
        intent.template = "t1".into();
        intent.min_ready = std::time::Duration::from_secs(60);
    });
    pass(&mut sim, 100_000);
    let old = sim.kube.now.pods.values().filter(|pod| pod.shown.template == "t0");
    assert!(old.count() >= 1, "two pauses of a minute are not over");
    rests(&mut sim);
}

#[test]
fn every_member_is_sealed_in_the_end() {
    let sim = at_rest(17);
    assert!(
        sim.kube
            .now
            .pods
            .values()
            .all(|pod| pod.shown.launch == LaunchKind::Sealed)
    );
}
