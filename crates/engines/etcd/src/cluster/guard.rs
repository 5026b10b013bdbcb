//! Guards: what must still be so at the moment an effect is carried out. They are data, so that the operator and the
//! simulation evaluate the same conditions with the same code; they differ only in how a fact is read.
//!
//! A guard that does not hold refuses the effect, and the next round decides anew. A fact that was not read refuses too.

use std::collections::{BTreeMap, BTreeSet};

pub use stateward_core::ObjectVersion;
pub use stateward_core::guard::{Check, FRESH_FOR, Precondition, check, precondition};

use super::effect::{Effect, Launch, Stop};
use super::intent::Intent;
use super::members::owner;
use super::record::Record;
use super::world::{Ca, ClusterId, DataHash, Listed, MemberId, MemberList, MemberName, Uid, World};

/// One condition of an effect.
pub type Guard = stateward_core::guard::Guard<Fact>;

/// What was read past all caches.
pub type Fresh = stateward_core::guard::Fresh<Facts>;

/// What must be read.
pub type Need = stateward_core::guard::Need<FactNeed>;

/// A condition that only etcd has.
#[allow(missing_docs, reason = "the fields are named for what they are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// No EtcdRestore of this cluster waits: it would begin empty beside it.
    NoRestoreWaits,
    /// No pod of another member is there: a new cluster never starts beside the old one.
    Alone { member: MemberName },
    /// The Secrets name the authorities that the pod is made to trust.
    StillTrusted { bundle: BTreeSet<Ca> },
    /// The member's pod is this one, or is still absent.
    PodIs { member: MemberName, uid: Option<Uid> },
    /// The member's claim is this one, or is still absent.
    ClaimIs { member: MemberName, uid: Option<Uid> },
    /// A quorum's member list lacks the member.
    OutOfList { member: MemberName, cluster: ClusterId },
    /// Every member that answers lists this one without a name.
    Unstarted { member: MemberName, cluster: ClusterId },
    /// These members' data has these hashes.
    SameData {
        hashes: BTreeMap<MemberId, DataHash>,
        cluster: ClusterId,
    },
    /// These nodes have ended: each is deleted or out of service.
    NodesEnded { nodes: BTreeSet<String> },
    /// Every pod trusts these authorities. `before`: those that a pod which does not say so trusts.
    AllTrust { cas: BTreeSet<Ca>, before: BTreeSet<Ca> },
    /// Those that vouch for the certificates in the Secrets are among these.
    VouchersStay { cas: BTreeSet<Ca> },
    /// Where an authority is dropped, every pod is one that the decision rests on.
    AllSeen { cas: BTreeSet<Ca>, seen: BTreeSet<Uid> },
    /// The EtcdRestore that is taken up is still there, and not complete.
    RestoreAsked { name: String, uid: Uid },
}

/// The name of a guard. What the API server checks is named by the object that it is checked of.
#[allow(missing_docs, reason = "they are those of the guards")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    ClusterUnchanged,
    NoRestoreWaits,
    Alone,
    StillTrusted,
    PodUid,
    ClaimUid,
    BackupUid,
    Unmodified,
    PodIs,
    ClaimIs,
    OutOfList,
    Unstarted,
    SameData,
    NodesEnded,
    AllTrust,
    VouchersStay,
    AllSeen,
    RecordUnmodified,
    RestoreAsked,
}

/// What was read. `None`: not read.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The names of the EtcdRestores that a user made for this cluster and that are not complete.
    pub waiting_restores: Option<Vec<String>>,
    /// The UID of the EtcdRestore that is taken up; `Some(None)`: it is gone, being deleted, or complete.
    pub restore: Option<Option<Uid>>,
    /// The cluster's pods.
    pub pods: Option<Vec<PodNow>>,
    /// The pod and the claim of the effect's member.
    pub objects: Option<ObjectsNow>,
    /// The member list that a quorum agrees to.
    pub list: Option<MemberList>,
    /// The member lists of all members that answer.
    pub lists: Option<Vec<Vec<Listed>>>,
    /// The hashes of members' data; those that cannot be compared are missing.
    pub hashes: Option<BTreeMap<MemberId, DataHash>>,
    /// The nodes that have ended, of those that were asked for.
    pub ended_nodes: Option<BTreeSet<String>>,
    /// The Secrets with certificates that Stateward writes.
    pub secrets: Option<Vec<SecretNow>>,
}

