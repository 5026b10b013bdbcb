//! The state of one history.

use std::collections::BTreeMap;
use std::rc::Rc;

use stateward_core::Uid;

use super::clients::Client;
use super::converge::Settling;
use super::faults::Repair;
use super::kube::{Kube, Node};
use super::operator::Operator;
use super::profile::Profile;
use super::replication::Acknowledgement;
use super::rng::Rng;
use super::rules::{ALL, Moment};
use super::server::{Data, Ms, Process, Volume};
use super::subject::Subject;
use super::transactions::{Bits, Transactions};
use super::user::User;
use crate::Memory;
use crate::world::Ordinal;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which rule.
    pub rule: &'static str,
    /// What happened.
    pub what: String,
    /// When, in virtual milliseconds.
    pub at: u64,
}

/// What really happened. The rules are checked against it.
#[derive(Default)]
pub(super) struct Truth {
    /// Writes that were acknowledged to a client.
    pub(super) acknowledged: Bits,
    /// What the API server's status remembers.
    pub(super) memory: Rc<Memory>,
    /// The process that was made writable last.
    pub(super) opened: Option<u32>,
    /// Its member and what its server had executed then, for a process that has ended.
    pub(super) opened_on: Option<usize>,
    /// Transactions that `Action::Found` wrote.
    pub(super) founded: Bits,
    /// The first server.
    pub(super) founder: Option<u128>,
    /// Transactions of intruders that an operator could tell from others, by what the primary said after.
    pub(super) noticed: Bits,
}

/// Places in the network: nodes come first, then the operators.
pub(super) const PLACES: usize = 12;
pub(super) const NODES: usize = 10;

pub(super) struct Sim<'a> {
    pub(super) now: Ms,
    pub(super) rng: Rng,
    pub(super) profile: Profile,
    pub(super) subject: &'a Subject,
    /// Faults have stopped.
    pub(super) calm: bool,

    pub(super) kube: Kube,
    pub(super) nodes: Vec<Node>,
    /// Nothing gets from the one place to the other.
    pub(super) cuts: [[bool; PLACES]; PLACES],
    pub(super) volumes: Vec<Volume>,
    pub(super) processes: Vec<Process>,
    pub(super) in_flight: Vec<Acknowledgement>,
    pub(super) transactions: Transactions,
    pub(super) clients: Vec<Client>,
    pub(super) operators: Vec<Operator>,
    /// When what is broken is repaired.
    pub(super) repairs: Vec<(Ms, Repair)>,
    /// When an operator stops to believe that it leads.
    pub(super) yields: Vec<(Ms, usize)>,
    pub(super) user: User,
    pub(super) truth: Truth,

    pub(super) ids: u32,
    pub(super) boots: u32,
    pub(super) uuids: u128,
    pub(super) rounds: u64,
    pub(super) status_writes: u64,
    /// When faults stopped.
    pub(super) calm_since: Ms,
    pub(super) settling: Settling,
    pub(super) writes: u64,
    /// Something happened that rules look at.
    pub(super) changed: bool,
    /// Something happened that operators may be told of.
    pub(super) news: bool,
    /// Accounts have an old password beside the new one.
    pub(super) old_passwords: bool,
    pub(super) executed: BTreeMap<&'static str, u64>,

    log: Option<Vec<String>>,
    pub(super) broken: Option<Violation>,
}

impl<'a> Sim<'a> {
    pub(super) fn new(rng: Rng, profile: Profile, kube: Kube, subject: &'a Subject, with_log: bool) -> Self {
        Self {
            now: 0,
            rng,
            subject,
            calm: false,
            kube,
            nodes: vec![Node::default(); profile.nodes],
            cuts: Default::default(),
            volumes: Vec::new(),
            processes: Vec::new(),
            in_flight: Vec::new(),
            transactions: Transactions::default(),
            clients: vec![Client::default(); profile.clients],
            operators: Vec::new(),
            repairs: Vec::new(),
            yields: Vec::new(),
            user: User::default(),
            truth: Truth::default(),
            ids: 0,
            boots: 0,
            uuids: 0,
            rounds: 0,
            status_writes: 0,
            calm_since: 0,
            settling: Settling::default(),
            writes: 0,
            changed: true,
            news: true,
            old_passwords: false,
            executed: BTreeMap::new(),
            log: with_log.then(Vec::new),
            broken: None,
            profile,
        }
    }

