//! A quorum that is lost or only seems to be: what is given up, on which evidence, and when.

use stateward_etcd::cluster::{Intent, MemberName, NodeEnd, Recovery};

use super::{MINUTE, at_rest, cluster_id, ids, pass, rests, three, until};
use crate::kube::node_name;
use crate::mutants::recovery_scenes::*;
use crate::profile::Profile;
use crate::sim::Sim;
use crate::subject::REAL;

fn waiting(sim: &Sim<'_>) -> String {
    let report = sim
        .kube
        .now
        .cluster
        .as_ref()
        .and_then(|cluster| cluster.report.as_ref());
    report.map_or_else(String::new, |report| report.waiting.clone())
}

fn asks_for_confirmation(sim: &Sim<'_>, members: &[MemberName]) {
    let message = waiting(sim);
    for member in members {
        assert!(message.contains(&member.0), "{member} is not named: {message}");
    }
    assert!(
        message.contains("stateward.dev/confirm-lost=") && message.contains("kubectl taint node node-"),
        "it does not say what to type: {message}"
    );
}

#[test]
fn members_that_are_only_cut_off_are_not_given_up() {
    for recovery in [Recovery::FromBackup(DELAY), Recovery::FromSurvivor(DELAY)] {
        for by_force in [false, true] {
            // given two of three members in a zone that the API server does not reach
            let mut sim = backed_up(&REAL, recovery, false);
            let (before, cluster, members) = (ids(&sim), cluster_id(&sim), two(&sim));
            let called = names(&sim, &members);
            let nodes = cut_off(&mut sim, &members);
            let (written, claims) = (sim.truth.acknowledged.len(), sim.kube.now.claims.len());
            pass(&mut sim, 2 * MINUTE);
            if by_force {
                // when a user deletes their pods by force
                for member in &members {
                    sim.remove_pod(*member);
                }
            }
            // when much more than every delay has passed
            pass(&mut sim, 4 * MINUTE);
            // then they continue to serve, nothing was changed, and the status says what to do
            assert!(sim.truth.acknowledged.len() > written + 200, "they do not serve");
            assert_eq!((ids(&sim), sim.kube.now.claims.len()), (before.clone(), claims));
            asks_for_confirmation(&sim, &called);
            // and when they are back, it is the same cluster
            for node in nodes {
                sim.node_back(node);
            }
            sim.reconnect();
            rests(&mut sim);
            assert_eq!((ids(&sim), cluster_id(&sim)), (before, cluster));
        }
    }
}

#[test]
fn members_whose_pods_and_claims_are_gone_are_not_given_up_while_they_may_run() {
    assert_eq!(deleted_by_force(&REAL), None);
    assert_eq!(survivor_runs_on(&REAL), None);
}

#[test]
fn members_of_nodes_out_of_service_come_back_elsewhere() {
    // given a majority on nodes without power, on volumes that other nodes can use
    let mut sim = backed_up(&REAL, Recovery::FromBackup(DELAY), false);
    let (before, members) = (ids(&sim), two(&sim));
    let nodes: Vec<usize> = members.iter().map(|id| sim.processes[id].node).collect();
    for node in &nodes {
        sim.node_down(*node);
    }
    pass(&mut sim, 10 * MINUTE);
    assert!(sim.truth.restored.is_empty(), "it was given up");
    // when an administrator confirms it
    for node in &nodes {
        sim.kube
            .ended_nodes_mut()
            .insert(node_name(*node), NodeEnd::OutOfService);
    }
    rests(&mut sim);
    // then they come back, as the members they were
    assert_eq!(ids(&sim), before);
}

#[test]
fn a_quorum_is_given_up_when_the_user_confirms_it_and_old_claims_are_kept() {
    for recovery in [Recovery::FromBackup(DELAY), Recovery::FromSurvivor(DELAY)] {
        // given a majority on nodes that are destroyed with their disks
        let mut sim = backed_up(&REAL, recovery, true);
        let before = ids(&sim);
        let lost = destroyed(&mut sim);
        pass(&mut sim, 10 * MINUTE);
        assert_eq!(ids(&sim), before, "it was given up without proof");
        asks_for_confirmation(&sim, &lost);
        // when the user confirms it
        sim.edit(|intent| intent.confirmed_lost.extend(lost.clone()));
        sim.calm = true;
        sim.settled = None;
        until(&mut sim, "recover", |sim| {
            sim.present().is_some_and(|(_, record)| record.old_claims.is_some())
        });
        pass(&mut sim, 5 * MINUTE);
        // then there is a new history, and the claims of the old one are kept for as long as the spec says
        assert!(
            lost.iter().all(|name| sim.kube.now.claims.contains_key(name)),
            "old claims are gone"
        );
        rests(&mut sim);
        assert!(
            lost.iter().all(|name| !sim.kube.now.claims.contains_key(name)),
            "old claims stay"
        );
    }
}

#[test]
fn a_volume_that_no_node_can_use_is_not_lost() {
    // given
    let mut sim = zone_sleeps(&REAL);
    let (before, cluster) = (ids(&sim), cluster_id(&sim));
    // when much more than every delay has passed
    pass(&mut sim, 30 * MINUTE);
    // then nothing is given up, and the status says what is needed
    assert_eq!(ids(&sim), before);
    assert!(waiting(&sim).contains("confirm-lost="), "{}", waiting(&sim));
    // and when the zone has nodes again, it is the same cluster
    for node in 0..sim.nodes.len() {
        sim.nodes[node].gone = false;
        sim.node_back(node);
    }
    rests(&mut sim);
    assert_eq!((ids(&sim), cluster_id(&sim)), (before, cluster));
}

