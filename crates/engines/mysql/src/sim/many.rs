//! Many histories, spread over threads.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::history::{Outcome, run};
use super::subject::Subject;

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
    /// How often each kind of action was executed.
    pub actions: BTreeMap<&'static str, u64>,
    /// Those that broke a rule, by seed.
    pub broken: BTreeMap<u64, Outcome>,
}

impl Summary {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.histories += 1;
        self.rounds += outcome.rounds;
        self.hours += outcome.time as f64 / 3_600_000.0;
        self.writes += outcome.writes;
        for (action, count) in &outcome.actions {
            *self.actions.entry(action).or_default() += count;
        }
        if outcome.broken.is_some() {
            self.broken.insert(seed, outcome);
        }
    }
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
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count {
                        break;
                    }
                    let outcome = run(subject, seed);
                    let mut all = summary.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    all.add(seed, outcome);
                    if all.broken.len() >= enough {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    summary.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::rules::name::CONVERGES;
    use crate::sim::{REAL, replay};

    /// How many histories are run.
    const HISTORIES: u64 = 5_000;

    /// Nothing acknowledged is lost, and no other rule is broken. That every cluster also comes to match its spec is not checked
    /// yet: 3 of the first 550 histories do not. In seed 147, a switchover that was asked for waits forever; why is not known.
    #[test]
    fn histories_keep_every_rule_but_convergence() {
        let subject = Subject {
            ignores: Some(CONVERGES),
            ..REAL
        };
        let summary = run_many(&subject, 0, HISTORIES, 3);
        assert!(summary.writes > summary.histories, "clients wrote next to nothing");
        let Some((seed, outcome)) = summary.broken.first_key_value() else {
            return;
        };
        for line in replay(&subject, *seed).story {
            println!("{line}");
        }
        panic!("seeds {:?} broke a rule: {:?}", summary.broken.keys(), outcome.broken);
    }

    /// Guards, each switched off by itself, and a driver that writes the status too late. Without one of the other guards (SetUid,
    /// Blank, Applied, MayFollow, ReadOnly, Saved), none of 2,500 histories broke a rule: they still need histories that do.
    #[test]
    fn careless_drivers_are_caught() {
        let kinds = ["Unchanged", "PodUid", "ClaimUid", "Same", "Clean", "Held", "Writable"];
        let mut subjects: Vec<Subject> = Vec::new();
        for kind in kinds {
            subjects.push(Subject {
                name: kind,
                without: Some(kind),
                ..REAL
            });
        }
        subjects.push(Subject {
            name: "writes the status after the actions",
            writes_late: true,
            ..REAL
        });
        let mut missed = Vec::new();
        for mut subject in subjects {
            subject.ignores = Some(CONVERGES);
            let summary = run_many(&subject, 0, HISTORIES, 1);
            match summary.broken.first_key_value() {
                Some((seed, outcome)) => println!("{}: seed {seed}, {:?}", subject.name, outcome.broken),
                None => missed.push(subject.name),
            }
        }
        assert!(missed.is_empty(), "not caught: {missed:?}");
    }
}
