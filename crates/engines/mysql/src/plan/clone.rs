//! A member without data, or with data that cannot be continued, is cloned from a clean replica, and from the primary only while
//! there is none. An acknowledger is never cloned: it leaves before.

use std::collections::BTreeSet;

use super::members::Data;
use super::round::{LATER, RETRY, Round, View, Work};
use crate::action::Action;
use crate::api::{CloneFrom, MySQLVersion};
use crate::gtid::GtidSet;
use crate::reason::Reason;
use crate::world::{Ordinal, Reply};

pub(super) fn clone(view: &View<'_>, round: &mut Round) {
    if round.primary_changes() || !round.memory.founded() {
        return;
    }
    let mut busy: BTreeSet<Ordinal> = donating(view);
    let others: Vec<Ordinal> = view.others(&round.memory).map(|(member, _)| member).collect();
    for member in others {
        let Some(reply) = view.reply(member) else { continue };
        let running = reply.clone.as_ref().filter(|clone| clone.running);
        if let Some(clone) = running {
            if clone.percent >= 100 && free_donor(view, round, member, &clone.donor) {
                continue;
            }
            let message = format!("{} is cloned ({} %)", view.name(member), clone.percent / 10 * 10);
            round.say(work(round), Reason::Cloning, message);
            round.wake(LATER);
            continue;
        }
        let Some(discard) = recipient(view, round, member, reply) else {
            continue;
        };
        let Some(donor) = donor(view, round, member, &busy) else {
            let message = format!("{} waits for a member to clone its data from", view.name(member));
            round.say(work(round), Reason::Cloning, message);
            round.wake(LATER);
            continue;
        };
        let Some(donor_process) = view.reply(donor).map(|reply| reply.process.clone()) else {
            continue;
        };
        if let Some(error) = reply.clone.as_ref().and_then(|clone| clone.error.as_ref()) {
            let message = format!("cloning {} failed, it is tried again: {error}", view.name(member));
            round.say(work(round), Reason::CloneFailed, message);
        }
        busy.insert(donor);
        let message = format!("{} is cloned from {}", view.name(member), view.name(donor));
        round.say(work(round), Reason::Cloning, message);
        round.act(Action::Clone {
            member,
            process: reply.process.clone(),
            donor,
            donor_process,
            discard,
        });
        round.wake(LATER);
    }
}

/// A clone ends when the commits that wait on its donor do. On a primary they may wait for the very member that is cloned: then
/// the donor's process is ended, which acknowledges nothing. It starts again read-only, and the clone is repeated.
fn free_donor(view: &View<'_>, round: &mut Round, recipient: Ordinal, donor: &str) -> bool {
    let memory = &round.memory;
    let Some((primary, reply)) = view.primary(memory) else {
        return false;
    };
    let can_acknowledge = memory.ackers.iter().filter(|acker| view.receives(**acker)).count();
    let required = usize::try_from(memory.required).unwrap_or(usize::MAX);
    if donor != view.intent.host(primary) || reply.source.waiting == 0 || can_acknowledge >= required {
        return false;
    }
    let Some(uid) = view.pod(primary).map(|pod| pod.facts.uid.clone()) else {
        return false;
    };
    let message = format!(
        "writes on {} wait for an acknowledgement that only {} could give, which is cloned from it: it is restarted read-only",
        view.name(primary),
        view.name(recipient)
    );
    round.say(Work::Recovering, Reason::Cloning, message);
    round.act(Action::EndProcess { member: primary, uid });
    true
}

fn work(round: &Round) -> Work {
    if round.memory.opened || round.memory.epoch > 1 {
        Work::Recovering
    } else {
        Work::Creating
    }
}

/// Members from which another is being cloned.
fn donating(view: &View<'_>) -> BTreeSet<Ordinal> {
    let clones = view
        .world
        .members
        .values()
        .filter_map(|member| member.reply()?.clone.as_ref());
    let hosts: Vec<&str> = clones
        .filter(|clone| clone.running)
        .map(|clone| clone.donor.as_str())
        .collect();
    let members = view.world.members.keys().copied();
    members
        .filter(|member| hosts.contains(&view.intent.host(*member).as_str()))
        .collect()
}

