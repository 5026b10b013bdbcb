//! The planner with drivers that do not check one guard. Guards protect against changes between the plan and the step:
//! where such a change is rare in drawn histories, a scene causes it.

use std::time::Duration;

use stateward_etcd::api::EtcdVersion;
use stateward_etcd::cluster::guard::Kind;
use stateward_etcd::cluster::{Alarm, ClusterId, Effect, Intent, MemberId, MemberName, NodeEnd, Recovery, Stop, plan};

use super::recovery_scenes::{backed_up, names, two};
use super::scenes::{
    self, MINUTE, after, at_rest, at_rest_with_tls, begins, followers, impatient, pass, three, until, until_about_to,
};
use super::{Mutant, caught, caught_in};
use crate::etcd::peer_url;
use crate::kube::{BackupObject, node_name, uid};
use crate::rules::name;
use crate::sim::{Sim, Violation};
use crate::subject::Subject;

pub(super) fn all() -> Vec<Mutant> {
    Kind::ALL.into_iter().map(of).collect()
}

fn of(kind: Kind) -> Mutant {
    let drawn = |name, rules| caught(name, plan, rules);
    let scene = |name, scene, rules| caught_in(name, plan, scene, rules);
    let mutant = match kind {
        Kind::ClusterUnchanged => drawn("without ClusterUnchanged", &[name::EVIDENCE]),
        Kind::NoRestoreWaits => drawn("without NoRestoreWaits", &[name::RESTORE_AWAITED]),
        Kind::Alone => scene(
            "without Alone",
            a_restore_by_an_operator_that_sees_no_pods,
            &[name::RESTORE_FENCED],
        ),
        Kind::StillTrusted => scene("without StillTrusted", a_rotation_behind_a_new_pod, &[name::TRUST]),
        Kind::PodUid => scene("without PodUid", another_pod_of_that_name, &[name::NO_RESTART]),
        Kind::ClaimUid => scene("without ClaimUid", another_claim_of_that_name, &[name::DATA]),
        Kind::BackupUid => scene("without BackupUid", another_backup_of_that_name, &[name::FOREIGN]),
        Kind::Unmodified => scene("without Unmodified", a_pod_that_runs_by_now, &[name::NO_RESTART]),
        Kind::PodIs => scene("without PodIs", a_lost_member_with_a_new_pod, &[name::EVIDENCE]),
        Kind::ClaimIs => scene(
            "without ClaimIs",
            a_claim_that_the_operator_does_not_see,
            &[name::EVIDENCE],
        ),
        Kind::OutOfList => scene("without OutOfList", a_member_that_is_added_again, &[name::DATA]),
        Kind::Unstarted => scene("without Unstarted", a_member_that_starts_after_all, &[name::DATA]),
        Kind::SameData => scene("without SameData", data_that_differs_by_now, &[name::AGREEMENT]),
        Kind::NodesEnded => scene("without NodesEnded", nodes_that_are_back, &[name::EVIDENCE]),
        Kind::AllTrust => scene("without AllTrust", a_pod_that_does_not_trust, &[name::TRUST]),
        Kind::VouchersStay => scene("without VouchersStay", old_certificates_are_back, &[name::TRUST]),
        Kind::AllSeen => scene("without AllSeen", a_pod_that_was_not_looked_at, &[name::TRUST]),
        Kind::RecordUnmodified => scene("without RecordUnmodified", two_operators_begin, &[name::ONE_BOOTSTRAP]),
        Kind::RestoreAsked => scene(
            "without RestoreAsked",
            scenes::a_deleted_restore,
            &[name::RESTORE_ASKED],
        ),
    };
    mutant.without(kind)
}

/// Stale caches return no pods: the old members seem to have stopped.
pub(super) fn a_restore_by_an_operator_that_sees_no_pods(subject: &Subject) -> Option<Violation> {
    let mut sim = at_rest(subject, three());
    let backup = sim.take_backup();
    sim.operators[0].sees_no_pods = true;
    sim.user_requests_restore(backup, true);
    until(&mut sim, |sim| sim.truth.bootstrapped.len() > 1);
    sim.broken
}

/// Between the plan and the new pod of a member, another operator completes a rotation.
fn a_rotation_behind_a_new_pod(subject: &Subject) -> Option<Violation> {
    after(at_rest_with_tls(subject), |sim| {
        let name = sim.processes[followers(sim).first()?].name.clone();
        sim.delete_pod(&name, None);
        until_about_to(sim, |effect| matches!(effect, Effect::CreatePod { .. }));
        sim.rotate_elsewhere();
        pass(sim, MINUTE / 4);
        Some(())
    })
}

