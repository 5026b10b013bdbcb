//! How hard a history is: drawn from its seed, so that gentle and wild ones both happen.

use crate::queue::Ms;
use crate::rng::Dice;

/// Rates are in a thousand.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) nodes: usize,
    /// A volume can be used only on the node it was made on.
    pub(crate) local_volumes: bool,
    /// Claims outlive the cluster object.
    pub(crate) retain_claims: bool,
    pub(crate) slowest_start: Ms,
    pub(crate) slowest_call: Ms,
    /// A cache does not catch up in a round.
    pub(crate) stale: u32,
    pub(crate) missed_events: u32,
    pub(crate) api_errors: u32,
    pub(crate) operator_dies: u32,
    /// How many faults and edits, and how far apart at most.
    pub(crate) faults: u64,
    pub(crate) fault_gap: Ms,
    /// A majority of volumes may be lost.
    pub(crate) catastrophes: bool,
    /// Faults of the world happen.
    pub(crate) infrastructure: bool,
    /// The user edits the spec.
    pub(crate) edits: bool,
    /// By how much the operators' clocks are wrong, in milliseconds.
    pub(crate) skew: (i64, i64),
}

impl Profile {
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        let wild = dice.per_mille(600);
        let rate = |dice: &mut Dice, most: u64| if wild { dice.between(0, most) as u32 } else { 0 };
        let skew = |dice: &mut Dice| match dice.between(0, 5) {
            0 => 300_000,
            1 => -300_000,
            _ => 0,
        };
        Self {
            skew: (skew(dice), skew(dice)),
            nodes: dice.between(2, 6) as usize,
            local_volumes: dice.per_mille(400),
            retain_claims: dice.per_mille(500),
            slowest_start: *dice.pick(&[400, 2000, 8000]).unwrap_or(&2000),
            slowest_call: *dice.pick(&[10, 200, 2000]).unwrap_or(&200),
            stale: rate(dice, 400),
            missed_events: rate(dice, 400),
            api_errors: rate(dice, 40),
            operator_dies: rate(dice, 40),
            faults: dice.between(1, 12),
            fault_gap: *dice.pick(&[1000, 5000, 20_000]).unwrap_or(&5000),
            catastrophes: dice.per_mille(80),
            infrastructure: dice.per_mille(850),
            edits: dice.per_mille(700),
        }
    }

    /// Nothing goes wrong by itself.
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
            operator_dies: 0,
            faults: 0,
            fault_gap: 1000,
            catastrophes: false,
            infrastructure: false,
            edits: false,
            skew: (0, 0),
        }
    }
}
