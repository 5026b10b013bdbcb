//! Certificates from another kind of source.

use super::{MINUTE, pass, rests, three};
use crate::profile::Profile;
use crate::sim::Sim;
use crate::subject::{REAL, Subject};

/// A cluster of three with TLS that is at rest.
fn at_rest_with_tls(subject: &Subject) -> Sim<'_> {
    for seed in 0..20 {
        let mut sim = Sim::new(seed, Profile::gentle(), subject, true);
        sim.create_cluster(three());
        if sim.kube.now.secrets.is_none() {
            continue;
        }
        sim.wake_operator(0, 5);
        rests(&mut sim);
        sim.calm = false;
        return sim;
    }
    panic!("some clusters have TLS");
}

#[test]
fn the_kind_of_tls_changes_by_steps_wherever_the_operator_dies() {
    for steps in 0..30 {
        let mut sim = at_rest_with_tls(&REAL);
        let before = sim.authorities_are_one();
        sim.operators[0].dies_in = Some(steps);
        sim.change_kind_of_tls();
        pass(&mut sim, MINUTE);
        rests(&mut sim);
        let after = sim.authorities_are_one();
        assert!(after.is_some() && after != before, "another authority alone is trusted");
    }
}