    /// Adds a line to the log; the line is built only if the log is kept.
    pub(super) fn log(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:>9.3} s  {}", self.now as f64 / 1000.0, line()));
        }
    }

    pub(super) fn take_log(&mut self) -> Vec<String> {
        self.log.take().unwrap_or_default()
    }

    /// Checks the rules. The first that is broken ends the history.
    pub(super) fn judge(&mut self, moment: &Moment<'_>) {
        if self.broken.is_some() {
            return;
        }
        for rule in ALL {
            if self.subject.ignores == Some(rule.name) {
                continue;
            }
            if let Err(what) = (rule.keeps)(self, moment) {
                self.log_servers();
                let line = format!("BROKEN: {}: {what}", rule.name);
                self.log(|| line);
                self.broken = Some(Violation {
                    rule: rule.name,
                    what,
                    at: self.now,
                });
                return;
            }
        }
    }

    /// How every server is, for those who read the log.
    fn log_servers(&mut self) {
        if self.log.is_none() {
            return;
        }
        let lines: Vec<String> = self
            .processes
            .iter()
            .filter_map(|process| {
                let data = &self.volumes.get(process.volume)?.data;
                Some(format!(
                    "b{} of {} on node {}, read-only {}, waits {} for {}, acked {:?} of {}, {} wait, follows {:?}: {:?} {:?}, \
                     locked {:?}, relay {}, has {}",
                    process.boot,
                    process.member,
                    process.node,
                    process.read_only,
                    process.waits,
                    process.acks,
                    process.acked,
                    data.binlog.len(),
                    process.waiting.len(),
                    data.source.map(|source| source.0),
                    process.receiver,
                    process.receiver_error,
                    data.locked,
                    data.relay.len(),
                    self.transactions.gtids(&data.executed)
                ))
            })
            .collect();
        for line in lines {
            self.log(|| line);
        }
        let pods: Vec<String> = self.kube.pods.values().map(|pod| format!("{pod:?}")).collect();
        let claims: Vec<String> = self.kube.claims.values().map(|claim| format!("{claim:?}")).collect();
        for line in pods.into_iter().chain(claims) {
            self.log(|| line);
        }
    }

    pub(super) fn discarded(&mut self, member: Ordinal, what: Bits) {
        self.judge(&Moment::Discarded { member, what });
    }

    /// The volume that a member's claim leads to.
    pub(super) fn volume_of(&self, member: Ordinal) -> Option<&Volume> {
        self.volumes.get(self.kube.claims.get(&member)?.volume)
    }

    /// The data of a member, unless it is lost.
    pub(super) fn data_of(&self, member: Ordinal) -> Option<&Data> {
        let volume = self.volume_of(member).filter(|volume| !volume.lost)?;
        Some(&volume.data)
    }

    /// What a member holds or has held: a lost volume counts, since its loss is nobody's mistake.
    pub(super) fn ever_held(&self, member: Ordinal) -> Bits {
        let mut held = Bits::default();
        for (index, volume) in self.volumes.iter().enumerate() {
            let current = self.kube.claims.get(&member).is_some_and(|claim| claim.volume == index);
            if volume.member == member && (volume.lost || current) {
                held = held.or(&volume.data.holds());
            }
        }
        held
    }

    /// Its binlogs take most of its volume.
    pub(super) fn is_almost_full(&self, member: Ordinal) -> bool {
        self.volume_of(member).is_some_and(Volume::is_almost_full)
    }

    /// The cluster's UID.
    pub(super) fn owner(&self) -> Uid {
        Uid(self.kube.cluster.metadata.uid.clone().unwrap_or_default())
    }

    /// A moment passes for everything but operators and faults.
    pub(super) fn tick(&mut self) {
        self.tick_servers();
        self.tick_kube();
        self.tick_clients();
        if self.changed {
            self.changed = false;
            self.judge(&Moment::Always);
        }
    }
}
