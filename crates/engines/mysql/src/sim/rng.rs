//! The source of all randomness of a history, seeded with the history's number.

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng};

pub(super) struct Rng(SmallRng);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(SmallRng::seed_from_u64(seed))
    }

    /// True with this probability, in thousandths.
    pub(super) fn per_mille(&mut self, often: u32) -> bool {
        often > 0 && self.0.random_range(0..1000) < often
    }

    /// A number between the two, inclusive.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.random_range(low..=high.max(low))
    }

    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() {
            return None;
        }
        from.get(self.0.random_range(0..from.len()))
    }
}
