//! A cluster replaced by one from a proven backup, because an EtcdRestore asks for it or because a recovery does.
//!
//! Recorded first; then every old member is stopped, their claims are kept; then a first member of a new name and a new
//! token starts from the backup. When it serves, it is the cluster: the other chapters grow it and take away what is left
//! of the old one. An EtcdRestore is followed once, by its UID. Everything that is needed to go on is in the record.

use std::time::Duration;

use crate::api::etcd_restore::RestoreSource;

use super::intent::Recovery;
use super::members::{Health, LossEvidence, owner};
use super::record::{Bootstrapped, Record, RestoreStep, Restoring};
use super::requests::{begin, claims, doing, lost, may_be_used, too_new};
use super::world::{RequestState, RestoreRequest};
use super::{Effect, LATER, Launch, Note, Reason, SOON, Step, Stop, View, Work, pods};

pub(super) fn restore(view: &View<'_>, record: &mut Record) -> Option<Step> {
    match view.record.restoring() {
        Some(restoring) => Some(go_on(view, record, restoring)),
        None => {
            let (request, source) = next(view, view.record.restore.as_ref())?;
            if view.record.bootstrap.is_none() && view.world.list.is_some() {
                return None; // A running cluster without its record is taken up first.
            }
            if view.record.bootstrap.is_none()
                && let Some(refused) = super::upgrade_path::check_first(&view.version)
            {
                return Some(Step::new(Work::Blocked, Reason::VersionRefused, refused));
            }
            Some(begin(view, record, request, source))
        }
    }
}

/// Why a cluster that has never been is not begun empty: an EtcdRestore of it waits. It still comes first when the bootstrap
/// is recorded and nothing is made of it yet.
pub(super) fn awaited(view: &View<'_>) -> Option<Step> {
    if view.began() || !view.world.pods.is_empty() {
        return None;
    }
    let request = view.world.restores.iter().find(|request| !request.recovery)?;
    Some(match &request.state {
        RequestState::Failed(why) => Step::new(
            Work::Blocked,
            Reason::RestoreFailed,
            format!(
                "EtcdRestore {} of this cluster failed: {why}. Delete it to begin with an empty cluster, or create another one",
                request.name
            ),
        ),
        RequestState::Fetching | RequestState::Proven(_) => Step::new(
            Work::Creating,
            Reason::WaitingForRestore,
            format!(
                "the backup of EtcdRestore {} is being fetched and proven; the cluster is begun from it",
                request.name
            ),
        ),
    })
}

/// The oldest request of the user that is proven. One that was followed is waited for until its EtcdRestore says so.
fn next<'a>(view: &'a View<'_>, last: Option<&Restoring>) -> Option<(&'a RestoreRequest, &'a RestoreSource)> {
    let open = |request: &&RestoreRequest| !request.recovery && !matches!(request.state, RequestState::Failed(_));
    let first = view.world.restores.iter().find(open)?;
    match &first.state {
        RequestState::Proven(_) if last.is_some_and(|last| last.uid == first.uid) => None,
        // An upgrade is on its way to a version that can: it is followed after that.
        RequestState::Proven(source) if too_new(view, source).is_some() => None,
        RequestState::Proven(source) => Some((first, source)),
        _ => None,
    }
}

fn go_on(view: &View<'_>, record: &mut Record, restoring: &Restoring) -> Step {
    let seed = &restoring.seed;
    if let Some(list) = &view.world.list
        && list.members.len() == 1
        && owner(view.intent, &list.members[0]).as_ref() == Some(seed)
    {
        record.bootstrap = Some(Bootstrapped {
            token: restoring.token.clone(),
            first: vec![seed.clone()],
            cluster: Some(list.cluster),
        });
        record.target = Some(view.version.clone());
        record.restore = Some(Restoring {
            step: RestoreStep::Done,
            ..restoring.clone()
        });
        let note = Note {
            warning: false,
            reason: Reason::Restored,
            message: format!(
                "the cluster serves from {}; {}",
                restoring.source.location,
                lost(&restoring.source)
            ),
        };
        let old = restoring.old_claims.clone();
        let kept = restoring.recovery.then(|| super::old_claims::keep(view, record, old));
        return doing(format!("{seed} serves from the backup"))
            .with([Effect::Tell(note)])
            .with(kept.flatten())
            .wake(Duration::ZERO);
    }
    let asked = view.world.restores.iter().find(|request| request.uid == restoring.uid);
    if asked.is_none()
        && let Some((request, source)) = next(view, Some(restoring))
    {
        // The user took another backup before this one served.
        let step = begin(view, record, request, source);
        keep_from(record, restoring);
        return step;
    }
    if restoring.step == RestoreStep::Stopping && !still_wanted(view, restoring, asked) {
        record.restore = None;
        let note = Note {
            warning: false,
            reason: Reason::RestoreTakenBack,
            message: format!(
                "EtcdRestore {} is not followed any more; the old members go on",
                restoring.name
            ),
        };
        return doing("the restore was taken back; the old members come back with their data".into())
            .with([Effect::Tell(note)])
            .wake(Duration::ZERO);
    }
    // An EtcdRestore of the user's ends the old cluster by their word; for a recovery each old member must be proven to have
    // ended, also where its pod is gone.
    let fence = super::gone::fence(view, seed, Stop::Replaced, restoring.recovery);
    if !fence.waits.is_empty() && !view.world.pods.contains_key(seed) {
        let words = fence.words(view);
        // A spec that no pod can be made from must not end a cluster that serves.
        let seed_is_taken = pods::try_out(view, seed, launch(restoring), view.stage);
        let stop = fence.stop;
        return doing(format!(
            "stopping the old members; their claims are kept until the new cluster serves: {words}"
        ))
        .with((!stop.is_empty()).then_some(seed_is_taken))
        .with(stop)
        .wake(LATER);
    }
    let step = start_seed(view, record, restoring, fence.guard());
    let mut effects = fence.stop;
    effects.extend(step.effects);
    Step { effects, ..step }
}

