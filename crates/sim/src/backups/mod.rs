//! A separate small simulation for the planner of EtcdBackups: one object, its pods, two operators that may have stale
//! caches and crash at any step, a user who edits and deletes, nodes that become unavailable, and wrong clocks.

pub(crate) mod rules;
mod store;
#[cfg(test)]
mod tests;
mod world;

use jiff::{SignedDuration, Timestamp};
use stateward_core::Uid;
use stateward_core::guard::precondition;
use stateward_etcd::agent::Agent;
use stateward_etcd::api::EtcdBackup;
use stateward_etcd::backup::{self, ClusterSource, Effect, Plan, Source, World};

use crate::rng::Rng;
use world::{Kube, Script};

/// What is tested: a planner, and whether its driver checks the guards.
#[derive(Clone, Copy)]
pub struct BackupSubject {
    /// Its name in summaries.
    pub name: &'static str,
    /// The planner.
    pub plan: fn(&EtcdBackup, &World, Timestamp) -> Plan,
    /// Writes carry the resource version they were planned with.
    pub guards: bool,
    /// A rule that is not checked, to see which other rule catches this subject.
    pub ignores: Option<&'static str>,
}

/// The real planner.
pub const REAL_BACKUPS: BackupSubject = BackupSubject {
    name: "the planner of backups",
    plan: backup::plan,
    guards: true,
    ignores: None,
};

/// How a history ended.
#[derive(Debug, Default)]
pub struct BackupOutcome {
    /// The rule that was broken, and how.
    pub broken: Option<(&'static str, String)>,
    /// What happened, line by line.
    pub story: Vec<String>,
    /// The number of reconciles.
    pub rounds: u64,
    /// Good backups.
    pub backups: u64,
}

/// An operator: its observed state, and its current reconcile.
#[derive(Default)]
struct Operator {
    cache: Option<EtcdBackup>,
    agents: Vec<(String, Agent)>,
    neighbour: Option<EtcdBackup>,
    wake: i64,
    reconcile: Option<Reconcile>,
    /// How wrong its clock is, in milliseconds.
    skew: i64,
    stale: bool,
}

struct Reconcile {
    plan: Plan,
    seen: EtcdBackup,
    /// 0 is the status; the effects follow.
    step: usize,
}

/// One history.
struct Sim<'a> {
    subject: &'a BackupSubject,
    rng: Rng,
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
    with_log: bool,
}

/// Virtual milliseconds with faults, and after them without.
const WILD: i64 = 6 * 3600 * 1000;
const CALM: i64 = 8 * 3600 * 1000;

fn time(ms: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_767_225_600) + SignedDuration::from_millis(ms)
}

