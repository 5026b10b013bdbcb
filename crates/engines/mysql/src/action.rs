//! What a plan may ask for. Actions are executed in their order; the first that fails ends the reconcile.
//!
//! Every action may be repeated, and carries guards (see `guard`): what must still hold at the moment it is executed. An action
//! on a server names the process that the decision rests on; another process never gets it.

use std::collections::BTreeMap;
use std::fmt;

use stateward_core::Uid;

use crate::gtid::GtidSet;
use crate::reason::Reason;
use crate::world::{Object, Ordinal, Process, Role};

/// Something worth a Kubernetes Event.
pub type Note = stateward_core::Note<Reason>;

/// One step.
#[allow(missing_docs, reason = "the fields are named for what they are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Create the Secrets that are missing, with generated passwords, and missing keys of those that exist.
    EnsureSecrets,
    /// Issue or renew the certificates of members.
    IssueCertificates,
    /// Make an object what the spec says (server-side apply). Fails when another object has the name.
    Apply(Object),
    /// Make the StatefulSet what the spec says, with this many pods. It never has fewer than before without
    /// [`Action::ScaleIn`].
    ApplySet { replicas: u32 },
    /// Lower the number of pods to `replicas`: the pod with that ordinal ends.
    ScaleIn { uid: Uid, replicas: u32 },
    /// Set or remove the labels by which Services find a pod.
    Label {
        member: Ordinal,
        uid: Uid,
        role: Option<Role>,
        reads: bool,
        /// For the primary: the process that must be writable at this moment.
        writable: Option<Process>,
    },
    /// Delete a pod. The StatefulSet creates it again; its data stays.
    DeletePod { member: Ordinal, uid: Uid, how: Stop },
    /// Delete a claim by UID.
    DeleteClaim { member: Ordinal, uid: Uid, why: ClaimEnd },
    /// Ask for more space.
    GrowClaim { member: Ordinal, uid: Uid, bytes: u64 },
    /// Let Kubernetes delete a claim with the cluster, or keep it then. The StatefulSet owns no claim: it may be deleted by mistake.
    OwnClaim { member: Ordinal, uid: Uid, owned: bool },

    /// Write the first transactions into the empty server of the seed: accounts, database, and last `stateward.cluster`. The
    /// server is read-only again afterwards.
    Found { member: Ordinal, process: Process },
    /// Replace the data of `member` by that of `donor` (`CLONE INSTANCE`). It goes on in the background; the server restarts by
    /// itself, sealed. `discard`: its own transactions that may be lost.
    Clone {
        member: Ordinal,
        process: Process,
        donor: Ordinal,
        donor_process: Process,
        discard: GtidSet,
    },
    /// Let a server follow `source`, and start receiver and applier. `acknowledge`: its receiver takes part in semi-synchronous
    /// replication.
    Replicate {
        member: Ordinal,
        process: Process,
        source: Ordinal,
        source_process: Process,
        acknowledge: bool,
    },
    /// Stop the receiver, and let it not acknowledge when it starts again. The applier goes on, or is started.
    StopReceiver { member: Ordinal, process: Process },
    /// Keep a member from acknowledging at the primary: lock its replication account there and end its dump thread.
    Expel {
        primary: Ordinal,
        process: Process,
        member: Ordinal,
    },
    /// Take that back.
    Readmit {
        primary: Ordinal,
        process: Process,
        member: Ordinal,
    },
    /// How many acknowledgements the primary waits for. 0 switches waiting off.
    SetAcks {
        member: Ordinal,
        process: Process,
        acks: u32,
    },
    /// Commit one small transaction on the primary (`stateward.heartbeat`), without waiting for it: a replica that had received a
    /// waiting transaction before it was enlisted acknowledges it only with a later one.
    Nudge { member: Ordinal, process: Process },
    /// Make a server writable: stop following, wait for `acks` acknowledgements from now on, then `super_read_only=OFF`.
    Open {
        member: Ordinal,
        process: Process,
        acks: u32,
        /// The members of which `acks` hold all that this server executed.
        holders: Vec<Ordinal>,
    },
    /// Make the primary read-only (`super_read_only=ON`), ending client connections. It fails with "not yet" while commits wait.
    Close { member: Ordinal, process: Process },
    /// End a server's process, waiting for nothing and nobody: its client connections are cut before anything is released.
    EndProcess { member: Ordinal, uid: Uid },
    /// Set system variables in a running server; `None` is the default. `hash` stands for all of them: see `Reply::config`.
    SetVariables {
        member: Ordinal,
        process: Process,
        values: BTreeMap<String, Option<String>>,
        hash: String,
    },
    /// Save a server's own transactions with `mysqlbinlog`, to the backup store if there is one, else to its volume.
    SaveErrant {
        member: Ordinal,
        process: Process,
        gtids: GtidSet,
    },
    /// Draw new passwords into the Secrets, and make them valid beside the old ones on the primary.
    RotatePasswords {
        primary: Ordinal,
        process: Process,
        rotation: String,
    },
    /// End the old passwords on the primary.
    DiscardOldPasswords { primary: Ordinal, process: Process },
    /// Let a server read its certificate again (`ALTER INSTANCE RELOAD TLS`).
    ReloadCertificates { member: Ordinal, process: Process },
    /// Purge binlogs on a server up to what every member has, when the volume is short of space.
    PurgeBinlogs {
        member: Ordinal,
        process: Process,
        keep: GtidSet,
    },
    /// Create a MySQLBackup for one backup before the upgrade.
    TakeBackup { name: String },
    /// Report an Event on the cluster.
    Tell(Note),
}