/// Before anything of the new cluster is made, the user may change their mind. What lived only in pods is gone by then.
fn still_wanted(view: &View<'_>, restoring: &Restoring, asked: Option<&RestoreRequest>) -> bool {
    if !view.intent.is_durable() && view.record.bootstrap.is_some() {
        return true;
    }
    let consents = |request: &RestoreRequest| {
        matches!(view.intent.recovery, Recovery::FromBackup(_)) && may_be_used(view, request)
    };
    asked.is_some_and(|request| !restoring.recovery || (view.world.list.is_none() && consents(request)))
}

/// What the restore before leaves to the one that takes its place: its old claims, and that there is no way back.
fn keep_from(record: &mut Record, before: &Restoring) {
    if let Some(restoring) = &mut record.restore {
        restoring.step = before.step;
        let known: Vec<_> = restoring.old_claims.clone();
        let more = before.old_claims.iter().filter(|claim| !known.contains(claim)).cloned();
        restoring.old_claims.extend(more);
    }
}

fn launch(restoring: &Restoring) -> Launch {
    Launch::Restore {
        token: restoring.token.clone(),
        source: restoring.source.clone(),
    }
}

fn start_seed(view: &View<'_>, record: &mut Record, restoring: &Restoring, guard: Option<Effect>) -> Step {
    let (world, seed) = (view.world, &restoring.seed);
    let (pod, claim) = (world.pods.get(seed), world.claims.get(seed));
    let needs_claim = view.intent.is_durable() && claim.is_none();
    let words = format!("starting {seed} from {}", restoring.source.location);
    let Some(pod) = pod else {
        if claim.is_some_and(|claim| claim.lost || claim.terminating) {
            return begin_again(view, record, restoring);
        }
        if let Some(why) = too_new(view, &restoring.source) {
            return Step::new(Work::Blocked, Reason::BackupTooNew, why).wake(LATER);
        }
        record.restore = Some(Restoring {
            step: RestoreStep::Seeding,
            ..restoring.clone()
        });
        let mut effects: Vec<Effect> = guard.into_iter().collect();
        if needs_claim {
            effects.push(Effect::CreateClaim { member: seed.clone() });
        }
        effects.push(Effect::CreatePod {
            member: seed.clone(),
            launch: launch(restoring),
            version: view.new_pods.clone(),
            tls: view.stage,
        });
        return doing(words).with(effects);
    };
    let member = view.members.get(seed);
    let health = member.map(|member| &member.health);
    let is_stranded = member.is_some_and(|member| super::members::is_stranded(view, member));
    if is_stranded || matches!(health, Some(Health::Lost(LossEvidence::NodeDead(_)))) {
        // It may serve there by now: another one begins only when it is proven to have ended.
        return match super::gone::gone(view, seed) {
            Some(_) => begin_again(view, record, restoring),
            None => doing(super::gone::advice(view, &[seed])).wake(LATER),
        };
    }
    if pod.terminating {
        return doing(format!(
            "waiting for pod {seed} to stop; it is made again when it is gone"
        ));
    }
    if needs_claim && pod.node.is_none() {
        return doing(words).with([Effect::CreateClaim { member: seed.clone() }]);
    }
    // A claim that is not seen proves nothing: it was made a moment ago.
    let claim_is_gone = claim.is_some_and(|claim| claim.lost || claim.terminating);
    if claim_is_gone || matches!(health, Some(Health::Lost(_))) {
        return begin_again(view, record, restoring);
    }
    // A corrected spec reaches a pod that cannot run. Its data stays, or, where it goes with the pod, is made from the backup
    // again: it has not served yet.
    let cannot_run = !pod.ever_ran || (!pod.running && pod.blocked.is_some());
    let outdated = pods::outdated(view, pod);
    if pod.ended || (cannot_run && outdated) {
        return doing(format!("making pod {seed} again")).with([pods::stop(seed, pod, Stop::Restart)]);
    }
    let waits = match (&pod.blocked, claim.and_then(|claim| claim.problem.as_ref())) {
        (_, Some(problem)) => format!(
            "{words}: its claim is not bound: {problem}. Set spec.storage.storageClassName to a class that can serve it"
        ),
        (Some(blocked), None) => format!("{words}: {}: {}", blocked.reason, blocked.message),
        (None, None) => words,
    };
    doing(waits).wake(if pod.running { SOON } else { LATER })
}

