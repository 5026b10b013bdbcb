//! Adoption of a cluster that something else created.

use stateward_etcd::cluster::{Intent, MemberName, Reason};

use super::{MINUTE, pass, report_says, rests, three, until};
use crate::profile::Profile;
use crate::sim::Sim;
use crate::subject::REAL;

/// A foreign cluster of three, and a cluster that is to adopt it.
fn adopts(seed: u64) -> Sim<'static> {
    let mut sim = Sim::new(seed, Profile::gentle(), &REAL, true);
    let old: Vec<MemberName> = (0..3).map(|number| MemberName(format!("old-{number}"))).collect();
    let intent = Intent {
        adopt: old.iter().map(crate::elsewhere::endpoint).collect(),
        ..three()
    };
    let version = intent.version.clone();
    sim.create_cluster(intent);
    sim.create_elsewhere(&old, &version);
    sim.wake_operator(0, 5);
    sim
}

fn ours(sim: &Sim<'_>) -> usize {
    let ours = |line: &&stateward_etcd::cluster::Listed| line.peer_urls.iter().any(|url| url.contains(".demo."));
    sim.truth.conf.iter().filter(ours).count()
}

#[test]
fn a_foreign_cluster_is_adopted_whenever_the_operator_crashes() {
    for steps in 0..60 {
        let mut sim = adopts(steps);
        sim.operators[0].crashes_in = Some(u32::try_from(steps).unwrap_or(0));
        until(&mut sim, "adopt the old cluster", |sim| {
            ours(sim) == 3 && report_says(sim, Reason::WaitingForRelease)
        });
        assert_eq!(sim.truth.conf.len(), 6, "no member leaves before the user asks for it");
        pass(&mut sim, MINUTE);
        assert_eq!(sim.truth.conf.len(), 6, "no member leaves before the user asks for it");
        sim.edit(|intent| intent.release_adopted = true);
        rests(&mut sim);
        assert_eq!((ours(&sim), sim.truth.conf.len()), (3, 3));
        assert_eq!(sim.truth.bootstrapped.len(), 1, "it is the old cluster");
    }
}

#[test]
fn nothing_is_bootstrapped_while_the_cluster_to_adopt_does_not_reply() {
    let mut sim = adopts(1);
    for process in sim.processes.values_mut() {
        process.frozen_until = 5 * MINUTE;
    }
    pass(&mut sim, 4 * MINUTE);
    assert!(report_says(&sim, Reason::WaitingForAdopted));
    assert!(sim.kube.now.pods.is_empty(), "a pod was created");
    rests_after_release(&mut sim);
}

fn rests_after_release(sim: &mut Sim<'_>) {
    until(sim, "wait for the user", |sim| {
        report_says(sim, Reason::WaitingForRelease)
    });
    sim.edit(|intent| intent.release_adopted = true);
    rests(sim);
}

#[test]
fn no_member_joins_a_cluster_whose_members_it_cannot_reach() {
    let mut sim = adopts(2);
    sim.edit(|intent| intent.tls = true);
    pass(&mut sim, 2 * MINUTE);
    assert!(report_says(&sim, Reason::AdoptedTlsDiffers));
    assert!(sim.kube.now.pods.is_empty(), "a pod was created");
    assert_eq!(sim.truth.conf.len(), 3, "a member joined");
    sim.edit(|intent| intent.tls = false);
    rests_after_release(&mut sim);
}
