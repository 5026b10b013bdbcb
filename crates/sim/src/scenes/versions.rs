//! From one version of etcd to another.

use stateward_etcd::api::EtcdVersion;
use stateward_etcd::cluster::Intent;

use super::{ids, pass, rests, three};
use crate::profile::Profile;
use crate::sim::Sim;
use crate::subject::REAL;

/// A converged cluster of three of this version, without faults.
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
fn a_downgrade_that_is_reverted_is_cancelled() {
    for wait in [100, 700, 3000, 20_000] {
        let mut sim = at_rest_with(EtcdVersion::new(3, 7, 3));
        sim.edit(|intent| intent.version = EtcdVersion::new(3, 6, 16));
        pass(&mut sim, wait);
        sim.edit(|intent| intent.version = EtcdVersion::new(3, 7, 3));
        rests(&mut sim);
        assert_eq!(sim.truth.downgrade, None);
        assert!(sim.processes.values().all(|process| process.version.minor() == 7));
    }
}

#[test]
fn a_change_of_version_that_is_reverted_at_any_moment_ends_in_one_version() {
    for (from, to) in [
        ((4, 30), (5, 35)),
        ((5, 35), (6, 16)),
        ((6, 16), (7, 3)),
        ((6, 16), (5, 35)),
    ] {
        for wait in [10, 200, 800, 2000, 4000, 7000, 11_000, 16_000, 25_000] {
            let version = |(minor, patch)| EtcdVersion::new(3, minor, patch);
            let mut sim = at_rest_with(version(from));
            sim.edit(|intent| intent.version = version(to));
            pass(&mut sim, wait);
            sim.edit(|intent| intent.version = version(from));
            rests(&mut sim);
            // etcd before 3.6 cannot downgrade once all members run the new version.
            let expected = if from.0 < to.0 && to.0 <= 5 && sim.truth.floor == to.0 {
                to.0
            } else {
                from.0
            };
            assert!(
                sim.processes
                    .values()
                    .all(|process| process.version.minor() == expected),
                "3.{} to 3.{} and back after {wait} ms",
                from.0,
                to.0
            );
        }
    }
}
