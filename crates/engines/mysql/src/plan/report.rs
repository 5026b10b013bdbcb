//! What users see beside the memory.

use jiff::Timestamp;

use super::members::{Data, is_open};
use super::round::{Doing, Round, View, Work};
use crate::api::{MemberHealth, MemberRole, MySQLVersion, Phase};
use crate::reason::Reason;
use crate::world::Ordinal;

/// The visible state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The generation of the spec that was followed.
    pub generation: i64,
    /// Where the cluster is in its life.
    pub phase: Phase,
    /// How many members have a pod.
    pub size: u32,
    /// How many of them serve in their role.
    pub ready: u32,
    /// The primary takes writes.
    pub available: Statement,
    /// Work is being done.
    pub progressing: Statement,
    /// Something is not as expected.
    pub degraded: Statement,
    /// Members are added or removed.
    pub scaling: Option<Statement>,
    /// A version is rolled out.
    pub upgrading: Option<Statement>,
    /// What was lost is brought back.
    pub recovering: Option<Statement>,
    /// What is being waited for; empty when nothing is.
    pub waiting: String,
    /// One line for each member.
    pub members: Vec<MemberLine>,
    /// When the first certificate expires.
    pub not_after: Option<Timestamp>,
}

/// A condition's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statement {
    /// It holds.
    pub holds: bool,
    /// Why.
    pub reason: Reason,
    /// A sentence.
    pub message: String,
}

/// A member as users see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberLine {
    /// Which.
    pub member: Ordinal,
    /// What it is.
    pub role: MemberRole,
    /// How it is.
    pub health: MemberHealth,
    /// The version that its server says it runs.
    pub version: Option<MySQLVersion>,
    /// The UUID of its server.
    pub uuid: Option<u128>,
    /// How far it is behind, rounded.
    pub lag: Option<u64>,
    /// How much of its data it has cloned.
    pub clone_percent: Option<u32>,
    /// What is wrong with it, or done with it.
    pub message: String,
}

impl Statement {
    fn yes(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            holds: true,
            reason,
            message: message.into(),
        }
    }

    fn no(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            holds: false,
            ..Self::yes(reason, message)
        }
    }
}

pub(super) fn report(view: &View<'_>, round: &Round) -> Report {
    let members: Vec<MemberLine> = view
        .world
        .members
        .keys()
        .map(|member| line(view, round, *member))
        .collect();
    let healthy = |line: &&MemberLine| line.health == MemberHealth::Healthy;
    let ready = u32::try_from(members.iter().filter(healthy).count()).unwrap_or(u32::MAX);
    let pods = view
        .world
        .members
        .values()
        .filter(|member| member.pod.is_some())
        .count();
    let doing = round.doing.iter().find(|doing| doing.work != Work::Warning);
    let of = |work: Work| {
        let mut all = round.doing.iter();
        all.find(|doing| doing.work == work)
            .map(|doing| Statement::yes(doing.reason, doing.message.clone()))
    };
    Report {
        generation: view.intent.generation,
        phase: phase(round),
        size: u32::try_from(pods).unwrap_or(u32::MAX),
        ready,
        available: available(view, round, ready),
        progressing: match doing {
            Some(doing) if doing.work == Work::Blocked => Statement::no(doing.reason, doing.message.clone()),
            Some(doing) => Statement::yes(doing.reason, doing.message.clone()),
            None => Statement::no(Reason::AsExpected, "the cluster is as the spec says"),
        },
        degraded: degraded(view, round, &members),
        scaling: of(Work::Scaling),
        upgrading: of(Work::Upgrading),
        recovering: of(Work::Recovering).filter(|_| has_served(round)),
        waiting: doing.map(|doing| doing.message.clone()).unwrap_or_default(),
        members,
        not_after: view.world.tls.not_after,
    }
}

/// It was writable once.
fn has_served(round: &Round) -> bool {
    round.memory.opened || round.memory.epoch > 1
}

fn phase(round: &Round) -> Phase {
    let blocked = |doing: &Doing| doing.work == Work::Blocked && doing.reason.degrades();
    if round.memory.hibernating {
        Phase::Hibernating
    } else if has_served(round) {
        Phase::Running
    } else if round
        .doing
        .iter()
        .find(|doing| doing.work != Work::Warning)
        .is_some_and(blocked)
    {
        Phase::Failed
    } else {
        Phase::Creating
    }
}

fn find(round: &Round, reason: Reason) -> Option<&Doing> {
    round.doing.iter().find(|doing| doing.reason == reason)
}

