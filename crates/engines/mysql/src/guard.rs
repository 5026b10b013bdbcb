//! Guards: what must still hold at the moment an action is executed. They are data, so that the driver and the simulation
//! evaluate the same conditions with the same code; they differ only in how a fact is read.
//!
//! A guard that does not hold refuses the action, and the next reconcile decides anew. A fact that was not read refuses too.

use std::collections::BTreeMap;

use stateward_core::Uid;
pub use stateward_core::guard::{FRESH_FOR, Precondition};
pub use stateward_core::ids::ObjectVersion;

use crate::action::{Action, ClaimEnd};
use crate::gtid::GtidSet;
use crate::memory::Memory;
use crate::world::{Ordinal, Process, Reply};

/// One condition of an action.
#[allow(missing_docs, reason = "the fields are named for what they are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The MySQLCluster is the very version that was planned with: its spec, and what its status remembers.
    Unchanged(ObjectVersion),
    /// The pod has this UID. The API server checks it with the request.
    PodUid(Uid),
    /// The claim has this UID. The API server checks it with the request.
    ClaimUid(Uid),
    /// The StatefulSet has this UID. The API server checks it with the request.
    SetUid(Uid),
    /// The server replies, and it is this process.
    Same { member: Ordinal, process: Process },
    /// The server is empty.
    Blank { member: Ordinal },
    /// The server has executed all that it received: changing its source discards nothing.
    Applied { member: Ordinal },
    /// The server may change its source to `source`: it follows it already, or has executed all that it received.
    MayFollow { member: Ordinal, host: String },
    /// All that the server executed was executed by, or is being committed on, `by`, read afterwards; `but` does not count.
    Clean { member: Ordinal, by: Ordinal, but: GtidSet },
    /// This many of these hold all that the server executed.
    Held {
        member: Ordinal,
        by: Vec<Ordinal>,
        acks: u32,
    },
    /// The server is writable.
    Writable { member: Ordinal },
    /// The server is read-only.
    ReadOnly { member: Ordinal },
    /// These transactions of the server were saved.
    Saved { member: Ordinal, gtids: GtidSet },
}

/// A fact that must be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// The version of the MySQLCluster, by a quorum read.
    Cluster,
    /// The replies of these servers, one after the other in this order.
    Servers(Vec<Ordinal>),
}

/// What was read past all caches. `None`: not read.
#[derive(Clone, Debug, Default)]
pub struct Fresh {
    /// The MySQLCluster; `Some(None)`: it is gone.
    pub cluster: Option<Option<ObjectVersion>>,
    /// Replies, read after the action was due; `None`: no reply. A guard that needs several in an order has them read in it.
    pub replies: BTreeMap<Ordinal, Option<Reply>>,
}

/// What came of a guard.
pub type Check = stateward_core::guard::Check<Need>;

/// What guards need to know of the cluster: how it was planned.
#[derive(Clone)]
pub struct Planned<'a> {
    /// The version of the MySQLCluster that the plan was made with; after the plan's own write, the version that it wrote.
    pub version: ObjectVersion,
    /// The memory of the plan.
    pub memory: &'a Memory,
    /// The host names of members.
    pub hosts: &'a (dyn Fn(Ordinal) -> String + Sync),
}

