//! A majority that is lost for good. Reported; changed only with the user's consent in the spec, since every way out ends
//! the old cluster's history.

use std::time::Duration;

use super::intent::Recovery;
use super::members::{Health, LossEvidence, elapsed, owner};
use super::quorum::Count;
use super::record::{Record, Recovering};
use super::world::RequestState;
use super::{
    Effect, LATER, Launch, LaunchKind, MemberName, Note, Reason, SOON, Step, Stop, View, Work, gone, pods, requests,
};

pub(super) fn recover(view: &View<'_>, record: &mut Record) -> Option<Step> {
    if let Some(recovering) = &view.record.recovery {
        return go_on(view, record, recovering);
    }
    if view.world.list.is_some() {
        return None;
    }
    let count = Count::of(view);
    if count.voters.len() + count.strangers.len() - count.lost.len() >= count.quorum() {
        return None; // Those that are not lost are enough; bringing them back is `restart`'s work.
    }
    let lost = &count.lost;
    let survivors: Vec<_> = count.voters.iter().filter(|name| !lost.contains(name)).collect();
    let has = |name: &MemberName| match view.world.probes.get(name) {
        Some(super::MemberProbe::Reply(reply)) => format!("{name} (index {})", reply.index),
        _ => format!("{name} (does not answer)"),
    };
    let words = format!(
        "quorum is lost: {} of {} voters are lost for good ({}); survivors: {}",
        lost.len(),
        count.voters.len() + count.strangers.len(),
        lost.iter().map(|name| name.0.as_str()).collect::<Vec<_>>().join(", "),
        if survivors.is_empty() {
            "none".to_owned()
        } else {
            survivors.iter().map(|name| has(name)).collect::<Vec<_>>().join(", ")
        },
    );
    // Members that are only away still come back as they were, so that their word can be compared.
    if let Some(back) = pods::bring_back(view) {
        return Some(Step::new(Work::Blocked, Reason::QuorumLost, words).with(back.effects));
    }
    if !count.strangers.is_empty() && view.intent.recovery != Recovery::Report {
        let message = format!(
            "{words}. The member list also has voters that are not this cluster's: {}. Nothing is founded beside them: bring them back, or create an EtcdRestore if they are gone for good",
            count.strangers.join(", ")
        );
        return Some(Step::new(Work::Blocked, Reason::OtherVoters, message).wake(LATER));
    }
    let since = view.record.quorum_lost.unwrap_or(view.now);
    match view.intent.recovery {
        Recovery::Report => Some(
            Step::new(Work::Blocked, Reason::QuorumLost, format!("{words}. Nothing is changed. Set spec.recovery.onQuorumLoss to FromSurvivor or FromBackup to go on, accepting that writes may be lost")).wake(LATER),
        ),
        Recovery::FromSurvivor(_) if !view.intent.is_durable() => Some(
            Step::new(Work::Blocked, Reason::SurvivorIsEphemeral, format!("{words}. The survivors' data lives in their pods and would go with a restart: save it with etcdctl snapshot save, then restore it with an EtcdRestore")).wake(LATER),
        ),
        Recovery::FromSurvivor(delay) => {
            if let Some(left) = wait_left(since, view, delay) {
                return Some(Step::new(Work::Blocked, Reason::QuorumLost, format!("{words}. Recovery from a survivor begins in {} s", left.as_secs())).wake(left));
            }
            from_survivor(view, record, &survivors.iter().map(|name| (**name).clone()).collect::<Vec<_>>(), words)
        }
        Recovery::FromBackup(delay) => {
            if let Some(left) = wait_left(since, view, delay) {
                return Some(Step::new(Work::Blocked, Reason::QuorumLost, format!("{words}. Recovery from a backup begins in {} s", left.as_secs())).wake(left));
            }
            Some(from_backup(view, record, &words))
        }
    }
}

fn wait_left(since: jiff::Timestamp, view: &View<'_>, delay: Duration) -> Option<Duration> {
    let waited = elapsed(since, view.now).min(view.world.watched.no_quorum);
    delay.checked_sub(waited).filter(|left| !left.is_zero())
}

