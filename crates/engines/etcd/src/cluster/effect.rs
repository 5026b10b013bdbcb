//! What a plan may ask for. Effects are carried out in their order; the first that fails ends the round.
//!
//! Effects carry guards (see `guard`): what must still be true at the moment they are carried out. A guard that no longer
//! holds refuses the effect; the next round decides anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::api::EtcdVersion;
use crate::api::etcd_restore::RestoreSource;

use super::Reason;
use super::world::{Alarm, Ca, ClusterId, DataHash, LaunchKind, MemberId, MemberName, TlsStage, Uid};

/// One step. What it writes to Kubernetes is in its [`Order`](super::Order).
#[allow(missing_docs, reason = "the fields are named for what they are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make the headless service, the client service or the disruption budget what the intent says.
    ApplyPeerService,
    /// The service that clients use.
    ApplyClientService,
    /// The disruption budget.
    ApplyBudget,
    /// Make a member's claim. Fails when one of that name is there.
    CreateClaim { member: MemberName },
    /// Make a member's pod. Fails when one of that name is there.
    CreatePod {
        member: MemberName,
        launch: Launch,
        version: EtcdVersion,
        tls: TlsStage,
    },
    /// Ask the API server whether it would take this pod, without making it (`dryRun=All`). It comes before the step that
    /// stops the pod's predecessor: no member that runs is stopped for a pod that can never be. That the name is still
    /// taken does not matter.
    TryPod {
        member: MemberName,
        launch: Launch,
        version: EtcdVersion,
        tls: TlsStage,
    },
    /// The proof that members are gone rests on the end of these nodes: it must still be so. Refused when one of them is
    /// there and not out of service.
    CheckNodesEnded { nodes: BTreeSet<String> },
    /// From now on this pod's etcd starts only with the data it has. Refused when the pod has another UID.
    SealPod { member: MemberName, uid: Uid },
    /// Bring labels and annotations to what the intent says, without a restart.
    RelabelPod { member: MemberName, uid: Uid },
    /// Stop a pod. The member's data stays.
    DeletePod { member: MemberName, uid: Uid, how: Stop },
    /// Delete a member's data. Refused unless a quorum's member list of that moment lacks the member.
    DeleteClaim {
        member: MemberName,
        uid: Uid,
        cluster: ClusterId,
    },
    /// Delete the claim of a member that was added and never started. Refused unless every member that answers lists it
    /// without a name.
    DeleteUnstartedClaim {
        member: MemberName,
        uid: Uid,
        cluster: ClusterId,
    },
    /// Ask for more space.
    GrowClaim { member: MemberName, uid: Uid, bytes: u64 },

    /// Add a member that is not started yet.
    AddMember {
        member: MemberName,
        peer_url: String,
        learner: bool,
        cluster: ClusterId,
    },
    /// Make a learner a voter.
    Promote {
        member: MemberName,
        id: MemberId,
        cluster: ClusterId,
    },
    /// Take a member out of the list. Refused unless its pod and claim are still those (or still absent) that the
    /// decision rests on.
    RemoveMember {
        member: MemberName,
        id: MemberId,
        cluster: ClusterId,
        pod: Option<Uid>,
        claim: Option<Uid>,
    },
    /// Take a member out of the list that somebody else made and the user lets go. Nothing of it in Kubernetes is ours.
    ReleaseMember {
        member: MemberName,
        id: MemberId,
        cluster: ClusterId,
    },
    /// Change where peers reach a member.
    UpdatePeerUrl {
        member: MemberName,
        id: MemberId,
        peer_url: String,
        cluster: ClusterId,
    },
    /// Hand leadership over.
    MoveLeader {
        from: MemberId,
        to: MemberId,
        cluster: ClusterId,
    },
    /// Forget the history before the current revision, so that space can be given back.
    Compact { cluster: ClusterId },
    /// Give a member's free space back. Blocks that member meanwhile.
    Defragment {
        member: MemberName,
        id: MemberId,
        cluster: ClusterId,
    },
    /// The guard of what follows: refused, with all after it, unless these members' data has the same hashes at this moment.
    CompareAgain {
        hashes: BTreeMap<MemberId, DataHash>,
        cluster: ClusterId,
    },
    /// Take an alarm back. The member may be gone, and its ID may be 0.
    Disarm {
        id: MemberId,
        alarm: Alarm,
        cluster: ClusterId,
    },
    /// Tell the cluster to make its storage readable for the version before (etcd 3.5 and later).
    EnableDowngrade { to: EtcdVersion, cluster: ClusterId },
    /// Take that back.
    CancelDowngrade { cluster: ClusterId },

    /// Hand out the certificates that `TLS.auto` or `TLS.certManager` asks for, or renew those that near their end. `next`:
    /// of the wanted authorities, which is refused while a pod does not trust them; otherwise of those that vouch now.
    IssueCertificates { next: bool },
    /// Ask cert-manager for the certificates of the spec.
    RequestCertificates,
    /// Make a new certificate authority in the place of the one of `TLS.auto`. Nothing is issued by it yet.
    RenewCa,
    /// Let the Secrets say that these are trusted. Refused for a Secret whose own certificate another one vouches for.
    TrustCas { cas: BTreeSet<Ca> },
    /// Make an EtcdBackup for one backup before the upgrade to a version.
    TakeBackup { name: String, version: EtcdVersion },
    /// Make the EtcdBackup of `spec.backup` what the spec says.
    ApplyBackup,
    /// Take it away; its files stay or go as it says.
    DropBackup { uid: Uid },

    /// Make an EtcdRestore of this cluster from this EtcdBackup, unless one of that name is there.
    RequestRestore { name: String, backup: String },

    /// Tell the user, as a Kubernetes Event on the cluster.
    Tell(Note),
}