/// The guards of an action.
pub fn guards(action: &Action, planned: &Planned<'_>) -> Vec<Guard> {
    let unchanged = || Guard::Unchanged(planned.version.clone());
    let same = |member: &Ordinal, process: &Process| Guard::Same {
        member: *member,
        process: process.clone(),
    };
    match action {
        Action::Tell(_) => Vec::new(),
        Action::EnsureSecrets
        | Action::IssueCertificates
        | Action::Apply(_)
        | Action::TakeBackup { .. }
        | Action::ApplySet { .. } => vec![unchanged()],
        Action::ScaleIn { uid, .. } => vec![unchanged(), Guard::SetUid(uid.clone())],
        Action::Label {
            member, uid, writable, ..
        } => {
            let mut guards = vec![unchanged(), Guard::PodUid(uid.clone())];
            if let Some(process) = writable {
                guards.extend([same(member, process), Guard::Writable { member: *member }]);
            }
            guards
        }
        Action::DeletePod { uid, .. } | Action::EndProcess { uid, .. } => {
            vec![unchanged(), Guard::PodUid(uid.clone())]
        }
        Action::DeleteClaim { uid, why, .. } => match why {
            ClaimEnd::Lost | ClaimEnd::ScaledIn | ClaimEnd::Old => vec![unchanged(), Guard::ClaimUid(uid.clone())],
        },
        Action::GrowClaim { uid, .. } | Action::OwnClaim { uid, .. } => vec![unchanged(), Guard::ClaimUid(uid.clone())],
        Action::Found { member, process } => {
            vec![unchanged(), same(member, process)]
        }
        Action::Clone {
            member,
            process,
            donor,
            donor_process,
            discard,
        } => {
            let mut guards = vec![unchanged(), same(member, process), same(donor, donor_process)];
            guards.push(Guard::Clean {
                member: *member,
                by: *donor,
                but: discard.clone(),
            });
            if let Some(primary) = planned.memory.primary.filter(|primary| primary != donor) {
                guards.push(Guard::Clean {
                    member: *donor,
                    by: primary,
                    but: GtidSet::default(),
                });
            }
            if !discard.is_empty() {
                guards.push(Guard::Saved {
                    member: *member,
                    gtids: discard.clone(),
                });
            }
            guards
        }
        Action::Replicate {
            member,
            process,
            source,
            source_process,
            ..
        } => vec![
            unchanged(),
            same(member, process),
            same(source, source_process),
            Guard::ReadOnly { member: *member },
            Guard::MayFollow {
                member: *member,
                host: (planned.hosts)(*source),
            },
            Guard::Clean {
                member: *member,
                by: *source,
                but: GtidSet::default(),
            },
        ],
        Action::StopReceiver { member, process } => vec![unchanged(), same(member, process)],
        Action::Expel { primary, process, .. }
        | Action::Readmit { primary, process, .. }
        | Action::RotatePasswords { primary, process, .. }
        | Action::DiscardOldPasswords { primary, process } => vec![unchanged(), same(primary, process)],
        Action::SetAcks { member, process, .. }
        | Action::Nudge { member, process }
        | Action::Close { member, process }
        | Action::SetVariables { member, process, .. } => vec![unchanged(), same(member, process)],
        Action::Open {
            member,
            process,
            acks,
            holders,
        } => vec![
            unchanged(),
            same(member, process),
            Guard::Applied { member: *member },
            Guard::Held {
                member: *member,
                by: holders.clone(),
                acks: *acks,
            },
        ],
        Action::SaveErrant { member, process, .. }
        | Action::ReloadCertificates { member, process }
        | Action::PurgeBinlogs { member, process, .. } => vec![unchanged(), same(member, process)],
    }
}

/// The MySQLCluster must be read at this very moment: that it was read or written within [`FRESH_FOR`] is not enough. Another operator
/// may have recorded something in between with which a receiver that acknowledges, or a writable server, must not be; and the user may
/// want the data that is to be deleted.
pub fn reads_again(action: &Action) -> bool {
    match action {
        Action::Replicate { acknowledge, .. } => *acknowledge,
        Action::Open { .. }
        | Action::Readmit { .. }
        | Action::SetAcks { .. }
        | Action::Found { .. }
        | Action::ScaleIn { .. }
        | Action::DeleteClaim { .. } => true,
        _ => false,
    }
}

/// What the API server checks together with the request.
pub fn precondition(guards: &[Guard]) -> Precondition {
    let uid = guards.iter().find_map(|guard| match guard {
        Guard::PodUid(uid) | Guard::ClaimUid(uid) | Guard::SetUid(uid) => Some(uid.clone()),
        _ => None,
    });
    Precondition { uid, unmodified: false }
}