/// The first member's data is lost before it was the cluster: another one, under another name.
fn begin_again(view: &View<'_>, record: &mut Record, restoring: &Restoring) -> Step {
    let Some(seed) = view.world.fresh_names.first() else {
        return doing("no name for a new member".into()).wake(LATER);
    };
    if !view.world.pods.contains_key(&restoring.seed)
        && view.record.last_seen.contains_key(&restoring.seed)
        && super::gone::gone(view, &restoring.seed).is_none()
    {
        return doing(super::gone::advice(view, &[&restoring.seed])).wake(LATER);
    }
    let words = format!(
        "the data of {} is lost before it served; beginning again as {seed}",
        restoring.seed
    );
    let mut old_claims = restoring.old_claims.clone();
    old_claims.extend(claims(view).into_iter().filter(|(name, _)| *name == restoring.seed));
    record.restore = Some(Restoring {
        seed: seed.clone(),
        token: view.world.fresh_token.clone(),
        old_claims,
        step: RestoreStep::Seeding,
        ..restoring.clone()
    });
    doing(words).wake(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Uid;
    use crate::cluster::testing::{Given, nothing, three};

    fn asked(given: Given, state: RequestState) -> Given {
        given.world(|world| {
            world.restores.push(RestoreRequest {
                uid: Uid("restore".into()),
                name: "back".into(),
                recovery: false,
                backup: None,
                state,
            });
        })
    }

    fn proven() -> RequestState {
        RequestState::Proven(Box::new(RestoreSource {
            location: "bucket/file".into(),
            revision: 7,
            ..RestoreSource::default()
        }))
    }

    #[test]
    fn a_running_cluster_is_touched_only_for_a_proven_backup() {
        asked(three(), RequestState::Fetching).then(Reason::AsExpected, &[]);
        asked(three(), RequestState::Failed("it ends early".into())).then(Reason::AsExpected, &[]);
        // Recorded first, then the old members are stopped, and their claims stay.
        let given = asked(three(), proven());
        let plan = given.then(Reason::Restoring, &[]);
        assert!(plan.record.restoring().is_some());
        given.record(|record| *record = plan.record).then(
            Reason::Restoring,
            &[
                "try pod c-new (etcd 3.5.35) without making it",
                "delete pod c-a (Replaced, uid pod-c-a)",
                "delete pod c-b (Replaced, uid pod-c-b)",
                "delete pod c-c (Replaced, uid pod-c-c)",
            ],
        );
    }

    #[test]
    fn the_new_cluster_starts_from_the_backup_when_the_old_members_have_stopped() {
        let given = asked(nothing(), proven());
        let plan = given.then(Reason::Restoring, &[]);
        given.record(|record| *record = plan.record).then(
            Reason::Restoring,
            &["create the claim of c-new", "create pod c-new (Restore, etcd 3.5.35)"],
        );
    }

    #[test]
    fn a_first_member_whose_volume_no_node_can_use_begins_elsewhere_once_it_has_ended() {
        // given a first member that waits for a node which can use its volume, and has waited for long
        let given = asked(nothing(), proven());
        let plan = given.then(Reason::Restoring, &[]);
        let waits = given.record(|record| *record = plan.record).with_objects("c-new");
        let waits = waits
            .pod("c-new", |pod| {
                (pod.node, pod.running, pod.ever_ran, pod.ready) = (None, false, false, false);
                pod.blocked = Some(crate::cluster::Blocked {
                    reason: "Unschedulable".into(),
                    message: "0/3 nodes are available: 3 node(s) had volume node affinity conflict.".into(),
                    since: None,
                });
            })
            .world(|world| {
                world.fresh_names.remove(0);
                let waited = (Uid("pod-c-new".into()), Duration::MAX);
                world.watched.unscheduled.extend([waited]);
            });
        // then it begins again under another name
        let seed = |plan: crate::cluster::Plan| plan.record.restore.expect("a restore").seed;
        assert_eq!(seed(waits.then(Reason::Restoring, &[])), "c-newer".into());
        // but not where it ran before, on a node that may only be cut off
        let before = crate::cluster::LastSeen {
            pod: Uid("the pod before".into()),
            node: Some("node".into()),
            ..crate::cluster::LastSeen::default()
        };
        let ran = waits.record(|record| drop(record.last_seen.insert("c-new".into(), before)));
        let plan = ran.then(Reason::Restoring, &[]);
        assert!(plan.report.waiting.contains("confirm-lost"), "{}", plan.report.waiting);
        assert_eq!(seed(plan), "c-new".into());
    }

    #[test]
    fn a_new_cluster_does_not_begin_empty_while_a_restore_of_it_waits() {
        asked(nothing(), RequestState::Fetching).then(Reason::WaitingForRestore, &[]);
        asked(nothing(), RequestState::Failed("no such file".into())).then(Reason::RestoreFailed, &[]);
    }
}
