//! A small world of its own for the planner of EtcdBackups: one object, its pods, two operators whose caches may be old and
//! that die at any step, a user who edits and deletes, nodes that go away, clocks that are wrong.

mod rules;
mod store;
#[cfg(test)]
mod tests;
mod world;

use jiff::{SignedDuration, Timestamp};
use stateward_api::EtcdBackup;
use stateward_plan::agent::{Agent, State};
use stateward_plan::backup::{self, ClusterSource, Effect, Plan, Source, World};

use crate::rng::Dice;
use world::{Fate, Kube};

/// What is being proven: a planner, and whether its driver keeps the guards.
pub struct BackupSubject {
    /// Its name in summaries.
    pub name: &'static str,
    /// The decision.
    pub plan: fn(&EtcdBackup, &World, Timestamp) -> Plan,
    /// Writes carry the resource version they were planned with.
    pub guards: bool,
}

/// The real one.
pub const REAL_BACKUPS: BackupSubject = BackupSubject {
    name: "the planner of backups",
    plan: backup::plan,
    guards: true,
};

/// How a history ended.
#[derive(Debug, Default)]
pub struct BackupOutcome {
    /// The rule that was broken, and how.
    pub broken: Option<(&'static str, String)>,
    /// What happened, line by line.
    pub story: Vec<String>,
    /// Rounds of operators.
    pub rounds: u64,
    /// Good backups.
    pub backups: u64,
}

/// An operator: what it has seen, and the round it is in.
#[derive(Default)]
struct Operator {
    cache: Option<EtcdBackup>,
    agents: Vec<(String, Agent)>,
    neighbour: Option<EtcdBackup>,
    wake: i64,
    round: Option<Round>,
    /// How wrong its clock is, in milliseconds.
    skew: i64,
    stale: bool,
}

struct Round {
    plan: Plan,
    seen: EtcdBackup,
    /// 0 is the status, then come the effects.
    step: usize,
}

/// One history.
struct Sim<'a> {
    subject: &'a BackupSubject,
    dice: Dice,
    /// Milliseconds since the beginning.
    now: i64,
    kube: Kube,
    operators: [Operator; 2],
    truth: rules::Truth,
    /// Faults happen.
    wild: bool,
    /// Clocks jump in this history.
    jumps: bool,
    outcome: BackupOutcome,
    told: bool,
}

/// Virtual milliseconds with faults, and after them without.
const WILD: i64 = 6 * 3600 * 1000;
const CALM: i64 = 8 * 3600 * 1000;

fn time(ms: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_767_225_600) + SignedDuration::from_millis(ms)
}

/// Runs the history of a seed.
pub fn run_backups(subject: &BackupSubject, seed: u64, told: bool) -> BackupOutcome {
    let mut dice = Dice::new(seed);
    let kube = Kube::new(&mut dice);
    let mut sim = Sim {
        subject,
        jumps: dice.per_mille(250),
        dice,
        now: 0,
        kube,
        operators: Default::default(),
        truth: rules::Truth::default(),
        wild: true,
        outcome: BackupOutcome::default(),
        told,
    };
    sim.truth.store = store::Store::new(sim.kube.always_restores());
    sim.run();
    sim.outcome
}

