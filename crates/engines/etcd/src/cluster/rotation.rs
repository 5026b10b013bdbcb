//! How far a change of TLS is, by the pods and the Secrets alone: chapters and reports share this.

use std::collections::BTreeSet;

use super::View;
use super::intent::Intent;
use super::world::{Ca, Pod, TlsStage, Trust, World};

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

/// The pod's etcd trusts others than it should: it takes a restart to change that.
pub(super) fn trusts_others(view: &View<'_>, pod: &Pod) -> bool {
    view.world
        .trust
        .as_ref()
        .is_some_and(|trust| trusted(trust, pod) != &trust.bundle)
}

/// Whom a pod trusts. One that does not say was made by a version that knew no rotation: whoever vouches for the
/// certificates of that time, which is still the same as long as one such pod is there.
fn trusted<'a>(trust: &'a Trust, pod: &'a Pod) -> &'a BTreeSet<Ca> {
    pod.trusts.as_ref().unwrap_or(&trust.issued)
}

/// The step of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rotation {
    /// Members learn to trust the new authority beside the old one.
    TrustingBoth,
    /// Certificates of the new one are handed out.
    Reissuing,
    /// The old one is dropped.
    DroppingOld,
}

impl Rotation {
    /// The word in the status.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::TrustingBoth => "TrustingBoth",
            Self::Reissuing => "Reissuing",
            Self::DroppingOld => "DroppingOld",
        }
    }
}

/// The step that a rotation is at; `None`: there is none.
pub(super) fn rotation(world: &World) -> Option<Rotation> {
    let trust = world.trust.as_ref().filter(|trust| trust.managed)?;
    let all = |is: &dyn Fn(&BTreeSet<Ca>) -> bool| world.pods.values().all(|pod| is(trusted(trust, pod)));
    if trust.issued != trust.wanted {
        let ready = trust.wanted.is_subset(&trust.bundle) && all(&|pod| trust.wanted.is_subset(pod));
        Some(if ready && !trust.uneven {
            Rotation::Reissuing
        } else {
            Rotation::TrustingBoth
        })
    } else if trust.bundle != trust.wanted && !trust.seen {
        Some(Rotation::Reissuing)
    } else {
        let dropped = trust.bundle == trust.wanted && all(&|pod| pod == &trust.bundle) && !trust.uneven;
        (!dropped).then_some(Rotation::DroppingOld)
    }
}
