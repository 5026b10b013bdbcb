//! The one bootstrap of a cluster. Recorded before the first pod is made; never a second time (rule 3).

use super::intent::Bootstrap;
use super::members::CRASHES_OF_UNKNOWN_REASON;
use super::record::{Bootstrapped, Record};
use super::{Effect, Launch, MemberName, Reason, SOON, Step, Stop, View, Work, pods};

pub(super) fn bootstrap(view: &View<'_>, record: &mut Record) -> Option<Step> {
    match &view.record.bootstrap {
        None => Some(begin(view, record)),
        Some(bootstrap) if bootstrap.cluster.is_none() => Some(bring_up(view, bootstrap)),
        Some(_) => None,
    }
}

/// The status has no record, and something of the cluster is there.
pub(super) fn without_record(view: &View<'_>, record: &mut Record) -> Option<Step> {
    let world = view.world;
    if view.record.bootstrap.is_some() {
        return None;
    }
    if let Some(list) = &world.list {
        // The record was lost (an object restored without its status), the cluster was not: take it up again.
        record.bootstrap = Some(Bootstrapped {
            token: String::new(),
            first: Vec::new(),
            cluster: Some(list.cluster),
        });
        return Some(
            Step::new(
                Work::Changing,
                Reason::Adopted,
                "the status had no record of this running cluster; it was taken up again",
            )
            .wake(SOON),
        );
    }
    if !world.pods.is_empty() || !world.claims.is_empty() {
        let named = world
            .pods
            .keys()
            .chain(world.claims.keys())
            .map(|name| name.0.as_str())
            .collect::<std::collections::BTreeSet<_>>();
        let named = named.into_iter().collect::<Vec<_>>().join(", ");
        return Some(Step::new(
            Work::Blocked,
            Reason::RecordMissing,
            format!("the status has no record of a bootstrap, but pods or claims of this cluster are there ({named}) and no member answers. Nothing is started, since that could make a second cluster. Restore the status, or delete these claims if their data is not wanted"),
        )
        .wake(super::LATER));
    }
    None
}

fn begin(view: &View<'_>, record: &mut Record) -> Step {
    let (world, intent) = (view.world, view.intent);
    if !world.foreign_claims.is_empty() && !intent.ignore_old_claims {
        return Step::new(
            Work::Blocked,
            Reason::OldClaimsPresent,
            format!(
                "claims of an earlier cluster of this name are there: {}. Delete them, restore from them under another name, or set the annotation stateward.dev/ignore-old-claims: \"true\" to begin with an empty cluster beside them",
                world.foreign_claims.join(", ")
            ),
        );
    }
    if !world.conflicts.is_empty() {
        return Step::new(
            Work::Blocked,
            Reason::NameTaken,
            format!(
                "these objects exist and belong to other objects: {}. Delete them, or choose another name for the cluster",
                world.conflicts.join(", ")
            ),
        );
    }
    if let Some(refused) = super::upgrade_path::check_first(&view.version) {
        return Step::new(Work::Blocked, Reason::VersionRefused, refused);
    }
    let count = match intent.bootstrap {
        Bootstrap::SeedThenJoin => 1,
        Bootstrap::Parallel => intent.size,
    };
    let first: Vec<_> = world.fresh_names.iter().take(count).cloned().collect();
    let bootstrap = Bootstrapped {
        token: world.fresh_token.clone(),
        first,
        cluster: None,
    };
    let step = bring_up(view, &bootstrap);
    record.bootstrap = Some(bootstrap);
    record.target = Some(view.version.clone());
    step
}

