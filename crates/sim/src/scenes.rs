//! The bugs of other operators (peers.md), each as a scene of its own: what happens is written down, not drawn.

use std::collections::BTreeSet;

use stateward_api::EtcdVersion;
use stateward_plan::etcd::{Bootstrap, ClusterId, Intent, LaunchKind, MemberId, MemberName, Storage};

use crate::dice::Dice;
use crate::etcd::peer_url;
use crate::profile::Profile;
use crate::queue::{Event, Ms};
use crate::sim::Sim;
use crate::subject::{REAL, Subject};
use crate::user::wish;

const MINUTE: Ms = 60_000;

/// A gentle world with a cluster of three in it.
fn scene(seed: u64) -> Sim<'static> {
    let mut sim = Sim::new(seed, Profile::gentle(), &REAL, true);
    sim.create_cluster(three());
    sim.wake_operator(0, 5);
    sim
}

fn three() -> Intent {
    Intent {
        size: 3,
        version: EtcdVersion::new(3, 6, 16),
        bootstrap: Bootstrap::SeedThenJoin,
        storage: Storage::Durable { bytes: 1 << 30 },
        ..wish(&mut Dice::new(1))
    }
}

/// A gentle world with a cluster of three that is at rest.
fn at_rest(seed: u64) -> Sim<'static> {
    let mut sim = scene(seed);
    rests(&mut sim);
    sim.calm = false;
    sim
}

fn until(sim: &mut Sim<'_>, what: &str, done: impl Fn(&Sim<'_>) -> bool) {
    let end = sim.now + 10 * MINUTE;
    while !done(sim) {
        if !sim.step(end) {
            tell_and_fail(sim, what);
        }
    }
}

/// From now on nothing happens but what has begun, and all must come to be as wished.
fn rests(sim: &mut Sim<'_>) {
    sim.calm = true;
    sim.come_to_rest();
    if sim.broken.is_some() {
        tell_and_fail(sim, "come to rest");
    }
}

fn pass(sim: &mut Sim<'_>, time: Ms) {
    let end = sim.now + time;
    while sim.step(end) {}
    if sim.broken.is_some() {
        tell_and_fail(sim, "keep the rules");
    }
}

fn tell_and_fail(sim: &mut Sim<'_>, what: &str) -> ! {
    let story = sim.take_story().join("\n");
    panic!("it did not {what}\n{story}");
}

fn ids(sim: &Sim<'_>) -> BTreeSet<MemberId> {
    sim.ledger.conf.iter().map(|line| line.id).collect()
}

fn cluster_id(sim: &Sim<'_>) -> ClusterId {
    ClusterId(*sim.ledger.founded.first().expect("it was founded"))
}

fn follower(sim: &Sim<'_>) -> u32 {
    let follower = sim.processes.iter().find(|(_, process)| !process.leads);
    *follower.expect("a follower").0
}

#[test]
fn killed_after_every_step_of_a_create() {
    for steps in 0..40 {
        let mut sim = scene(steps);
        sim.operators[0].dies_in = Some(u32::try_from(steps).unwrap_or(0));
        pass(&mut sim, MINUTE);
        rests(&mut sim);
        assert_eq!(sim.ledger.founded.len(), 1);
    }
}

#[test]
fn killed_after_every_step_of_a_replacement() {
    for steps in 0..24 {
        let mut sim = at_rest(steps);
        let before = ids(&sim);
        sim.operators[0].dies_in = Some(u32::try_from(steps).unwrap_or(0));
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
    assert_eq!(sim.ledger.conf.len(), 3);
}

#[test]
fn a_join_that_was_never_started_is_undone_when_the_size_goes_back() {
    let mut sim = at_rest(2);
    pass(&mut sim, 6000);
    sim.edit(|intent| intent.size = 5);
    until(&mut sim, "add a member", |sim| sim.ledger.conf.len() > 3);
    sim.kill_operator(0);
    sim.edit(|intent| intent.size = 3);
    rests(&mut sim);
    assert_eq!(sim.ledger.conf.len(), 3);
}

#[test]
fn recreated_under_the_same_name_the_past_deletes_nothing_of_the_present() {
    for retain in [false, true] {
        let mut sim = at_rest(3);
        sim.profile.retain_claims = retain;
        let past = sim.kube.now.clone();
        sim.delete_cluster();
        pass(&mut sim, 500);
        sim.take_back();
        sim.edit(|intent| intent.ignore_old_claims = true);
        until(&mut sim, "found the new cluster", |sim| !sim.ledger.founded.is_empty());
        // A restarted operator is shown the old object again.
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
            .filter(|claim| claim.owner != sim.ledger.owner)
            .collect();
        assert_eq!(!old.is_empty(), retain, "kept claims are kept");
        rests(&mut sim);
    }
}

#[test]
fn three_to_one_to_three_with_a_stale_size_removes_nobody() {
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
        (
            sim.kube.now.pods.len(),
            sim.kube.now.claims.len(),
            sim.ledger.conf.len()
        ),
        (5, 5, 5)
    );
}

