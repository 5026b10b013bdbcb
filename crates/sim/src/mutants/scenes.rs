//! Scenes for mutants whose mistake is rare in drawn histories. They assert nothing: the rules do that.

use std::time::Duration;

use stateward_etcd::api::EtcdVersion;
use stateward_etcd::cluster::{Bootstrap, Effect, Intent, Recovery, Storage};

use crate::profile::Profile;
use crate::queue::{Id, Ms};
use crate::rng::Rng;
use crate::sim::{Sim, Violation};
use crate::subject::Subject;
use crate::user::first_intent;

pub(super) const MINUTE: Ms = 60_000;

pub(super) fn three() -> Intent {
    Intent {
        size: 3,
        version: EtcdVersion::new(3, 6, 16),
        bootstrap: Bootstrap::SeedThenJoin,
        storage: Storage::Durable { bytes: 1 << 30 },
        recovery: Recovery::Report,
        ..first_intent(&mut Rng::new(1))
    }
}

/// A cluster that begins, without faults.
pub(super) fn begins(subject: &Subject, intent: Intent) -> Sim<'_> {
    begins_in(18, Profile::gentle(), subject, intent)
}

fn begins_in(seed: u64, profile: Profile, subject: &Subject, intent: Intent) -> Sim<'_> {
    let mut sim = Sim::new(seed, profile, subject, false);
    sim.create_cluster(intent);
    sim.kube.now.secrets = None;
    sim.wake_operator(0, 5);
    sim
}

/// A cluster that has converged, or broke a rule before, without faults.
pub(super) fn at_rest(subject: &Subject, intent: Intent) -> Sim<'_> {
    let mut sim = begins(subject, intent);
    rest(&mut sim);
    sim
}

/// The same with TLS.
pub(super) fn at_rest_with_tls(subject: &Subject) -> Sim<'_> {
    with_tls(begins(subject, three()))
}

fn with_tls(mut sim: Sim<'_>) -> Sim<'_> {
    let secrets = crate::trust::Secrets::new(sim.truth.owner);
    sim.kube.now.secrets = Some(std::rc::Rc::new(secrets));
    rest(&mut sim);
    sim
}

pub(super) fn rest(sim: &mut Sim<'_>) {
    sim.calm = true;
    sim.come_to_rest();
    sim.calm = false;
}

pub(super) fn pass(sim: &mut Sim<'_>, time: Ms) {
    let end = sim.now + time;
    while sim.step(end) {}
}

/// Runs until the condition holds, for ten minutes at most.
pub(super) fn until(sim: &mut Sim<'_>, done: impl Fn(&Sim<'_>) -> bool) {
    let end = sim.now + 10 * MINUTE;
    while !done(sim) && sim.step(end) {}
}

/// Runs until the operator is about to execute such an effect.
pub(super) fn until_about_to(sim: &mut Sim<'_>, what: impl Fn(&Effect) -> bool) {
    until(sim, |sim| sim.operators[0].next_effect().is_some_and(&what));
}

pub(super) fn followers(sim: &Sim<'_>) -> Vec<Id> {
    let followers = sim.processes.iter().filter(|(_, process)| !process.leads);
    followers.map(|(id, _)| *id).collect()
}

/// Deletes the pods of so many followers, and the claims too where they are deleted with them.
pub(super) fn lose_followers(sim: &mut Sim<'_>, count: usize) {
    for id in followers(sim).into_iter().take(count) {
        let name = sim.processes[&id].name.clone();
        sim.delete_claim(&name);
        sim.delete_pod(&name, None);
    }
}

/// The broken rule, if there is one.
pub(super) fn after<'a>(mut sim: Sim<'a>, what: impl FnOnce(&mut Sim<'a>) -> Option<()>) -> Option<Violation> {
    what(&mut sim);
    sim.broken
}

/// The first minute of a cluster.
pub(super) fn a_minute(subject: &Subject) -> Option<Violation> {
    let mut sim = begins(subject, three());
    pass(&mut sim, MINUTE);
    sim.broken
}

/// A cluster is made.
pub(super) fn creation(subject: &Subject) -> Option<Violation> {
    at_rest(subject, three()).broken
}

