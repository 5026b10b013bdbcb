//! Tests that the simulation can fail: planners and drivers that are broken on purpose, as data. Each must be caught,
//! and each rule must have one that no other rule catches. One file per subject; `sim --mutants` prints them all.

mod alarms;
mod alone;
mod backups;
mod guards;
mod planner;
mod recovery;
pub(crate) mod recovery_scenes;
mod restores;
mod scenes;
mod table;
mod trust;

use std::collections::BTreeMap;

use jiff::Timestamp;
use stateward_etcd::cluster::guard::Kind;
use stateward_etcd::cluster::{Intent, Plan, Record, World};

use crate::backups::{BackupSubject, run_backups};
use crate::many::run_many;
use crate::sim::Violation;
use crate::subject::{REAL, Subject};

pub use table::Table;

type Planner = fn(&Intent, &Record, &World, Timestamp) -> Plan;
type Scene = fn(&Subject) -> Option<Violation>;

/// The histories that run before the check whether a mutant is caught: so the result does not depend on the threads.
const SOME: u64 = 60;

/// A planner or a driver that is broken on purpose.
struct Mutant {
    subject: Subject,
    /// Its scene, if its mistake is rare in drawn histories.
    scene: Option<Scene>,
    /// The rules that are meant to catch it; one of them must be the first to do so in some history.
    rules: &'static [&'static str],
    /// Only one rule catches it.
    alone: bool,
}

/// Drawn histories catch it.
fn caught(name: &'static str, broken: Planner, rules: &'static [&'static str]) -> Mutant {
    Mutant {
        subject: Subject {
            name,
            plan: broken,
            ..REAL
        },
        scene: None,
        rules,
        alone: false,
    }
}

/// A scene catches it.
fn caught_in(name: &'static str, broken: Planner, scene: Scene, rules: &'static [&'static str]) -> Mutant {
    Mutant {
        scene: Some(scene),
        ..caught(name, broken, rules)
    }
}

impl Mutant {
    /// Its driver does not check this guard either.
    fn without(mut self, guard: Kind) -> Self {
        self.subject.without = Some(guard);
        self
    }

    /// Only one rule catches it.
    fn alone(self) -> Self {
        Self { alone: true, ..self }
    }

    /// The rules that catch it first, each with the first seed (none: in a scene), until one of these is among them.
    fn caught_by(&self, subject: &Subject, histories: u64, enough: &[&str]) -> BTreeMap<&'static str, Option<u64>> {
        if let Some(scene) = self.scene {
            return scene(subject).map(|broken| (broken.rule, None)).into_iter().collect();
        }
        let mut rules = BTreeMap::new();
        let mut from = 0;
        while from < histories && !rules.keys().any(|rule| enough.contains(rule)) {
            for (seed, outcome) in run_many(subject, from, SOME, usize::MAX).broken {
                if let Some(broken) = outcome.broken {
                    rules.entry(broken.rule).or_insert(Some(seed));
                }
            }
            from += SOME;
        }
        rules
    }

    fn verdict(&self, histories: u64) -> Verdict {
        let name = self.subject.name;
        verdict(name, self.rules, self.alone, histories, |ignores, enough| {
            let subject = Subject {
                ignores,
                ..self.subject
            };
            self.caught_by(&subject, histories, enough)
        })
    }
}

/// The same for backups, which have a simulation of their own.
struct BackupMutant {
    subject: BackupSubject,
    rules: &'static [&'static str],
    alone: bool,
}

impl BackupMutant {
    fn verdict(&self, histories: u64) -> Verdict {
        let name = self.subject.name;
        verdict(name, self.rules, self.alone, histories, |ignores, enough| {
            let subject = BackupSubject {
                ignores,
                ..self.subject
            };
            let mut rules = BTreeMap::new();
            for seed in 0..histories {
                if let Some((rule, _)) = run_backups(&subject, seed, false).broken {
                    rules.entry(rule).or_insert(Some(seed));
                }
                if rules.keys().any(|rule| enough.contains(rule)) {
                    break;
                }
            }
            rules
        })
    }
}

