//! TLS between peers, switched on and off while the cluster runs.
//!
//! A member can call a peer that listens with TLS only if it has certificates, and it gets them by a restart. So the way
//! is: all members get certificates and still listen in plain text (`Prepared`), then one after another listens with TLS
//! under an `https` address. Back the same way. At every moment each member can reach each other one.

use super::intent::Intent;
use super::world::{TlsStage, World};

/// The stage of the pods that are made now.
pub(super) fn stage(intent: &Intent, world: &World) -> TlsStage {
    let any = |stage: TlsStage| world.pods.values().any(|pod| pod.tls == stage);
    match (intent.tls, any(TlsStage::Off), any(TlsStage::On)) {
        (true, true, _) => TlsStage::Prepared,
        (true, false, _) => TlsStage::On,
        (false, _, true) => TlsStage::Prepared,
        (false, _, false) => TlsStage::Off,
    }
}