/// The settings of three or five members change.
pub(super) fn rollout(subject: &Subject) -> Option<Violation> {
    rolled(subject, three())
}

pub(super) fn rollout_of_five(subject: &Subject) -> Option<Violation> {
    rolled(subject, Intent { size: 5, ..three() })
}

/// The settings of a single member without durable data change.
pub(super) fn rollout_of_one_in_memory(subject: &Subject) -> Option<Violation> {
    let intent = Intent {
        size: 1,
        storage: Storage::Ephemeral,
        ..three()
    };
    rolled(subject, intent)
}

fn rolled(subject: &Subject, intent: Intent) -> Option<Violation> {
    let mut sim = at_rest(subject, intent);
    sim.edit(|intent| intent.template = "t1".into());
    pass(&mut sim, 2 * MINUTE);
    sim.broken
}

/// The settings change to a spec that the API server rejects.
pub(super) fn a_rejected_pod(subject: &Subject) -> Option<Violation> {
    let mut sim = at_rest(subject, three());
    sim.edit(|intent| intent.template = "t1-bad-label".into());
    pass(&mut sim, MINUTE);
    sim.broken
}

pub(super) fn relabelling(subject: &Subject) -> Option<Violation> {
    let mut sim = at_rest(subject, three());
    sim.edit(|intent| intent.metadata = "m1".into());
    pass(&mut sim, 2 * MINUTE);
    sim.broken
}

/// A member's process is frozen for a while.
pub(super) fn a_frozen_member(subject: &Subject) -> Option<Violation> {
    after(at_rest(subject, three()), |sim| {
        let (id, later) = (followers(sim).first().copied()?, sim.now + MINUTE);
        sim.processes.get_mut(&id)?.frozen_until = later;
        pass(sim, MINUTE / 2);
        Some(())
    })
}

/// A member's pod is deleted while the cluster is paused.
pub(super) fn a_pause(subject: &Subject) -> Option<Violation> {
    after(at_rest(subject, three()), |sim| {
        sim.edit(|intent| intent.paused = true);
        let name = sim.processes[followers(sim).first()?].name.clone();
        sim.delete_pod(&name, None);
        pass(sim, MINUTE);
        Some(())
    })
}

pub(super) fn a_deleted_pod(subject: &Subject) -> Option<Violation> {
    after(at_rest(subject, three()), |sim| {
        let name = sim.processes[followers(sim).first()?].name.clone();
        sim.delete_pod(&name, None);
        pass(sim, 2 * MINUTE);
        Some(())
    })
}

pub(super) fn a_lost_majority(subject: &Subject) -> Option<Violation> {
    let mut sim = at_rest(subject, three());
    lose_followers(&mut sim, 2);
    pass(&mut sim, 5 * MINUTE);
    sim.broken
}

pub(super) fn a_foreign_member(subject: &Subject) -> Option<Violation> {
    let mut sim = at_rest(subject, three());
    sim.add_a_foreign_member();
    pass(&mut sim, MINUTE);
    sim.broken
}

pub(super) fn a_restore_of_a_broken_backup(subject: &Subject) -> Option<Violation> {
    let mut sim = at_rest(subject, three());
    let backup = sim.take_backup();
    sim.user_requests_restore(backup, false);
    pass(&mut sim, 2 * MINUTE);
    sim.broken
}

/// Two backups, and a restore of the second one.
pub(super) fn a_restore(subject: &Subject) -> Option<Violation> {
    restored(subject, false)
}

/// The same where the user keeps claims.
pub(super) fn a_restore_that_keeps_claims(subject: &Subject) -> Option<Violation> {
    restored(subject, true)
}

fn restored(subject: &Subject, retain_claims: bool) -> Option<Violation> {
    let profile = Profile {
        retain_claims,
        ..Profile::gentle()
    };
    let mut sim = begins_in(18, profile, subject, three());
    rest(&mut sim);
    sim.take_backup();
    pass(&mut sim, MINUTE);
    let backup = sim.take_backup();
    sim.user_requests_restore(backup, true);
    pass(&mut sim, 2 * MINUTE);
    sim.broken
}