#[test]
fn the_only_member_is_replaced_by_a_sealed_pod_before_others_join() {
    assert_eq!(only_member_starts_again(&REAL), None);
}

#[test]
fn a_recovery_from_a_survivor_ends_whenever_the_operator_crashes() {
    for steps in 0..30 {
        let mut sim = backed_up(&REAL, Recovery::FromSurvivor(DELAY), false);
        for name in names(&sim, &two(&sim)) {
            sim.delete_claim(&name);
            sim.delete_pod(&name, None);
        }
        sim.judge_loss(false);
        until(&mut sim, "begin to recover", |sim| {
            sim.present().is_some_and(|(_, record)| record.recovery.is_some())
        });
        sim.operators[0].crashes_in = Some(steps);
        rests(&mut sim);
        assert_eq!(sim.lineages, 1, "a member was made the only one twice");
    }
}

#[test]
fn nothing_is_bootstrapped_beside_voters_that_are_not_ours() {
    // given a foreign cluster that one of our members has joined
    let mut sim = Sim::new(3, Profile::gentle(), &REAL, true);
    let old: Vec<MemberName> = (0..3).map(|number| MemberName(format!("old-{number}"))).collect();
    let intent = Intent {
        adopt: old.iter().map(crate::elsewhere::endpoint).collect(),
        recovery: Recovery::FromBackup(DELAY),
        ..three()
    };
    let version = intent.version.clone();
    sim.create_cluster(intent);
    sim.create_elsewhere(&old, &version);
    sim.wake_operator(0, 5);
    let ours = |sim: &Sim<'_>| {
        let of_us = |line: &&stateward_etcd::cluster::Listed| !line.learner && line.peer_urls[0].contains(".demo.");
        sim.truth.conf.iter().filter(of_us).count()
    };
    until(&mut sim, "join", |sim| ours(sim) == 1);
    sim.take_backup();
    pass(&mut sim, 2000);
    let before = ids(&sim);
    // when ours loses its data while the operator does not reach the others
    for process in sim
        .processes
        .values_mut()
        .filter(|process| process.name.0.starts_with("old-"))
    {
        process.frozen_until = 20 * MINUTE;
    }
    let names: Vec<MemberName> = sim.kube.now.pods.keys().cloned().collect();
    for name in names {
        sim.delete_claim(&name);
        sim.delete_pod(&name, None);
    }
    pass(&mut sim, 10 * MINUTE);
    // then no second cluster is bootstrapped, and when they are back it is the same one
    assert_eq!((ids(&sim), sim.truth.bootstrapped.len()), (before, 1));
    assert!(sim.truth.restored.is_empty());
}

#[test]
fn a_backup_of_an_earlier_cluster_of_the_name_is_used_only_with_consent() {
    // given
    let mut sim = loses_everything_after_another(&REAL);
    // when
    pass(&mut sim, 10 * MINUTE);
    // then it is not used, and the status names the way out
    assert!(sim.truth.restored.is_empty());
    assert!(
        waiting(&sim).contains("spec.recovery.backupRef.name to nightly"),
        "{}",
        waiting(&sim)
    );
    // and it is used when the user names it
    sim.edit(|intent| intent.recovery_backup = Some("nightly".into()));
    rests(&mut sim);
    assert_eq!(sim.truth.restored.len(), 1);
}

#[test]
fn a_backup_that_the_user_does_not_name_any_more_is_not_used() {
    for followed in [false, true] {
        let (sim, own) = named_by_mistake(&REAL, followed);
        assert_eq!(sim.broken, None);
        let record = sim.present().map(|(_, record)| record.clone()).expect("a record");
        let source = record.restore.expect("a restore").source;
        assert_eq!(source.location, format!("backup-{own}"));
    }
}

#[test]
fn a_survivor_does_not_become_the_cluster_without_consent_that_lasts() {
    let mut sim = consent_is_taken_back(&REAL);
    assert_eq!(sim.broken, None);
    // then nobody is made the only member, and the survivor serves as what it was
    assert_eq!(sim.lineages, 0);
    assert!(sim.present().is_some_and(|(_, record)| record.recovery.is_none()));
    assert_eq!(sim.processes.len(), 1);
    // and the way is still open
    sim.edit(|intent| intent.recovery = Recovery::FromSurvivor(DELAY));
    rests(&mut sim);
    assert_eq!(sim.lineages, 1);
}

#[test]
fn a_clock_that_is_ahead_does_not_shorten_the_delay() {
    assert_eq!(clock_is_ahead(&REAL), None);
}

#[test]
fn the_survivor_is_who_knows_most_to_be_committed() {
    assert_eq!(tail_and_term(&REAL), None);
}

#[test]
fn a_pod_that_vanished_unobserved_is_proven_by_its_node() {
    // given two of three whose pods and claims are deleted while no operator runs
    let mut sim = at_rest(31);
    sim.edit(|intent| intent.recovery = Recovery::FromSurvivor(DELAY));
    pass(&mut sim, 5000);
    sim.stop_operator(0);
    for name in names(&sim, &two(&sim)) {
        sim.delete_claim(&name);
        sim.delete_pod(&name, None);
    }
    sim.judge_loss(false);
    pass(&mut sim, MINUTE / 2);
    assert!(sim.processes.len() == 1, "they have ended");
    // when it starts again, having missed what their kubelets reported
    sim.revive_operator(0);
    // then their nodes, which follow the API server, are the evidence
    rests(&mut sim);
}
