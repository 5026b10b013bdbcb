//! The voters without a proven list: who is lost for good, who only looks like it, and whether the rest is a quorum.

use super::members::{Health, LossEvidence};
use super::{MemberName, View, gone, members};

/// The voters, and what is known of them.
pub(super) struct Count<'a> {
    /// Ours.
    pub(super) voters: Vec<&'a MemberName>,
    /// Those that somebody else made.
    pub(super) strangers: Vec<String>,
    /// Of ours: proven to be gone, with what they had.
    pub(super) lost: Vec<&'a MemberName>,
    /// Of ours: it looks like it, and it is not proven.
    unproven: Vec<&'a MemberName>,
}

impl<'a> Count<'a> {
    pub(super) fn of(view: &'a View<'_>) -> Self {
        let known = view.record.members.iter();
        let voters: Vec<&MemberName> = known
            .filter(|(name, member)| member.voter && !gone::has_left(view, name))
            .map(|(name, _)| name)
            .collect();
        let which = |verdict: Verdict| {
            let voters = voters.iter().copied();
            voters.filter(|name| judge(view, name) == verdict).collect()
        };
        Self {
            strangers: strangers(view),
            lost: which(Verdict::Lost),
            unproven: which(Verdict::Unproven),
            voters,
        }
    }

    pub(super) fn quorum(&self) -> usize {
        (self.voters.len() + self.strangers.len()) / 2 + 1
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Holds,
    Unproven,
    Lost,
}

/// What a member counts for when a quorum is to be given up: one that may come back with what it has, or may run
/// somewhere, is not lost. What justifies replacing one member while a quorum serves is not enough here.
fn judge(view: &View<'_>, name: &MemberName) -> Verdict {
    if gone::is_confirmed(view, name) {
        return Verdict::Lost;
    }
    let Some(member) = view.members.get(name) else {
        return Verdict::Holds;
    };
    let if_gone = |verdict| match gone::gone(view, name) {
        Some(_) => verdict,
        None => Verdict::Unproven,
    };
    match &member.health {
        Health::Healthy | Health::Unstarted => Verdict::Holds,
        // Its kubelet, or it itself, said so.
        Health::Lost(
            LossEvidence::DataGone
            | LossEvidence::DataBroken(_)
            | LossEvidence::CrashLoop(_)
            | LossEvidence::Corrupt(_),
        ) => Verdict::Lost,
        Health::Lost(LossEvidence::ClaimGone | LossEvidence::PodGone) => if_gone(Verdict::Lost),
        Health::Lost(LossEvidence::NodeDead(_)) if !view.intent.is_durable() => if_gone(Verdict::Lost),
        // Its volume can be used elsewhere.
        Health::Lost(LossEvidence::NodeDead(_)) => if_gone(Verdict::Holds),
        // The data is there, and so may be the node again.
        Health::Lost(LossEvidence::VolumeStranded | LossEvidence::NodeCordoned) => Verdict::Unproven,
        Health::Unavailable(_) if members::is_stranded(view, member) => Verdict::Unproven,
        Health::Unavailable(_) if gone::has_no_place(view, member) => Verdict::Unproven,
        Health::Unavailable(_) => Verdict::Holds,
    }
}

/// Voters of the last list that are not ours, and those that anybody who answers knows. They count for the quorum.
fn strangers(view: &View<'_>) -> Vec<String> {
    let mut all = view.record.other_voters.clone().unwrap_or_default();
    let believed = view.believed_list().unwrap_or_default().iter();
    let believed = believed.filter(|line| !line.learner && members::owner(view.intent, line).is_none());
    all.extend(believed.map(|line| members::display_name(line).0));
    all.sort();
    all.dedup();
    if all.is_empty() && view.record.other_voters.is_none() {
        all.extend(view.intent.adopt.iter().cloned()); // No list was looked at for them yet.
    }
    all
}

/// No quorum answers, and too few are proven lost to give it up: what would prove it.
pub(super) fn unproven(view: &View<'_>) -> Option<String> {
    let count = Count::of(view);
    let left = count.voters.len() + count.strangers.len() - count.lost.len();
    let enough_without = left - count.unproven.len() >= count.quorum();
    if left < count.quorum() || enough_without {
        return None;
    }
    let mut names = count.unproven;
    names.retain(|name| {
        let is_bound = view.world.pods.get(*name).is_none_or(|pod| pod.node.is_some());
        !is_bound || gone::needs_a_person(view, name)
    });
    (!names.is_empty()).then(|| gone::advice(view, &names))
}