#[test]
fn a_change_of_mind_in_mid_step_strands_nobody() {
    for (first, second) in [(2, 3), (5, 3), (1, 3), (5, 1)] {
        let mut sim = at_rest(6);
        pass(&mut sim, 6000);
        sim.edit(|intent| intent.size = first);
        until(&mut sim, "begin", |sim| sim.ledger.conf.len() != 3);
        sim.edit(|intent| intent.size = second);
        rests(&mut sim);
        assert_eq!(sim.ledger.conf.len(), second);
    }
}

#[test]
fn to_sleep_and_back_in_mid_step() {
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
fn bad_values_are_undone_by_taking_them_back() {
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
fn a_bad_value_in_the_first_spec_is_undone_too() {
    for bad in ["bad-image", "bad-selector", "bad-flag"] {
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
    assert_eq!((ids(&sim), sim.incarnations), (before, starts), "nothing is touched");
    sim.reconnect();
    rests(&mut sim);
}

#[test]
fn a_dead_member_leaves_through_the_others_and_its_pod_is_not_waited_for() {
    let mut sim = at_rest(13);
    sim.edit(|intent| intent.replace_after = std::time::Duration::from_secs(60));
    let pod = follower(&sim);
    let node = sim.processes[&pod].node;
    sim.node_down(node);
    sim.nodes[node].gone = true;
    until(&mut sim, "replace it", |sim| {
        sim.ledger.conf.len() == 3 && sim.processes.values().filter(|process| process.serves).count() == 3
    });
    rests(&mut sim);
}

#[test]
fn a_pod_is_not_stopped_when_leaving_failed() {
    let mut sim = at_rest(14);
    // One of three is frozen: etcd refuses to let another one go.
    let pod = follower(&sim);
    let until_then = sim.now + 2 * MINUTE;
    if let Some(process) = sim.processes.get_mut(&pod) {
        process.frozen_until = until_then;
    }
    sim.edit(|intent| intent.size = 1);
    pass(&mut sim, 100_000);
    let serving = sim.processes.values().filter(|process| process.serves).count();
    assert!(serving >= sim.ledger.conf.len().min(2), "no pod goes before its member");
    rests(&mut sim);
    assert_eq!(sim.ledger.conf.len(), 1);
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
        assert_eq!(sim.ledger.founded.len(), 1);
    }
}

#[test]
fn all_pods_deleted_the_same_cluster_comes_back() {
    let mut sim = at_rest(16);
    let (before, cluster) = (ids(&sim), cluster_id(&sim));
    let writes = sim.ledger.acknowledged.len();
    let names: Vec<_> = sim.kube.now.pods.keys().cloned().collect();
    for name in names {
        sim.delete_pod(&name, None);
    }
    rests(&mut sim);
    assert_eq!((ids(&sim), cluster_id(&sim)), (before, cluster));
    assert!(sim.ledger.acknowledged.len() > writes);
}

/// A gentle world with a cluster of three of this version that is at rest.
fn at_rest_with(version: EtcdVersion) -> Sim<'static> {
    let mut sim = Sim::new(18, Profile::gentle(), &REAL, true);
    sim.create_cluster(Intent { version, ..three() });
    sim.wake_operator(0, 5);
    rests(&mut sim);
    sim.calm = false;
    sim
}

#[test]
fn from_the_oldest_to_the_newest_and_back() {
    let mut sim = at_rest_with(EtcdVersion::new(3, 2, 13));
    let before = ids(&sim);
    for (minor, patch) in [(3, 27), (4, 23), (5, 35), (6, 16), (7, 3), (6, 16), (5, 35)] {
        sim.edit(|intent| intent.version = EtcdVersion::new(3, minor, patch));
        rests(&mut sim);
        sim.calm = false;
        assert!(sim.processes.values().all(|process| process.version.minor() == minor));
    }
    assert_eq!(ids(&sim), before);
}

#[test]
fn a_downgrade_that_is_taken_back_is_cancelled() {
    for wait in [100, 700, 3000, 20_000] {
        let mut sim = at_rest_with(EtcdVersion::new(3, 7, 3));
        sim.edit(|intent| intent.version = EtcdVersion::new(3, 6, 16));
        pass(&mut sim, wait);
        sim.edit(|intent| intent.version = EtcdVersion::new(3, 7, 3));
        rests(&mut sim);
        assert_eq!(sim.ledger.downgrade, None);
        assert!(sim.processes.values().all(|process| process.version.minor() == 7));
    }
}

/// A member crashes for good, and so does whoever takes its place, for half an hour; ten minutes of it pass.
fn crashes_wherever_it_goes(subject: &Subject) -> (Sim<'_>, BTreeSet<MemberId>) {
    let mut sim = Sim::new(19, Profile::gentle(), subject, true);
    sim.create_cluster(three());
    sim.wake_operator(0, 5);
    rests(&mut sim);
    sim.calm = false;
    let before = ids(&sim);
    let pod = follower(&sim);
    let volume = sim.processes[&pod].volume;
    let end = sim.now + 30 * MINUTE;
    for node in &mut sim.nodes {
        node.crashes_until = end;
    }
    if let Some(volume) = sim.volumes.get_mut(&volume) {
        volume.crashes_until = end;
    }
    sim.container_ends(pod, 2, "signal: out of memory");
    let later = sim.now + 10 * MINUTE;
    while sim.step(later) {}
    (sim, before)
}

#[test]
fn a_crash_loop_that_replacing_does_not_end_is_left_alone() {
    let (mut sim, before) = crashes_wherever_it_goes(&REAL);
    assert_eq!(sim.broken, None);
    assert_eq!(
        ids(&sim).intersection(&before).count(),
        2,
        "it is replaced once, the others stay"
    );
    let report = sim.kube.now.cluster.as_ref().and_then(|cluster| cluster.report.clone());
    assert_eq!(report.map(|report| report.degraded.reason), Some("CrashesAgain"));
    for node in &mut sim.nodes {
        node.crashes_until = 0;
    }
    rests(&mut sim);
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

/// A cluster of three elsewhere, and one that is to take it over.
fn moves_in(seed: u64) -> Sim<'static> {
    let mut sim = Sim::new(seed, Profile::gentle(), &REAL, true);
    let old: Vec<MemberName> = (0..3).map(|number| MemberName(format!("old-{number}"))).collect();
    let intent = Intent {
        adopt: old.iter().map(crate::elsewhere::endpoint).collect(),
        ..three()
    };
    let version = intent.version.clone();
    sim.create_cluster(intent);
    sim.found_elsewhere(&old, &version);
    sim.wake_operator(0, 5);
    sim
}

fn ours(sim: &Sim<'_>) -> usize {
    let ours = |line: &&stateward_plan::etcd::Listed| line.peer_urls.iter().any(|url| url.contains(".demo."));
    sim.ledger.conf.iter().filter(ours).count()
}

fn report_says(sim: &Sim<'_>, reason: &str) -> bool {
    let cluster = sim.kube.now.cluster.as_ref();
    cluster
        .and_then(|cluster| cluster.report.as_ref())
        .is_some_and(|report| report.progressing.reason == reason)
}

#[test]
fn a_cluster_from_elsewhere_is_taken_over_whenever_the_operator_dies() {
    for steps in 0..60 {
        let mut sim = moves_in(steps);
        sim.operators[0].dies_in = Some(u32::try_from(steps).unwrap_or(0));
        until(&mut sim, "take the old cluster over", |sim| {
            ours(sim) == 3 && report_says(sim, "WaitingForRelease")
        });
        assert_eq!(sim.ledger.conf.len(), 6, "nobody leaves without the user's word");
        pass(&mut sim, MINUTE);
        assert_eq!(sim.ledger.conf.len(), 6, "nobody leaves without the user's word");
        sim.edit(|intent| intent.release_adopted = true);
        rests(&mut sim);
        assert_eq!((ours(&sim), sim.ledger.conf.len()), (3, 3));
        assert_eq!(sim.ledger.founded.len(), 1, "it is the old cluster");
    }
}

#[test]
fn nothing_is_founded_while_the_cluster_to_take_over_is_silent() {
    let mut sim = moves_in(1);
    for process in sim.processes.values_mut() {
        process.frozen_until = 5 * MINUTE;
    }
    pass(&mut sim, 4 * MINUTE);
    assert!(report_says(&sim, "WaitingForAdopted"));
    assert!(sim.kube.now.pods.is_empty(), "a pod was made");
    rests_after_release(&mut sim);
}

fn rests_after_release(sim: &mut Sim<'_>) {
    until(sim, "wait for the user", |sim| report_says(sim, "WaitingForRelease"));
    sim.edit(|intent| intent.release_adopted = true);
    rests(sim);
}

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
