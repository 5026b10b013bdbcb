//! What a plan for an EtcdBackup may ask for. Effects are carried out in their order; the first that fails ends the round.

use std::fmt;

use k8s_openapi::api::core::v1::Pod;

use stateward_core::guard::{Guard, NoFact};

use crate::cluster::{Note, Uid};

/// One step.
#[allow(missing_docs, reason = "the fields are named for what they are")]
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Set the object's finalizers. Refused when the object is not the one that was planned with.
    SetFinalizers(Vec<String>),
    /// Make a pod. Fails when one of that name is there: the name is the lock.
    CreatePod(Box<Pod>),
    /// Stop a pod, or take away one that is over. Refused when the pod has another UID.
    DeletePod { name: String, uid: Uid },
    /// Forget a pod whose node does not answer, without waiting for it to stop. Refused when the pod has another UID.
    ForgetPod { name: String, uid: Uid },
    /// Tell the user, as a Kubernetes Event on the EtcdBackup.
    Tell(Note),
}

impl Effect {
    /// What must hold when it is executed. `object`: the UID of what it is planned for.
    pub fn guards(&self, object: &Uid) -> Vec<Guard<NoFact>> {
        match self {
            Self::SetFinalizers(_) => vec![Guard::Uid(object.clone()), Guard::Unmodified],
            Self::CreatePod(_) => vec![Guard::Absent],
            Self::DeletePod { uid, .. } | Self::ForgetPod { uid, .. } => vec![Guard::Uid(uid.clone())],
            Self::Tell(_) => Vec::new(),
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetFinalizers(finalizers) => write!(f, "set the finalizers [{}]", finalizers.join(", ")),
            Self::CreatePod(pod) => write!(f, "create pod {}", pod.metadata.name.as_deref().unwrap_or_default()),
            Self::DeletePod { name, uid } => write!(f, "delete pod {name} (uid {uid})"),
            Self::ForgetPod { name, uid } => write!(f, "forget pod {name} (uid {uid}) on a node that does not answer"),
            Self::Tell(note) => write!(f, "tell {}: {}", note.reason, note.message),
        }
    }
}
