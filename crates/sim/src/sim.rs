//! The state of one history and its main loop: take the next event, apply it, check the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use stateward_etcd::api::EtcdVersion;
use stateward_etcd::cluster::{Alarm, Ca, MemberId, MemberName, Uid};

use crate::kube::{Kube, Node, PodObject};
use crate::operator::Operator;
use crate::profile::Profile;
use crate::queue::{Event, Id, Ms, Queue};
use crate::raft::{Change, Conf, Data, Entry, Line};
use crate::rng::Rng;
use crate::subject::Subject;

/// A running etcd.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) owner: Id,
    pub(crate) name: MemberName,
    pub(crate) node: usize,
    pub(crate) volume: Id,
    pub(crate) version: EtcdVersion,
    pub(crate) incarnation: u32,
    /// It has no data and asks its peers for the member list.
    pub(crate) joins: bool,
    /// It replies to requests.
    pub(crate) serves: bool,
    pub(crate) leads: bool,
    /// It already waited once for a peer that waited for it.
    pub(crate) hung: bool,
    /// Its pod object is deleted, but its kubelet does not know yet.
    pub(crate) orphan: bool,
    pub(crate) up_since: Ms,
    pub(crate) frozen_until: Ms,
    pub(crate) slow_until: Ms,
    pub(crate) crashes_until: Ms,
    /// The CAs that it trusts since it started.
    pub(crate) trusts: BTreeSet<Ca>,
    /// The CAs of the certificates that it presents now.
    pub(crate) shows: BTreeSet<Ca>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Volume {
    pub(crate) data: Option<Data>,
    pub(crate) corrupt: bool,
    /// The only node on which it can be used.
    pub(crate) node: Option<usize>,
    pub(crate) crashes_until: Ms,
    /// Its log contains entries that etcd before 3.5 writes and at which etcd from 3.6 on exits.
    pub(crate) old_log: bool,
}

/// What really happened to the user's current cluster. The rules are checked against it.
#[derive(Default)]
pub(crate) struct Truth {
    /// The cluster object.
    pub(crate) owner: Id,
    /// The last committed member list.
    pub(crate) conf: Rc<Conf>,
    /// Writes that were acknowledged to a client.
    pub(crate) acknowledged: BTreeSet<u32>,
    /// A majority of volumes was lost: from then on writes may be lost.
    pub(crate) majority_lost: bool,
    /// Claims of members that a restore replaced.
    pub(crate) replaced_claims: BTreeSet<Uid>,
    /// The user consented, and the missing members cannot come back soon: a survivor may become the cluster.
    pub(crate) consented: bool,
    /// The etcd clusters that were bootstrapped for it.
    pub(crate) bootstrapped: BTreeSet<u64>,
    pub(crate) bootstrap_members: BTreeSet<MemberId>,
    /// Members that joined as voters and had data, whether or not the list has their names yet.
    pub(crate) took_part: BTreeSet<MemberId>,
    /// Members whose node was marked as unreachable until recently: until then an operator may still act on it.
    pub(crate) given_up: BTreeMap<MemberName, Ms>,
    /// When crashing members were removed.
    pub(crate) crash_removals: Vec<Ms>,
    /// The version of the cluster (minor); older processes do not start.
    pub(crate) floor: u64,
    pub(crate) downgrade: Option<u64>,
    /// The completed EtcdRestores.
    pub(crate) restored: BTreeSet<Uid>,
    /// The clusters whose data was restored from a backup and has not started yet.
    pub(crate) made: BTreeSet<u64>,
    /// Members of clusters that were replaced.
    pub(crate) replaced: BTreeSet<MemberName>,
    /// The version that it will change to, and when.
    pub(crate) follows: Option<(u64, Ms)>,
    /// The valid history, after another one was ended.
    pub(crate) line: Option<Line>,
    /// Histories that the user ended with an EtcdRestore.
    pub(crate) dismissed: BTreeSet<Line>,
    /// Since when the record says that there is no quorum.
    pub(crate) quorum_lost: Option<Ms>,
    /// When the record began to keep old claims.
    pub(crate) claims_kept: Option<Ms>,
}

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

pub(crate) struct Sim<'a> {
    pub(crate) now: Ms,
    pub(crate) rng: Rng,
    /// A separate generator for certificates, so that they do not change the other draws.
    pub(crate) trust_rng: Rng,
    pub(crate) queue: Queue,
    pub(crate) profile: Profile,
    pub(crate) subject: &'a Subject,
    pub(crate) calm: bool,

    pub(crate) kube: Kube,
    pub(crate) nodes: Vec<Node>,
    pub(crate) volumes: BTreeMap<Id, Volume>,
    pub(crate) processes: BTreeMap<Id, Process>,
    /// Pods as their kubelets know them; a kubelet that is cut off continues with them.
    pub(crate) known: BTreeMap<Id, Rc<PodObject>>,
    /// Deleted pods whose kubelets had reported that they ended.
    pub(crate) reported_exits: Vec<Uid>,
    pub(crate) incarnations: u32,

    pub(crate) changes: Vec<Change>,
    pub(crate) serial: u32,
    pub(crate) lineages: u32,
    pub(crate) elections: BTreeMap<Line, Ms>,
    /// The alarms that are raised, by cluster.
    pub(crate) alarms: BTreeMap<u64, BTreeSet<(MemberId, Alarm)>>,
    pub(crate) bootstraps: BTreeMap<u64, Vec<Entry>>,
    /// When the network last healed.
    pub(crate) reconnected: Ms,

    pub(crate) operators: Vec<Operator>,
    pub(crate) truth: Truth,
    pub(crate) user: crate::user::User,
    pub(crate) backups: Vec<crate::restores::Backup>,
    /// EtcdRestores whose backup was proven.
    pub(crate) proven: BTreeSet<Id>,
    /// Since when each reconcile has found everything as expected.
    pub(crate) settled: Option<Ms>,
    /// How often it converged and changed again.
    pub(crate) unsettled: u32,
    pub(crate) rounds: u64,

    log: Option<Vec<String>>,
    pub(crate) broken: Option<Violation>,
}