struct Verdict {
    name: &'static str,
    caught: BTreeMap<&'static str, Option<u64>>,
    alone: bool,
    problem: Option<String>,
}

/// Why a mutant is not caught as intended. `caught_by`: the rules that catch it first while one rule is not checked, until one
/// of some is among them.
fn verdict(
    name: &'static str,
    rules: &[&'static str],
    alone: bool,
    histories: u64,
    caught_by: impl Fn(Option<&'static str>, &[&str]) -> BTreeMap<&'static str, Option<u64>>,
) -> Verdict {
    let caught = caught_by(None, rules);
    let expected = caught.keys().any(|rule| rules.contains(rule));
    let others = alone.then(|| caught_by(rules.first().copied(), &every_rule()));
    let problem = if caught.is_empty() {
        Some(format!("\"{name}\" was not caught in {histories} histories"))
    } else if !expected {
        Some(format!("\"{name}\" was caught by none of its rules, but by {caught:?}"))
    } else if alone && rules.len() != 1 {
        Some(format!(
            "\"{name}\" is said to be caught by one rule alone and names several"
        ))
    } else {
        let other = others.as_ref().and_then(BTreeMap::first_key_value);
        other.map(|(rule, seed)| format!("\"{name}\" is caught by \"{rule}\" too ({seed:?})"))
    };
    Verdict {
        name,
        caught,
        alone: alone && problem.is_none(),
        problem,
    }
}

/// The rules of both simulations.
fn every_rule() -> Vec<&'static str> {
    let backups = crate::backups::rules::name::ALL;
    crate::rules::name::ALL.iter().chain(backups).copied().collect()
}

fn all() -> Vec<Mutant> {
    let mut all = alone::all();
    all.extend(planner::all());
    all.extend(guards::all());
    all.extend(recovery::all());
    all.extend(restores::all());
    all.extend(trust::all());
    all.extend(alarms::all());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each mutant must be caught within so many histories.
    const HISTORIES: u64 = 3000;
    const HISTORIES_OF_BACKUPS: u64 = 400;

    fn are_caught(mutants: Vec<Mutant>) {
        let verdicts = mutants.iter().map(|mutant| mutant.verdict(HISTORIES));
        have_no_problem(verdicts);
    }

    fn have_no_problem(verdicts: impl Iterator<Item = Verdict>) {
        let problems: Vec<String> = verdicts.filter_map(|verdict| verdict.problem).collect();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    #[ignore = "takes a quarter of an hour; ./x sim --mutants runs them too"]
    fn careless_backups_are_caught() {
        let all = backups::all();
        have_no_problem(all.iter().map(|mutant| mutant.verdict(HISTORIES_OF_BACKUPS)));
    }

    #[test]
    fn planners_are_caught() {
        are_caught(planner::all());
    }

    #[test]
    fn careless_recoveries_are_caught() {
        are_caught(recovery::all());
    }

    #[test]
    fn careless_restores_are_caught() {
        are_caught(restores::all());
    }

    #[test]
    fn careless_trust_is_caught() {
        are_caught(trust::all());
    }

    #[test]
    fn careless_alarms_are_caught() {
        are_caught(alarms::all());
    }

    #[test]
    fn drivers_without_a_guard_are_caught() {
        are_caught(guards::all());
    }

    #[test]
    fn with_all_guards_their_scenes_break_nothing() {
        for scene in guards::all().iter().filter_map(|mutant| mutant.scene) {
            assert_eq!(scene(&crate::subject::REAL).map(|broken| broken.rule), None);
        }
    }

    #[test]
    fn each_rule_catches_one_that_no_other_rule_catches() {
        let etcd = all().into_iter().map(|mutant| (mutant.alone, mutant.rules));
        let backups = backups::all().into_iter().map(|mutant| (mutant.alone, mutant.rules));
        let all: Vec<(bool, &[&str])> = etcd.chain(backups).collect();
        for rule in every_rule() {
            let has = all.iter().any(|(alone, rules)| *alone && *rules == [rule]);
            assert!(has, "\"{rule}\" has none");
        }
        are_caught(alone::all());
    }
}
