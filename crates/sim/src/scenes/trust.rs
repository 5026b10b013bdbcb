//! Certificates from another kind of source.

use super::{MINUTE, pass, rests, three};
use crate::profile::Profile;
use crate::sim::Sim;
use crate::subject::{REAL, Subject};

/// A converged cluster of three with TLS.
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
fn the_kind_of_tls_changes_by_steps_wherever_the_operator_crashes() {
    for steps in 0..30 {
        let mut sim = at_rest_with_tls(&REAL);
        let before = sim.only_ca();
        sim.operators[0].crashes_in = Some(steps);
        sim.change_kind_of_tls();
        pass(&mut sim, MINUTE);
        rests(&mut sim);
        let after = sim.only_ca();
        assert!(after.is_some() && after != before, "only another CA is trusted");
    }
}