/// The length of a tick of etcd's clock.
const TICK: Ms = 500;

impl<'a> Sim<'a> {
    pub(crate) fn new(seed: u64, profile: Profile, subject: &'a Subject, with_log: bool) -> Self {
        let nodes = vec![Node::default(); profile.nodes];
        let skew = profile.skew;
        let mut sim = Self {
            now: 0,
            rng: Rng::new(seed),
            trust_rng: Rng::new(seed ^ 0x7e57_ca5e),
            queue: Queue::default(),
            profile,
            subject,
            calm: false,
            kube: Kube::default(),
            nodes,
            volumes: BTreeMap::new(),
            processes: BTreeMap::new(),
            known: BTreeMap::new(),
            reported_exits: Vec::new(),
            incarnations: 0,
            changes: Vec::new(),
            serial: 0,
            lineages: 0,
            elections: BTreeMap::new(),
            alarms: BTreeMap::new(),
            bootstraps: BTreeMap::new(),
            reconnected: 0,
            operators: vec![Operator::new('a', skew.0), Operator::new('b', skew.1)],
            truth: Truth::default(),
            user: crate::user::User::default(),
            backups: Vec::new(),
            proven: BTreeSet::new(),
            settled: None,
            unsettled: 0,
            rounds: 0,
            log: with_log.then(Vec::new),
            broken: None,
        };
        sim.operators[0].leads = true;
        sim.queue.at(TICK, Event::Tick);
        sim
    }

    /// Adds a line to the log; the line is built only if the log is kept.
    pub(crate) fn log(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:>9.3} s  {}", self.now as f64 / 1000.0, line()));
        }
    }

    pub(crate) fn break_rule(&mut self, rule: &'static str, what: impl Into<String>) {
        if self.broken.is_some() || self.subject.ignores == Some(rule) {
            return;
        }
        let violation = Violation {
            rule,
            what: what.into(),
            at: self.now,
        };
        let line = format!("BROKEN: {}: {}", violation.rule, violation.what);
        self.log(|| line);
        self.broken = Some(violation);
    }

    pub(crate) fn take_log(&mut self) -> Vec<String> {
        self.log.take().unwrap_or_default()
    }

    /// Applies the next event. Returns false if the time is over or a rule is broken.
    pub(crate) fn step(&mut self, until: Ms) -> bool {
        if self.broken.is_some() {
            return false;
        }
        let Some((when, event)) = self.queue.next() else {
            return false;
        };
        if when > until {
            self.queue.at(when, event);
            self.now = until;
            return false;
        }
        self.now = when;
        match event {
            Event::Tick => {
                self.tick_etcd();
                self.client_writes();
                self.follow_version();
                self.reconcile_restores();
                self.bring_certificates();
                self.probe_health();
                self.update_readiness();
                if self.calm {
                    self.remove_foreign_members();
                    self.follow_advice();
                }
                self.queue.at(self.now + TICK, Event::Tick);
            }
            Event::Schedule(pod) => self.schedule_pod(pod),
            Event::Start(pod) => self.start_container(pod),
            Event::Boot(pod, incarnation) => self.boot(pod, incarnation),
            Event::Stopped(pod) => self.pod_stopped(pod),
            Event::NodeSilent(node, absence) => self.node_given_up(node, absence),
            Event::Detach(pod) => self.detach(pod),
            Event::Evict(node, absence) => self.evict_pods(node, absence),
            Event::NodeBack(node) => self.node_back(node),
            Event::Reconnect => self.reconnect(),
            Event::Collect => self.collect_garbage(),
            Event::Reconcile(operator) => self.begin_reconcile(operator),
            Event::Step(operator, epoch) => self.next_step(operator, epoch),
            Event::Revive(operator) => self.revive_operator(operator),
            Event::Yield(operator) => self.yield_leadership(operator),
            Event::Fault => self.next_fault(),
            Event::Revert => self.revert(),
            Event::Rotate => self.request_ca_rotation(),
            Event::Calm => self.calm_down(),
        }
        if self.kube.changed {
            self.kube.changed = false;
            self.kube.keep();
            self.notify_operators();
        }
        true
    }
}