impl Sim<'_> {
    fn run(&mut self) {
        while self.now < WILD + CALM && self.outcome.broken.is_none() && self.kube.object.is_some() {
            if self.wild && self.now >= WILD {
                self.wild = false;
                self.settle_down();
            }
            self.tick();
            self.check();
        }
        if self.outcome.broken.is_none() {
            self.check_end();
        }
        self.outcome.backups = self.truth.good();
    }

    /// From here on nothing breaks any more, and the user's last wish is one that can be fulfilled.
    fn settle_down(&mut self) {
        self.tell("calm".into());
        for operator in &mut self.operators {
            operator.skew = 0;
            operator.stale = false;
        }
        self.kube.revive();
        self.kube.mend();
        self.kube.neighbour = None;
        self.truth.store.neighbour_goes();
    }

    fn tell(&mut self, line: String) {
        if self.told {
            self.outcome
                .story
                .push(format!("{:>10.1} {line}", self.now as f64 / 1000.0));
        }
    }

    fn tick(&mut self) {
        // Time goes on to the next thing that is due, or a little.
        let due = self
            .operators
            .iter()
            .map(|operator| operator.wake)
            .chain(self.kube.next_event());
        let next = due.min().unwrap_or(self.now + 60_000);
        let busy = self.operators.iter().any(|operator| operator.round.is_some());
        if !busy && next > self.now {
            let far = next - self.now;
            self.now += if self.wild && far > 1000 && self.dice.per_mille(300) {
                i64::try_from(self.dice.between(1, u64::try_from(far).unwrap_or(1))).unwrap_or(1)
            } else {
                far
            };
        } else {
            self.now += i64::try_from(self.dice.between(1, 40)).unwrap_or(1);
        }
        for line in self.kube.advance(self.now, &mut self.truth) {
            self.tell(line);
            self.notify();
        }
        if self.wild {
            self.misfortune();
        }
        let index = self.dice.index(2);
        for index in [index, 1 - index] {
            self.operate(index);
        }
    }

    /// Something changed: operators that hear of it look soon.
    fn notify(&mut self) {
        for index in 0..2 {
            if !self.wild || !self.dice.per_mille(50) {
                let soon = self.now + i64::try_from(self.dice.between(1, 50)).unwrap_or(1);
                let operator = &mut self.operators[index];
                operator.wake = operator.wake.min(soon);
            }
        }
    }

    fn misfortune(&mut self) {
        if self.dice.per_mille(4) {
            let index = self.dice.index(2);
            self.operators[index].round = None;
            self.operators[index].cache = None;
            self.operators[index].stale = false;
            self.operators[index].wake = self.now + i64::try_from(self.dice.between(10, 120_000)).unwrap_or(10);
            self.tell(format!("operator {index} dies and starts again"));
        }
        if self.dice.per_mille(6) {
            let index = self.dice.index(2);
            self.operators[index].stale = !self.operators[index].stale;
        }
        if self.jumps && self.dice.per_mille(2) {
            let index = self.dice.index(2);
            let hours = i64::try_from(self.dice.between(0, 40)).unwrap_or(0) - 20;
            self.operators[index].skew = hours * 3_600_000;
            self.operators[index].wake = self.now;
            self.tell(format!("operator {index}'s clock is {hours} h off"));
        }
        if self.kube.neighbour.is_some() && self.dice.per_mille(20) {
            if self.dice.per_mille(50) {
                self.kube.neighbour = None;
                self.truth.store.neighbour_goes();
                self.tell("the other object with the same path is deleted".into());
                self.notify();
            } else {
                self.truth.store.neighbour_writes(self.now);
            }
        }
        let line = self.kube.user(self.now, &mut self.dice).or_else(|| {
            let hard = !self.jumps;
            self.kube.fault(self.now, &mut self.dice, hard, &mut self.truth)
        });
        if let Some(line) = line {
            self.tell(line);
            self.notify();
        }
    }

    fn operate(&mut self, index: usize) {
        if self.operators[index].round.is_some() {
            self.step(index);
        } else if self.operators[index].wake <= self.now {
            self.begin(index);
        }
    }

    fn look(&mut self, index: usize) {
        let agents = self.kube.agents();
        let operator = &mut self.operators[index];
        operator.cache.clone_from(&self.kube.object);
        operator.neighbour.clone_from(&self.kube.neighbour);
        operator.agents = agents;
    }

    fn begin(&mut self, index: usize) {
        if !self.operators[index].stale || self.operators[index].cache.is_none() {
            self.look(index);
        }
        let Some(seen) = self.operators[index].cache.clone() else {
            return;
        };
        let mut world = World {
            image: "stateward".into(),
            secrets: self.kube.secret.to_string(),
            source: Source::Cluster(Box::new(ClusterSource {
                members: vec!["http://c-x.c.n.svc:2379".into()],
                service: "http://c-client.n.svc:2379".into(),
                client_secret: None,
                repository: "etcd".into(),
                ..ClusterSource::default()
            })),
            ..World::default()
        };
        world.agents = self.operators[index].agents.iter().cloned().collect();
        world.sharer = backup::sharer(&seen, &self.operators[index].neighbour);
        // What is believed gone is asked for.
        let current = seen.status.as_ref().and_then(|status| status.current.as_ref());
        if let Some(current) = current
            && !world.agents.contains_key(&current.pod)
        {
            let found = self.kube.agents().into_iter().find(|(name, _)| *name == current.pod);
            world.agents.extend(found);
        }
        let clock = time(self.now + self.operators[index].skew);
        let plan = (self.subject.plan)(&seen, &world, clock);
        self.outcome.rounds += 1;
        let wake = plan.wake.map_or(600_000, |wake| {
            i64::try_from(wake.as_millis()).unwrap_or(i64::MAX).min(600_000)
        });
        self.operators[index].wake = self.now + wake.max(5);
        self.operators[index].round = Some(Round { plan, seen, step: 0 });
    }

    /// One step of a round; operators may die between any two.
    fn step(&mut self, index: usize) {
        let Some(mut round) = self.operators[index].round.take() else {
            return;
        };
        if self.wild && self.dice.per_mille(8) {
            self.tell(format!("operator {index} dies in the middle of a round"));
            self.operators[index].cache = None;
            self.operators[index].wake = self.now + i64::try_from(self.dice.between(10, 60_000)).unwrap_or(10);
            return;
        }
        let step = round.step;
        round.step += 1;
        let changed = round.seen.status.as_ref() != Some(&round.plan.status);
        if step == 0 {
            if !changed {
                if round
                    .plan
                    .effects
                    .iter()
                    .any(|effect| !matches!(effect, Effect::Tell(_)))
                    && self.subject.guards
                    && !self.kube.is_newest(&round.seen)
                {
                    self.again(index);
                    return;
                }
                self.operators[index].round = Some(round);
                return;
            }
            let clock = self.now + self.operators[index].skew;
            match self
                .kube
                .write_status(&round.seen, &round.plan.status, self.subject.guards)
            {
                Some((old, written)) => {
                    self.truth.status_written(&old, &written, clock, self.jumps);
                    round.seen = written;
                    self.operators[index].round = Some(round);
                    self.notify();
                }
                None => self.again(index),
            }
            return;
        }
        let Some(effect) = round.plan.effects.get(step - 1).cloned() else {
            if round
                .plan
                .effects
                .iter()
                .any(|effect| !matches!(effect, Effect::Tell(_)))
            {
                self.operators[index].wake = self.now + 5;
            }
            return;
        };
        let line = format!("operator {index}: {effect}");
        let done = match effect {
            Effect::SetFinalizers(finalizers) => self.kube.set_finalizers(&round.seen, finalizers, self.subject.guards),
            Effect::CreatePod(pod) => {
                self.truth.pod_wanted(&self.kube, &pod);
                let fate = if self.wild {
                    Fate::draw(&mut self.dice, !self.jumps)
                } else {
                    Fate::good()
                };
                self.kube.create(*pod, self.now, fate)
            }
            Effect::DeletePod { name, uid } => self.kube.delete(&name, &uid.0, self.now, &mut self.dice),
            Effect::ForgetPod { name, uid } => self.kube.forget(&name, &uid.0),
            Effect::Tell(note) => {
                self.truth.told(note.reason);
                true
            }
        };
        self.tell(format!("{line}{}", if done { "" } else { ": refused" }));
        if done {
            if let Some(object) = &self.kube.object {
                round
                    .seen
                    .metadata
                    .resource_version
                    .clone_from(&object.metadata.resource_version);
            }
            self.operators[index].round = Some(round);
            self.notify();
        } else {
            self.again(index);
        }
    }

    fn again(&mut self, index: usize) {
        self.look(index);
        self.operators[index].stale = false;
        self.operators[index].wake = self.now + 20;
    }

    fn check(&mut self) {
        let broken = self
            .truth
            .take_broken()
            .or_else(|| rules::check(&self.kube, self.now, self.jumps, &self.truth));
        if let Some(broken) = broken {
            self.outcome.broken = Some(broken);
        }
    }

    fn check_end(&mut self) {
        self.outcome.broken = rules::check_end(&self.kube, &self.truth, self.now);
        if self.outcome.broken.is_some() || self.kube.object.is_none() {
            return;
        }
        // At rest a round changes nothing.
        let Some(object) = &self.kube.object else { return };
        let resting = object.status.as_ref().is_some_and(|status| status.current.is_none());
        if !resting
            || self
                .kube
                .agents()
                .iter()
                .any(|(_, agent)| agent.state == State::Running)
        {
            return;
        }
        for operator in &self.operators {
            if operator.round.is_some() || operator.wake <= self.now {
                return;
            }
        }
    }
}
