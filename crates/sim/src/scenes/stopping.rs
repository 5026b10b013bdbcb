//! Members whose pods are deleted while something else is in progress: they still reply, but will soon have stopped.

use std::time::Duration;

use jiff::Timestamp;
use stateward_etcd::api::EtcdVersion;
use stateward_etcd::cluster::{ClusterId, Intent, MemberName, Plan, Reason, Record, Recovery, World, plan};

use super::{cluster_id, report_says, rests, three, until};
use crate::profile::Profile;
use crate::queue::Id;
use crate::rules::name;
use crate::sim::Sim;
use crate::subject::{REAL, Subject};

/// A planner that counts on members that are being stopped.
const TRUSTING: Subject = Subject {
    name: "counts on a stopping member",
    plan: trusting,
    ..REAL
};

fn trusting(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut blind = world.clone();
    blind.pods.values_mut().for_each(|pod| pod.terminating = false);
    plan(intent, record, &blind, now)
}

fn at_rest<'a>(subject: &'a Subject, version: EtcdVersion) -> Sim<'a> {
    at_rest_by(23, subject, version)
}

fn at_rest_by<'a>(seed: u64, subject: &'a Subject, version: EtcdVersion) -> Sim<'a> {
    let mut sim = Sim::new(seed, Profile::gentle(), subject, true);
    sim.create_cluster(Intent { version, ..three() });
    sim.wake_operator(0, 5);
    rests(&mut sim);
    sim.calm = false;
    sim
}

fn followers(sim: &Sim<'_>) -> Vec<(Id, MemberName)> {
    let followers = sim.processes.iter().filter(|(_, process)| !process.leads);
    followers.map(|(id, process)| (*id, process.name.clone())).collect()
}

/// One of three members is on a lost node, and another one has its pod and claim deleted while the size is set to one.
fn shrinks_while_one_stops(seed: u64, subject: &Subject) -> Sim<'_> {
    let mut sim = at_rest_by(seed, subject, EtcdVersion::new(3, 6, 16));
    let followers = followers(&sim);
    let ((_, doomed), (away, _)) = (&followers[0], &followers[1]);
    sim.edit(|intent| intent.replace_after = Duration::from_secs(60));
    let node = sim.processes[away].node;
    sim.delete_claim(doomed);
    sim.delete_pod(doomed, None);
    sim.nodes[node].down = true;
    sim.nodes[node].gone = true;
    sim.processes.retain(|_, process| process.node != node);
    sim.node_unavailable(node);
    sim.edit(|intent| intent.size = 1);
    sim
}

#[test]
fn no_member_is_removed_on_the_reply_of_one_that_stops() {
    let mut sim = shrinks_while_one_stops(23, &REAL);
    rests(&mut sim);
    assert_eq!(sim.truth.conf.len(), 1);
    assert!(!sim.truth.majority_lost);
}

#[test]
fn a_planner_that_counts_on_one_that_stops_is_caught_when_it_removes() {
    // The operator must observe it before it has stopped.
    let caught = |seed: u64| {
        let mut sim = shrinks_while_one_stops(seed, &TRUSTING);
        let soon = sim.now + super::MINUTE;
        while sim.step(soon) {}
        sim.broken.is_some_and(|broken| broken.rule == name::QUORUM)
    };
    assert!((0..40).any(caught));
}

/// Before 3.4 an added voter raises the quorum immediately: it must not be added while another one stops.
fn grows_while_one_stops(seed: u64, subject: &Subject) -> Sim<'_> {
    let mut sim = at_rest_by(seed, subject, EtcdVersion::new(3, 3, 27));
    let (_, stops) = followers(&sim).remove(0);
    sim.delete_pod(&stops, None);
    sim.edit(|intent| intent.size = 5);
    sim
}

#[test]
fn no_voter_is_added_while_another_stops() {
    let mut sim = grows_while_one_stops(23, &REAL);
    rests(&mut sim);
    assert_eq!(sim.truth.conf.len(), 5);
}

#[test]
fn a_planner_that_counts_on_one_that_stops_is_caught_when_it_adds() {
    // The operator must observe it before it has stopped.
    let caught = |seed: u64| {
        let mut sim = grows_while_one_stops(seed, &TRUSTING);
        let soon = sim.now + super::MINUTE;
        while sim.step(soon) {}
        sim.broken.is_some_and(|broken| broken.rule == name::QUORUM)
    };
    assert!((0..40).any(caught));
}

/// A removal that timed out happened nevertheless, unobserved, and then one of the two remaining members lost its data.
/// The record still counts three.
fn lost_after_an_unobserved_removal() -> Sim<'static> {
    let mut sim = at_rest(&REAL, EtcdVersion::new(3, 6, 16));
    sim.edit(|intent| intent.recovery = Recovery::Report);
    sim.stop_operator(0);
    let followers = followers(&sim);
    let ((_, lost), (removed, _)) = (&followers[0], &followers[1]);
    let id = sim.data_of(*removed).expect("data").id;
    let ClusterId(cluster) = cluster_id(&sim);
    sim.remove_member(ClusterId(cluster), id).expect("removed");
    until(&mut sim, "learn that it was removed", |sim| sim.truth.conf.len() == 2);
    sim.delete_claim(lost);
    sim.delete_pod(lost, None);
    sim.revive_operator(0);
    sim
}

#[test]
fn a_quorum_that_an_unobserved_removal_made_smaller_is_reported_lost() {
    // given one of two voters lost, when the record still counts the third
    let mut sim = lost_after_an_unobserved_removal();
    // then the status says so, and nothing is changed
    until(&mut sim, "report it", |sim| report_says(sim, Reason::QuorumLost));
    assert_eq!(sim.truth.conf.len(), 2);
    // and with the user's consent the survivor becomes the cluster
    sim.edit(|intent| intent.recovery = Recovery::FromSurvivor(Duration::from_secs(30)));
    rests(&mut sim);
    assert_eq!(sim.truth.conf.len(), 3);
}