/// Runs the history of a seed.
pub fn run_backups(subject: &BackupSubject, seed: u64, with_log: bool) -> BackupOutcome {
    let mut rng = Rng::new(seed);
    let kube = Kube::new(&mut rng);
    let truth = rules::Truth::new(subject.ignores);
    let mut sim = Sim {
        subject,
        jumps: rng.per_mille(250),
        rng,
        now: 0,
        kube,
        operators: Default::default(),
        truth,
        wild: true,
        outcome: BackupOutcome::default(),
        with_log,
    };
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

    /// Faults stop, and the user's last spec can be satisfied.
    fn settle_down(&mut self) {
        self.log("calm".into());
        for operator in &mut self.operators {
            operator.skew = 0;
            operator.stale = false;
        }
        self.kube.revive();
        self.kube.heal();
        self.kube.neighbour = None;
        self.truth.store.neighbour_goes();
    }

    fn log(&mut self, line: String) {
        if self.with_log {
            self.outcome
                .story
                .push(format!("{:>10.1} {line}", self.now as f64 / 1000.0));
        }
    }

    fn tick(&mut self) {
        // Time advances to the next event, or a little.
        let due = self
            .operators
            .iter()
            .map(|operator| operator.wake)
            .chain(self.kube.next_event());
        let next = due.min().unwrap_or(self.now + 60_000);
        let busy = self.operators.iter().any(|operator| operator.reconcile.is_some());
        if !busy && next > self.now {
            let far = next - self.now;
            self.now += if self.wild && far > 1000 && self.rng.per_mille(300) {
                i64::try_from(self.rng.between(1, u64::try_from(far).unwrap_or(1))).unwrap_or(1)
            } else {
                far
            };
        } else {
            self.now += i64::try_from(self.rng.between(1, 40)).unwrap_or(1);
        }
        for line in self.kube.advance(self.now, &mut self.truth) {
            self.log(line);
            self.notify();
        }
        if self.wild {
            self.inject_faults();
        }
        let index = self.rng.index(2);
        for index in [index, 1 - index] {
            self.operate(index);
        }
    }

    /// Something changed: operators that are notified reconcile soon.
    fn notify(&mut self) {
        for index in 0..2 {
            if !self.wild || !self.rng.per_mille(50) {
                let soon = self.now + i64::try_from(self.rng.between(1, 50)).unwrap_or(1);
                let operator = &mut self.operators[index];
                operator.wake = operator.wake.min(soon);
            }
        }
    }

    fn inject_faults(&mut self) {
        if self.rng.per_mille(4) {
            let index = self.rng.index(2);
            self.operators[index].reconcile = None;
            self.operators[index].cache = None;
            self.operators[index].stale = false;
            self.operators[index].wake = self.now + i64::try_from(self.rng.between(10, 120_000)).unwrap_or(10);
            self.log(format!("operator {index} crashes and starts again"));
        }
        if self.rng.per_mille(6) {
            let index = self.rng.index(2);
            self.operators[index].stale = !self.operators[index].stale;
        }
        if self.jumps && self.rng.per_mille(2) {
            let index = self.rng.index(2);
            let hours = i64::try_from(self.rng.between(0, 40)).unwrap_or(0) - 20;
            self.operators[index].skew = hours * 3_600_000;
            self.operators[index].wake = self.now;
            self.log(format!("operator {index}'s clock is {hours} h off"));
        }
        if self.kube.neighbour.is_some() && self.rng.per_mille(20) {
            if self.rng.per_mille(50) {
                self.kube.neighbour = None;
                self.truth.store.neighbour_goes();
                self.log("the other object with the same path is deleted".into());
                self.notify();
            } else {
                self.truth.store.neighbour_writes(self.now);
            }
        }
        let line = self.kube.user(self.now, &mut self.rng).or_else(|| {
            let hard = !self.jumps;
            self.kube.fault(self.now, &mut self.rng, hard, &mut self.truth)
        });
        if let Some(line) = line {
            self.log(line);
            self.notify();
        }
    }

    fn operate(&mut self, index: usize) {
        if self.operators[index].reconcile.is_some() {
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
        // The pod is read past the cache before it counts as missing.
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
        self.operators[index].reconcile = Some(Reconcile { plan, seen, step: 0 });
    }

    /// Executes one step of a reconcile; an operator may crash between any two steps.
    fn step(&mut self, index: usize) {
        let Some(mut reconcile) = self.operators[index].reconcile.take() else {
            return;
        };
        if self.wild && self.rng.per_mille(8) {
            self.log(format!("operator {index} crashes in the middle of a reconcile"));
            self.operators[index].cache = None;
            self.operators[index].wake = self.now + i64::try_from(self.rng.between(10, 60_000)).unwrap_or(10);
            return;
        }
        let step = reconcile.step;
        reconcile.step += 1;
        let changed = reconcile.seen.status.as_ref() != Some(&reconcile.plan.status);
        if step == 0 {
            if !changed {
                if reconcile
                    .plan
                    .effects
                    .iter()
                    .any(|effect| !matches!(effect, Effect::Tell(_)))
                    && self.subject.guards
                    && !self.kube.is_newest(&reconcile.seen)
                {
                    self.again(index);
                    return;
                }
                self.operators[index].reconcile = Some(reconcile);
                return;
            }
            let clock = self.now + self.operators[index].skew;
            let guard = self.subject.guards;
            match self.kube.write_status(&reconcile.seen, &reconcile.plan.status, guard) {
                Some((old, written)) => {
                    self.truth.status_written(&old, &written, clock, self.jumps);
                    reconcile.seen = written;
                    self.operators[index].reconcile = Some(reconcile);
                    self.notify();
                }
                None => self.again(index),
            }
            return;
        }
        let Some(effect) = reconcile.plan.effects.get(step - 1).cloned() else {
            if reconcile
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
        let object = reconcile.seen.metadata.uid.clone().unwrap_or_default();
        let must_be = precondition(&effect.guards(&Uid(object)));
        let done = match effect {
            Effect::SetFinalizers(finalizers) => {
                self.kube
                    .set_finalizers(&reconcile.seen, finalizers, self.subject.guards && must_be.unmodified)
            }
            Effect::CreatePod(pod) => {
                self.truth.pod_wanted(&self.kube, &pod);
                let script = if self.wild {
                    Script::draw(&mut self.rng, !self.jumps)
                } else {
                    Script::good()
                };
                let asked = reconcile.seen.spec.plan.verify.unwrap_or_default();
                self.kube.create(*pod, asked, self.now, script)
            }
            Effect::DeletePod { name, .. } => {
                let uid = must_be.uid.unwrap_or_default();
                self.kube.delete(&name, &uid.0, self.now, &mut self.rng)
            }
            Effect::ForgetPod { name, .. } => self.kube.forget(&name, &must_be.uid.unwrap_or_default().0),
            Effect::Tell(note) => {
                self.truth.reported(note.reason);
                true
            }
        };
        self.log(format!("{line}{}", if done { "" } else { ": rejected" }));
        if done {
            if let Some(object) = &self.kube.object {
                reconcile
                    .seen
                    .metadata
                    .resource_version
                    .clone_from(&object.metadata.resource_version);
            }
            self.operators[index].reconcile = Some(reconcile);
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
        rules::check(&self.kube, self.now, self.jumps, &mut self.truth);
        self.outcome.broken = self.truth.take_broken();
    }

    fn check_end(&mut self) {
        rules::check_end(&self.kube, &mut self.truth, self.now);
        self.outcome.broken = self.truth.take_broken();
    }
}
