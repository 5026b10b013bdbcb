//! How many faults a history has: drawn from its seed, so that there are gentle and wild histories.

use crate::queue::Ms;
use crate::rng::Rng;

/// Rates are in thousandths.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) nodes: usize,
    /// A volume can be used only on the node on which it was created.
    pub(crate) local_volumes: bool,
    /// Claims outlive the cluster object.
    pub(crate) retain_claims: bool,
    pub(crate) slowest_start: Ms,
    pub(crate) slowest_call: Ms,
    /// A cache does not catch up in a reconcile.
    pub(crate) stale: u32,
    pub(crate) missed_events: u32,
    pub(crate) api_errors: u32,
    pub(crate) operator_crashes: u32,
    /// The number of faults and edits, and the largest gap between them.
    pub(crate) faults: u64,
    pub(crate) fault_gap: Ms,
    /// A majority of volumes may be lost.
    pub(crate) catastrophes: bool,
    /// Nodes, networks, processes and volumes fail.
    pub(crate) infrastructure: bool,
    /// The user edits the spec.
    pub(crate) edits: bool,
    /// How wrong the operators' clocks are, in milliseconds.
    pub(crate) skew: (i64, i64),
}

impl Profile {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let wild = rng.per_mille(600);
        let rate = |rng: &mut Rng, most: u64| if wild { rng.between(0, most) as u32 } else { 0 };
        let skew = |rng: &mut Rng| match rng.between(0, 5) {
            0 => 300_000,
            1 => -300_000,
            _ => 0,
        };
        Self {
            skew: (skew(rng), skew(rng)),
            nodes: rng.between(2, 6) as usize,
            local_volumes: rng.per_mille(400),
            retain_claims: rng.per_mille(500),
            slowest_start: *rng.pick(&[400, 2000, 8000]).unwrap_or(&2000),
            slowest_call: *rng.pick(&[10, 200, 2000]).unwrap_or(&200),
            stale: rate(rng, 400),
            missed_events: rate(rng, 400),
            api_errors: rate(rng, 40),
            operator_crashes: rate(rng, 40),
            faults: rng.between(1, 12),
            fault_gap: *rng.pick(&[1000, 5000, 20_000]).unwrap_or(&5000),
            catastrophes: rng.per_mille(80),
            infrastructure: rng.per_mille(850),
            edits: rng.per_mille(700),
        }
    }

    /// No faults.
    pub(crate) fn gentle() -> Self {
        Self {
            nodes: 4,
            local_volumes: false,
            retain_claims: false,
            slowest_start: 1000,
            slowest_call: 10,
            stale: 0,
            missed_events: 0,
            api_errors: 0,
            operator_crashes: 0,
            faults: 0,
            fault_gap: 1000,
            catastrophes: false,
            infrastructure: false,
            edits: false,
            skew: (0, 0),
        }
    }
}