/// How etcd starts in a new pod.
#[allow(missing_docs, reason = "the fields are named for what they are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launch {
    /// The first member of a new cluster.
    Seed { token: String },
    /// One of several first members that know each other.
    Static { token: String, members: Vec<MemberName> },
    /// A new member; `members` is the list at that moment, with itself: name and peer URL.
    Join { members: Vec<(MemberName, String)> },
    /// With the data it has, or not at all.
    Sealed,
    /// The only member of the cluster from now on, with its data.
    ForceNew,
    /// The first member of a new cluster, with the data of a backup; without it, not at all.
    Restore { token: String, source: Box<RestoreSource> },
}

impl Launch {
    /// The kind without the details.
    pub fn kind(&self) -> LaunchKind {
        match self {
            Self::Seed { .. } => LaunchKind::Seed,
            Self::Restore { .. } => LaunchKind::Restore,
            Self::Static { .. } => LaunchKind::Static,
            Self::Join { .. } => LaunchKind::Join,
            Self::Sealed => LaunchKind::Sealed,
            Self::ForceNew => LaunchKind::ForceNew,
        }
    }
}

/// Why a pod is deleted, and so how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It comes back by a later step: with its own grace period.
    Restart,
    /// Its member left the cluster, or never joined it.
    Gone,
    /// The cluster sleeps.
    Hibernate,
    /// Its cluster is replaced by one from a backup.
    Replaced,
    /// It is proven to run no more, or its member is out of the list: nothing waits for its kubelet.
    Force,
}

/// Something worth a Kubernetes Event.
pub type Note = stateward_core::Note<Reason>;

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ApplyPeerService => write!(f, "apply the peer service"),
            Self::ApplyClientService => write!(f, "apply the client service"),
            Self::ApplyBudget => write!(f, "apply the disruption budget"),
            Self::CreateClaim { member } => write!(f, "create the claim of {member}"),
            Self::CreatePod {
                member,
                launch,
                version,
                ..
            } => {
                write!(f, "create pod {member} ({}, etcd {version})", launch.kind())
            }
            Self::TryPod { member, version, .. } => write!(f, "try pod {member} (etcd {version}) without making it"),
            Self::CheckNodesEnded { nodes } => {
                let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
                write!(f, "check that nodes have ended: {}", nodes.join(", "))
            }
            Self::SealPod { member, .. } => write!(f, "seal {member}"),
            Self::RelabelPod { member, .. } => write!(f, "relabel {member}"),
            Self::DeletePod { member, uid, how } => write!(f, "delete pod {member} ({how:?}, uid {uid})"),
            Self::DeleteClaim { member, uid, .. } => write!(f, "delete the claim of {member} (uid {uid})"),
            Self::DeleteUnstartedClaim { member, uid, .. } => {
                write!(f, "delete the claim of {member}, which never started (uid {uid})")
            }
            Self::GrowClaim { member, bytes, .. } => write!(f, "grow the claim of {member} to {bytes} bytes"),
            Self::AddMember { member, learner, .. } => {
                write!(f, "add {member} as a {}", if *learner { "learner" } else { "voter" })
            }
            Self::Promote { member, id, .. } => write!(f, "promote {member} ({id})"),
            Self::RemoveMember { member, id, .. } => write!(f, "remove member {member} ({id})"),
            Self::ReleaseMember { member, id, .. } => write!(f, "release member {member} ({id}), which was adopted"),
            Self::UpdatePeerUrl { member, peer_url, .. } => write!(f, "let peers reach {member} at {peer_url}"),
            Self::MoveLeader { from, to, .. } => write!(f, "move leadership from {from} to {to}"),
            Self::Compact { .. } => write!(f, "compact"),
            Self::Defragment { member, .. } => write!(f, "defragment {member}"),
            Self::CompareAgain { hashes, .. } => write!(f, "compare the data of {} members again", hashes.len()),
            Self::Disarm { id, alarm, .. } => write!(f, "disarm {alarm:?} of {id}"),
            Self::EnableDowngrade { to, .. } => write!(f, "enable the downgrade to {to}"),
            Self::CancelDowngrade { .. } => write!(f, "cancel the downgrade"),
            Self::IssueCertificates { next: false } => write!(f, "issue certificates"),
            Self::IssueCertificates { next: true } => write!(f, "issue certificates of the new CA"),
            Self::RequestCertificates => write!(f, "ask cert-manager for certificates"),
            Self::RenewCa => write!(f, "make a new CA"),
            Self::TrustCas { cas } => {
                write!(f, "let {} CAs be trusted", cas.len())
            }
            Self::TakeBackup { name, version } => write!(f, "create EtcdBackup {name} before the upgrade to {version}"),
            Self::ApplyBackup => write!(f, "apply the EtcdBackup of spec.backup"),
            Self::DropBackup { uid } => write!(f, "delete the EtcdBackup of spec.backup (uid {uid})"),
            Self::RequestRestore { name, backup } => write!(f, "ask for a restore from {backup} as {name}"),
            Self::Tell(note) => write!(f, "tell {}: {}", note.reason, note.message),
        }
    }
}
