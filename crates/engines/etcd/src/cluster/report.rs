//! What the user sees: one statement a condition, the members, and the reason for every wait (rule 7).

use crate::api::EtcdVersion;
use crate::api::etcd_cluster::{MemberHealth, MemberRole, Phase};

use super::members::Health;
use super::record::Record;
use super::rotation::Rotation;
use super::trouble::Trouble;
use super::{Doing, Reason, Step, View, Work};

/// The visible state. `operator` writes it into the status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The generation of the spec that was followed.
    pub generation: i64,
    /// As the old API had it.
    pub phase: Phase,
    /// Why, when it failed or waits for the user.
    pub reason: String,
    /// Control is paused.
    pub paused: bool,
    /// Voters in the list.
    pub size: usize,
    /// A quorum serves.
    pub available: Statement,
    /// Work is being done.
    pub progressing: Statement,
    /// Something is not as it should be.
    pub degraded: Statement,
    /// Members are added or removed.
    pub scaling: Option<Statement>,
    /// A version is rolled out.
    pub upgrading: Option<Statement>,
    /// Lost things are brought back.
    pub recovering: Option<Statement>,
    /// What is being waited for, in words; empty when nothing is.
    pub waiting: String,
    /// One line a member.
    pub members: Vec<MemberLine>,
    /// The version the cluster runs.
    pub current: Option<EtcdVersion>,
    /// The version it is going to.
    pub target: Option<EtcdVersion>,
    /// The step of a rotation of the certificate authority, in one word; empty when there is none.
    pub rotation: String,
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

/// A member as the user sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberLine {
    /// Its name.
    pub name: super::MemberName,
    /// Its ID.
    pub id: Option<super::MemberId>,
    /// What it is; `None`: it has not said so.
    pub role: Option<MemberRole>,
    /// The version it said it runs.
    pub version: Option<EtcdVersion>,
    /// It is ready: it answers, votes and sees a leader.
    pub ready: bool,
    /// How it is.
    pub health: MemberHealth,
    /// What is wrong with it, in words.
    pub message: String,
    /// Size of its database, rounded so that it does not change all the time.
    pub db_size: Option<u64>,
    /// What of it is in use, rounded alike.
    pub db_in_use: Option<u64>,
    /// Where peers reach it.
    pub peer_url: String,
    /// The node it runs on.
    pub node: Option<String>,
    /// UIDs of its pod and its claim.
    pub pod: Option<super::Uid>,
    /// UID of its claim.
    pub claim: Option<super::Uid>,
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
            reason,
            message: message.into(),
        }
    }
}

pub(super) fn report(view: &View<'_>, record: &Record, step: &Step, trouble: Option<&Trouble>) -> Report {
    let shown = view.members.values();
    let shown = shown.filter(|member| !super::old_claims::is_all_that_is_left(view, member));
    let members: Vec<MemberLine> = shown.map(|member| line(view, member)).collect();
    let ready = members.iter().filter(|member| member.ready).count();
    let size = view.world.list.as_ref().map_or(0, |list| list.voters().count());
    let began = record.began();
    let doing = step.doing.as_ref();
    let blocked = doing.filter(|doing| doing.work == Work::Blocked);
    let strangers = strangers(view);
    let available = if record.hibernating {
        Statement::no(Reason::Hibernating, "all pods are stopped, all data is kept")
    } else if let Some(restoring) = record.restoring() {
        Statement::no(
            Reason::Restoring,
            format!(
                "the cluster is being put back from the backup {}",
                restoring.source.location
            ),
        )
    } else if let Some(alarms) = writes_refused(view) {
        Statement::no(Reason::WritesRefused, alarms)
    } else if view.world.list.is_some() && view.world.pods.values().any(|pod| pod.ready) {
        Statement::yes(
            Reason::QuorumServes,
            format!("{ready} of {} members serve", size.max(view.intent.size)),
        )
    } else if view.world.list.is_some() {
        Statement::no(
            Reason::NoMemberReady,
            "a quorum of members answers, but Kubernetes reports no pod as ready, so that the client service leads to none",
        )
    } else if began {
        Statement::no(
            Reason::QuorumLost,
            doing.map_or("no quorum of members answers".into(), |doing| doing.message.clone()),
        )
    } else {
        Statement::no(
            Reason::Creating,
            doing.map_or(String::new(), |doing| doing.message.clone()),
        )
    };
    let progressing = match doing {
        Some(doing) if doing.work != Work::Blocked => Statement::yes(doing.reason, doing.message.clone()),
        Some(doing) => Statement::no(doing.reason, doing.message.clone()),
        None => Statement::no(Reason::AsExpected, "the cluster is as the spec says"),
    };
    let sick: Vec<_> = members
        .iter()
        .filter(|member| !member.ready && member.role != Some(MemberRole::Learner))
        .collect();
    let degraded = if let Some(refused) = &view.refused {
        Statement::yes(Reason::VersionRefused, refused.to_string())
    } else if let Some(doing) = blocked.filter(|doing| doing.reason.degrades()) {
        Statement::yes(doing.reason, doing.message.clone())
    } else if let Some(alarms) = writes_refused(view) {
        Statement::yes(Reason::WritesRefused, alarms)
    } else if let Some(trouble) = trouble {
        Statement::yes(trouble.reason, trouble.message.clone())
    } else if !strangers.is_empty() && view.intent.adopt.is_empty() {
        Statement::yes(
            Reason::UnknownMembers,
            format!(
                "the member list has members that are not this cluster's pods: {}. They are left alone; remove them with etcdctl if they are not wanted",
                strangers.join(", ")
            ),
        )
    } else if began && !record.hibernating && record.restoring().is_none() && !sick.is_empty() {
        Statement::yes(
            Reason::MembersUnhealthy,
            sick.iter()
                .map(|member| format!("{}: {}", member.name, member.message))
                .collect::<Vec<_>>()
                .join("; "),
        )
    } else {
        Statement::no(Reason::AsExpected, "")
    };
    let of = |work: Work| {
        doing
            .filter(|doing| doing.work == work)
            .map(|doing: &Doing| Statement::yes(doing.reason, doing.message.clone()))
    };
    Report {
        generation: view.intent.generation,
        phase: progressing.reason.phase(began),
        reason: blocked.map_or(String::new(), |doing| doing.message.clone()),
        paused: view.intent.paused,
        size,
        available,
        progressing,
        degraded,
        scaling: of(Work::Scaling).filter(|_| began),
        upgrading: of(Work::Upgrading),
        recovering: of(Work::Recovering),
        waiting: doing.map_or(String::new(), |doing| doing.message.clone()),
        members,
        current: record.current.clone(),
        target: record
            .target
            .clone()
            .filter(|target| Some(target) != record.current.as_ref()),
        rotation: super::rotation::rotation(view.world)
            .map_or("", Rotation::as_str)
            .to_owned(),
    }
}