/// An EtcdRestore is deleted between the plan that depends on it and the write of the record.
pub(super) fn a_deleted_restore(subject: &Subject) -> Option<Violation> {
    let mut sim = at_rest(subject, three());
    let backup = sim.take_backup();
    let restore = sim.user_requests_restore(backup, true);
    until(&mut sim, |sim| sim.operators[0].is_about_to_restore());
    sim.delete_restore(restore);
    pass(&mut sim, MINUTE);
    sim.broken
}

/// An EtcdRestore is created between the plan to bootstrap the cluster and its first member.
pub(super) fn a_restore_beside_a_new_cluster(subject: &Subject) -> Option<Violation> {
    let mut sim = begins(subject, three());
    until(&mut sim, |sim| sim.operators[0].next_record().is_some());
    let backup = sim.take_backup();
    sim.user_requests_restore(backup, true);
    pass(&mut sim, MINUTE);
    sim.broken
}

/// A cluster was downgraded from 3.6 to 3.5. It is to be 3.6 again, which an unavailable node delays, when a restore of
/// an earlier 3.6 backup is requested.
pub(super) fn a_backup_that_is_too_new(subject: &Subject) -> Option<Violation> {
    after(at_rest(subject, three()), |sim| {
        let backup = sim.take_backup();
        sim.edit(|intent| intent.version = EtcdVersion::new(3, 5, 35));
        rest(sim);
        let node = sim.processes[followers(sim).first()?].node;
        sim.node_down(node);
        sim.edit(|intent| intent.version = EtcdVersion::new(3, 6, 16));
        sim.user_requests_restore(backup, true);
        pass(sim, MINUTE / 2);
        sim.node_back(node);
        pass(sim, 2 * MINUTE);
        Some(())
    })
}

/// A member crashes repeatedly, and so does its replacement.
pub(super) fn a_crash_loop_wherever_it_goes(subject: &Subject) -> Option<Violation> {
    after(at_rest(subject, three()), |sim| {
        let pod = followers(sim).first().copied()?;
        let (volume, end) = (sim.processes[&pod].volume, sim.now + 30 * MINUTE);
        for node in &mut sim.nodes {
            node.crashes_until = end;
        }
        sim.volumes.get_mut(&volume)?.crashes_until = end;
        sim.container_ends(pod, 2, crate::etcd::UNKNOWN_REASON);
        pass(sim, 10 * MINUTE);
        Some(())
    })
}

/// The next minor version is requested as soon as all members run the previous one.
pub(super) fn two_upgrades_at_once(subject: &Subject) -> Option<Violation> {
    let first = Intent {
        version: EtcdVersion::new(3, 5, 35),
        ..three()
    };
    let mut sim = at_rest(subject, first);
    sim.edit(|intent| intent.version = EtcdVersion::new(3, 6, 16));
    until(&mut sim, |sim| {
        sim.processes.values().all(|process| process.version.minor() == 6)
    });
    sim.edit(|intent| intent.version = EtcdVersion::new(3, 7, 3));
    pass(&mut sim, 2 * MINUTE);
    sim.broken
}

/// Two upgrades in a row: rare in drawn histories.
pub(super) fn two_upgrades_in_a_row(subject: &Subject) -> Option<Violation> {
    let first = Intent {
        version: EtcdVersion::new(3, 4, 23),
        ..three()
    };
    let mut sim = at_rest(subject, first);
    for (minor, patch) in [(5, 35), (6, 16)] {
        sim.edit(|intent| intent.version = EtcdVersion::new(3, minor, patch));
        rest(&mut sim);
    }
    sim.broken
}

pub(super) fn another_ca(subject: &Subject) -> Option<Violation> {
    (0..50).find_map(|seed| {
        let mut sim = with_tls(begins_in(seed, Profile::gentle(), subject, three()));
        sim.request_member_ca_rotation();
        pass(&mut sim, 5 * MINUTE);
        sim.broken
    })
}

/// Nodes are given up after a minute.
pub(super) fn impatient() -> Intent {
    Intent {
        replace_after: Duration::from_secs(60),
        ..three()
    }
}