/// A pod of the cluster at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodNow {
    /// The member.
    pub name: MemberName,
    /// Its UID.
    pub uid: Uid,
    /// The authorities that it trusts; `None`: it does not say.
    pub trusts: Option<BTreeSet<Ca>>,
}

/// A member's objects at this moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectsNow {
    /// The UID of the pod of its name.
    pub pod: Option<Uid>,
    /// The UID of the claim of its name.
    pub claim: Option<Uid>,
}

/// A Secret with certificates at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretNow {
    /// Its name.
    pub name: String,
    /// Whom it is for.
    pub role: SecretRole,
    /// The authorities that it names.
    pub bundle: BTreeSet<Ca>,
    /// Those that vouch for its certificate.
    pub issued: BTreeSet<Ca>,
}

/// Whom a Secret is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretRole {
    /// Members among each other.
    Peer,
    /// Members as servers of clients.
    Server,
    /// Clients: no member reads it.
    Client,
}

/// A fact that must be read.
#[allow(missing_docs, reason = "they are those of `Facts`")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FactNeed {
    WaitingRestores,
    Restore(String),
    Pods,
    Objects(MemberName),
    List(ClusterId),
    Lists(ClusterId),
    Hashes(ClusterId, Vec<MemberId>),
    EndedNodes(BTreeSet<String>),
    Secrets,
}

/// The guards of an effect that was planned with this version of the EtcdCluster and this world.
pub fn guards(effect: &Effect, cluster: &ObjectVersion, world: &World) -> Vec<Guard> {
    let unchanged = || Guard::Unchanged(cluster.clone());
    match effect {
        Effect::CreatePod { member, launch, .. } => {
            let mut guards = match launch {
                Launch::Seed { .. } | Launch::Static { .. } => vec![unchanged(), Fact::NoRestoreWaits.into()],
                // A member comes back only into the cluster that it was in: not while, or after, that one was replaced.
                Launch::Sealed => vec![unchanged()],
                Launch::ForceNew | Launch::Restore { .. } => vec![unchanged(), alone(member)],
                // etcd itself knows whether it is in the list.
                Launch::Join { .. } => Vec::new(),
            };
            guards.extend(still_trusted(world));
            guards.push(Guard::Absent);
            guards
        }
        Effect::CreateClaim { .. } => vec![Guard::Absent],
        Effect::SealPod { uid, .. } | Effect::RelabelPod { uid, .. } => vec![Guard::Uid(uid.clone())],
        Effect::DeletePod { uid, how, .. } => match how {
            // A pod that was seen not to run may run by now.
            Stop::Restart => vec![unchanged(), Guard::Uid(uid.clone()), Guard::Unmodified],
            Stop::Gone | Stop::Hibernate | Stop::Replaced | Stop::Force => {
                vec![unchanged(), Guard::Uid(uid.clone())]
            }
        },
        Effect::DeleteClaim { member, uid, cluster } => {
            let (member, cluster) = (member.clone(), *cluster);
            let out = Fact::OutOfList { member, cluster };
            vec![unchanged(), out.into(), Guard::Uid(uid.clone())]
        }
        Effect::DeleteUnstartedClaim { member, uid, cluster } => {
            let (member, cluster) = (member.clone(), *cluster);
            let unstarted = Fact::Unstarted { member, cluster };
            vec![unchanged(), unstarted.into(), Guard::Uid(uid.clone())]
        }
        Effect::GrowClaim { uid, .. } => vec![Guard::Uid(uid.clone())],
        Effect::RemoveMember { member, pod, claim, .. } => {
            let (pod, claim) = (pod.clone(), claim.clone());
            let pod = Fact::PodIs {
                member: member.clone(),
                uid: pod,
            };
            let claim = Fact::ClaimIs {
                member: member.clone(),
                uid: claim,
            };
            vec![unchanged(), pod.into(), claim.into()]
        }
        Effect::ReleaseMember { .. } => vec![unchanged()],
        Effect::IssueCertificates { next: true } => world.trust.iter().map(all_trust).collect(),
        Effect::TrustCas { cas } => {
            let seen = world.pods.values().map(|pod| pod.uid.clone()).collect();
            vec![
                Guard::Fact(Fact::VouchersStay { cas: cas.clone() }),
                Guard::Fact(Fact::AllSeen { cas: cas.clone(), seen }),
            ]
        }
        Effect::CompareAgain { hashes, cluster } => vec![Guard::Fact(Fact::SameData {
            hashes: hashes.clone(),
            cluster: *cluster,
        })],
        Effect::CheckNodesEnded { nodes } => vec![Guard::Fact(Fact::NodesEnded { nodes: nodes.clone() })],
        // Its files may go with it.
        Effect::DropBackup { uid } => vec![unchanged(), Guard::Uid(uid.clone())],
        // What asks etcd asks only members of that cluster ID.
        Effect::ApplyPeerService
        | Effect::ApplyClientService
        | Effect::ApplyBudget
        | Effect::TryPod { .. }
        | Effect::AddMember { .. }
        | Effect::Promote { .. }
        | Effect::UpdatePeerUrl { .. }
        | Effect::MoveLeader { .. }
        | Effect::Compact { .. }
        | Effect::Defragment { .. }
        | Effect::Disarm { .. }
        | Effect::EnableDowngrade { .. }
        | Effect::CancelDowngrade { .. }
        | Effect::IssueCertificates { next: false }
        | Effect::RequestCertificates
        | Effect::RenewCa
        | Effect::TakeBackup { .. }
        | Effect::ApplyBackup
        | Effect::RequestRestore { .. }
        | Effect::Tell(_) => Vec::new(),
    }
}

