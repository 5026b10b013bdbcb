//! Scenes: histories that are written down, not drawn. One file per subject; this one has what they share.

mod adoption;
mod alarms;
mod crashes;
mod first_members;
mod peers;
mod recovery;
mod restores;
mod stopping;
mod trust;
mod versions;

use std::collections::BTreeSet;

use stateward_etcd::api::EtcdVersion;
use stateward_etcd::cluster::{Bootstrap, ClusterId, Intent, MemberId, Reason, Storage};

use crate::profile::Profile;
use crate::queue::Ms;
use crate::rng::Rng;
use crate::sim::Sim;
use crate::subject::REAL;
use crate::user::first_intent;

const MINUTE: Ms = 60_000;

/// A cluster of three, without faults.
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
        ..first_intent(&mut Rng::new(1))
    }
}

/// A converged cluster of three, without faults.
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
            fail_with_log(sim, what);
        }
    }
}

/// Stops all faults and waits until the cluster converges.
fn rests(sim: &mut Sim<'_>) {
    sim.calm = true;
    sim.come_to_rest();
    if sim.broken.is_some() {
        fail_with_log(sim, "converge");
    }
}

fn pass(sim: &mut Sim<'_>, time: Ms) {
    let end = sim.now + time;
    while sim.step(end) {}
    if sim.broken.is_some() {
        fail_with_log(sim, "keep the rules");
    }
}

fn fail_with_log(sim: &mut Sim<'_>, what: &str) -> ! {
    let log = sim.take_log().join("\n");
    panic!("it did not {what}\n{log}");
}

fn ids(sim: &Sim<'_>) -> BTreeSet<MemberId> {
    sim.truth.conf.iter().map(|line| line.id).collect()
}

fn cluster_id(sim: &Sim<'_>) -> ClusterId {
    ClusterId(*sim.truth.bootstrapped.first().expect("it was bootstrapped"))
}

fn follower(sim: &Sim<'_>) -> u32 {
    let follower = sim.processes.iter().find(|(_, process)| !process.leads);
    *follower.expect("a follower").0
}

fn report_says(sim: &Sim<'_>, reason: Reason) -> bool {
    let cluster = sim.kube.now.cluster.as_ref();
    cluster
        .and_then(|cluster| cluster.report.as_ref())
        .is_some_and(|report| report.progressing.reason == reason)
}