/// The most advanced survivor by its own words: every survivor must have spoken, else the choice could be wrong.
///
/// Most advanced is who knows most to be committed: `--force-new-cluster` discards what a member has beyond that, and what is
/// committed is the same for all. A higher term tells only of elections, which whoever is cut off holds in vain.
fn from_survivor(view: &View<'_>, record: &mut Record, survivors: &[MemberName], words: String) -> Option<Step> {
    let mut best: Option<(&MemberName, u64)> = None;
    for name in survivors {
        let Some(super::MemberProbe::Reply(reply)) = view.world.probes.get(name) else {
            let advice = gone::advice(view, &[name]);
            return Some(
                Step::new(
                    Work::Blocked,
                    Reason::WaitingForSurvivors,
                    format!(
                        "{words}. Waiting for {name} to say what it has, so that the most advanced one can be chosen: {advice}"
                    ),
                )
                .wake(LATER),
            );
        };
        if best.is_none_or(|(_, most)| reply.index > most) {
            best = Some((name, reply.index));
        }
    }
    // The record may be behind: by their own list those that answer may be enough to elect a leader.
    let voters: Vec<_> = view
        .believed_list()
        .unwrap_or_default()
        .iter()
        .filter(|listed| !listed.learner)
        .collect();
    let answering = voters
        .iter()
        .filter_map(|listed| owner(view.intent, listed))
        .filter(|name| matches!(view.world.probes.get(name), Some(super::MemberProbe::Reply(_))));
    if !voters.is_empty() && answering.count() > voters.len() / 2 {
        return Some(
            Step::new(
                Work::Recovering,
                Reason::WaitingForQuorum,
                "enough members answer to elect a leader; waiting for them".to_owned(),
            )
            .wake(LATER),
        );
    }
    let Some((survivor, _)) = best else {
        return Some(
            Step::new(
                Work::Blocked,
                Reason::NoSurvivor,
                format!("{words}. No survivor is left; only a backup can bring data back"),
            )
            .wake(LATER),
        );
    };
    record.recovery = Some(Recovering {
        survivor: survivor.clone(),
        started: false,
        served: false,
    });
    let note = Note {
        warning: true,
        reason: Reason::RecoveringFromSurvivor,
        message: format!(
            "{words}. {survivor} has the most and becomes the cluster; writes that only the lost members had acknowledged are gone"
        ),
    };
    Some(
        Step::new(
            Work::Recovering,
            Reason::RecoveringFromSurvivor,
            format!("{survivor} becomes the cluster"),
        )
        .with([Effect::Tell(note)])
        .wake(Duration::ZERO),
    )
}

/// A backup is asked for by an EtcdRestore of our own, fetched and proven like any other, and only then followed: if the
/// majority comes back meanwhile, nothing was touched.
fn from_backup(view: &View<'_>, record: &mut Record, words: &str) -> Step {
    let blocked = |reason, more: String| Step::new(Work::Blocked, reason, format!("{words}. {more}")).wake(LATER);
    let waits = |more: String| {
        Step::new(
            Work::Recovering,
            Reason::RecoveringFromBackup,
            format!("{words}. {more}"),
        )
        .wake(LATER)
    };
    let request = view.record.asked.as_ref().and_then(|name| {
        let mut requests = view.world.restores.iter();
        requests.find(|request| request.recovery && request.name == *name)
    });
    let backup = match requests::candidate(view) {
        Ok(backup) => backup,
        Err(why) => return blocked(Reason::NoBackup, why),
    };
    match (&view.record.asked, request) {
        (_, Some(request)) if requests::may_be_used(view, request) => match &request.state {
            RequestState::Proven(source) => match requests::too_new(view, source) {
                Some(why) => blocked(Reason::BackupTooNew, why),
                None => requests::begin(view, record, request, source),
            },
            RequestState::Fetching => waits(format!(
                "the backup is being fetched and proven by EtcdRestore {}",
                request.name
            )),
            RequestState::Failed(why) => blocked(
                Reason::RecoveryFailed,
                format!(
                    "The backup cannot be used: {why}. Delete EtcdRestore {} to try again, or create one that names another backup",
                    request.name
                ),
            ),
        },
        (Some(name), None) => {
            waits(format!("asking for a restore from EtcdBackup {}", backup.name)).with([Effect::RequestRestore {
                name: name.clone(),
                backup: backup.name.clone(),
            }])
        }
        (None, None) | (_, Some(_)) => {
            let Some(name) = name_of_request(view) else {
                return waits("no name for an EtcdRestore".to_owned());
            };
            record.asked = Some(name);
            let note = Note {
                warning: true,
                reason: Reason::RecoveringFromBackup,
                message: format!(
                    "{words}. The cluster is put back from EtcdBackup {}: what was written after revision {} of {} is lost",
                    backup.name, backup.revision, backup.taken
                ),
            };
            waits(format!("going back to the backup of {}", backup.taken))
                .with([Effect::Tell(note)])
                .wake(Duration::ZERO)
        }
    }
}