/// The guards of the record that is written before the effects.
pub fn record_guards(before: &Record, after: &Record) -> Vec<Guard> {
    // The status is written onto the version of the EtcdCluster that it was planned from.
    let mut guards = vec![Guard::Unmodified];
    guards.extend(after.begins_restore(before).map(|restore| {
        Guard::Fact(Fact::RestoreAsked {
            name: restore.name.clone(),
            uid: restore.uid.clone(),
        })
    }));
    guards
}

fn alone(member: &MemberName) -> Guard {
    Guard::Fact(Fact::Alone { member: member.clone() })
}

/// With Secrets that the user keeps, a pod mounts whatever they hold.
fn still_trusted(world: &World) -> Option<Guard> {
    let trust = world.trust.as_ref().filter(|trust| trust.managed)?;
    Some(Guard::Fact(Fact::StillTrusted {
        bundle: trust.bundle.clone(),
    }))
}

fn all_trust(trust: &super::world::Trust) -> Guard {
    Guard::Fact(Fact::AllTrust {
        cas: trust.wanted.clone(),
        before: trust.issued.clone(),
    })
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::ClusterUnchanged,
        Self::NoRestoreWaits,
        Self::Alone,
        Self::StillTrusted,
        Self::PodUid,
        Self::ClaimUid,
        Self::BackupUid,
        Self::Unmodified,
        Self::PodIs,
        Self::ClaimIs,
        Self::OutOfList,
        Self::Unstarted,
        Self::SameData,
        Self::NodesEnded,
        Self::AllTrust,
        Self::VouchersStay,
        Self::AllSeen,
        Self::RecordUnmodified,
        Self::RestoreAsked,
    ];
}