fn line(view: &View<'_>, member: &super::Member<'_>) -> MemberLine {
    // Without a proven list, what the last one said of it.
    let remembered = view
        .record
        .members
        .get(&member.name)
        .filter(|_| view.world.list.is_none());
    let learner = member
        .listed
        .map(|listed| listed.learner)
        .or(remembered.map(|member| !member.voter));
    let role = match (member.listed, learner) {
        (Some(listed), _) if view.leader() == Some(listed.id) => Some(MemberRole::Leader),
        (_, Some(true)) => Some(MemberRole::Learner),
        (_, Some(false)) => Some(MemberRole::Follower),
        (_, None) => None,
    };
    let learner = learner == Some(true);
    let ready = member.is_healthy() && member.is_voter();
    let message = match &member.health {
        Health::Healthy if learner => "catching up".to_owned(),
        Health::Healthy if member.listed.is_none() => "not in the member list".to_owned(),
        Health::Healthy => String::new(),
        Health::Unstarted => "not started yet".to_owned(),
        Health::Unavailable(why) => why.clone(),
        Health::Lost(proof) => format!("lost: {}", proof.words()),
    };
    MemberLine {
        name: member.name.clone(),
        id: member
            .listed
            .map(|listed| listed.id)
            .or(member.reply.map(|reply| reply.id))
            // The record is read back from here: without an ID the member would be forgotten.
            .or(remembered.and_then(|known| known.id)),
        role,
        version: member.reply.map(|reply| reply.version.clone()),
        ready,
        health: match &member.health {
            Health::Healthy => MemberHealth::Healthy,
            Health::Unstarted => MemberHealth::Starting,
            Health::Unavailable(_) if member.reply.is_some() => MemberHealth::Unhealthy,
            Health::Unavailable(_) if member.pod.is_some_and(|pod| !pod.ready && pod.restarts == 0) => {
                MemberHealth::Starting
            }
            Health::Unavailable(_) => MemberHealth::Unreachable,
            Health::Lost(_) => MemberHealth::Failed,
        },
        message,
        db_size: member.reply.map(|reply| rounded(reply.db_size)),
        db_in_use: member.reply.map(|reply| rounded(reply.db_in_use)),
        peer_url: match (member.listed, remembered) {
            (Some(listed), _) => listed.peer_urls.first().cloned().unwrap_or_default(),
            (None, Some(known)) => known.peer_url.clone(),
            (None, None) => String::new(),
        },
        node: member.pod.and_then(|pod| pod.node.clone()),
        pod: member.pod.map(|pod| pod.uid.clone()),
        claim: member.claim.map(|claim| claim.uid.clone()),
    }
}

/// Rounded up to the next of 32 KiB, 64 KiB, 128 KiB, …: a database that grows a little does not change the status.
fn rounded(bytes: u64) -> u64 {
    bytes.max(32 << 10).next_power_of_two()
}

/// The alarms that keep a cluster with a quorum from taking writes.
fn writes_refused(view: &View<'_>) -> Option<String> {
    let (list, alarms) = (view.world.list.as_ref()?, &view.world.alarms);
    let each = alarms.iter().map(|(id, alarm)| {
        let of = list.members.iter().find(|listed| listed.id == *id);
        match of.and_then(|listed| super::members::owner(view.intent, listed)) {
            Some(name) => format!("{alarm} of {name}"),
            None if id.0 == 0 => format!("{alarm} of no particular member"),
            None if of.is_some() => format!("{alarm} of member {id}"),
            None => format!("{alarm} of member {id}, which is not in the member list"),
        }
    });
    let each = each.collect::<Vec<_>>().join("; ");
    (!alarms.is_empty())
        .then(|| format!("a quorum of members answers, but etcd takes no writes because of its alarms: {each}"))
}

fn strangers(view: &View<'_>) -> Vec<String> {
    let Some(list) = &view.world.list else {
        return Vec::new();
    };
    list.members
        .iter()
        .filter(|listed| super::members::owner(view.intent, listed).is_none())
        .map(|listed| {
            format!(
                "{} ({})",
                listed.name.as_ref().map_or("unnamed", |name| name.0.as_str()),
                listed.id
            )
        })
        .collect()
}
