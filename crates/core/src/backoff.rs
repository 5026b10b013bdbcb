//! How long to wait after failures in a row: twice as long each time, up to a limit.

use std::time::Duration;

/// The first wait and the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure.
    pub first: Duration,
    /// After many.
    pub longest: Duration,
}

impl Backoff {
    /// The wait after so many failures in a row, the last one among them.
    pub fn after(self, failures: i64) -> Duration {
        let doublings = u32::try_from(failures.saturating_sub(1).clamp(0, 20)).unwrap_or(0);
        self.first.saturating_mul(1 << doublings).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let backoff = Backoff {
            first: Duration::from_secs(5),
            longest: Duration::from_secs(600),
        };
        for (failures, seconds) in [
            (-1, 5),
            (0, 5),
            (1, 5),
            (2, 10),
            (3, 20),
            (7, 320),
            (8, 600),
            (i64::MAX, 600),
        ] {
            assert_eq!(backoff.after(failures), Duration::from_secs(seconds), "{failures}");
        }
    }
}