/// The name of a guard, of an effect or of the record (`None`). `None`: the request itself is the guard, and cannot be without.
pub fn kind(effect: Option<&Effect>, guard: &Guard) -> Option<Kind> {
    let fact = match guard {
        Guard::Unchanged(_) => return Some(Kind::ClusterUnchanged),
        Guard::Absent => return None,
        Guard::Uid(_) => return Some(uid_of(effect)),
        Guard::Unmodified => {
            return Some(effect.map_or(Kind::RecordUnmodified, |_| Kind::Unmodified));
        }
        Guard::Fact(fact) => fact,
    };
    Some(match fact {
        Fact::NoRestoreWaits => Kind::NoRestoreWaits,
        Fact::Alone { .. } => Kind::Alone,
        Fact::StillTrusted { .. } => Kind::StillTrusted,
        Fact::PodIs { .. } => Kind::PodIs,
        Fact::ClaimIs { .. } => Kind::ClaimIs,
        Fact::OutOfList { .. } => Kind::OutOfList,
        Fact::Unstarted { .. } => Kind::Unstarted,
        Fact::SameData { .. } => Kind::SameData,
        Fact::NodesEnded { .. } => Kind::NodesEnded,
        Fact::AllTrust { .. } => Kind::AllTrust,
        Fact::VouchersStay { .. } => Kind::VouchersStay,
        Fact::AllSeen { .. } => Kind::AllSeen,
        Fact::RestoreAsked { .. } => Kind::RestoreAsked,
    })
}

/// What has the UID.
fn uid_of(effect: Option<&Effect>) -> Kind {
    let claim = |effect: &Effect| {
        matches!(
            effect,
            Effect::DeleteClaim { .. } | Effect::DeleteUnstartedClaim { .. } | Effect::GrowClaim { .. }
        )
    };
    match effect {
        Some(Effect::DropBackup { .. }) => Kind::BackupUid,
        Some(effect) if claim(effect) => Kind::ClaimUid,
        Some(_) | None => Kind::PodUid,
    }
}

impl stateward_core::guard::Fact for Fact {
    type Facts = Facts;
    type Need = FactNeed;
    type Context = Intent;

    fn check(&self, facts: &Facts, intent: &Intent) -> Check<FactNeed> {
        self.evaluate(facts, intent).unwrap_or_else(Check::Unread)
    }
}

