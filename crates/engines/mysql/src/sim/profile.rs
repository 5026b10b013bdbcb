//! How many faults a history has: drawn from its seed, so that there are gentle and wild histories.

use super::rng::Rng;
use super::server::Ms;

/// Rates are in thousandths.
#[derive(Clone, Debug)]
pub(super) struct Profile {
    pub(super) nodes: usize,
    pub(super) clients: usize,
    pub(super) client_pause: Ms,
    pub(super) slowest_start: Ms,
    pub(super) slowest_stop: Ms,
    pub(super) slowest_call: Ms,
    pub(super) slowest_clone: Ms,
    pub(super) clones_fail: u32,
    /// A cache does not catch up in a reconcile.
    pub(super) stale: u32,
    pub(super) missed_events: u32,
    /// Requests that are lost before, and after, they are executed.
    pub(super) errors: u32,
    pub(super) operator_crashes: u32,
    /// The number of faults and edits, and the largest gap between them.
    pub(super) faults: u64,
    pub(super) fault_gap: Ms,
    /// Nodes, networks, processes and volumes fail.
    pub(super) infrastructure: bool,
    /// The user edits the spec.
    pub(super) edits: bool,
    /// Somebody writes on replicas.
    pub(super) intruders: bool,
    /// How wrong the operators' clocks are, in milliseconds.
    pub(super) skew: (i64, i64),
    pub(super) size: i32,
}

impl Profile {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let wild = rng.per_mille(600);
        let rate = |rng: &mut Rng, most: u64| if wild { rng.between(0, most) as u32 } else { 0 };
        let skew = |rng: &mut Rng| match rng.between(0, 5) {
            0 => 120_000,
            1 => -120_000,
            _ => 0,
        };
        Self {
            nodes: rng.between(2, 6) as usize,
            clients: *rng.pick(&[0, 1, 2, 3, 3]).unwrap_or(&2),
            client_pause: *rng.pick(&[200, 600, 1500]).unwrap_or(&600),
            slowest_start: *rng.pick(&[200, 1000, 4000]).unwrap_or(&1000),
            slowest_stop: *rng.pick(&[100, 1500, 6000]).unwrap_or(&1500),
            slowest_call: *rng.pick(&[5, 40, 400]).unwrap_or(&40),
            slowest_clone: *rng.pick(&[500, 2000, 8000]).unwrap_or(&2000),
            clones_fail: rate(rng, 40),
            stale: rate(rng, 400),
            missed_events: rate(rng, 400),
            errors: rate(rng, 50),
            operator_crashes: rate(rng, 50),
            faults: rng.between(1, 10),
            fault_gap: *rng.pick(&[700, 2500, 8000]).unwrap_or(&2500),
            infrastructure: rng.per_mille(850),
            edits: rng.per_mille(600),
            intruders: rng.per_mille(250),
            skew: (skew(rng), skew(rng)),
            size: *rng.pick(&[1, 2, 3, 3, 3, 3, 4, 5]).unwrap_or(&3),
        }
    }

    /// No faults.
    #[cfg(test)]
    pub(super) fn gentle() -> Self {
        Self {
            nodes: 4,
            clients: 0,
            client_pause: 600,
            slowest_start: 200,
            slowest_stop: 200,
            slowest_call: 5,
            slowest_clone: 500,
            clones_fail: 0,
            stale: 0,
            missed_events: 0,
            errors: 0,
            operator_crashes: 0,
            faults: 0,
            fault_gap: 1000,
            infrastructure: false,
            edits: false,
            intruders: false,
            skew: (0, 0),
            size: 3,
        }
    }
}
