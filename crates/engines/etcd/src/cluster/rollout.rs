//! Wishes that a running pod does not meet yet reach it by a restart: one member at a time, followers first, leadership
//! handed over, health between the steps. A new version is one such wish.

use super::pods::{outdated, successor};
use super::record::Record;
use super::{Effect, LATER, Note, Reason, SOON, Step, Stop, TlsStage, View, Work, pods, upgrade};

pub(super) fn rollout(view: &View<'_>, record: &mut Record) -> Option<Step> {
    let list = view.world.list.as_ref()?;
    upgrade::forget_other_goals(view, record);
    let relabel: Vec<_> = view
        .world
        .pods
        .iter()
        .filter(|(_, pod)| !pod.terminating && pod.metadata != view.intent.metadata && !outdated(view, pod))
        .map(|(name, pod)| Effect::RelabelPod {
            member: name.clone(),
            uid: pod.uid.clone(),
        })
        .collect();
    let stale: Vec<_> = view
        .voters()
        .filter(|member| member.pod.is_some_and(|pod| outdated(view, pod)))
        .collect();
    let pending = upgrade::is_pending(view);
    if stale.is_empty() && !pending {
        if let Some(step) = upgrade::cancel_downgrade(view) {
            return Some(step.with(relabel));
        }
        finish(view, record);
        return (!relabel.is_empty()).then(|| {
            Step::new(
                Work::Changing,
                Reason::Relabeling,
                "bringing labels and annotations up to date",
            )
            .with(relabel)
        });
    }
    let new_version = record.current.as_ref().is_some_and(|current| *current != view.version);
    let (work, reason) = if new_version {
        (Work::Upgrading, Reason::RollingUpgrade)
    } else {
        (Work::Changing, Reason::RollingRestart)
    };
    let total = view.voters().count();
    let done = total - stale.len();
    if let Some(sick) = view.voters().find(|member| !member.is_healthy()) {
        let why = match &sick.health {
            super::members::Health::Unavailable(why) => why.clone(),
            health => format!("{health:?}"),
        };
        return Some(Step::new(work, Reason::RollHalted, format!("{done} of {total} members are up to date; halted until {} answers: {why}. To go back, set the old value again", sick.name)).with(relabel).wake(LATER));
    }
    if let Some(step) = upgrade::cancel_downgrade(view).or_else(|| upgrade::prepare(view, record, stale.is_empty())) {
        return Some(step.with(relabel));
    }
    if !view.intent.is_durable() {
        return None; // Members without durable data are replaced, not restarted: `grow` and `shrink` do it.
    }
    if view.intent.on_delete {
        return Some(
            Step::new(
                work,
                Reason::WaitingForDelete,
                format!("{done} of {total} members are up to date; updateStrategy is OnDelete: delete a pod to restart it with the new settings"),
            )
            .with(relabel),
        );
    }
    if let Some((name, left)) = not_ready_for_long(view) {
        return Some(
            Step::new(
                work,
                reason,
                format!(
                    "{done} of {total} members are up to date; waiting until {name} has been ready for {} s (updateStrategy.minReadySeconds)",
                    view.intent.min_ready.as_secs()
                ),
            )
            .with(relabel)
            .wake(left),
        );
    }
    let leader = view.leader();
    let followers = stale
        .iter()
        .find(|member| member.listed.map(|listed| listed.id) != leader);
    let member = followers.or(stale.first())?;
    let (listed, pod) = (member.listed?, member.pod?);
    if leader == Some(listed.id) && total > 1 && member.can_hand_over() {
        let next = view
            .voters()
            .filter(|other| other.name != member.name)
            .max_by_key(|other| {
                (
                    other.pod.is_some_and(|pod| !outdated(view, pod)),
                    other.reply.map(|reply| reply.index),
                )
            })?;
        let hand_over = Effect::MoveLeader {
            from: listed.id,
            to: next.listed?.id,
            cluster: list.cluster,
        };
        return Some(
            Step::new(
                work,
                reason,
                format!(
                    "{done} of {total} members are up to date; leader {} hands over to {}",
                    member.name, next.name
                ),
            )
            .with([hand_over])
            .wake(SOON),
        );
    }
    let mut effects = vec![successor(view, &member.name, view.stage)];
    // Peers learn the new address before the member listens on it; it calls them meanwhile.
    let url = view.intent.peer_url(&member.name, view.stage == TlsStage::On);
    if listed.peer_urls != [url.clone()] {
        effects.push(Effect::UpdatePeerUrl {
            member: member.name.clone(),
            id: listed.id,
            peer_url: url,
            cluster: list.cluster,
        });
    }
    effects.push(pods::stop(&member.name, pod, Stop::Restart));
    let what = if view.intent.sweeps {
        "restarted so that its log holds only what etcd 3.6 can read".to_owned()
    } else if new_version {
        format!("restarted with etcd {}", view.new_pods)
    } else {
        "restarted with the new settings".to_owned()
    };
    let note = Note {
        warning: false,
        reason: Reason::RestartingMember,
        message: format!("{} is {what}", member.name),
    };
    Some(
        Step::new(
            work,
            reason,
            format!("{done} of {total} members are up to date; {} is {what}", member.name),
        )
        .with(effects)
        .with([Effect::Tell(note)]),
    )
}

