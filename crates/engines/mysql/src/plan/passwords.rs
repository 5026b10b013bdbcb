//! New passwords: the old ones stay valid for ten minutes (MySQL's dual passwords).

use std::time::Duration;

use super::members::is_open;
use super::round::{LATER, Round, View, Work};
use crate::action::Action;
use crate::reason::Reason;

/// For how long the old passwords work.
const OVERLAP: Duration = Duration::from_secs(600);

pub(super) fn passwords(view: &View<'_>, round: &mut Round) {
    let asked = &view.intent.requests.rotate;
    let Some(primary) = round.memory.primary else { return };
    if round.primary_changes() || !is_open(view, round) {
        return;
    }
    let Some(reply) = view.reply(primary) else { return };
    let process = reply.process.clone();
    // A second rotation waits: an account has one old password.
    if let Some(until) = round.memory.passwords.old_until {
        let left = Duration::try_from(until.duration_since(view.now)).unwrap_or_default();
        if !left.is_zero() {
            round.wake(left);
        } else if reply.old_passwords {
            round.act(Action::DiscardOldPasswords { primary, process });
            round.wake(LATER);
        } else {
            round.memory.passwords.old_until = None;
        }
        return;
    }
    if asked.is_empty() || round.memory.passwords.rotation == *asked {
        return;
    }
    if view.world.secrets.rotation == *asked {
        round.memory.passwords.rotation.clone_from(asked);
        if reply.old_passwords {
            round.memory.passwords.old_until = view.now.checked_add(OVERLAP).ok();
            round.wake(OVERLAP);
            let message = "new passwords are in the Secrets; the old ones work for 10 more minutes";
            round.note(false, Reason::PasswordsRotated, message);
        }
        return;
    }
    round.say(Work::Changing, Reason::RotatingPasswords, "rotating the passwords");
    round.act(Action::RotatePasswords {
        primary,
        process,
        rotation: asked.clone(),
    });
    round.wake(LATER);
}
