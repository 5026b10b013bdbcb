//! A majority that is lost for good. Reported; changed only with the user's consent in the spec, since every way out ends
//! the old cluster's history.

use std::time::Duration;

use super::intent::Recovery;
use super::members::{Fate, elapsed};
use super::record::{Record, Recovering};
use super::world::RequestState;
use super::{Effect, LATER, Launch, LaunchKind, MemberName, Note, SOON, Step, Stop, View, Work};

pub(super) fn recover(view: &View<'_>, record: &mut Record) -> Option<Step> {
    if let Some(recovering) = &view.record.recovery {
        return go_on(view, record, recovering);
    }
    if view.world.list.is_some() {
        return None;
    }
    let voters: Vec<_> = view
        .record
        .members
        .iter()
        .filter(|(name, member)| member.voter && !has_left(view, name))
        .map(|(name, _)| name)
        .collect();
    let lost: Vec<_> = voters
        .iter()
        .filter(|name| {
            view.members
                .get(**name)
                .is_some_and(|member| matches!(member.fate, Fate::Lost(_)))
        })
        .collect();
    let quorum = voters.len() / 2 + 1;
    if voters.len() - lost.len() >= quorum {
        return None; // Those that are not lost are enough; bringing them back is `restart`'s work.
    }
    let survivors: Vec<_> = voters.iter().filter(|name| !lost.contains(name)).collect();
    let has = |name: &MemberName| match view.world.voices.get(name) {
        Some(super::Voice::Answered(answer)) => format!("{name} (term {}, index {})", answer.term, answer.index),
        _ => format!("{name} (does not answer)"),
    };
    let words = format!(
        "quorum is lost: {} of {} voters are lost for good ({}); survivors: {}",
        lost.len(),
        voters.len(),
        lost.iter().map(|name| name.0.as_str()).collect::<Vec<_>>().join(", "),
        if survivors.is_empty() {
            "none".to_owned()
        } else {
            survivors.iter().map(|name| has(name)).collect::<Vec<_>>().join(", ")
        },
    );
    // Members that are only away still come back as they were, so that their word can be compared.
    if let Some(step) = super::restart::bring_back(view) {
        return Some(Step {
            doing: Step::new(Work::Stuck, "QuorumLost", words).doing,
            ..step
        });
    }
    let since = view.record.quorum_lost.unwrap_or(view.now);
    match view.intent.recovery {
        Recovery::Report => Some(
            Step::new(Work::Stuck, "QuorumLost", format!("{words}. Nothing is changed. Set spec.recovery.onQuorumLoss to FromSurvivor or FromBackup to go on, accepting that writes may be lost")).wake(LATER),
        ),
        Recovery::FromSurvivor(_) if !view.intent.is_durable() => Some(
            Step::new(Work::Stuck, "SurvivorIsEphemeral", format!("{words}. The survivors' data lives in their pods and would go with a restart: save it with etcdctl snapshot save, then restore it with an EtcdRestore")).wake(LATER),
        ),
        Recovery::FromSurvivor(delay) => {
            if let Some(left) = wait_left(since, view, delay) {
                return Some(Step::new(Work::Stuck, "QuorumLost", format!("{words}. Recovery from a survivor begins in {} s", left.as_secs())).wake(left));
            }
            from_survivor(view, record, &survivors.iter().map(|name| (**name).clone()).collect::<Vec<_>>(), words)
        }
        Recovery::FromBackup(delay) => {
            if let Some(left) = wait_left(since, view, delay) {
                return Some(Step::new(Work::Stuck, "QuorumLost", format!("{words}. Recovery from a backup begins in {} s", left.as_secs())).wake(left));
            }
            Some(from_backup(view, record, &words))
        }
    }
}

/// A removal that was answered by a timeout may have happened after all, and the record still counts the member. It has left
/// when those that answer do not list it and it ends by itself without an error, which only a removed etcd does.
fn has_left(view: &View<'_>, name: &MemberName) -> bool {
    let owner = |listed| super::members::owner(view.intent, listed);
    let unlisted = view
        .believed_list()
        .is_some_and(|list| list.iter().all(|listed| owner(listed).as_ref() != Some(name)));
    let ended = |pod: &super::Pod| pod.restarts > 0 && pod.last_exit.as_ref().is_some_and(|exit| exit.code == 0);
    let silent = !matches!(view.world.voices.get(name), Some(super::Voice::Answered(_)));
    unlisted && silent && view.world.pods.get(name).is_some_and(ended)
}

fn wait_left(since: jiff::Timestamp, view: &View<'_>, delay: Duration) -> Option<Duration> {
    delay
        .checked_sub(elapsed(since, view.now))
        .filter(|left| !left.is_zero())
}

