//! A cluster from elsewhere is taken over.

use stateward_plan::etcd::{Intent, MemberName, Reason};

use super::{MINUTE, pass, report_says, rests, three, until};
use crate::profile::Profile;
use crate::sim::Sim;
use crate::subject::REAL;

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

#[test]
fn a_cluster_from_elsewhere_is_taken_over_whenever_the_operator_dies() {
    for steps in 0..60 {
        let mut sim = moves_in(steps);
        sim.operators[0].dies_in = Some(u32::try_from(steps).unwrap_or(0));
        until(&mut sim, "take the old cluster over", |sim| {
            ours(sim) == 3 && report_says(sim, Reason::WaitingForRelease)
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
    assert!(report_says(&sim, Reason::WaitingForAdopted));
    assert!(sim.kube.now.pods.is_empty(), "a pod was made");
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
fn nobody_joins_a_cluster_whose_members_it_could_not_talk_to() {
    let mut sim = moves_in(2);
    sim.edit(|intent| intent.tls = true);
    pass(&mut sim, 2 * MINUTE);
    assert!(report_says(&sim, Reason::AdoptedTlsDiffers));
    assert!(sim.kube.now.pods.is_empty(), "a pod was made");
    assert_eq!(sim.ledger.conf.len(), 3, "somebody joined");
    sim.edit(|intent| intent.tls = false);
    rests_after_release(&mut sim);
}