/// A majority is lost with its nodes and its claims. The nodes exist again when the survivor is about to become the
/// cluster.
pub(super) fn nodes_that_are_back(subject: &Subject) -> Option<Violation> {
    let recovery = Recovery::FromSurvivor(Duration::from_secs(5));
    after(backed_up(subject, recovery, false), |sim| {
        let members = two(sim);
        let called = names(sim, &members);
        let nodes: Vec<usize> = members.iter().map(|id| sim.processes[id].node).collect();
        for (node, (id, name)) in nodes.iter().zip(members.iter().zip(&called)) {
            sim.node_down(*node);
            sim.nodes[*node].gone = true;
            sim.kube.ended_nodes_mut().insert(node_name(*node), NodeEnd::Deleted);
            sim.delete_claim(name);
            sim.remove_pod(*id);
        }
        sim.judge_loss(false);
        until_about_to(sim, |effect| matches!(effect, Effect::CheckNodesEnded { .. }));
        for node in &nodes {
            sim.nodes[*node].gone = false;
            sim.kube.ended_nodes_mut().remove(&node_name(*node));
        }
        pass(sim, 1000);
        Some(())
    })
}

fn another_pod_of_that_name(subject: &Subject) -> Option<Violation> {
    let mut sim = at_rest(subject, three());
    sim.edit(|intent| intent.hibernate = true);
    until_about_to(&mut sim, |effect| matches!(effect, Effect::DeletePod { .. }));
    for pod in followers(&sim) {
        let id = sim.kube.new_id();
        sim.kube.change_pod(pod, |pod| pod.shown.uid = uid(id));
    }
    pass(&mut sim, 1000);
    sim.broken
}

fn another_claim_of_that_name(subject: &Subject) -> Option<Violation> {
    after(at_rest(subject, three()), |sim| {
        sim.edit(|intent| intent.size = 1);
        let member = until_about_to_delete(sim)?;
        let id = sim.kube.new_id();
        sim.kube.change_claim(&member, |claim| claim.shown.uid = uid(id));
        pass(sim, 1000);
        Some(())
    })
}

fn until_about_to_delete(sim: &mut Sim<'_>) -> Option<MemberName> {
    until_about_to(sim, |effect| {
        matches!(effect, Effect::DeleteClaim { .. } | Effect::DeleteUnstartedClaim { .. })
    });
    let effect = sim.operators[0].next_effect()?;
    let (Effect::DeleteClaim { member, .. } | Effect::DeleteUnstartedClaim { member, .. }) = effect else {
        return None;
    };
    Some(member.clone())
}

/// `spec.backup` was removed, and a user has created an EtcdBackup with the name that it used.
pub(super) fn another_backup_of_that_name(subject: &Subject) -> Option<Violation> {
    let mut sim = at_rest(subject, three());
    let (ours, theirs) = (sim.kube.new_id(), sim.kube.new_id());
    let backup = |id, owner| Some(BackupObject { id, owner });
    sim.kube.kept_backup = backup(ours, Some(sim.truth.owner));
    sim.kube.changed = true;
    until_about_to(&mut sim, |effect| matches!(effect, Effect::DropBackup { .. }));
    sim.kube.kept_backup = backup(theirs, None);
    pass(&mut sim, 1000);
    sim.broken
}

/// A pod that cannot run is to be replaced with a corrected spec, and starts to run in that moment.
fn a_pod_that_runs_by_now(subject: &Subject) -> Option<Violation> {
    after(at_rest(subject, three()), |sim| {
        sim.edit(|intent| intent.template = "t1-bad-image".into());
        let blocked = |sim: &Sim<'_>| {
            let mut pods = sim.kube.now.pods.values();
            pods.find(|pod| pod.shown.blocked.is_some()).map(|pod| pod.id)
        };
        until(sim, |sim| blocked(sim).is_some());
        let pod = blocked(sim)?;
        sim.edit(|intent| intent.template = "t2".into());
        until_about_to(sim, |effect| {
            matches!(effect, Effect::DeletePod { how: Stop::Restart, .. })
        });
        sim.kube.change_pod(pod, |pod| pod.shown.running = true);
        pass(sim, 1000);
        Some(())
    })
}

/// A member that crashed repeatedly has another pod by now, which runs.
fn a_lost_member_with_a_new_pod(subject: &Subject) -> Option<Violation> {
    after(at_rest(subject, three()), |sim| {
        let pod = followers(sim).first().copied()?;
        let (volume, end) = (sim.processes[&pod].volume, sim.now + 30 * MINUTE);
        sim.volumes.get_mut(&volume)?.crashes_until = end;
        sim.container_ends(pod, 2, crate::etcd::UNKNOWN_REASON);
        until_about_to(sim, |effect| matches!(effect, Effect::RemoveMember { .. }));
        let id = sim.kube.new_id();
        sim.kube.change_pod(pod, |pod| {
            pod.shown.uid = uid(id);
            pod.shown.restarts = 0;
        });
        pass(sim, 1000);
        Some(())
    })
}

/// A stale cache returns no claim of a member whose pod was deleted: its data seems to be lost.
fn a_claim_that_the_operator_does_not_see(subject: &Subject) -> Option<Violation> {
    after(at_rest(subject, three()), |sim| {
        let name = sim.processes[followers(sim).first()?].name.clone();
        sim.operators[0].sees_no_claims = true;
        sim.delete_pod(&name, None);
        pass(sim, MINUTE);
        Some(())
    })
}

