//! The source of all randomness of a history, seeded with the history's number.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng};

pub(crate) struct Rng(StdRng);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// True with this probability, in thousandths.
    pub(crate) fn per_mille(&mut self, often: u32) -> bool {
        often > 0 && self.0.random_range(0..1000) < often
    }

    /// A number between the two, inclusive.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.random_range(low..=high)
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.0.random_range(0..len)
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() {
            return None;
        }
        from.get(self.index(from.len()))
    }
}