/// The most advanced survivor by its own words: every survivor must have spoken, else the choice could be wrong.
fn from_survivor(view: &View<'_>, record: &mut Record, survivors: &[MemberName], words: String) -> Option<Step> {
    let mut best: Option<(&MemberName, (u64, u64))> = None;
    for name in survivors {
        let Some(super::Voice::Answered(answer)) = view.world.voices.get(name) else {
            return Some(
                Step::new(
                    Work::Recovering,
                    "WaitingForSurvivors",
                    format!(
                        "{words}. Waiting for {name} to say what it has, so that the most advanced one can be chosen"
                    ),
                )
                .wake(LATER),
            );
        };
        let has = (answer.term, answer.index);
        if best.is_none_or(|(_, most)| has > most) {
            best = Some((name, has));
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
        .filter_map(|listed| super::members::owner(view.intent, listed))
        .filter(|name| matches!(view.world.voices.get(name), Some(super::Voice::Answered(_))));
    if !voters.is_empty() && answering.count() > voters.len() / 2 {
        return Some(
            Step::new(
                Work::Recovering,
                "WaitingForQuorum",
                "enough members answer to elect a leader; waiting for them".to_owned(),
            )
            .wake(LATER),
        );
    }
    let Some((survivor, _)) = best else {
        return Some(
            Step::new(
                Work::Stuck,
                "NoSurvivor",
                format!("{words}. No survivor is left; only a backup can bring data back"),
            )
            .wake(LATER),
        );
    };
    record.recovery = Some(Recovering {
        survivor: survivor.clone(),
        started: false,
    });
    let note = Note {
        warning: true,
        reason: "RecoveringFromSurvivor",
        message: format!(
            "{words}. {survivor} has the most and becomes the cluster; writes that only the lost members had acknowledged are gone"
        ),
    };
    Some(
        Step::new(
            Work::Recovering,
            "RecoveringFromSurvivor",
            format!("{survivor} becomes the cluster"),
        )
        .with([Effect::Tell(note)])
        .wake(Duration::ZERO),
    )
}

/// A backup is asked for by an EtcdRestore of our own, fetched and proven like any other, and only then followed: if the
/// majority comes back meanwhile, nothing was touched.
fn from_backup(view: &View<'_>, record: &mut Record, words: &str) -> Step {
    let stuck = |reason, more: String| Step::new(Work::Stuck, reason, format!("{words}. {more}")).wake(LATER);
    let waits =
        |more: String| Step::new(Work::Recovering, "RecoveringFromBackup", format!("{words}. {more}")).wake(LATER);
    let request = view.record.asked.as_ref().and_then(|name| {
        let mut requests = view.world.restores.iter();
        requests.find(|request| request.recovery && request.name == *name)
    });
    match (&view.record.asked, request, &view.world.latest_backup) {
        (_, Some(request), _) => match &request.state {
            RequestState::Proven(source) => match super::restore::too_new(view, source) {
                Some(why) => stuck("BackupTooNew", why),
                None => super::restore::begin(view, record, request, source),
            },
            RequestState::Fetching => waits(format!("the backup is being fetched and proven by EtcdRestore {}", request.name)),
            RequestState::Failed(why) => stuck(
                "RecoveryFailed",
                format!("The backup cannot be used: {why}. Delete EtcdRestore {} to try again, or create one that names another backup", request.name),
            ),
        },
        (_, None, None) => stuck(
            "NoBackup",
            "No verified backup of this cluster is known; create an EtcdRestore that names one, or set spec.recovery.onQuorumLoss to FromSurvivor".into(),
        ),
        (Some(name), None, Some(backup)) => waits(format!("asking for a restore from EtcdBackup {}", backup.name)).with([
            Effect::RequestRestore {
                name: name.clone(),
                backup: backup.name.clone(),
            },
        ]),
        (None, None, Some(backup)) => {
            let name = view.world.fresh_names.first().map_or("", |name| name.0.as_str());
            let suffix = name.rsplit('-').next().unwrap_or_default();
            record.asked = Some(format!("{}-recovery-{suffix}", view.intent.name));
            let note = Note {
                warning: true,
                reason: "RecoveringFromBackup",
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

/// Fence all others, restart the survivor as the only member, then let `grow` do the rest.
fn go_on(view: &View<'_>, record: &mut Record, recovering: &Recovering) -> Option<Step> {
    let survivor = &recovering.survivor;
    let doing = |message: String| Step::new(Work::Recovering, "RecoveringFromSurvivor", message);
    let alone = view.world.list.as_ref().is_some_and(|list| {
        list.members.len() == 1 && super::members::owner(view.intent, &list.members[0]).as_ref() == Some(survivor)
    });
    let pod = view.world.pods.get(survivor);
    if alone && let Some(pod) = pod {
        if pod.launch == LaunchKind::ForceNew {
            return Some(
                doing(format!("{survivor} is the cluster now"))
                    .with([Effect::SealPod {
                        member: survivor.clone(),
                        uid: pod.uid.clone(),
                    }])
                    .wake(Duration::ZERO),
            );
        }
        record.recovery = None;
        return None;
    }
    if view.world.list.is_some() && !recovering.started {
        // The majority came back before anything was done: nothing needs recovering.
        record.recovery = None;
        return None;
    }
    let others: Vec<_> = view.world.pods.iter().filter(|(name, _)| *name != survivor).collect();
    if !others.is_empty() {
        let stop = others
            .iter()
            .filter(|(_, pod)| !pod.terminating)
            .map(|(name, pod)| Effect::DeletePod {
                member: (*name).clone(),
                uid: pod.uid.clone(),
                how: Stop::Restart,
            });
        return Some(
            doing("stopping all other members, so that none can come back into the new cluster".into())
                .with(stop)
                .wake(LATER),
        );
    }
    match pod {
        Some(pod) if pod.terminating => Some(doing(format!("waiting for {survivor} to stop"))),
        Some(pod) if pod.launch == LaunchKind::ForceNew => {
            Some(doing(format!("waiting for {survivor} to answer as the only member")).wake(SOON))
        }
        Some(pod) => Some(
            doing(format!("restarting {survivor} as the only member")).with([Effect::DeletePod {
                member: survivor.clone(),
                uid: pod.uid.clone(),
                how: Stop::Restart,
            }]),
        ),
        None => {
            record.recovery = Some(Recovering {
                survivor: survivor.clone(),
                started: true,
            });
            Some(
                doing(format!("starting {survivor} as the only member")).with([Effect::CreatePod {
                    member: survivor.clone(),
                    launch: Launch::ForceNew,
                    version: view.new_pods.clone(),
                    tls: view.stage_of(survivor),
                }]),
            )
        }
    }
}
