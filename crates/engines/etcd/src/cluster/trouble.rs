//! What keeps a member from running or from answering and does not pass by itself: an image that cannot be pulled, no node
//! that fits, a claim that is not bound, a handshake that fails. After ten seconds it is said where the user looks.

use std::time::Duration;

use jiff::Timestamp;

use super::members::elapsed;
use super::world::SilenceKind;
use super::{Effect, Member, MemberName, Note, Reason, View};

/// So long it may last before it is told. Short troubles come with every start.
const PATIENCE: Duration = Duration::from_secs(10);

/// Kubernetes' reasons that somebody has to do something about. Of two names for one thing the first is told. Any other is an
/// init container's that failed, with a reason of its own.
const LASTING: &[(&str, Reason)] = &[
    ("ImagePullBackOff", Reason::ImagePullBackOff),
    ("ErrImagePull", Reason::ImagePullBackOff),
    ("InvalidImageName", Reason::InvalidImageName),
    ("ErrImageNeverPull", Reason::ErrImageNeverPull),
    ("ImageInspectError", Reason::ImageInspectError),
    ("RegistryUnavailable", Reason::RegistryUnavailable),
    ("SignatureValidationFailed", Reason::SignatureValidationFailed),
    ("CreateContainerConfigError", Reason::CreateContainerConfigError),
    ("CreateContainerError", Reason::CreateContainerError),
    ("RunContainerError", Reason::RunContainerError),
    ("Unschedulable", Reason::Unschedulable),
    ("SchedulingGated", Reason::SchedulingGated),
];

/// One such trouble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) reason: Reason,
    pub(super) message: String,
    member: MemberName,
    since: Option<Timestamp>,
}

/// What there is to tell, and when there may be more.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    pub(super) found: Option<Trouble>,
    pub(super) look_again: Option<Duration>,
}

pub(super) fn trouble(view: &View<'_>) -> Troubles {
    let mut troubles = Troubles::default();
    if view.record.hibernating && view.intent.hibernate {
        return troubles;
    }
    for trouble in view.members.values().filter_map(of_member) {
        let lasts = trouble.since.map_or(Duration::ZERO, |since| elapsed(since, view.now));
        match PATIENCE.checked_sub(lasts).filter(|left| !left.is_zero()) {
            Some(left) => troubles.look_again = troubles.look_again.into_iter().chain([left]).min(),
            None => troubles.found = troubles.found.or(Some(trouble)),
        }
    }
    troubles
}

impl Trouble {
    /// The event: its words stay the same while Kubernetes' own change with every try.
    pub(super) fn event(&self) -> Effect {
        Effect::Tell(Note {
            warning: true,
            reason: self.reason,
            message: format!(
                "{} does not start or answer: {}. The condition Degraded tells more",
                self.member, self.reason
            ),
        })
    }
}

fn of_member(member: &Member<'_>) -> Option<Trouble> {
    let trouble = |reason, message: String, since| {
        Some(Trouble {
            reason,
            message,
            member: member.name.clone(),
            since,
        })
    };
    if let Some(claim) = member.claim.filter(|claim| !claim.bound && !claim.terminating)
        && let Some(problem) = &claim.problem
    {
        let message = format!("the claim of {} is not bound: {problem}", member.name);
        return trouble(Reason::ClaimNotBound, message, Some(claim.created));
    }
    let pod = member.pod.filter(|pod| !pod.terminating && !pod.ended)?;
    if let Some(blocked) = &pod.blocked
        && blocked.reason != "CrashLoopBackOff"
    {
        let named = LASTING.iter().find(|(reason, _)| *reason == blocked.reason);
        let reason = named.map_or(Reason::StartFailed, |(_, reason)| *reason);
        let message = format!("pod {} waits: {}: {}", member.name, blocked.reason, blocked.message);
        return trouble(reason, message, blocked.since);
    }
    let silence = member.silence.filter(|_| pod.running)?;
    let reason = match silence.kind {
        SilenceKind::NotReached => return None,
        SilenceKind::Handshake => Reason::HandshakeFailed,
        SilenceKind::NotPermitted => Reason::AccessRefused,
        SilenceKind::Unusable => Reason::UnusableAnswer,
        SilenceKind::CannotAsk => Reason::CannotAsk,
    };
    let message = format!("{} runs but does not answer the operator: {silence}", member.name);
    trouble(
        reason,
        message,
        silence.since.into_iter().chain(pod.running_since).min(),
    )
}

/// Why a member that runs does not answer, where that is worth telling while it starts.
pub(super) fn why_silent(member: &Member<'_>) -> Option<String> {
    let silence = member.silence.filter(|_| member.pod.is_some_and(|pod| pod.running))?;
    (silence.kind != SilenceKind::NotReached).then(|| format!("{} runs but does not answer: {silence}", member.name))
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::cluster::testing::{Given, three};
    use crate::cluster::{Silence, Voice};

    /// A member that runs since so many seconds does not answer, for a reason of this kind.
    fn fails(kind: SilenceKind, seconds: i64) -> Given {
        let given = three();
        let since = given.now - SignedDuration::from_secs(seconds);
        given.pod("c-b", |pod| pod.running_since = Some(since)).world(|world| {
            let silence = Silence::new(kind, "the certificate has expired");
            world.voices.insert("c-b".into(), Voice::Silent(silence));
        })
    }

    #[test]
    fn what_keeps_a_running_member_from_answering_is_told_after_ten_seconds() {
        for (kind, reason) in [
            (SilenceKind::Handshake, Reason::HandshakeFailed),
            (SilenceKind::NotPermitted, Reason::AccessRefused),
            (SilenceKind::Unusable, Reason::UnusableAnswer),
            (SilenceKind::CannotAsk, Reason::CannotAsk),
        ] {
            // Not while it may be starting; then there is another look.
            let early = fails(kind, 4).plan();
            assert_ne!(early.report.degraded.reason, reason);
            assert!(early.wake <= Some(Duration::from_secs(6)), "{:?}", early.wake);
            // Later with the reason, in the condition and as an event.
            let late = fails(kind, 10).plan();
            assert_eq!(
                (late.report.degraded.holds, late.report.degraded.reason),
                (true, reason)
            );
            assert!(late.report.degraded.message.contains("the certificate has expired"));
            let told = |effect: &Effect| matches!(effect, Effect::Tell(note) if note.warning && note.reason == reason);
            assert!(late.effects.iter().any(told), "{:?}", late.effects);
        }
    }

    #[test]
    fn a_cluster_that_is_woken_does_not_wait_to_tell() {
        let asleep = fails(SilenceKind::Handshake, 10).record(|record| record.hibernating = true);
        assert_eq!(asleep.plan().report.degraded.reason, Reason::HandshakeFailed);
        let asleep = asleep.spec(|intent| intent.hibernate = true);
        assert!(!asleep.plan().report.degraded.holds);
    }

    #[test]
    fn a_member_that_nobody_listens_for_may_be_starting() {
        let plan = fails(SilenceKind::NotReached, 3600).plan();
        assert!(!plan.report.degraded.reason.to_string().contains("Handshake"));
        assert!(!plan.effects.iter().any(|effect| matches!(effect, Effect::Tell(_))));
    }
}
