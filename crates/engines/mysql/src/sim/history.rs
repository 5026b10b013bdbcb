//! One history: creation, faults and edits, the end of faults, convergence, and a last failover.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::converge::PATIENCE;
use super::kube::Kube;
use super::operator::Operator;
use super::profile::Profile;
use super::rng::Rng;
use super::rules::Moment;
use super::server::Ms;
use super::state::{Sim, Violation};
use super::subject::Subject;
use super::user::new_cluster;
use crate::world::{Secrets, Tls};

/// What came of a history.
#[derive(Debug)]
pub struct Outcome {
    /// The first rule that was broken.
    pub broken: Option<Violation>,
    /// Reconciles.
    pub rounds: u64,
    /// Virtual milliseconds.
    pub time: u64,
    /// Writes that clients got acknowledgements for.
    pub writes: u64,
    /// How often each kind of action was executed.
    pub actions: BTreeMap<&'static str, u64>,
    /// The log, if it was kept.
    pub story: Vec<String>,
}

/// Runs the history of a seed.
pub fn run(subject: &Subject, seed: u64) -> Outcome {
    history(subject, seed, false)
}

/// Runs it and keeps its log.
pub fn replay(subject: &Subject, seed: u64) -> Outcome {
    history(subject, seed, true)
}

fn history(subject: &Subject, seed: u64, with_log: bool) -> Outcome {
    let mut rng = Rng::new(seed);
    let profile = Profile::draw(&mut rng);
    let mut sim = begin(subject, rng, profile, with_log);
    sim.log_profile();
    if sim.rng.per_mille(800) {
        sim.go_on(60_000, |sim| sim.is_established());
    }
    for _ in 0..sim.profile.faults {
        let gap = sim.rng.between(0, sim.profile.fault_gap);
        sim.go_on(gap, |_| false);
        if sim.broken.is_none() {
            sim.fault();
        }
    }
    let gap = sim.rng.between(0, 4000);
    sim.go_on(gap, |_| false);
    if sim.broken.is_none() {
        sim.heal();
        sim.settle();
    }
    if sim.broken.is_none() && sim.rng.per_mille(250) {
        sim.last_failover();
    }
    Outcome {
        broken: sim.broken.clone(),
        rounds: sim.rounds,
        time: sim.now,
        writes: sim.writes,
        actions: std::mem::take(&mut sim.executed),
        story: sim.take_log(),
    }
}

/// A world in which only the MySQLCluster exists.
pub(super) fn begin<'a>(subject: &'a Subject, rng: Rng, profile: Profile, with_log: bool) -> Sim<'a> {
    let kube = Kube {
        cluster: Rc::new(new_cluster(profile.size)),
        pods: Rc::default(),
        claims: Rc::default(),
        set: None,
        objects: Rc::default(),
        ended_nodes: Rc::default(),
        secrets: Secrets::default(),
        tls: Tls::default(),
        certificate: 0,
        backup: None,
        setting: super::execute::DEFAULT_SETTING,
    };
    let skew = profile.skew;
    let mut sim = Sim::new(rng, profile, kube.clone(), subject, with_log);
    sim.operators = vec![Operator::new(kube.clone(), skew.0), Operator::new(kube, skew.1)];
    if let Some(first) = sim.operators.first_mut() {
        first.leads = true;
    }
    sim
}

impl Sim<'_> {
    fn log_profile(&mut self) {
        let profile = format!("{:?}", self.profile);
        self.log(|| profile);
    }

    /// The first primary is open and may be replaced.
    fn is_established(&self) -> bool {
        let memory = &self.truth.memory;
        memory.opened && memory.established() && memory.acks > 0
    }

    /// Lets time pass, at most so much of it, until something holds.
    pub(super) fn go_on(&mut self, time: Ms, until: impl Fn(&Self) -> bool) {
        let end = self.now + time;
        while self.now < end && self.broken.is_none() && !until(self) {
            let busy = self.operators.iter().any(Operator::is_busy);
            let longest = if busy { 30 } else { 120 };
            self.now += self.rng.between(1, longest).min(end - self.now);
            self.tick();
            self.tick_repairs();
            if std::mem::take(&mut self.news) {
                self.tell_operators();
            }
            self.tick_operators();
        }
    }

    fn settle(&mut self) {
        let end = self.now + PATIENCE;
        while self.now < end && self.broken.is_none() && !self.settling.done {
            self.go_on(2000, |sim| sim.settling.done);
            self.user_follows_advice();
            if self.now > self.calm_since + 3000 {
                self.clients.clear(); // So that replicas can be compared with the primary.
            }
        }
        if self.broken.is_none() && !self.settling.done {
            let why = self.settling.why.clone();
            self.judge(&Moment::Restless { why: &why });
        }
    }

    /// All is well, and writes are acknowledged. The primary ends, and all must be well again.
    fn last_failover(&mut self) {
        let Some(primary) = self.truth.memory.primary else {
            return;
        };
        self.log(|| "the last failover".into());
        let before = self.writes;
        self.clients = vec![Default::default(); 1];
        self.go_on(20_000, |sim| sim.writes > before);
        if self.writes == before && !self.transactions.is_full() {
            let why = "a client's write is not acknowledged".to_owned();
            self.judge(&Moment::Restless { why: &why });
            return;
        }
        if self.rng.per_mille(500) {
            self.kill(primary);
        } else {
            self.terminate_pod(primary);
        }
        self.settling = Default::default();
        self.calm_since = self.now;
        self.settle();
    }
}
