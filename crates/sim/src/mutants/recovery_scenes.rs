//! Scenes of a cluster that loses its quorum, or seems to: for mutants, and for the real planner in `scenes`.

use std::time::Duration;

use stateward_etcd::api::EtcdVersion;
use stateward_etcd::cluster::{Bootstrap, Intent, LaunchKind, MemberName, Recovery, Storage};

use crate::profile::Profile;
use crate::queue::{Id, Ms};
use crate::rng::Rng;
use crate::sim::{Sim, Violation};
use crate::subject::Subject;
use crate::user::first_intent;

pub(crate) const DELAY: Duration = Duration::from_secs(30);
const MINUTE: Ms = 60_000;

fn three() -> Intent {
    Intent {
        size: 3,
        version: EtcdVersion::new(3, 6, 16),
        bootstrap: Bootstrap::SeedThenJoin,
        storage: Storage::Durable { bytes: 1 << 30 },
        ..first_intent(&mut Rng::new(1))
    }
}

fn rest(sim: &mut Sim<'_>) {
    sim.calm = true;
    sim.come_to_rest();
}

fn run(sim: &mut Sim<'_>, time: Ms) {
    let end = sim.now + time;
    while sim.step(end) {}
}

/// A converged cluster of three on three of four nodes, with a backup of it.
pub(crate) fn backed_up<'a>(subject: &'a Subject, recovery: Recovery, local_volumes: bool) -> Sim<'a> {
    let profile = Profile {
        local_volumes,
        ..Profile::gentle()
    };
    let mut sim = Sim::new(7, profile, subject, true);
    sim.create_cluster(Intent {
        recovery,
        replace_after: Duration::from_secs(60),
        keep_old_claims: Duration::from_secs(600),
        ..three()
    });
    sim.wake_operator(0, 5);
    rest(&mut sim);
    sim.calm = false;
    sim.take_backup();
    sim
}

/// The processes of all members but one, with the leader among them.
pub(crate) fn two(sim: &Sim<'_>) -> Vec<Id> {
    let mut all: Vec<(Id, bool)> = sim.processes.iter().map(|(id, process)| (*id, process.leads)).collect();
    all.sort_by_key(|(_, leads)| !leads);
    all.into_iter().take(2).map(|(id, _)| id).collect()
}

pub(crate) fn names(sim: &Sim<'_>, ids: &[Id]) -> Vec<MemberName> {
    ids.iter().map(|id| sim.processes[id].name.clone()).collect()
}

/// A zone is scaled to zero: no node can use the volumes of two members, but they are intact.
pub(crate) fn zone_sleeps(subject: &Subject) -> Sim<'_> {
    let mut sim = backed_up(subject, Recovery::FromBackup(DELAY), true);
    for id in two(&sim) {
        let node = sim.processes[&id].node;
        sim.nodes[node].gone = true;
        sim.nodes[node].zone_sleeps = true;
        sim.node_down(node);
    }
    sim
}

pub(crate) fn stranded(subject: &Subject) -> Option<Violation> {
    let mut sim = zone_sleeps(subject);
    let end = sim.now + 30 * MINUTE;
    while sim.step(end) {}
    sim.broken
}

/// Two of three lose their volumes; the survivor is made the only member, and its node is cut off from the API server,
/// and from nothing else, at the moment when others can join.
pub(crate) fn only_member_starts_again(subject: &Subject) -> Option<Violation> {
    let mut sim = backed_up(subject, Recovery::FromSurvivor(DELAY), false);
    for name in names(&sim, &two(&sim)) {
        sim.delete_claim(&name);
        sim.delete_pod(&name, None);
    }
    sim.judge_loss(false);
    let forced = |sim: &Sim<'_>| {
        let mut pods = sim.kube.now.pods.values();
        let forced = pods.find(|pod| pod.shown.launch == LaunchKind::ForceNew && pod.shown.ready)?;
        Some((forced.id, forced.node?))
    };
    let end = sim.now + 10 * MINUTE;
    while forced(&sim).is_none() && sim.step(end) {}
    let (pod, node) = forced(&sim)?;
    // Its kubelet does not see changes of the pod any more; an operator that stops the pod waits for it.
    sim.nodes[node].cut_from_api = true;
    let end = sim.now + MINUTE / 2;
    while sim.step(end) {}
    if sim.truth.conf.len() > 1 {
        sim.container_ends(pod, 137, "killed");
    }
    let end = sim.now + MINUTE;
    while sim.step(end) {}
    sim.node_back(node);
    sim.calm = true;
    sim.come_to_rest();
    sim.broken
}