fn bring_up(view: &View<'_>, bootstrap: &Bootstrapped) -> Step {
    let (mut claims, mut pods) = (Vec::new(), Vec::new());
    let mut waiting = None;
    let mut running = false;
    let kept_out = lost_its_memory(view, bootstrap);
    for name in &bootstrap.first {
        let pod = view.world.pods.get(name);
        if kept_out.contains(&name) {
            running |= pod.is_some_and(|pod| pod.running);
            waiting = Some(format!(
                "{name} has lost its data; it is replaced when the others serve"
            ));
            continue;
        }
        match pod {
            // Nothing can be lost with a pod that never ran: a corrected spec reaches it at once. One that ends again and
            // again keeps its data on its claim; without one it has shown by then that it has none.
            Some(pod)
                if !pod.terminating
                    && (!pod.ever_ran
                        || (!pod.running
                            && pod.blocked.is_some()
                            && (view.intent.is_durable() || pod.restarts >= CRASHES_OF_UNKNOWN_REASON)))
                    && (pod.template != view.intent.template || pod.version != view.version) =>
            {
                pods.push(pods::stop(name, pod, Stop::Restart));
            }
            Some(pod) if pod.ended && !pod.terminating => {
                pods.push(pods::stop(name, pod, Stop::Restart));
            }
            Some(pod) => {
                running |= pod.running;
                if view.intent.is_durable() && pod.node.is_none() && !view.world.claims.contains_key(name) {
                    claims.push(Effect::CreateClaim { member: name.clone() });
                }
                waiting = waiting.or_else(|| {
                    pod.blocked
                        .as_ref()
                        .map(|blocked| format!("pod {name} waits: {}: {}", blocked.reason, blocked.message))
                });
                waiting = waiting.or_else(|| super::trouble::why_silent(view.members.get(name)?));
            }
            None => {
                if view.intent.is_durable() && !view.world.claims.contains_key(name) {
                    claims.push(Effect::CreateClaim { member: name.clone() });
                }
                let launch = match bootstrap.first.len() {
                    1 => Launch::Seed {
                        token: bootstrap.token.clone(),
                    },
                    _ => Launch::Static {
                        token: bootstrap.token.clone(),
                        members: bootstrap.first.clone(),
                    },
                };
                pods.push(Effect::CreatePod {
                    member: name.clone(),
                    launch,
                    version: view.version.clone(),
                    tls: view.stage,
                });
            }
        }
        if let Some(problem) = view.world.claims.get(name).and_then(|claim| claim.problem.as_ref()) {
            waiting = Some(format!(
                "the claim of {name} is not bound: {problem}. Set spec.storage.storageClassName to a class that can serve it, or spec.storage.ephemeral: true for a cluster without durable data"
            ));
        }
    }
    let what = if bootstrap.first.len() == 1 {
        "the first member"
    } else {
        "all first members"
    };
    let step = match waiting {
        Some(waiting) => Step::new(
            Work::Creating,
            Reason::WaitingForFirstMember,
            format!("starting {what}: {waiting}"),
        ),
        None => Step::new(Work::Creating, Reason::StartingFirstMember, format!("starting {what}")),
    };
    // All claims before the first pod: once a pod has run, a claim that is not there was there.
    let step = step.with(claims).with(pods);
    if running { step.wake(SOON) } else { step }
}

/// First members that may have voted and have nothing left of it. Under its old ID such a one must not begin empty: with
/// the others' help it could undo what it confirmed before (etcd itself notices only while another one answers it). The
/// others are a quorum; when it serves, `replace` gives the lost one a new ID.
///
/// Where those that are left are no quorum, a majority is lost or was never made: then all begin.
fn lost_its_memory<'a>(view: &View<'_>, bootstrap: &'a Bootstrapped) -> Vec<&'a MemberName> {
    let first = &bootstrap.first;
    let has_place = |name: &MemberName| match view.intent.is_durable() {
        true => view
            .world
            .claims
            .get(name)
            .is_some_and(|claim| !claim.terminating && !claim.lost),
        false => view
            .world
            .pods
            .get(name)
            .is_some_and(|pod| !pod.ended && !pod.terminating),
    };
    let may_have_run = |name: &MemberName| {
        let bound = view.world.claims.get(name).is_some_and(|claim| claim.bound);
        bound || view.world.pods.get(name).is_some_and(|pod| pod.ever_ran)
    };
    let (left, gone): (Vec<_>, Vec<_>) = first.iter().partition(|name| has_place(name));
    let any_ran = first.iter().any(may_have_run);
    if any_ran && left.len() > first.len() / 2 {
        gone
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::{nothing, three, with_spec};

    #[test]
    fn a_new_cluster_begins_with_one_member_that_is_recorded_first() {
        let plan = nothing().then(
            Reason::StartingFirstMember,
            &["create the claim of c-new", "create pod c-new (Seed, etcd 3.5.35)"],
        );
        let recorded = plan.record.bootstrap.expect("a record");
        assert_eq!((recorded.first, recorded.cluster), (vec!["c-new".into()], None));
    }

    #[test]
    fn without_a_record_nothing_begins_beside_what_is_there() {
        for (what, given, reason) in [
            (
                "claims of this cluster",
                three().world(|world| world.pods.clear()),
                Reason::RecordMissing,
            ),
            (
                "claims of an earlier cluster",
                nothing().world(|world| world.foreign_claims.push("c-old".into())),
                Reason::OldClaimsPresent,
            ),
            (
                "a pod of somebody else",
                nothing().world(|world| world.conflicts.push("Pod c-new".into())),
                Reason::NameTaken,
            ),
        ] {
            let given = given.record(|record| *record = Record::default()).without_quorum();
            let plan = given.then(reason, &[]);
            assert!(plan.record.bootstrap.is_none(), "{what}");
        }
    }

    #[test]
    fn a_running_cluster_without_a_record_is_taken_up_again() {
        let given = three().record(|record| *record = Record::default());
        assert!(given.then(Reason::Adopted, &[]).record.began());
    }

    #[test]
    fn a_version_that_corrupts_data_is_not_begun_with() {
        with_spec(serde_json::json!({"size": 3, "version": "3.5.1"})).then(Reason::VersionRefused, &[]);
    }
}
