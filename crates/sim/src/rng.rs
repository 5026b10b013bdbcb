//! All chance in a history comes from here, and so from its seed.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub(crate) struct Dice(StdRng);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// True in so many of a thousand cases.
    pub(crate) fn per_mille(&mut self, often: u32) -> bool {
        often > 0 && self.0.random_range(0..1000) < often
    }

    /// A number between the two, both included.
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