/// A cluster of the same name is created after one that was backed up, and loses all data.
pub(crate) fn loses_everything_after_another(subject: &Subject) -> Sim<'_> {
    let mut sim = backed_up(subject, Recovery::FromBackup(DELAY), false);
    sim.delete_cluster();
    run(&mut sim, MINUTE);
    sim.revert();
    rest(&mut sim);
    sim.calm = false;
    let names: Vec<MemberName> = sim.kube.now.pods.keys().cloned().collect();
    for name in names {
        sim.delete_claim(&name);
        sim.delete_pod(&name, None);
    }
    sim.judge_loss(false);
    sim
}

/// The user changes their mind when a survivor is chosen, and nothing else has happened.
pub(crate) fn consent_is_taken_back(subject: &Subject) -> Sim<'_> {
    let mut sim = backed_up(subject, Recovery::FromSurvivor(DELAY), false);
    for name in names(&sim, &two(&sim)) {
        sim.delete_claim(&name);
        sim.delete_pod(&name, None);
    }
    sim.judge_loss(false);
    let end = sim.now + 10 * MINUTE;
    let is_chosen = |sim: &Sim<'_>| sim.present().is_some_and(|(_, record)| record.recovery.is_some());
    while !is_chosen(&sim) && sim.step(end) {}
    sim.edit(|intent| intent.recovery = Recovery::Report);
    run(&mut sim, 5 * MINUTE);
    sim
}

pub(crate) fn goes_on_without_consent(subject: &Subject) -> Option<Violation> {
    consent_is_taken_back(subject).broken
}

/// A recovery has asked for a backup of an earlier cluster, which the user named by mistake, or follows it already. Then the user
/// takes that back, and a backup of this very cluster is known: its number is returned.
pub(crate) fn named_by_mistake(subject: &Subject, followed: bool) -> (Sim<'_>, usize) {
    let mut sim = loses_everything_after_another(subject);
    sim.edit(|intent| intent.recovery_backup = Some("nightly".into()));
    let end = sim.now + 10 * MINUTE;
    let is_so = |sim: &Sim<'_>| match followed {
        false => sim.kube.now.restores.iter().any(|restore| restore.recovery),
        true => sim.present().is_some_and(|(_, record)| record.restoring().is_some()),
    };
    while !is_so(&sim) && sim.step(end) {}
    let own = sim.take_backup();
    sim.edit(|intent| intent.recovery_backup = None);
    rest(&mut sim);
    (sim, own)
}

pub(crate) fn mistake_is_taken_back(subject: &Subject) -> Option<Violation> {
    named_by_mistake(subject, false).0.broken
}

pub(crate) fn backup_of_another(subject: &Subject) -> Option<Violation> {
    let mut sim = loses_everything_after_another(subject);
    let end = sim.now + 10 * MINUTE;
    while sim.step(end) {}
    sim.broken
}

/// The operator's clock is 300 s ahead when a majority loses its volumes.
pub(crate) fn clock_is_ahead(subject: &Subject) -> Option<Violation> {
    let profile = Profile {
        skew: (0, 300_000),
        ..Profile::gentle()
    };
    let mut sim = Sim::new(7, profile, subject, true);
    sim.create_cluster(Intent {
        recovery: Recovery::FromSurvivor(Duration::from_secs(300)),
        ..three()
    });
    sim.wake_operator(0, 5);
    sim.calm = true;
    sim.come_to_rest();
    sim.calm = false;
    for name in names(&sim, &two(&sim)) {
        sim.delete_claim(&name);
        sim.delete_pod(&name, None);
    }
    sim.judge_loss(false);
    let end = sim.now + 20_000;
    while sim.step(end) {}
    // The operator whose clock is right recorded the loss; the other one becomes the leader.
    sim.pass_leadership();
    let end = sim.now + 10 * MINUTE;
    while sim.step(end) {}
    sim.calm = true;
    sim.come_to_rest();
    sim.broken
}

