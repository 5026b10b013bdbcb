//! System variables that can be set in a running server: by role, replicas first, without a restart. A key that was removed returns
//! to its default.

use std::collections::{BTreeMap, BTreeSet};

use stateward_core::manifests::hash;

use super::members::Data;
use super::round::{LATER, Round, View, Work};
use crate::action::Action;
use crate::api::config::is_static;
use crate::memory::Applied;
use crate::reason::Reason;
use crate::world::{Ordinal, Reply};

pub(super) fn config(view: &View<'_>, round: &mut Round) {
    if round.primary_changes() {
        return;
    }
    let primary = round.memory.primary;
    let members = view.world.members.keys().rev().copied();
    let (first, last): (Vec<Ordinal>, Vec<Ordinal>) = members.partition(|member| Some(*member) != primary);
    // A value that a server rejects ends the reconcile: the primary is last.
    for member in first.into_iter().chain(last) {
        if let Some(reply) = view.reply(member) {
            apply(view, round, member, reply);
        }
    }
}

fn apply(view: &View<'_>, round: &mut Round, member: Ordinal, reply: &Reply) {
    let cloning = reply.clone.as_ref().is_some_and(|clone| clone.running);
    if view.data(&round.memory, member) != Data::Ours || cloning || view.is_ending(member) {
        return;
    }
    let wanted = wanted(view, round, member);
    let hash = hash(&wanted);
    let known = round.memory.applied.get(&member).cloned().unwrap_or_default();
    let boot = &reply.process.boot;
    if known.boot == *boot && known.hash == hash {
        return;
    }
    let keys: BTreeSet<String> = wanted.keys().cloned().collect();
    let removed: Vec<&String> = known.keys.difference(&keys).collect();
    if keys.is_empty() && removed.is_empty() {
        round.memory.applied.remove(&member);
        return;
    }
    if reply.config.as_ref() == Some(&hash) {
        let boot = boot.clone();
        round.memory.applied.insert(member, Applied { boot, hash, keys });
        return;
    }
    let mut values: BTreeMap<String, Option<String>> = removed.into_iter().map(|key| (key.clone(), None)).collect();
    values.extend(wanted.into_iter().map(|(key, value)| (key, Some(value))));
    // What may be set by now must be reset when it is removed, also if the answer is lost.
    let all = known.keys.union(&keys).cloned().collect();
    round.memory.applied.insert(
        member,
        Applied {
            boot: boot.clone(),
            hash: String::new(),
            keys: all,
        },
    );
    let message = format!("setting system variables of {}", view.name(member));
    round.say(Work::Changing, Reason::ApplyingConfig, message);
    round.act(Action::SetVariables {
        member,
        process: reply.process.clone(),
        values,
        hash,
    });
    round.wake(LATER);
}

/// The variables of a member in its role that can be set while it runs.
fn wanted(view: &View<'_>, round: &Round, member: Ordinal) -> BTreeMap<String, String> {
    let config = &view.intent.config;
    let by_role = if round.memory.primary == Some(member) {
        &config.primary
    } else {
        &config.replica
    };
    let mut wanted = config.all.clone();
    wanted.extend(by_role.iter().map(|(key, value)| (key.clone(), value.clone())));
    wanted.retain(|key, _| !is_static(key));
    wanted
}
