//! The table of rules and mutants.

use std::fmt;

use super::{Verdict, all, backups, every_rule};

/// Which rule catches which mutant.
pub struct Table {
    verdicts: Vec<Verdict>,
    histories: u64,
    /// It has all mutants.
    whole: bool,
}

impl Table {
    /// Runs the mutants whose name contains the text through so many histories, or their scene, and reports each.
    pub fn of(histories: u64, text: &str, tell: impl Fn(&str)) -> Self {
        let etcd = all();
        let etcd = etcd.iter().filter(|mutant| mutant.subject.name.contains(text));
        let backups = backups::all();
        let backups = backups.iter().filter(|mutant| mutant.subject.name.contains(text));
        let verdicts = etcd.map(|mutant| mutant.verdict(histories));
        let verdicts = verdicts.chain(backups.map(|mutant| mutant.verdict(histories)));
        let verdicts = verdicts.inspect(|verdict| tell(&format!("{}: {:?}", verdict.name, verdict.caught)));
        let verdicts = verdicts.collect();
        Self {
            verdicts,
            histories,
            whole: text.is_empty(),
        }
    }

    /// The problems: a mutant that is not caught as intended, a rule without a mutant of its own.
    pub fn problems(&self) -> Vec<String> {
        let mutants = self.verdicts.iter().filter_map(|verdict| verdict.problem.clone());
        let all = if self.whole { every_rule() } else { Vec::new() };
        let idle = all.iter().filter(|rule| {
            let mut own = self.verdicts.iter().filter(|verdict| verdict.alone);
            !own.any(|verdict| verdict.caught.contains_key(*rule))
        });
        let rules = idle.map(|rule| format!("no mutant is caught by \"{rule}\" alone"));
        mutants.chain(rules).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mutants, histories) = (self.verdicts.len(), self.histories);
        writeln!(
            f,
            "{} rules, {mutants} mutants, {histories} histories each; * no other rule catches it; the number is a seed",
            every_rule().len()
        )?;
        for rule in every_rule() {
            writeln!(f, "{rule}")?;
            for verdict in &self.verdicts {
                if let Some(seed) = verdict.caught.get(rule) {
                    let own = if verdict.alone { '*' } else { ' ' };
                    let seed = seed.map_or("a scene".to_owned(), |seed| seed.to_string());
                    writeln!(f, "  {own} {} ({seed})", verdict.name)?;
                }
            }
        }
        Ok(())
    }
}
