//! Certificates: issued before the first pod, renewed in time, and read again by servers that run.

use super::members::Data;
use super::round::{Flow, Round, View, Work};
use crate::action::Action;
use crate::intent::Tls;
use crate::reason::Reason;

/// How long a kubelet may take to bring a changed Secret into a pod.
const DELIVERY: std::time::Duration = std::time::Duration::from_secs(5);

pub(super) fn issue(view: &View<'_>, round: &mut Round) -> Flow {
    let tls = &view.world.tls;
    if view.intent.tls == Tls::Off {
        return Flow::On;
    }
    if !tls.issued || tls.due {
        round.act(Action::IssueCertificates);
    }
    if tls.issued || round.memory.founded() {
        return Flow::On;
    }
    round.say(
        Work::Creating,
        Reason::IssuingCertificates,
        "issuing the certificates of the members",
    );
    Flow::Stop
}

/// Servers that present an older certificate read it again.
pub(super) fn reload(view: &View<'_>, round: &mut Round) {
    let Some(fingerprint) = view
        .world
        .tls
        .fingerprint
        .as_ref()
        .filter(|_| view.intent.tls != Tls::Off)
    else {
        return;
    };
    for (member, observed) in &view.world.members {
        let Some(reply) = observed.reply() else { continue };
        let old = reply
            .certificate
            .as_ref()
            .is_some_and(|presented| presented != fingerprint);
        if old && view.data(&round.memory, *member) == Data::Ours {
            let wake = round.wake;
            round.act(Action::ReloadCertificates {
                member: *member,
                process: reply.process.clone(),
            });
            round.wake = wake;
            round.wake(DELIVERY);
        }
    }
}
