//! Another version: only forward along the steps that MySQL supports, and after a backup. Accepting it is recorded; pods are made
//! with it in the next reconcile, and `roll` brings it to one member after another.

use super::round::{LATER, Round, View, Work};
use crate::action::Action;
use crate::api::MySQLVersion;
use crate::reason::Reason;

pub(super) fn upgrade(view: &View<'_>, round: &mut Round) {
    let wanted = view.intent.wanted;
    let Some(current) = round.memory.current else {
        created(view, round, wanted);
        return;
    };
    if round.memory.target.unwrap_or(current) == wanted {
        if round.memory.target.is_none() {
            round.memory.upgrade_backup = None;
        }
        return;
    }
    if let Err(why) = step(view, round, current, wanted) {
        round.say(Work::Blocked, Reason::VersionRefused, why);
        return;
    }
    if wanted != current && view.intent.backup_first && !backup(view, round, wanted) {
        return;
    }
    round.memory.target = (wanted != current).then_some(wanted);
    round.say(
        Work::Upgrading,
        Reason::Upgrading,
        format!("bringing all members to MySQL {wanted}"),
    );
    round.wake(std::time::Duration::ZERO);
}

/// No version was reached by all members yet: another one is followed as long as every server that runs can step to it.
fn created(view: &View<'_>, round: &mut Round, wanted: MySQLVersion) {
    if round.memory.bootstrap.is_none() || round.memory.target == Some(wanted) {
        return;
    }
    let running = view.world.members.values().filter_map(|member| member.reply());
    let refused = running
        .map(|reply| reply.version.check_step(wanted))
        .find_map(Result::err);
    match refused {
        Some(why) => round.say(Work::Blocked, Reason::VersionRefused, why),
        None => {
            round.memory.target = Some(wanted);
            round.wake(std::time::Duration::ZERO);
        }
    }
}

/// Whether the data of every member can be opened by the wanted version.
fn step(view: &View<'_>, round: &Round, current: MySQLVersion, wanted: MySQLVersion) -> Result<(), String> {
    current.check_step(wanted)?;
    let members = view.world.members.iter();
    let newest = members
        .filter_map(|(member, observed)| Some((observed.reply()?.version, *member)))
        .max();
    if let Some((version, member)) = newest
        && version > wanted
        && round.memory.founded()
    {
        return Err(format!(
            "{} already runs MySQL {version}, whose data {wanted} cannot open: set version to {version} or later",
            view.name(member)
        ));
    }
    Ok(())
}

/// A backup of the whole data is proven.
fn backup(view: &View<'_>, round: &mut Round, wanted: MySQLVersion) -> bool {
    let name = format!("{}-before-{}", view.intent.name, wanted.to_string().replace('.', "-"));
    if round.memory.upgrade_backup.as_ref() != Some(&name) {
        round.memory.upgrade_backup = Some(name.clone());
    }
    let taken = view.world.backup.as_ref().filter(|backup| backup.name == name);
    match taken {
        Some(backup) if backup.proven => return true,
        Some(backup) => match &backup.problem {
            Some(problem) => round.say(
                Work::Blocked,
                Reason::BackupFailed,
                format!(
                    "the backup {name} before MySQL {wanted} failed: {problem}. Delete it to try again, or set \
                     spec.update.skipBackup"
                ),
            ),
            None => round.say(
                Work::Upgrading,
                Reason::BackupFirst,
                format!("waiting until the backup {name} is proven, before MySQL {wanted}"),
            ),
        },
        None => {
            let message = format!("taking the backup {name} before MySQL {wanted}");
            round.say(Work::Upgrading, Reason::BackupFirst, message);
            round.act(Action::TakeBackup { name });
        }
    }
    round.wake(LATER);
    false
}