/// An updated member that is not ready for as long as the user wants it to be before the next one, and how long that is.
fn not_ready_for_long<'a>(view: &'a View<'_>) -> Option<(&'a super::MemberName, std::time::Duration)> {
    let wanted = view.intent.min_ready;
    // etcd calls no member ready while CORRUPT is raised (`/readyz`), however well each one is.
    if wanted.is_zero() || view.world.has_alarm(super::Alarm::Corrupt) {
        return None;
    }
    view.voters()
        .filter(|member| member.pod.is_some_and(|pod| !outdated(view, pod)))
        .filter_map(|member| {
            let pod = member.pod.filter(|pod| pod.ready);
            let left = match pod.and_then(|pod| Some((pod, pod.ready_since?))) {
                Some((pod, since)) => {
                    let by_the_clock = super::members::elapsed(since, view.now);
                    let watched = view.world.watched.ready.get(&pod.uid).copied().unwrap_or_default();
                    wanted.saturating_sub(by_the_clock.min(watched))
                }
                None => wanted,
            };
            Some((&member.name, left)).filter(|(_, left)| !left.is_zero())
        })
        .max_by_key(|(_, left)| *left)
}

/// All pods are as wished and every voter answers: this is the version now.
fn finish(view: &View<'_>, record: &mut Record) {
    if view.all_voters_healthy() && view.voters().next().is_some() {
        record.upgrade_backup = None;
        record.current = Some(view.new_pods.clone());
        record.ready_for = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::{Given, three, version};

    /// These pods were made from other settings.
    fn outdated_pods(names: &[&str]) -> Given {
        let old = |given: Given, name: &&str| given.pod(name, |pod| pod.template = "old".into());
        names.iter().fold(three(), old)
    }

    #[test]
    fn one_follower_is_restarted_at_a_time() {
        outdated_pods(&["c-a", "c-b", "c-c"]).then(
            Reason::RollingRestart,
            &[
                "try pod c-b (etcd 3.5.35) without making it",
                "delete pod c-b (Restart, uid pod-c-b)",
            ],
        );
        outdated_pods(&["c-a", "c-c"])
            .silent("c-b")
            .then(Reason::RollHalted, &[]);
    }

    #[test]
    fn the_leader_is_last_and_hands_over_first() {
        outdated_pods(&["c-a"]).then(Reason::RollingRestart, &["move leadership from 1 to 3"]);
    }

    #[test]
    fn labels_reach_a_pod_without_a_restart() {
        let given = three().pod("c-b", |pod| pod.metadata = "old".into());
        given.then(Reason::Relabeling, &["relabel c-b"]);
    }

    #[test]
    fn with_on_delete_the_user_restarts() {
        let given = outdated_pods(&["c-b"]).spec(|intent| intent.on_delete = true);
        given.then(Reason::WaitingForDelete, &[]);
    }

    #[test]
    fn a_minor_version_is_rolled_out_when_the_members_are_ready_for_it() {
        let given = three().spec(|intent| intent.version = version("3.6.16"));
        let plan = given.then(Reason::RollingUpgrade, &[]);
        assert_eq!(plan.record.ready_for, Some(version("3.6.16")));
        given.record(|record| *record = plan.record).then(
            Reason::RollingUpgrade,
            &[
                "try pod c-b (etcd 3.6.16) without making it",
                "delete pod c-b (Restart, uid pod-c-b)",
            ],
        );
    }
}
