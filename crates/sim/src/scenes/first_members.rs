//! Members at their very first start, before the first probe.

use std::time::Duration;

use stateward_etcd::api::EtcdVersion;
use stateward_etcd::cluster::{Bootstrap, Intent, Storage};

use super::{MINUTE, ids, pass, rests, three, until};
use crate::profile::Profile;
use crate::sim::Sim;
use crate::subject::REAL;

/// Three members that started at the same time serve and have acknowledged writes; the operator has been down since it
/// created them.
fn bootstrapped_unobserved(storage: Storage) -> Sim<'static> {
    let mut sim = Sim::new(31, Profile::gentle(), &REAL, true);
    sim.create_cluster(Intent {
        bootstrap: Bootstrap::Parallel,
        storage,
        ..three()
    });
    sim.wake_operator(0, 5);
    until(&mut sim, "create the pods", |sim| sim.kube.now.pods.len() == 3);
    sim.stop_operator(0);
    until(&mut sim, "serve", |sim| {
        sim.processes.values().filter(|process| process.serves).count() == 3 && !sim.truth.acknowledged.is_empty()
    });
    sim
}

#[test]
fn a_first_member_that_lost_its_data_unobserved_does_not_begin_empty() {
    for storage in [Storage::Durable { bytes: 1 << 30 }, Storage::Ephemeral] {
        let mut sim = bootstrapped_unobserved(storage);
        let before = ids(&sim);
        let name = sim.kube.now.pods.keys().next().cloned().expect("a pod");
        // No other member can report that it was bootstrapped before.
        let later = sim.now + 5 * MINUTE;
        for process in sim.processes.values_mut() {
            process.frozen_until = later;
        }
        sim.delete_claim(&name);
        sim.delete_pod(&name, None);
        pass(&mut sim, 10_000);
        sim.revive_operator(0);
        sim.wake_operator(0, 5);
        pass(&mut sim, 10 * MINUTE);
        rests(&mut sim);
        assert_eq!(
            ids(&sim).intersection(&before).count(),
            2,
            "it is replaced, the others stay"
        );
    }
}

#[test]
fn a_voter_that_never_started_on_a_node_that_is_gone_begins_elsewhere() {
    let mut sim = Sim::new(32, Profile::gentle(), &REAL, true);
    sim.profile.local_volumes = true;
    sim.create_cluster(Intent {
        size: 1,
        version: EtcdVersion::new(3, 3, 27),
        replace_after: Duration::from_secs(60),
        ..three()
    });
    sim.wake_operator(0, 5);
    rests(&mut sim);
    sim.calm = false;
    let first = sim.kube.now.pods.keys().next().cloned().expect("a pod");
    sim.edit(|intent| intent.size = 2);
    let new_node = |sim: &Sim<'_>| {
        let mut pods = sim.kube.now.pods.values();
        pods.find(|pod| pod.name != first)?.node
    };
    until(&mut sim, "add a voter and give it a node", |sim| {
        new_node(sim).is_some()
    });
    let node = new_node(&sim).expect("a node");
    assert_eq!(sim.truth.conf.len(), 2);
    sim.node_down(node);
    sim.nodes[node].gone = true;
    rests(&mut sim);
    assert_eq!(sim.truth.conf.len(), 2);
}
