//! Alarms, and what keeps members from running: each observed case.

use stateward_etcd::cluster::{Alarm, MemberId, Reason};

use super::{at_rest, cluster_id, follower, ids, pass, rests, scene, three, until};
use crate::profile::Profile;
use crate::queue::Id;
use crate::sim::Sim;
use crate::subject::REAL;

fn available(sim: &Sim<'_>) -> Option<Reason> {
    let cluster = sim.kube.now.cluster.as_ref();
    let report = cluster.and_then(|cluster| cluster.report.as_ref());
    report.map(|report| report.available.reason)
}

fn leader(sim: &Sim<'_>) -> Id {
    let leader = sim.processes.iter().find(|(_, process)| process.leads);
    *leader.expect("a leader").0
}

fn id_of(sim: &Sim<'_>, process: Id) -> MemberId {
    sim.data_of(process).expect("data").id
}

#[test]
fn any_alarm_is_reported_and_cleared_and_costs_no_member() {
    for alarm in [Alarm::Corrupt, Alarm::NoSpace] {
        for of in [None, Some(MemberId(0)), Some(MemberId(0xdead))] {
            // given a cluster whose members agree
            let mut sim = at_rest(40);
            let before = ids(&sim);
            let of = of.unwrap_or_else(|| id_of(&sim, follower(&sim)));
            // when an alarm is raised for a member, for no member, or for a removed one
            let cluster = cluster_id(&sim).0;
            sim.raise(cluster, of, alarm);
            // then the status reports it, it is cleared, and all members stay.
            until(&mut sim, "report it", |sim| {
                available(sim) == Some(Reason::WritesRefused)
            });
            rests(&mut sim);
            assert!(sim.alarms.is_empty());
            assert_eq!(available(&sim), Some(Reason::QuorumServes));
            assert_eq!(ids(&sim), before);
        }
    }
}

#[test]
fn the_one_that_differs_is_replaced_whoever_leads_and_whomever_the_alarm_names() {
    for leads in [false, true] {
        for named_rightly in [false, true] {
            let mut sim = at_rest(41);
            let before = ids(&sim);
            let wrong = if leads { leader(&sim) } else { follower(&sim) };
            let wrong_id = id_of(&sim, wrong);
            let other = before.iter().find(|id| **id != wrong_id).copied().expect("another");
            sim.change_content(wrong);
            let cluster = cluster_id(&sim).0;
            sim.raise(cluster, if named_rightly { wrong_id } else { other }, Alarm::Corrupt);
            rests(&mut sim);
            assert!(sim.alarms.is_empty());
            assert!(!ids(&sim).contains(&wrong_id));
            assert_eq!(ids(&sim).intersection(&before).count(), 2);
        }
    }
}

#[test]
fn without_a_majority_nothing_is_changed_and_the_hashes_are_named() {
    let mut sim = scene(42);
    sim.edit(|intent| intent.size = 2);
    rests(&mut sim);
    sim.calm = false;
    let before = ids(&sim);
    sim.profile.catastrophes = true;
    let (cluster, wrong) = (cluster_id(&sim).0, follower(&sim));
    sim.change_content(wrong);
    sim.raise(cluster, MemberId(0), Alarm::Corrupt);
    until(&mut sim, "report it", |sim| {
        super::report_says(sim, Reason::DataDiffers)
    });
    pass(&mut sim, 60_000);
    assert_eq!(ids(&sim), before);
    assert!(sim.raised(cluster, Alarm::Corrupt));
    let cluster = sim.kube.now.cluster.as_ref().and_then(|cluster| cluster.report.clone());
    let message = cluster.expect("a report").waiting;
    assert!(
        message.contains("has 00000000 at revision") && message.contains("from a backup"),
        "{message}"
    );
}

#[test]
fn a_learner_that_cannot_start_does_not_keep_an_alarm_raised() {
    // Given a cluster of three that is to be five, with a node for each member and none for a fourth,
    let mut sim = at_rest(43);
    for node in 0..sim.nodes.len() {
        sim.nodes[node].no_images_until = u64::MAX;
    }
    pass(&mut sim, 6000);
    sim.edit(|intent| intent.size = 5);
    until(&mut sim, "add a learner", |sim| sim.truth.conf.len() == 4);
    pass(&mut sim, 10_000);
    // when space runs out, and when an alarm for no member is raised,
    for alarm in [Alarm::NoSpace, Alarm::Corrupt] {
        let cluster = cluster_id(&sim).0;
        sim.raise(cluster, MemberId(0), alarm);
        // then it is cleared, although the learner never starts.
        until(&mut sim, "clear it", |sim| sim.alarms.is_empty());
        assert_eq!(sim.truth.conf.len(), 4);
    }
}

#[test]
fn an_image_that_cannot_be_pulled_is_reported() {
    // Given nodes that cannot pull images, when a cluster is created,
    let mut sim = Sim::new(45, Profile::gentle(), &REAL, true);
    for node in 0..sim.nodes.len() {
        sim.nodes[node].no_images_until = 60_000;
    }
    sim.create_cluster(three());
    sim.wake_operator(0, 5);
    // then it is reported while it lasts, and in the end the cluster is healthy.
    until(&mut sim, "report it", |sim| {
        degraded(sim) == Some(Reason::ImagePullBackOff)
    });
    assert!(sim.now < 60_000);
    rests(&mut sim);
    assert_eq!(degraded(&sim), Some(Reason::AsExpected));
}

fn degraded(sim: &Sim<'_>) -> Option<Reason> {
    let cluster = sim.kube.now.cluster.as_ref();
    let report = cluster.and_then(|cluster| cluster.report.as_ref());
    report.map(|report| report.degraded.reason)
}
