//! Many histories, spread over threads.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::history::{Outcome, run};
use crate::subject::Subject;

/// The result of many histories.
#[derive(Debug, Default)]
pub struct Summary {
    /// How many were run.
    pub histories: u64,
    /// The number of reconciles in them.
    pub rounds: u64,
    /// How many virtual hours they took.
    pub hours: f64,
    /// How many writes clients got acknowledgements for.
    pub writes: u64,
    /// How many converged; the others lost a majority of volumes and reported it.
    pub at_rest: u64,
    /// Those that broke a rule, by seed.
    pub broken: BTreeMap<u64, Outcome>,
}

/// Runs the histories of the seeds from `from` on, and stops early when `enough` of them broke a rule.
pub fn run_many(subject: &Subject, from: u64, count: u64, enough: usize) -> Summary {
    let threads = std::thread::available_parallelism().map_or(2, usize::from).min(16);
    let next = AtomicU64::new(from);
    let stop = AtomicBool::new(false);
    let summary = Mutex::new(Summary::default());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut own = Summary::default();
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count {
                        break;
                    }
                    let outcome = run(subject, seed);
                    own.histories += 1;
                    own.rounds += outcome.rounds;
                    own.hours += outcome.time as f64 / 3_600_000.0;
                    own.writes += outcome.writes as u64;
                    own.at_rest += u64::from(outcome.at_rest);
                    if outcome.broken.is_some() {
                        own.broken.insert(seed, outcome);
                        if own.broken.len() >= enough {
                            stop.store(true, Ordering::Relaxed);
                        }
                    }
                }
                let mut all = summary.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                all.histories += own.histories;
                all.rounds += own.rounds;
                all.hours += own.hours;
                all.writes += own.writes;
                all.at_rest += own.at_rest;
                all.broken.append(&mut own.broken);
            });
        }
    });
    summary.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::replay;
    use crate::subject::REAL;

    const HISTORIES: u64 = 20_000;

    /// Tests the planner.
    #[test]
    fn histories_keep_every_rule() {
        let summary = run_many(&REAL, 0, HISTORIES, 1);
        if let Some(seed) = summary.broken.keys().next() {
            let outcome = replay(&REAL, *seed);
            panic!("{}\nseed {seed} broke {:?}", outcome.story.join("\n"), outcome.broken);
        }
        assert_eq!(summary.histories, HISTORIES);
        assert!(summary.at_rest > HISTORIES * 19 / 20, "{} converged", summary.at_rest);
    }

    #[test]
    fn the_same_seed_gives_the_same_history() {
        for seed in 0..50 {
            let (one, other) = (replay(&REAL, seed), replay(&REAL, seed));
            assert_eq!(one.story, other.story);
        }
    }
}
