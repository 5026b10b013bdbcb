//! Restores from backups.

use stateward_etcd::api::EtcdVersion;
use stateward_etcd::cluster::LaunchKind;

use super::{MINUTE, at_rest, cluster_id, follower, ids, pass, rests, three, until};
use crate::profile::Profile;
use crate::sim::Sim;
use crate::subject::{REAL, Subject};

fn restored(sim: &Sim<'_>, restore: u32) -> bool {
    sim.truth.restored.contains(&crate::kube::uid(restore))
}

#[test]
fn killed_after_every_step_of_a_restore() {
    for steps in 0..24 {
        let mut sim = at_rest(steps);
        let before = ids(&sim);
        let backup = sim.take_backup();
        pass(&mut sim, 5000);
        sim.operators[0].crashes_in = Some(u32::try_from(steps).unwrap_or(0));
        let restore = sim.user_requests_restore(backup, true);
        pass(&mut sim, MINUTE);
        rests(&mut sim);
        assert!(restored(&sim, restore), "it is done");
        assert_eq!(
            ids(&sim).intersection(&before).count(),
            0,
            "nothing of the old cluster remains"
        );
        assert_eq!(sim.kube.now.claims.len(), 3);
    }
}

#[test]
fn a_corrupt_backup_touches_nothing() {
    let mut sim = at_rest(18);
    let (before, starts) = (ids(&sim), sim.incarnations);
    let backup = sim.take_backup();
    sim.user_requests_restore(backup, false);
    pass(&mut sim, 5 * MINUTE);
    assert_eq!((ids(&sim), sim.incarnations), (before, starts));
}

#[test]
fn a_restore_that_is_deleted_in_time_leaves_the_old_cluster() {
    let mut sim = at_rest(19);
    let (before, cluster) = (ids(&sim), cluster_id(&sim));
    let backup = sim.take_backup();
    let restore = sim.user_requests_restore(backup, true);
    until(&mut sim, "begin the restore", |sim| {
        sim.present().is_some_and(|(_, record)| record.restoring().is_some())
    });
    sim.delete_restore(restore);
    rests(&mut sim);
    assert_eq!((ids(&sim), cluster_id(&sim)), (before, cluster));
}

#[test]
fn a_restore_whose_pods_are_rejected_stops_no_member() {
    // given a cluster that serves, and a spec that no pod can be made from
    let mut sim = at_rest(24);
    let (before, starts) = (ids(&sim), sim.incarnations);
    let backup = sim.take_backup();
    sim.edit(|intent| intent.template = "t1-bad-label".into());
    // when a restore is requested
    let restore = sim.user_requests_restore(backup, true);
    pass(&mut sim, 5 * MINUTE);
    // then no member is stopped, and the restore completes when the spec is corrected
    assert_eq!((ids(&sim), sim.incarnations), (before, starts));
    sim.edit(|intent| intent.template = "t2".into());
    rests(&mut sim);
    assert!(restored(&sim, restore));
}

#[test]
fn retained_claims_outlast_a_second_restore_that_is_deleted() {
    // given a cluster that a restore replaced, where the user keeps claims
    let profile = Profile {
        retain_claims: true,
        ..Profile::gentle()
    };
    let mut sim = Sim::new(25, profile, &REAL, true);
    sim.create_cluster(three());
    sim.wake_operator(0, 5);
    rests(&mut sim);
    sim.calm = false;
    let backup = sim.take_backup();
    let first = sim.user_requests_restore(backup, true);
    pass(&mut sim, MINUTE);
    rests(&mut sim);
    sim.calm = false;
    assert!(restored(&sim, first));
    let kept = sim.kube.now.claims.len();
    assert_eq!(kept, 6);
    // when a second one begins and its object is deleted
    let backup = sim.take_backup();
    let second = sim.user_requests_restore(backup, true);
    until(&mut sim, "begin the second restore", |sim| {
        sim.present().is_some_and(|(_, record)| record.restoring().is_some())
    });
    sim.delete_restore(second);
    rests(&mut sim);
    // then the claims that the first one replaced still exist
    assert_eq!(sim.kube.now.claims.len(), kept);
}

/// The EtcdRestore is deleted between the plan that depends on it and the write of the record.
fn deleted_after_the_plan(subject: &Subject) -> Sim<'_> {
    let mut sim = Sim::new(21, Profile::gentle(), subject, true);
    sim.create_cluster(three());
    sim.wake_operator(0, 5);
    rests(&mut sim);
    sim.calm = false;
    let backup = sim.take_backup();
    let restore = sim.user_requests_restore(backup, true);
    until(&mut sim, "plan the restore", |sim| {
        sim.operators[0].is_about_to_restore()
    });
    sim.delete_restore(restore);
    sim
}

