//! A claim as the facts that decisions need.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::{Uid, quantity};

/// A claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its UID.
    pub uid: Uid,
    /// Bound to a volume.
    pub bound: bool,
    /// It has a deletion timestamp.
    pub terminating: bool,
    /// Why it is not bound, when Kubernetes said so.
    pub problem: Option<String>,
    /// The size it asks for, in bytes.
    pub requested: u64,
    /// Its volume is gone (phase Lost).
    pub lost: bool,
    /// The name of its volume, once it has one.
    pub volume: Option<String>,
    /// It was created at.
    pub created: Timestamp,
}

impl Claim {
    /// Reads a claim. `problem` is what Kubernetes last said about it (an event), as the claim itself does not tell.
    pub fn of(claim: &PersistentVolumeClaim, problem: Option<String>) -> Self {
        let phase = claim
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref())
            .unwrap_or("Pending");
        let requests = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.resources.as_ref())
            .and_then(|resources| resources.requests.as_ref());
        Self {
            uid: Uid(claim.metadata.uid.clone().unwrap_or_default()),
            bound: phase == "Bound",
            terminating: claim.metadata.deletion_timestamp.is_some(),
            problem: problem.filter(|_| phase == "Pending"),
            requested: requests
                .and_then(|requests| requests.get("storage"))
                .and_then(quantity::unsigned_bytes)
                .unwrap_or(0),
            lost: phase == "Lost",
            volume: claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()),
            created: claim
                .metadata
                .creation_timestamp
                .as_ref()
                .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        }
    }
}
