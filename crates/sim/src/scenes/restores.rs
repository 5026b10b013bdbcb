//! Restores from backups.

use stateward_plan::etcd::LaunchKind;

use super::{MINUTE, at_rest, cluster_id, ids, pass, rests, until};
use crate::sim::Sim;

fn restored(sim: &Sim<'_>, restore: u32) -> bool {
    sim.ledger.restored.contains(&crate::kube::uid(restore))
}

#[test]
fn killed_after_every_step_of_a_restore() {
    for steps in 0..24 {
        let mut sim = at_rest(steps);
        let before = ids(&sim);
        let backup = sim.take_backup();
        pass(&mut sim, 5000);
        sim.operators[0].dies_in = Some(u32::try_from(steps).unwrap_or(0));
        let restore = sim.ask_for_restore(backup, true);
        pass(&mut sim, MINUTE);
        rests(&mut sim);
        assert!(restored(&sim, restore), "it is done");
        assert_eq!(
            ids(&sim).intersection(&before).count(),
            0,
            "nothing of the old cluster is left"
        );
        assert_eq!(sim.kube.now.claims.len(), 3);
    }
}

#[test]
fn a_corrupt_backup_touches_nothing() {
    let mut sim = at_rest(18);
    let (before, starts) = (ids(&sim), sim.incarnations);
    let backup = sim.take_backup();
    sim.ask_for_restore(backup, false);
    pass(&mut sim, 5 * MINUTE);
    assert_eq!((ids(&sim), sim.incarnations), (before, starts));
}

#[test]
fn a_restore_that_is_taken_back_in_time_leaves_the_old_cluster() {
    let mut sim = at_rest(19);
    let (before, cluster) = (ids(&sim), cluster_id(&sim));
    let backup = sim.take_backup();
    let restore = sim.ask_for_restore(backup, true);
    until(&mut sim, "begin the restore", |sim| {
        sim.present().is_some_and(|(_, record)| record.restoring().is_some())
    });
    sim.delete_restore(restore);
    rests(&mut sim);
    assert_eq!((ids(&sim), cluster_id(&sim)), (before, cluster));
}

#[test]
fn a_restore_goes_on_when_its_object_is_deleted_later() {
    let mut sim = at_rest(20);
    let backup = sim.take_backup();
    let restore = sim.ask_for_restore(backup, true);
    let is_there = |sim: &Sim<'_>| {
        let mut pods = sim.kube.now.pods.values();
        pods.any(|pod| pod.shown.launch == LaunchKind::Restore)
    };
    until(&mut sim, "make the first member", is_there);
    sim.delete_restore(restore);
    rests(&mut sim);
    assert!(restored(&sim, restore));
}

#[test]
fn another_restore_takes_the_place_of_one_that_cannot_go_on() {
    let mut sim = at_rest(21);
    let backup = sim.take_backup();
    let first = sim.ask_for_restore(backup, true);
    sim.edit(|intent| intent.template = "t1-bad-image".into());
    let is_there = |sim: &Sim<'_>| {
        let mut pods = sim.kube.now.pods.values();
        pods.any(|pod| pod.shown.launch == LaunchKind::Restore)
    };
    until(&mut sim, "make the first member", is_there);
    sim.delete_restore(first);
    let second = sim.ask_for_restore(backup, true);
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
    let restore = sim.ask_for_restore(backup, true);
    pass(&mut sim, MINUTE);
    sim.take_back();
    rests(&mut sim);
    assert!(restored(&sim, restore));
    assert!(!sim.ledger.acknowledged.is_empty());
}

#[test]
fn a_lost_majority_is_recovered_from_the_backup_with_consent() {
    let mut sim = at_rest(23);
    sim.edit(|intent| intent.recovery = stateward_plan::etcd::Recovery::FromBackup(std::time::Duration::from_secs(30)));
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
    assert_eq!(sim.ledger.restored.len(), 1);
}