/// Why a pod is deleted, and so how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It starts again from the StatefulSet's template: with its own grace period.
    Restart,
    /// It is proven to run no more, as its node has ended: nothing waits for its kubelet.
    Force,
}

/// Why a claim is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimEnd {
    /// Its volume is lost.
    Lost,
    /// Its member was scaled in and is no acknowledger.
    ScaledIn,
    /// It is of an earlier cluster of this name, and the user does not want its data.
    Old,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EnsureSecrets => write!(f, "create missing Secrets"),
            Self::IssueCertificates => write!(f, "issue certificates"),
            Self::Apply(object) => write!(f, "apply {object:?}"),
            Self::ApplySet { replicas } => write!(f, "apply the StatefulSet with {replicas} pods"),
            Self::ScaleIn { replicas, .. } => write!(f, "scale the StatefulSet in to {replicas} pods"),
            Self::Label {
                member, role, reads, ..
            } => write!(f, "label {member} as {role:?}, reads {reads}"),
            Self::DeletePod { member, uid, how } => write!(f, "delete pod {member} ({how:?}, uid {uid})"),
            Self::DeleteClaim { member, uid, why } => write!(f, "delete the claim of {member} ({why:?}, uid {uid})"),
            Self::GrowClaim { member, bytes, .. } => write!(f, "grow the claim of {member} to {bytes} bytes"),
            Self::OwnClaim {
                member, owned: true, ..
            } => write!(f, "let the claim of {member} go with the cluster"),
            Self::OwnClaim {
                member, owned: false, ..
            } => write!(f, "let the claim of {member} outlive the cluster"),
            Self::Found { member, .. } => write!(f, "write the first transactions on {member}"),
            Self::Clone { member, donor, .. } => write!(f, "clone {donor} to {member}"),
            Self::Replicate {
                member,
                source,
                acknowledge,
                ..
            } => {
                let how = if *acknowledge {
                    "and acknowledge"
                } else {
                    "without acknowledging"
                };
                write!(f, "let {member} follow {source} {how}")
            }
            Self::StopReceiver { member, .. } => write!(f, "stop the receiver of {member}"),
            Self::Expel { member, primary, .. } => write!(f, "keep {member} from acknowledging at {primary}"),
            Self::Readmit { member, primary, .. } => write!(f, "let {member} connect to {primary} again"),
            Self::SetAcks { member, acks, .. } => write!(f, "let {member} wait for {acks} acknowledgements"),
            Self::Nudge { member, .. } => write!(f, "commit a small transaction on {member}"),
            Self::Open { member, acks, .. } => write!(f, "make {member} writable with {acks} acknowledgements"),
            Self::Close { member, .. } => write!(f, "make {member} read-only"),
            Self::EndProcess { member, .. } => write!(f, "end the process of {member}"),
            Self::SetVariables { member, values, .. } => {
                let names: Vec<&str> = values.keys().map(String::as_str).collect();
                write!(f, "set {} on {member}", names.join(", "))
            }
            Self::SaveErrant { member, gtids, .. } => write!(f, "save {} of {member}", gtids.brief(80)),
            Self::RotatePasswords { .. } => write!(f, "rotate the passwords"),
            Self::DiscardOldPasswords { .. } => write!(f, "discard the old passwords"),
            Self::ReloadCertificates { member, .. } => write!(f, "let {member} read its certificate again"),
            Self::PurgeBinlogs { member, .. } => write!(f, "purge binlogs of {member}"),
            Self::TakeBackup { name } => write!(f, "create MySQLBackup {name}"),
            Self::Tell(note) => write!(f, "tell {}: {}", note.reason, note.message),
        }
    }
}