#[test]
fn a_restore_that_is_deleted_after_the_plan_leaves_the_old_cluster() {
    let mut sim = deleted_after_the_plan(&REAL);
    let (before, starts) = (ids(&sim), sim.incarnations);
    rests(&mut sim);
    assert_eq!((ids(&sim), sim.incarnations), (before, starts));
}

#[test]
fn a_restore_goes_on_when_its_object_is_deleted_later() {
    let mut sim = at_rest(20);
    let backup = sim.take_backup();
    let restore = sim.user_requests_restore(backup, true);
    let is_there = |sim: &Sim<'_>| {
        let mut pods = sim.kube.now.pods.values();
        pods.any(|pod| pod.shown.launch == LaunchKind::Restore)
    };
    until(&mut sim, "create the first member", is_there);
    sim.delete_restore(restore);
    rests(&mut sim);
    assert!(restored(&sim, restore));
}

#[test]
fn another_restore_takes_the_place_of_one_that_cannot_go_on() {
    let mut sim = at_rest(21);
    let backup = sim.take_backup();
    let first = sim.user_requests_restore(backup, true);
    sim.edit(|intent| intent.template = "t1-bad-image".into());
    let is_there = |sim: &Sim<'_>| {
        let mut pods = sim.kube.now.pods.values();
        pods.any(|pod| pod.shown.launch == LaunchKind::Restore)
    };
    until(&mut sim, "create the first member", is_there);
    sim.delete_restore(first);
    let second = sim.user_requests_restore(backup, true);
    pass(&mut sim, MINUTE);
    sim.edit(|intent| intent.template = "t2".into());
    rests(&mut sim);
    assert!(!restored(&sim, first) && restored(&sim, second));
}

#[test]
fn a_cluster_that_is_created_beside_its_restore_begins_from_the_backup() {
    let mut sim = at_rest(22);
    pass(&mut sim, 5000);
    let backup = sim.take_backup();
    sim.delete_cluster();
    let restore = sim.user_requests_restore(backup, true);
    pass(&mut sim, MINUTE);
    sim.revert();
    rests(&mut sim);
    assert!(restored(&sim, restore));
    assert!(!sim.truth.acknowledged.is_empty());
}

#[test]
fn a_lost_majority_is_recovered_from_the_backup_with_consent() {
    let mut sim = at_rest(23);
    sim.edit(|intent| {
        intent.recovery = stateward_etcd::cluster::Recovery::FromBackup(std::time::Duration::from_secs(30))
    });
    sim.take_backup();
    let before = ids(&sim);
    let claims: Vec<_> = sim.kube.now.claims.keys().take(2).cloned().collect();
    for claim in &claims {
        sim.delete_claim(claim);
        sim.delete_pod(claim, None);
    }
    pass(&mut sim, 10_000);
    assert!(
        sim.kube.now.claims.keys().any(|name| !claims.contains(name)),
        "the survivor is kept meanwhile"
    );
    rests(&mut sim);
    assert_eq!(ids(&sim).intersection(&before).count(), 0);
    assert_eq!(sim.truth.restored.len(), 1);
}

/// A cluster was downgraded from 3.6 to 3.5. It is to be 3.6 again, which an unavailable node delays, when a restore of
/// an earlier 3.6 backup is requested.
fn asked_for_what_is_too_new(subject: &Subject) -> (Sim<'_>, u32) {
    let mut sim = Sim::new(24, Profile::gentle(), subject, true);
    sim.create_cluster(three());
    sim.wake_operator(0, 5);
    rests(&mut sim);
    let backup = sim.take_backup();
    sim.edit(|intent| intent.version = EtcdVersion::new(3, 5, 35));
    rests(&mut sim);
    sim.calm = false;
    let node = sim.processes[&follower(&sim)].node;
    sim.node_down(node);
    sim.edit(|intent| intent.version = EtcdVersion::new(3, 6, 16));
    let restore = sim.user_requests_restore(backup, true);
    let soon = sim.now + MINUTE / 2;
    while sim.step(soon) {}
    sim.node_back(node);
    (sim, restore)
}

#[test]
fn a_backup_of_a_newer_etcd_is_followed_after_the_upgrade_to_it() {
    let (mut sim, restore) = asked_for_what_is_too_new(&REAL);
    assert_eq!(sim.broken, None);
    rests(&mut sim);
    assert!(restored(&sim, restore));
    assert!(sim.processes.values().all(|process| process.version.minor() == 6));
}
