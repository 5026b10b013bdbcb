//! Wishes that a running pod does not meet yet reach it by a restart: one member at a time, followers first, leadership
//! handed over, health between the steps. A new version is one such wish.

use super::record::Record;
use super::restart::outdated;
use super::{Effect, LATER, Note, SOON, Step, Stop, TlsStage, View, Work};

pub(super) fn roll(view: &View<'_>, record: &mut Record) -> Option<Step> {
    let list = view.world.list.as_ref()?;
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
    if stale.is_empty() {
        finish(view, record);
        return (!relabel.is_empty()).then(|| {
            Step::new(
                Work::Changing,
                "Relabeling",
                "bringing labels and annotations up to date",
            )
            .with(relabel)
        });
    }
    let new_version = record.current.as_ref().is_some_and(|current| *current != view.version);
    let (work, reason) = if new_version {
        (Work::Upgrading, "RollingUpgrade")
    } else {
        (Work::Changing, "RollingRestart")
    };
    let total = view.voters().count();
    let done = total - stale.len();
    if let Some(sick) = view.voters().find(|member| !member.is_healthy()) {
        let why = match &sick.fate {
            super::members::Fate::Away(why) => why.clone(),
            fate => format!("{fate:?}"),
        };
        return Some(Step::new(work, "RollHalted", format!("{done} of {total} members are up to date; halted until {} answers: {why}. To go back, set the old value again", sick.name)).with(relabel).wake(LATER));
    }
    if let Some(step) = downgrade(view, record) {
        return Some(step.with(relabel));
    }
    if !view.intent.is_durable() {
        return None; // Members without durable data are replaced, not restarted: `grow` and `shrink` do it.
    }
    if view.intent.on_delete {
        return Some(
            Step::new(
                work,
                "WaitingForDelete",
                format!("{done} of {total} members are up to date; updateStrategy is OnDelete: delete a pod to restart it with the new settings"),
            )
            .with(relabel),
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
                    other.answer.map(|answer| answer.index),
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
    let mut effects = Vec::new();
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
    effects.push(Effect::DeletePod {
        member: member.name.clone(),
        uid: pod.uid.clone(),
        how: Stop::Restart,
    });
    let what = if new_version {
        format!("restarted with etcd {}", view.version)
    } else {
        "restarted with the new settings".to_owned()
    };
    let note = Note {
        warning: false,
        reason: "RestartingMember",
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

/// A lower minor version can only read what the members have made readable for it (3.6 and later can).
fn downgrade(view: &View<'_>, record: &mut Record) -> Option<Step> {
    let list = view.world.list.as_ref()?;
    let current = record.current.as_ref()?;
    if view.version.minor() >= current.minor() {
        return None;
    }
    let storage = |member: &super::Member<'_>| member.answer.and_then(|answer| answer.storage_minor);
    let waiting: Vec<_> = view
        .voters()
        .filter(|member| storage(member).is_some_and(|minor| minor > view.version.minor()))
        .map(|member| member.name.0.as_str())
        .collect();
    let ready = record.downgrade.as_ref() == Some(&view.version);
    if ready && waiting.is_empty() {
        return None;
    }
    let message = match waiting.as_slice() {
        [] => format!("going back to {}: etcd is told first", view.version),
        names => format!(
            "going back to {}: etcd makes the data of {} readable for it first",
            view.version,
            names.join(", ")
        ),
    };
    let step = Step::new(Work::Upgrading, "Downgrading", message).wake(LATER);
    // Told until the members themselves say that it is done; only that is recorded, since a call may be lost.
    if waiting.is_empty() {
        record.downgrade = Some(view.version.clone());
    }
    Some(step.with([Effect::EnableDowngrade {
        to: view.version.clone(),
        cluster: list.cluster,
    }]))
}

/// All pods are as wished and every voter answers: this is the version now.
fn finish(view: &View<'_>, record: &mut Record) {
    if view.all_voters_healthy() && view.voters().next().is_some() {
        record.current = Some(view.version.clone());
        record.downgrade = None;
        record.upgrade_backup = None;
    }
}