/// Three of five members lose their volumes. One of the other two has a long tail that was never committed and a high
/// term; the other one knows more entries to be committed.
pub(crate) fn tail_and_term(subject: &Subject) -> Option<Violation> {
    let mut sim = Sim::new(9, Profile::gentle(), subject, true);
    sim.create_cluster(Intent {
        size: 5,
        recovery: Recovery::FromSurvivor(DELAY),
        ..three()
    });
    sim.wake_operator(0, 5);
    sim.calm = true;
    sim.come_to_rest();
    sim.calm = false;
    let mut all: Vec<(Id, bool)> = sim.processes.iter().map(|(id, process)| (*id, process.leads)).collect();
    all.sort_by_key(|(_, leads)| *leads);
    let (knows, boasts) = (all[0].0, all[1].0);
    let lost: Vec<Id> = all[2..].iter().map(|(id, _)| *id).collect();
    for name in names(&sim, &lost) {
        sim.delete_claim(&name);
        sim.delete_pod(&name, None);
    }
    let end = sim.now + 5000;
    while sim.step(end) {}
    sim.judge_loss(false);
    let committed = sim.data_of(knows)?.committed;
    let volume = sim.processes[&boasts].volume;
    let tail = sim.data_of(knows)?.log.last().copied()?;
    let data = sim.volumes.get_mut(&volume)?.data.as_mut()?;
    data.committed = committed - 2;
    data.log.extend(std::iter::repeat_n(tail, 10));
    data.term += 5;
    sim.calm = true;
    sim.come_to_rest();
    sim.broken
}

/// The nodes of two members are destroyed with their disks, and the user confirms it.
pub(crate) fn destroyed(sim: &mut Sim<'_>) -> Vec<MemberName> {
    let members = two(sim);
    let called = names(sim, &members);
    for id in &members {
        let (node, volume) = (sim.processes[id].node, sim.processes[id].volume);
        sim.nodes[node].gone = true;
        sim.nodes[node].stays = true;
        sim.node_down(node);
        if let Some(volume) = sim.volumes.get_mut(&volume) {
            volume.data = None;
        }
    }
    sim.judge_loss(false);
    called
}

/// The nodes of two members are cut off from the API server and from the operator, and continue to serve their zone.
pub(crate) fn cut_off(sim: &mut Sim<'_>, members: &[Id]) -> Vec<usize> {
    let nodes: Vec<usize> = members.iter().map(|id| sim.processes[id].node).collect();
    for node in &nodes {
        sim.nodes[*node].cut_from_api = true;
        sim.nodes[*node].side = 1;
        sim.node_unavailable(*node);
    }
    nodes
}

/// Two of three are in a zone that is cut off, and a user deletes their pods by force, and their claims.
pub(crate) fn deleted_by_force(subject: &Subject) -> Option<Violation> {
    let mut sim = backed_up(subject, Recovery::FromBackup(DELAY), false);
    let members = two(&sim);
    let called = names(&sim, &members);
    cut_off(&mut sim, &members);
    run(&mut sim, 2 * MINUTE);
    for (id, name) in members.iter().zip(&called) {
        sim.delete_claim(name);
        sim.remove_pod(*id);
    }
    run(&mut sim, 4 * MINUTE);
    sim.broken
}

/// Two of three are lost with their claims, as their kubelets report. The third is cut off, and a user deletes its pod
/// by force: it continues to run.
pub(crate) fn survivor_runs_on(subject: &Subject) -> Option<Violation> {
    let mut sim = backed_up(subject, Recovery::FromBackup(DELAY), false);
    let members = two(&sim);
    let third: Vec<Id> = sim
        .processes
        .keys()
        .copied()
        .filter(|id| !members.contains(id))
        .collect();
    cut_off(&mut sim, &third);
    for name in names(&sim, &members) {
        sim.delete_claim(&name);
        sim.delete_pod(&name, None);
    }
    sim.judge_loss(false);
    run(&mut sim, MINUTE);
    for id in &third {
        sim.remove_pod(*id);
    }
    sim.settled = None;
    sim.calm = true;
    run(&mut sim, 4 * MINUTE);
    sim.broken
}

/// A majority is destroyed, the user confirms it, and the survivor becomes the cluster. Its claims are to be kept.
pub(crate) fn leaves_old_claims(subject: &Subject) -> Option<Violation> {
    let mut sim = backed_up(subject, Recovery::FromSurvivor(DELAY), true);
    let lost = destroyed(&mut sim);
    run(&mut sim, MINUTE);
    sim.edit(|intent| intent.confirmed_lost.extend(lost));
    run(&mut sim, 8 * MINUTE);
    sim.broken
}