impl stateward_core::kind::Action for Action {
    fn name(&self) -> &'static str {
        match self {
            Self::EnsureSecrets => "ensure_secrets",
            Self::IssueCertificates => "issue_certificates",
            Self::Apply(_) => "apply",
            Self::ApplySet { .. } => "apply_set",
            Self::ScaleIn { .. } => "scale_in",
            Self::Label { .. } => "label",
            Self::DeletePod { .. } => "delete_pod",
            Self::DeleteClaim { .. } => "delete_claim",
            Self::GrowClaim { .. } => "grow_claim",
            Self::OwnClaim { .. } => "own_claim",
            Self::Found { .. } => "found",
            Self::Clone { .. } => "clone",
            Self::Replicate { .. } => "replicate",
            Self::StopReceiver { .. } => "stop_receiver",
            Self::Expel { .. } => "expel",
            Self::Readmit { .. } => "readmit",
            Self::SetAcks { .. } => "set_acks",
            Self::Nudge { .. } => "nudge",
            Self::Open { .. } => "open",
            Self::Close { .. } => "close",
            Self::EndProcess { .. } => "end_process",
            Self::SetVariables { .. } => "set_variables",
            Self::SaveErrant { .. } => "save_errant",
            Self::RotatePasswords { .. } => "rotate_passwords",
            Self::DiscardOldPasswords { .. } => "discard_old_passwords",
            Self::ReloadCertificates { .. } => "reload_certificates",
            Self::PurgeBinlogs { .. } => "purge_binlogs",
            Self::TakeBackup { .. } => "take_backup",
            Self::Tell(_) => "tell",
        }
    }

    fn is_note(&self) -> bool {
        matches!(self, Self::Tell(_))
    }

    /// Actions on different servers that do not rest on each other.
    fn goes_with(&self, next: &Self) -> bool {
        match (self, next) {
            (Self::Apply(_), Self::Apply(_))
            | (Self::StopReceiver { .. }, Self::StopReceiver { .. })
            | (Self::Replicate { .. }, Self::Replicate { .. })
            | (Self::SetVariables { .. }, Self::SetVariables { .. })
            | (Self::ReloadCertificates { .. }, Self::ReloadCertificates { .. }) => true,
            // The old primary loses its label before the new one has it.
            (Self::Label { writable: None, .. }, Self::Label { writable: None, .. }) => true,
            _ => false,
        }
    }
}