impl Fact {
    fn evaluate(&self, facts: &Facts, intent: &Intent) -> Result<Check<FactNeed>, FactNeed> {
        Ok(match self {
            Self::NoRestoreWaits => {
                let restores = facts.waiting_restores.as_ref().ok_or(FactNeed::WaitingRestores)?;
                let Some(name) = restores.first() else {
                    return Ok(Check::Holds);
                };
                // With a pod there the cluster has begun already, and its other first members must come.
                let has_begun = !facts.pods.as_ref().ok_or(FactNeed::Pods)?.is_empty();
                Check::that(has_begun, || format!("EtcdRestore {name} of this cluster waits"))
            }
            Self::RestoreAsked { name, uid } => {
                let now = facts.restore.as_ref().ok_or_else(|| FactNeed::Restore(name.clone()))?;
                Check::that(now.as_ref() == Some(uid), || {
                    format!("EtcdRestore {name} is gone or complete")
                })
            }
            Self::Alone { member } => {
                let mut pods = facts.pods.as_ref().ok_or(FactNeed::Pods)?.iter();
                Check::unless(pods.find(|pod| pod.name != *member), |pod| {
                    format!("the pod {} is still there", pod.name)
                })
            }
            Self::PodIs { member, uid } => {
                let now = facts.objects.as_ref().ok_or(FactNeed::Objects(member.clone()))?;
                Check::that(now.pod == *uid, || format!("the pod of {member} is another one now"))
            }
            Self::ClaimIs { member, uid } => {
                let now = facts.objects.as_ref().ok_or(FactNeed::Objects(member.clone()))?;
                Check::that(now.claim == *uid, || {
                    format!("the claim of {member} is another one now")
                })
            }
            Self::OutOfList { member, cluster } => {
                let list = facts.list.as_ref().ok_or(FactNeed::List(*cluster))?;
                if list.cluster != *cluster {
                    Check::Refused(format!("cluster {} answered instead of {cluster}", list.cluster))
                } else {
                    let is_it = |line: &&Listed| is_member(intent, line, member) || line.name.as_ref() == Some(member);
                    Check::unless(list.members.iter().find(is_it), |_| {
                        format!("{member} is in the member list again")
                    })
                }
            }
            Self::Unstarted { member, cluster } => {
                let lists = facts.lists.as_ref().ok_or(FactNeed::Lists(*cluster))?;
                let unstarted = |line: &Listed| line.name.is_none() && is_member(intent, line, member);
                let all = !lists.is_empty() && lists.iter().all(|list| list.iter().any(unstarted));
                Check::that(all, || format!("{member} has started meanwhile"))
            }
            Self::SameData { hashes, cluster } => {
                let ids = || hashes.keys().copied().collect();
                let now = facts.hashes.as_ref().ok_or_else(|| FactNeed::Hashes(*cluster, ids()))?;
                Check::unless(hashes.iter().find(|(id, was)| now.get(id) != Some(was)), |(id, was)| {
                    let is = now.get(id).map_or("not to be compared".to_owned(), ToString::to_string);
                    format!("the data of member {id} was {was} and is {is}")
                })
            }
            Self::NodesEnded { nodes } => {
                let ended = facts.ended_nodes.as_ref();
                let ended = ended.ok_or_else(|| FactNeed::EndedNodes(nodes.clone()))?;
                Check::unless(nodes.difference(ended).next(), |node| {
                    format!("the node {node} is back")
                })
            }
            Self::StillTrusted { bundle } => {
                let mut secrets = facts.secrets.as_ref().ok_or(FactNeed::Secrets)?.iter();
                Check::unless(secrets.find(|secret| !secret.agrees(bundle)), |secret| {
                    format!("the Secret {} names other CAs now", secret.name)
                })
            }
            Self::AllTrust { cas, before } => {
                let mut pods = facts.pods.as_ref().ok_or(FactNeed::Pods)?.iter();
                let trusts = |pod: &&PodNow| cas.is_subset(pod.trusts.as_ref().unwrap_or(before));
                Check::unless(pods.find(|pod| !trusts(pod)), |pod| {
                    format!("{} does not trust the new CA yet", pod.name)
                })
            }
            Self::VouchersStay { cas } => {
                let mut secrets = facts.secrets.as_ref().ok_or(FactNeed::Secrets)?.iter();
                Check::unless(secrets.find(|secret| !secret.issued.is_subset(cas)), |secret| {
                    let name = &secret.name;
                    format!("the certificate in the Secret {name} is of a CA that would be dropped")
                })
            }
            Self::AllSeen { cas, seen } => {
                let mut secrets = facts.secrets.as_ref().ok_or(FactNeed::Secrets)?.iter();
                if secrets.all(|secret| secret.bundle.is_subset(cas)) {
                    return Ok(Check::Holds);
                }
                let mut pods = facts.pods.as_ref().ok_or(FactNeed::Pods)?.iter();
                Check::unless(pods.find(|pod| !seen.contains(&pod.uid)), |pod| {
                    format!("the pod {} was not looked at", pod.name)
                })
            }
        })
    }
}

impl SecretNow {
    /// A pod that trusts these is right by this Secret. The Secrets of clients and servers may name more, while one of them
    /// is written after the other.
    fn agrees(&self, bundle: &BTreeSet<Ca>) -> bool {
        let (prefix, complete) = match self.role {
            SecretRole::Peer => ("peer/", true),
            SecretRole::Server => ("client/", false),
            SecretRole::Client => return true,
        };
        let mut planned = bundle.iter().filter(|name| name.starts_with(prefix));
        planned.all(|name| self.bundle.contains(name)) && (!complete || self.bundle.is_subset(bundle))
    }
}

fn is_member(intent: &Intent, line: &Listed, member: &MemberName) -> bool {
    owner(intent, line).as_ref() == Some(member)
}