fn available(view: &View<'_>, round: &Round, ready: u32) -> Statement {
    let memory = &round.memory;
    if memory.hibernating {
        return Statement::no(Reason::Hibernating, "all pods are stopped, all data is kept");
    }
    if let Some(doing) = find(round, Reason::WritesBlocked) {
        return Statement::no(Reason::WritesBlocked, doing.message.clone());
    }
    let size = view.intent.size;
    if is_open(view, round) && !round.primary_changes() {
        let message = format!("the primary takes writes; {ready} of {size} members serve");
        return if memory.required == 0 && view.intent.acks > 0 {
            Statement::yes(
                Reason::WritesNotAcknowledged,
                format!("{message}; no replica acknowledges writes"),
            )
        } else {
            Statement::yes(Reason::WritesAcknowledged, message)
        };
    }
    let message = round.doing.first().map(|doing| doing.message.clone());
    let reason = if has_served(round) {
        Reason::PrimaryUnavailable
    } else {
        round.doing.first().map_or(Reason::Bootstrapping, |doing| doing.reason)
    };
    Statement::no(reason, message.unwrap_or_else(|| "the primary takes no writes".into()))
}

fn degraded(view: &View<'_>, round: &Round, members: &[MemberLine]) -> Statement {
    if let Some(doing) = round.doing.iter().find(|doing| doing.reason.degrades()) {
        return Statement::yes(doing.reason, doing.message.clone());
    }
    if round.memory.required == 0 && view.intent.acks > 0 && round.memory.opened && !round.memory.hibernating {
        let message = "no replica acknowledges writes: they may be lost with the primary (spec.durability.whenNoAcker is Degrade)";
        return Statement::yes(Reason::NoAckers, message);
    }
    let sick = members.iter().filter(|line| {
        matches!(
            line.health,
            MemberHealth::Unavailable | MemberHealth::Unhealthy | MemberHealth::Lost
        ) && line.member.0 < view.intent.size
    });
    let sick: Vec<String> = sick
        .map(|line| format!("{}: {}", view.name(line.member), line.message))
        .collect();
    if has_served(round) && !round.memory.hibernating && !sick.is_empty() {
        return Statement::yes(Reason::MembersUnhealthy, sick.join("; "));
    }
    Statement::no(Reason::AsExpected, "")
}

fn line(view: &View<'_>, round: &Round, member: Ordinal) -> MemberLine {
    let memory = &round.memory;
    let reply = view.reply(member);
    let data = view.data(memory, member);
    let cloning = reply
        .and_then(|reply| reply.clone.as_ref())
        .filter(|clone| clone.running);
    let is_primary = memory.primary == Some(member);
    let quarantine = memory.quarantine.get(&member);
    let channel = reply.and_then(|reply| reply.channel.as_ref());
    let role = if is_primary {
        MemberRole::Primary
    } else if quarantine.is_some() {
        MemberRole::Quarantined
    } else if data == Data::Ours && channel.is_some() {
        MemberRole::Replica
    } else {
        MemberRole::Joining
    };
    let serves = if is_primary {
        is_open(view, round)
    } else {
        view.follows(memory, member) && quarantine.is_none() && data == Data::Ours
    };
    let stopped = channel.and_then(|channel| channel.applier_error.clone().or_else(|| channel.receiver_error.clone()));
    let (health, message) = if serves {
        (MemberHealth::Healthy, String::new())
    } else if let Some(quarantine) = quarantine {
        let message = format!(
            "it has transactions that the primary does not have: {}",
            quarantine.gtids.brief(200)
        );
        (MemberHealth::Unhealthy, message)
    } else if cloning.is_some() {
        (MemberHealth::Starting, "it is cloned".into())
    } else if view.is_lost(memory, member) {
        (MemberHealth::Lost, "its data is lost".into())
    } else if let Some(why) = view.away(member) {
        let started = view.pod(member).is_some_and(|pod| pod.facts.ever_ran) || memory.claims.contains_key(&member);
        let health = if started {
            MemberHealth::Unavailable
        } else {
            MemberHealth::Starting
        };
        (health, why)
    } else if data == Data::Unknown || data == Data::Blank {
        (MemberHealth::Starting, "it has not started yet".into())
    } else if let Some(error) = stopped {
        (MemberHealth::Unhealthy, error)
    } else if is_primary {
        (MemberHealth::Unhealthy, "it takes no writes".into())
    } else {
        (MemberHealth::Starting, "it does not follow the primary yet".into())
    };
    MemberLine {
        member,
        role,
        health,
        version: view.version(member),
        uuid: reply.map(|reply| reply.process.uuid),
        lag: channel.and_then(|channel| channel.lag).map(rounded),
        clone_percent: cloning.map(|clone| clone.percent / 10 * 10),
        message,
    }
}

/// A replica that is a little behind is not worth a write of the status.
fn rounded(seconds: u64) -> u64 {
    if seconds < 8 { 0 } else { seconds.next_power_of_two() }
}
