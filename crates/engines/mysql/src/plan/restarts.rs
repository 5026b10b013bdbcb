//! Which pods are to be restarted because the spec changed, and which of them is next.

use std::collections::BTreeSet;

use super::members::is_open;
use super::round::{Round, View};
use crate::intent::Intent;
use crate::manifests;
use crate::memory::Memory;
use crate::world::{Ordinal, World};

/// Pods that were made from another template. `spec.update.partition` keeps some of them as they are, unless the primary is newer
/// than they are: then they could not follow.
pub(super) fn outdated(intent: &Intent, memory: &Memory, world: &World) -> BTreeSet<Ordinal> {
    let template = manifests::pod_hash(intent);
    let version = |member: &Ordinal| {
        let member = world.members.get(member)?;
        let said = member.reply().map(|reply| reply.version);
        said.or_else(|| member.pod.as_ref()?.version)
    };
    let primary = memory.primary.as_ref().and_then(version);
    let older = |member: &Ordinal| version(member).zip(primary).is_some_and(|(own, primary)| own < primary);
    let pods = world
        .members
        .iter()
        .filter_map(|(member, observed)| Some((*member, observed.pod.as_ref()?)));
    pods.filter(|(member, pod)| {
        pod.template != template
            && !pod.facts.terminating
            && member.0 < intent.size
            && (member.0 >= intent.partition || older(member))
    })
    .map(|(member, _)| member)
    .collect()
}

/// Members that must serve before another one is restarted, and do not.
pub(super) fn awaited(view: &View<'_>, round: &Round) -> Vec<Ordinal> {
    let members = view.intent.members();
    members
        .filter(|member| !view.outdated.contains(member) && !is_back(view, round, *member))
        .collect()
}

fn is_back(view: &View<'_>, round: &Round, member: Ordinal) -> bool {
    let memory = &round.memory;
    if memory.quarantine.contains_key(&member) {
        return true; // The user decides about it.
    }
    if memory.primary == Some(member) {
        return is_open(view, round);
    }
    let acknowledges = view.intent.acks == 0 || view.acknowledges(memory, member);
    acknowledges && view.is_clean(memory, member) && view.has_caught_up(memory, member)
}

/// The next member to restart: replicas first, those that do not receive before others, then the highest ordinal. The primary is
/// last.
pub(super) fn next(view: &View<'_>, round: &Round) -> Option<Ordinal> {
    let memory = &round.memory;
    let alone = view.intent.size == 1;
    if memory.failover.is_none()
        && let Some(stranded) = stranded(view, memory)
    {
        return Some(stranded);
    }
    if view.outdated.is_empty() || memory.failover.is_some() {
        return None;
    }
    if !(is_open(view, round) || memory.switchover.is_some()) {
        // The primary may wait for a member that cannot follow it before its restart.
        let (primary, _) = view.primary(memory)?;
        let mut older = view.outdated.iter().rev().copied();
        return older.find(|member| *member != primary && !view.may_follow_version(*member, primary));
    }
    if !awaited(view, round).is_empty() && !alone {
        return None;
    }
    let replicas = view
        .outdated
        .iter()
        .copied()
        .filter(|member| memory.primary != Some(*member));
    let (serving, broken): (Vec<Ordinal>, Vec<Ordinal>) = replicas.partition(|member| view.receives(*member));
    if let Some(next) = broken.into_iter().max() {
        return Some(next);
    }
    match serving.into_iter().max() {
        Some(next) => Some(next).filter(|next| can_be_spared(view, round, *next)),
        None => memory.primary.filter(|primary| view.outdated.contains(primary)),
    }
}

/// It is too old to follow the primary, which may wait for it: it serves nothing until it is restarted.
fn stranded(view: &View<'_>, memory: &Memory) -> Option<Ordinal> {
    let primary = memory.primary?;
    let replicas = view.outdated.iter().copied().filter(|member| *member != primary);
    let version = |member: Ordinal| view.reply(member).map(|reply| reply.version);
    replicas
        .filter(|member| {
            version(*member)
                .zip(version(primary))
                .is_some_and(|(own, other)| own < other)
        })
        .max()
}

/// Writes go on without it, or no other member could take its place.
fn can_be_spared(view: &View<'_>, round: &Round, member: Ordinal) -> bool {
    let memory = &round.memory;
    let required = usize::try_from(memory.required).unwrap_or(usize::MAX);
    let others = memory.ackers.iter().filter(|other| **other != member);
    let receiving = others.clone().filter(|other| view.receives(**other)).count();
    receiving >= required || others.count() < required
}