/// A name that no EtcdRestore of this cluster has.
fn name_of_request(view: &View<'_>) -> Option<String> {
    let mut names = view.world.fresh_names.iter().map(|name| {
        let suffix = name.0.rsplit('-').next().unwrap_or_default();
        format!("{}-recovery-{suffix}", view.intent.name)
    });
    names.find(|name| view.world.restores.iter().all(|request| request.name != *name))
}

/// Fence all others, restart the survivor as the only member, then as an ordinary one, and let `grow` do the rest.
fn go_on(view: &View<'_>, record: &mut Record, recovering: &Recovering) -> Option<Step> {
    let survivor = &recovering.survivor;
    let doing = |message: String| Step::new(Work::Recovering, Reason::RecoveringFromSurvivor, message);
    let alone =
        view.world.list.as_ref().is_some_and(|list| {
            list.members.len() == 1 && owner(view.intent, &list.members[0]).as_ref() == Some(survivor)
        });
    let pod = view.world.pods.get(survivor);
    if view.world.list.is_none() && recovering.started {
        match view.members.get(survivor).map(|member| &member.health) {
            Some(Health::Lost(LossEvidence::ClaimGone | LossEvidence::DataGone | LossEvidence::DataBroken(_))) => {
                record.recovery = None; // It is lost too: what is left is judged anew.
                return None;
            }
            Some(Health::Lost(_)) => return Some(lost_its_node(view, survivor)),
            _ => {}
        }
    }
    if recovering.served {
        return seal(view, record, survivor, alone);
    }
    if alone && recovering.started {
        record.recovery = Some(Recovering {
            served: true,
            ..recovering.clone()
        });
        return Some(doing(format!("{survivor} is the cluster now")).wake(Duration::ZERO));
    }
    if view.world.list.is_some() && !recovering.started {
        // The majority came back before anything was done: nothing needs recovering.
        record.recovery = None;
        return None;
    }
    if !recovering.started && !matches!(view.intent.recovery, Recovery::FromSurvivor(_)) {
        // The user changed their mind, and nothing of another history is there: whoever was stopped comes back as it was.
        record.recovery = None;
        let note = Note {
            warning: true,
            reason: Reason::QuorumLost,
            message: format!(
                "the recovery from {survivor} is not followed any more: spec.recovery.onQuorumLoss was changed"
            ),
        };
        let message = "the recovery from a survivor was taken back; members come back with their data";
        return Some(doing(message.into()).with([Effect::Tell(note)]).wake(Duration::ZERO));
    }
    let fence = gone::fence(view, survivor, Stop::Restart, true);
    let only_member_is_taken = pods::try_out(view, survivor, Launch::ForceNew, view.stage_of(survivor));
    if !fence.waits.is_empty() {
        let words = fence.words(view);
        return Some(
            doing(format!(
                "stopping all other members, so that none can come back into the new cluster: {words}"
            ))
            .with((!fence.stop.is_empty()).then_some(only_member_is_taken))
            .with(fence.stop)
            .wake(LATER),
        );
    }
    match pod {
        Some(pod) if pod.terminating => Some(doing(format!("waiting for {survivor} to stop"))),
        Some(pod) if pod.launch == LaunchKind::ForceNew => {
            Some(doing(format!("waiting for {survivor} to answer as the only member")).wake(SOON))
        }
        Some(pod) => Some(
            doing(format!("restarting {survivor} as the only member"))
                .with([only_member_is_taken, pods::stop(survivor, pod, Stop::Restart)]),
        ),
        None => {
            record.recovery = Some(Recovering {
                started: true,
                ..recovering.clone()
            });
            let start = pods::create(view, survivor, Launch::ForceNew, view.stage_of(survivor));
            let effects = fence.guard().into_iter().chain([start]);
            Some(doing(format!("starting {survivor} as the only member")).with(effects))
        }
    }
}

