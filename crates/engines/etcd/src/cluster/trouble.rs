//! What keeps a member from running or from answering and does not pass by itself: an image that cannot be pulled, no node
//! that fits, a claim that is not bound, a handshake that fails. After ten seconds it is said where the user looks.

use std::time::Duration;

use jiff::Timestamp;

use super::members::elapsed;
use super::world::NoReplyKind;
use super::{Effect, Member, MemberName, Note, Reason, View};

/// So long it may last before it is told. Short troubles come with every start.
const PATIENCE: Duration = Duration::from_secs(10);

/// The same for a member that accepts connections and does not reply. etcd listens before it has read its data, and that takes
/// longer the more there is.
const PATIENCE_WITH_NO_REPLY: Duration = Duration::from_secs(60);

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
    patience: Duration,
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
        match trouble.patience.checked_sub(lasts).filter(|left| !left.is_zero()) {
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
            patience: PATIENCE,
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
    let why_no_reply = member.why_no_reply.filter(|_| pod.running)?;
    let reason = match why_no_reply.kind {
        NoReplyKind::NotReached => return None,
        NoReplyKind::TimedOut => Reason::NoReply,
        NoReplyKind::Handshake => Reason::HandshakeFailed,
        NoReplyKind::NotPermitted => Reason::AccessRefused,
        NoReplyKind::Unusable => Reason::UnusableAnswer,
        NoReplyKind::CannotAsk => Reason::CannotAsk,
    };
    let message = format!("{} runs but does not answer the operator: {why_no_reply}", member.name);
    let no_reply = why_no_reply.kind == NoReplyKind::TimedOut;
    // One that replied before may be busy: what counts is for how long it has not replied.
    let since = why_no_reply.since.filter(|_| no_reply);
    let since = since.or_else(|| why_no_reply.since.into_iter().chain(pod.running_since).min());
    let found = trouble(reason, message, since)?;
    Some(Trouble {
        patience: if no_reply { PATIENCE_WITH_NO_REPLY } else { PATIENCE },
        ..found
    })
}

/// Why a member that runs does not answer, where that is worth telling while it starts.
pub(super) fn why_silent(member: &Member<'_>) -> Option<String> {
    let why_no_reply = member
        .why_no_reply
        .filter(|_| member.pod.is_some_and(|pod| pod.running))?;
    (why_no_reply.kind != NoReplyKind::NotReached)
        .then(|| format!("{} runs but does not answer: {why_no_reply}", member.name))
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::cluster::testing::{Given, nothing, three};
    use crate::cluster::{LaunchKind, MemberProbe, NoReply};

    /// A member that runs since so many seconds does not answer, for a reason of this kind.
    fn fails(kind: NoReplyKind, seconds: i64) -> Given {
        let given = three();
        let since = given.now - SignedDuration::from_secs(seconds);
        given.pod("c-b", |pod| pod.running_since = Some(since)).world(|world| {
            let why_no_reply = NoReply::new(kind, "the certificate has expired");
            world.probes.insert("c-b".into(), MemberProbe::NoReply(why_no_reply));
        })
    }

    #[test]
    fn what_keeps_a_running_member_from_answering_is_told_after_ten_seconds() {
        for (kind, reason) in [
            (NoReplyKind::Handshake, Reason::HandshakeFailed),
            (NoReplyKind::NotPermitted, Reason::AccessRefused),
            (NoReplyKind::Unusable, Reason::UnusableAnswer),
            (NoReplyKind::CannotAsk, Reason::CannotAsk),
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
        let asleep = fails(NoReplyKind::Handshake, 10).record(|record| record.hibernating = true);
        assert_eq!(asleep.plan().report.degraded.reason, Reason::HandshakeFailed);
        let asleep = asleep.spec(|intent| intent.hibernate = true);
        assert!(!asleep.plan().report.degraded.holds);
    }

    #[test]
    fn a_member_without_a_connection_may_be_starting() {
        let plan = fails(NoReplyKind::NotReached, 3600).plan();
        assert_eq!(plan.report.degraded.reason, Reason::MembersUnhealthy);
        assert!(!plan.effects.iter().any(|effect| matches!(effect, Effect::Tell(_))));
    }

    #[test]
    fn an_open_port_without_a_reply_is_told_after_a_minute() {
        // Given a slow start
        let slow = fails(NoReplyKind::TimedOut, 59).plan();
        assert_ne!(slow.report.degraded.reason, Reason::NoReply);
        assert!(slow.wake <= Some(Duration::from_secs(1)), "{:?}", slow.wake);
        // that does not end
        let late = fails(NoReplyKind::TimedOut, 60).plan();
        assert_eq!(
            (late.report.degraded.holds, late.report.degraded.reason),
            (true, Reason::NoReply)
        );
        let told = |effect: &Effect| matches!(effect, Effect::Tell(note) if note.reason == Reason::NoReply);
        assert!(late.effects.iter().any(told), "{:?}", late.effects);
        // and a member that ran for an hour and replied until just now.
        let busy = fails(NoReplyKind::TimedOut, 3600);
        let just_now = busy.now - SignedDuration::from_secs(5);
        let busy = busy.world(|world| {
            if let Some(MemberProbe::NoReply(why_no_reply)) = world.probes.get_mut(&"c-b".into()) {
                why_no_reply.since = Some(just_now);
            }
        });
        assert_ne!(busy.plan().report.degraded.reason, Reason::NoReply);
    }

    #[test]
    fn what_keeps_a_first_member_from_replying_is_told_while_it_is_waited_for() {
        for (kind, says) in [
            (NoReplyKind::NotReached, false),
            (NoReplyKind::TimedOut, true),
            (NoReplyKind::Handshake, true),
        ] {
            // Given a first member that just started and does not reply
            let given = nothing().with_objects("c-a").record(|record| {
                record.bootstrap = Some(crate::cluster::Bootstrapped {
                    token: "token".into(),
                    first: vec!["c-a".into()],
                    cluster: None,
                });
            });
            let since = given.now - SignedDuration::from_secs(1);
            let at = |seconds: i64| {
                let given = given.clone().pod("c-a", |pod| {
                    pod.launch = LaunchKind::Seed;
                    pod.running_since = Some(since - SignedDuration::from_secs(seconds));
                });
                let given = given.world(|world| {
                    let why_no_reply = NoReply::new(kind, "what keeps it");
                    world.probes.insert("c-a".into(), MemberProbe::NoReply(why_no_reply));
                });
                given.plan().report
            };
            // then the message of the wait says so from the beginning,
            let early = at(0);
            assert_eq!(
                early.waiting.contains("what keeps it"),
                says,
                "{kind:?}: {}",
                early.waiting
            );
            assert!(!early.degraded.holds, "{kind:?}");
            // and in time it is Degraded.
            assert_eq!(at(60).degraded.holds, says, "{kind:?}");
        }
    }
}