impl Guard {
    /// Whether it holds.
    pub fn check(&self, fresh: &Fresh) -> Check {
        let unread = |members: Vec<Ordinal>| Check::Unread(Need::Servers(members));
        let replies = &fresh.replies;
        match self {
            Self::Unchanged(planned) => match &fresh.cluster {
                None => Check::Unread(Need::Cluster),
                Some(now) => Check::that(now.as_ref() == Some(planned), || {
                    "the MySQLCluster has changed since the decision".into()
                }),
            },
            // The API server checks these.
            Self::PodUid(_) | Self::ClaimUid(_) | Self::SetUid(_) => Check::Holds,
            Self::Same { member, process } => with(replies, *member, |reply| {
                Check::that(reply.process == *process, || {
                    format!("the server of {member} has restarted")
                })
            }),
            Self::Blank { member } => with(replies, *member, |reply| {
                Check::that(reply.is_blank(), || format!("the server of {member} is not empty"))
            }),
            Self::Applied { member } => with(replies, *member, |reply| {
                let left = reply.unapplied();
                Check::that(left.is_empty(), || {
                    format!("{member} has not applied {}", left.brief(80))
                })
            }),
            Self::MayFollow { member, host } => with(replies, *member, |reply| {
                let follows = reply.channel.as_ref().is_some_and(|channel| channel.host == *host);
                let left = reply.unapplied();
                Check::that(follows || left.is_empty(), || {
                    format!("{member} has not applied {} and follows another source", left.brief(80))
                })
            }),
            Self::Clean { member, by, but } => {
                let (Some(one), Some(other)) = (replies.get(member), replies.get(by)) else {
                    return unread(vec![*member, *by]);
                };
                let (Some(one), Some(other)) = (one, other) else {
                    return Check::Refused(format!("{member} or {by} does not reply"));
                };
                let known = other.executed.union(&other.owned).union(but);
                let own = one.executed.subtract(&known);
                Check::that(own.is_empty(), || {
                    format!("{member} has {}, which {by} lacks", own.brief(80))
                })
            }
            Self::Held { member, by, acks } => {
                let order: Vec<Ordinal> = [*member].into_iter().chain(by.iter().copied()).collect();
                if order.iter().any(|one| !replies.contains_key(one)) {
                    return unread(order);
                }
                let Some(Some(own)) = replies.get(member) else {
                    return Check::Refused(format!("{member} does not reply"));
                };
                let holds = |other: &&Ordinal| {
                    let reply = replies.get(*other).and_then(Option::as_ref);
                    reply.is_some_and(|reply| reply.received().contains(&own.executed))
                };
                let count = by.iter().filter(|other| *other != member).filter(holds).count();
                let enough = u32::try_from(count).unwrap_or(0) >= *acks;
                Check::that(enough, || {
                    format!("{count} replicas hold all that {member} has, {acks} are needed")
                })
            }
            Self::Writable { member } => with(replies, *member, |reply| {
                Check::that(!reply.read_only, || format!("{member} is read-only"))
            }),
            Self::ReadOnly { member } => with(replies, *member, |reply| {
                Check::that(reply.read_only, || format!("{member} is writable"))
            }),
            Self::Saved { member, gtids } => with(replies, *member, |reply| {
                let mut saved = GtidSet::default();
                for set in &reply.saved {
                    saved.extend(set);
                }
                let left = gtids.subtract(&saved);
                Check::that(left.is_empty(), || {
                    format!("{} of {member} is not saved", left.brief(80))
                })
            }),
        }
    }
}

fn with(replies: &BTreeMap<Ordinal, Option<Reply>>, member: Ordinal, check: impl FnOnce(&Reply) -> Check) -> Check {
    match replies.get(&member) {
        None => Check::Unread(Need::Servers(vec![member])),
        Some(None) => Check::Refused(format!("{member} does not reply")),
        Some(Some(reply)) => check(reply),
    }
}