/// The survivor is the cluster. A container that ends is started again with what its kubelet has seen of the pod, and a
/// change of its annotations may not be among that: then it would drop everybody who joined meanwhile. So the pod itself is
/// replaced before anybody joins.
fn seal(view: &View<'_>, record: &mut Record, survivor: &MemberName, alone: bool) -> Option<Step> {
    let doing = |message: String| Step::new(Work::Recovering, Reason::RecoveringFromSurvivor, message);
    match view.world.pods.get(survivor) {
        Some(pod) if pod.terminating => Some(doing(format!(
            "waiting for {survivor} to stop; then it starts as an ordinary member"
        ))),
        Some(pod) if pod.launch == LaunchKind::ForceNew => {
            Some(doing(format!("restarting {survivor} as an ordinary member")).with([
                pods::successor(view, survivor, view.stage_of(survivor)),
                pods::stop(survivor, pod, Stop::Restart),
            ]))
        }
        Some(_) if alone => {
            record.recovery = None;
            let claims = view.world.claims.iter().filter(|(name, _)| *name != survivor);
            let claims = claims.map(|(name, claim)| (name.clone(), claim.uid.clone())).collect();
            let told = super::old_claims::keep(view, record, claims);
            Some(
                doing(format!("{survivor} is the cluster; others join it"))
                    .with(told)
                    .wake(Duration::ZERO),
            )
        }
        Some(_) => Some(doing(format!("waiting for {survivor} to answer as an ordinary member")).wake(SOON)),
        None => Some(
            doing(format!("starting {survivor} as an ordinary member")).with([pods::create(
                view,
                survivor,
                Launch::Sealed,
                view.stage_of(survivor),
            )]),
        ),
    }
}

/// The node of the survivor died. It may serve there, so it comes back elsewhere only when that node is proven to have ended.
fn lost_its_node(view: &View<'_>, survivor: &MemberName) -> Step {
    let doing = |message: String| Step::new(Work::Recovering, Reason::RecoveringFromSurvivor, message).wake(LATER);
    let pod = view.world.pods.get(survivor);
    match pod.filter(|pod| gone::node_end(view, pod).is_some()) {
        Some(pod) => {
            doing(format!("{survivor} comes back on another node")).with([pods::stop(survivor, pod, Stop::Force)])
        }
        None => doing(gone::advice(view, &[survivor])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::{Given, three};

    /// Two of three members are lost with their volumes.
    fn two_are_lost() -> Given {
        three().lost("c-b").lost("c-c").without_quorum()
    }

    #[test]
    fn without_consent_the_loss_is_reported_and_nothing_is_changed() {
        let plan = two_are_lost().then(Reason::QuorumLost, &[]);
        assert!(plan.report.degraded.holds && plan.record.recovery.is_none());
        assert!(
            plan.report.waiting.contains("survivors: c-a (index 100)"),
            "{}",
            plan.report.waiting
        );
    }

    #[test]
    fn with_consent_the_survivor_becomes_the_cluster() {
        let given = two_are_lost().spec(|intent| intent.recovery = Recovery::FromSurvivor(Duration::ZERO));
        let plan = given.then(Reason::RecoveringFromSurvivor, &[]);
        // The record comes first; then it is started as the only member.
        let recorded = plan.record.recovery.clone().expect("a record");
        assert_eq!((recorded.survivor, recorded.started), ("c-a".into(), false));
        let given = given.record(|record| *record = plan.record);
        given.then(
            Reason::RecoveringFromSurvivor,
            &[
                "try pod c-a (etcd 3.5.35) without making it",
                "delete pod c-a (Restart, uid pod-c-a)",
            ],
        );
        let given = given.without_pod("c-a");
        given.then(
            Reason::RecoveringFromSurvivor,
            &["create pod c-a (ForceNew, etcd 3.5.35)"],
        );
    }

    #[test]
    fn from_a_backup_there_must_be_one() {
        let given = two_are_lost().spec(|intent| intent.recovery = Recovery::FromBackup(Duration::ZERO));
        given.then(Reason::NoBackup, &[]);
    }

    #[test]
    fn members_that_are_only_away_come_back_first() {
        let given = two_are_lost().spec(|intent| intent.recovery = Recovery::FromSurvivor(Duration::ZERO));
        let given = given.without_pod("c-a");
        given.then(Reason::QuorumLost, &["create pod c-a (Sealed, etcd 3.5.35)"]);
    }
}