/// A member is out of the list, and is added again before its claim is deleted.
fn a_member_that_is_added_again(subject: &Subject) -> Option<Violation> {
    after(at_rest(subject, three()), |sim| {
        sim.edit(|intent| intent.size = 1);
        let member = until_about_to_delete(sim)?;
        let cluster = ClusterId(*sim.truth.bootstrapped.first()?);
        sim.add_member(cluster, &peer_url(&member), true).ok()?;
        pass(sim, 1000);
        Some(())
    })
}

/// A voter that never started and whose node is lost is to begin elsewhere, and has started after all.
fn a_member_that_starts_after_all(subject: &Subject) -> Option<Violation> {
    let one = Intent {
        size: 1,
        version: EtcdVersion::new(3, 3, 27),
        ..impatient()
    };
    after(begins(subject, one), |sim| {
        sim.profile.local_volumes = true;
        scenes::rest(sim);
        let first = sim.kube.now.pods.keys().next().cloned()?;
        sim.edit(|intent| intent.size = 2);
        let new_node = |sim: &Sim<'_>| {
            let mut pods = sim.kube.now.pods.values();
            pods.find(|pod| pod.name != first)?.node
        };
        until(sim, |sim| new_node(sim).is_some());
        let node = new_node(sim)?;
        sim.node_down(node);
        sim.nodes[node].gone = true;
        let member = until_about_to_delete(sim)?;
        let url = peer_url(&member);
        let started = |conf: &mut std::rc::Rc<crate::raft::Conf>| {
            let lines = std::rc::Rc::make_mut(conf).iter_mut();
            for line in lines.filter(|line| line.peer_urls.contains(&url)) {
                line.name = Some(member.clone());
            }
        };
        started(&mut sim.truth.conf);
        for volume in sim.volumes.values_mut() {
            volume.data.iter_mut().for_each(|data| started(&mut data.conf));
        }
        pass(sim, 1000);
        Some(())
    })
}

/// All have the same data, but one of them changes before the alarm is disarmed.
fn data_that_differs_by_now(subject: &Subject) -> Option<Violation> {
    after(at_rest(subject, three()), |sim| {
        let cluster = *sim.truth.bootstrapped.first()?;
        sim.raise(cluster, MemberId(0), Alarm::Corrupt);
        until_about_to(sim, |effect| matches!(effect, Effect::CompareAgain { .. }));
        let follower = followers(sim).first().copied()?;
        sim.change_content(follower);
        pass(sim, 1000);
        Some(())
    })
}

/// A member came back with a pod that trusts only the old CA.
fn a_pod_that_does_not_trust(subject: &Subject) -> Option<Violation> {
    after(at_rest_with_tls(subject), |sim| {
        let old = sim.kube.now.secrets.as_ref()?.wanted.clone();
        sim.request_member_ca_rotation();
        until_about_to(sim, |effect| matches!(effect, Effect::IssueCertificates { next: true }));
        let pod = followers(sim).first().copied()?;
        sim.kube.change_pod(pod, |pod| pod.shown.trusts = Some(old.clone()));
        sim.processes.get_mut(&pod)?.trusts = old;
        pass(sim, MINUTE / 2);
        Some(())
    })
}

/// Runs until the old CA is about to be dropped.
fn until_about_to_drop(sim: &mut Sim<'_>) {
    sim.request_member_ca_rotation();
    until_about_to(
        sim,
        |effect| matches!(effect, Effect::TrustCas { cas } if cas.len() == 2),
    );
}

fn old_certificates_are_back(subject: &Subject) -> Option<Violation> {
    let mut sim = at_rest_with_tls(subject);
    until_about_to_drop(&mut sim);
    sim.issue_the_old_ones();
    pass(&mut sim, MINUTE);
    sim.broken
}

/// A member came back with the old certificate, because its kubelet does not reach the API server any more.
fn a_pod_that_was_not_looked_at(subject: &Subject) -> Option<Violation> {
    after(at_rest_with_tls(subject), |sim| {
        let old = sim.kube.now.secrets.as_ref()?.wanted.clone();
        until_about_to_drop(sim);
        let pod = followers(sim).first().copied()?;
        let (node, id) = (sim.processes[&pod].node, sim.kube.new_id());
        sim.nodes[node].cut_from_api = true;
        sim.kube.change_pod(pod, |pod| pod.shown.uid = uid(id));
        sim.processes.get_mut(&pod)?.shows = old;
        pass(sim, MINUTE / 2);
        Some(())
    })
}

/// Two operators plan the first member at the same time.
fn two_operators_begin(subject: &Subject) -> Option<Violation> {
    let mut sim = begins(subject, three());
    sim.kube.changed = false;
    sim.operators[1].leads = true;
    sim.wake_operator(1, 5);
    pass(&mut sim, MINUTE / 4);
    sim.broken
}
