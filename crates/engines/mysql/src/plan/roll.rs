//! A change that needs a restart reaches one member after another: replicas first, the highest ordinal first, the primary last and
//! after it gave up its role. It halts at the first member that does not come back.

use super::restarts;
use super::round::{LATER, Round, View, Work};
use crate::action::{Action, Stop};
use crate::reason::Reason;
use crate::world::Ordinal;

pub(super) fn roll(view: &View<'_>, round: &mut Round) {
    if view.outdated.is_empty() || round.memory.failover.is_some() || !round.memory.founded() {
        return;
    }
    let upgrade = round.memory.target.is_some();
    let (work, reason) = if upgrade {
        (Work::Upgrading, Reason::Upgrading)
    } else {
        (Work::Changing, Reason::Rolling)
    };
    let total = view.intent.size;
    let done = total.saturating_sub(u32::try_from(view.outdated.len()).unwrap_or(total));
    let so_far = format!("{done} of {total} members are up to date");
    round.wake(LATER);
    let Some(next) = round.next_restart else {
        let awaited = restarts::awaited(view, round);
        let broken = awaited.iter().find_map(|member| {
            let blocked = view.pod(*member)?.facts.blocked.as_ref()?;
            Some(format!(
                "{}: {} {}",
                view.name(*member),
                blocked.reason,
                blocked.message
            ))
        });
        match broken {
            Some(broken) => {
                let message = format!(
                    "{so_far}; halted, as a member does not come back ({broken}). To go back, set the old value again"
                );
                round.say(work, Reason::RolloutHalted, message);
            }
            None => {
                let message = format!("{so_far}; waiting until {} serves", view.names(&awaited));
                round.say(work, reason, message);
            }
        }
        return;
    };
    let name = view.name(next);
    let Some(pod) = view.pod(next) else { return };
    if round.memory.primary == Some(next) && view.intent.size > 1 {
        let message = format!("{so_far}; {name} gives the role of the primary to a member that has caught up");
        round.say(work, reason, message);
        return;
    }
    if spared(round, next) {
        let message = format!("{so_far}; {name} is restarted when others hold all that it acknowledged");
        round.say(work, reason, message);
        return;
    }
    round.say(work, reason, format!("{so_far}; {name} is restarted"));
    round.act(Action::DeletePod {
        member: next,
        uid: pod.facts.uid.clone(),
        how: Stop::Restart,
    });
}

/// It leaves the acknowledgers before it is restarted.
fn spared(round: &Round, member: Ordinal) -> bool {
    round.leavers.contains(&member)
}