/// The member needs a clone: what of its own may be discarded.
fn recipient(view: &View<'_>, round: &mut Round, member: Ordinal, reply: &Reply) -> Option<GtidSet> {
    let memory = &round.memory;
    let acknowledges = memory.ackers.contains(&member)
        || memory
            .pending
            .as_ref()
            .is_some_and(|pending| pending.ackers.contains(&member));
    if acknowledges || member.0 >= view.intent.size || view.is_ending(member) || !reply.read_only {
        return None;
    }
    if let Some(quarantine) = memory.quarantine.get(&member) {
        return (quarantine.saved && view.may_discard(quarantine, member)).then(|| quarantine.gtids.clone());
    }
    match view.data(memory, member) {
        Data::Blank => Some(GtidSet::default()),
        Data::Ours => {
            let purged = reply.channel.as_ref().is_some_and(|channel| channel.purged);
            (purged && view.is_clean(memory, member)).then(GtidSet::default)
        }
        Data::Foreign => {
            let name = view.name(member);
            let message = format!(
                "the data of {name} is of another cluster. Delete its claim and its pod if it is not needed, and {name} is cloned anew"
            );
            round.say(Work::Blocked, Reason::ServerOfAnotherCluster, message);
            round.wake(RETRY);
            None
        }
        Data::Unknown => None,
    }
}

/// A member that runs the same version and is free.
fn donor(view: &View<'_>, round: &Round, recipient: Ordinal, busy: &BTreeSet<Ordinal>) -> Option<Ordinal> {
    let memory = &round.memory;
    let primary = memory.primary?;
    // Its word is needed to tell whether a donor is clean.
    view.lead(memory)?;
    // MySQL clones within a series.
    let series = |member: Ordinal| view.version(member).map(MySQLVersion::series);
    let same_version = |member: &Ordinal| series(*member) == series(recipient);
    let primary_may = same_version(&primary) && !busy.contains(&primary) && view.data(memory, primary) == Data::Ours;
    if view.intent.clone_from == CloneFrom::Primary {
        return Some(primary).filter(|_| primary_may);
    }
    let clean: Vec<Ordinal> = view
        .others(memory)
        .map(|(member, _)| member)
        .filter(|member| {
            *member != recipient
                && view.is_clean(memory, *member)
                && view.follows(memory, *member)
                && !view.is_ending(*member)
                && same_version(member)
        })
        .collect();
    if clean.is_empty() {
        return Some(primary).filter(|_| primary_may);
    }
    // One that acknowledges is as good as another: only its disk is read. One that lags would need longer to catch up afterwards.
    let free = clean
        .into_iter()
        .filter(|member| !busy.contains(member) && round.next_restart != Some(*member));
    free.max_by_key(|member| (view.has_caught_up(memory, *member), *member))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::{Given, three};
    use crate::world::CloneState;

    /// Member 2 is cloned from the primary, whose commits wait.
    fn waiting(commits: u32) -> Given {
        let donor = three().intent.host(Ordinal(0));
        let cloning = three().reply(2, |reply| {
            reply.clone = Some(CloneState {
                running: true,
                percent: 100,
                error: None,
                donor,
            });
        });
        cloning.reply(0, |reply| reply.source.waiting = commits)
    }

    fn ended(given: &Given) -> Vec<Ordinal> {
        let actions = given.plan().actions;
        let ended = actions.iter().filter_map(|action| match action {
            Action::EndProcess { member, .. } => Some(*member),
            _ => None,
        });
        ended.collect()
    }

    #[test]
    fn a_donor_whose_commits_wait_for_the_recipient_is_restarted() {
        let nobody = |given: Given| {
            given.memory(|memory| {
                memory.ackers.clear();
            })
        };
        assert_eq!(ended(&nobody(waiting(1))), [Ordinal(0)]);
        // Without a commit that waits, the clone ends by itself; so does the wait where another member can acknowledge.
        assert!(ended(&nobody(waiting(0))).is_empty());
        assert!(ended(&waiting(1)).is_empty());
    }
}
