//! A member that crashes again and again.

use std::collections::BTreeSet;

use stateward_etcd::cluster::{MemberId, Reason};

use super::{MINUTE, follower, ids, rests, three};
use crate::profile::Profile;
use crate::sim::Sim;
use crate::subject::{REAL, Subject};

/// A member crashes repeatedly, and so does its replacement, for half an hour; ten minutes of it pass.
fn crashes_wherever_it_goes(subject: &Subject) -> (Sim<'_>, BTreeSet<MemberId>) {
    let mut sim = Sim::new(19, Profile::gentle(), subject, true);
    sim.create_cluster(three());
    sim.wake_operator(0, 5);
    rests(&mut sim);
    sim.calm = false;
    let before = ids(&sim);
    let pod = follower(&sim);
    let volume = sim.processes[&pod].volume;
    let end = sim.now + 30 * MINUTE;
    for node in &mut sim.nodes {
        node.crashes_until = end;
    }
    if let Some(volume) = sim.volumes.get_mut(&volume) {
        volume.crashes_until = end;
    }
    sim.container_ends(pod, 2, crate::etcd::UNKNOWN_REASON);
    let later = sim.now + 10 * MINUTE;
    while sim.step(later) {}
    (sim, before)
}

#[test]
fn a_crash_loop_that_replacing_does_not_end_is_left_alone() {
    let (mut sim, before) = crashes_wherever_it_goes(&REAL);
    assert_eq!(sim.broken, None);
    assert_eq!(
        ids(&sim).intersection(&before).count(),
        2,
        "it is replaced once, the others stay"
    );
    let report = sim.kube.now.cluster.as_ref().and_then(|cluster| cluster.report.clone());
    assert_eq!(report.map(|report| report.degraded.reason), Some(Reason::CrashesAgain));
    for node in &mut sim.nodes {
        node.crashes_until = 0;
    }
    rests(&mut sim);
}
