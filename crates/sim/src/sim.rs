//! The state of one history and its main loop: take the next event, let it happen, check the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use stateward_api::EtcdVersion;
use stateward_plan::etcd::{Alarm, Authority, MemberId, MemberName, Uid};

use crate::kube::{Kube, Node, PodObject};
use crate::operator::Operator;
use crate::profile::Profile;
use crate::queue::{Event, Id, Ms, Queue};
use crate::raft::{Change, Conf, Data, Entry, Line};
use crate::rng::Dice;
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
    /// It has no data and asks its peers for the list.
    pub(crate) joins: bool,
    /// It answers.
    pub(crate) serves: bool,
    pub(crate) leads: bool,
    /// It waited once for a peer that waited for it.
    pub(crate) hung: bool,
    /// Its pod object is gone, its kubelet does not know yet.
    pub(crate) orphan: bool,
    pub(crate) up_since: Ms,
    pub(crate) frozen_until: Ms,
    pub(crate) slow_until: Ms,
    pub(crate) crashes_until: Ms,
    /// The authorities that it trusts, since it started.
    pub(crate) trusts: BTreeSet<Authority>,
    /// The authorities that vouch for the certificates it shows now.
    pub(crate) shows: BTreeSet<Authority>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Volume {
    pub(crate) data: Option<Data>,
    pub(crate) corrupt: bool,
    /// The only node it can be used on.
    pub(crate) node: Option<usize>,
    pub(crate) crashes_until: Ms,
    /// Its log holds what etcd before 3.5 writes and etcd from 3.6 on ends at.
    pub(crate) old_log: bool,
}

/// What really happened to the cluster that the user has now: what the rules are judged by.
#[derive(Default)]
pub(crate) struct Ledger {
    /// The cluster object.
    pub(crate) owner: Id,
    /// The last committed member list.
    pub(crate) conf: Rc<Conf>,
    /// Writes that a client got an acknowledgement for.
    pub(crate) acknowledged: BTreeSet<u32>,
    /// A majority of volumes was lost: from then on writes may be lost too.
    pub(crate) majority_lost: bool,
    /// Claims of members that a restore replaced.
    pub(crate) replaced_claims: BTreeSet<Uid>,
    /// The user agreed, and those that are missing cannot come back soon: a survivor may become the cluster.
    pub(crate) consented: bool,
    /// The clusters that were founded for it.
    pub(crate) founded: BTreeSet<u64>,
    /// The members that founded it.
    pub(crate) founders: BTreeSet<MemberId>,
    /// Members that joined as voters and had data, whether or not the list knows their names yet.
    pub(crate) took_part: BTreeSet<MemberId>,
    /// Members whose node was held for dead until a moment ago: an operator may still act on it until then.
    pub(crate) given_up: BTreeMap<MemberName, Ms>,
    /// When members were removed because they crashed.
    pub(crate) crash_removals: Vec<Ms>,
    /// The version of the cluster (minor); older processes do not start.
    pub(crate) floor: u64,
    pub(crate) downgrade: Option<u64>,
    /// The EtcdRestores that were done.
    pub(crate) restored: BTreeSet<Uid>,
    /// The clusters whose data was made from a backup and has not started yet.
    pub(crate) made: BTreeSet<u64>,
    /// Members of clusters that were replaced.
    pub(crate) replaced: BTreeSet<MemberName>,
    /// The version that it will follow to, and when.
    pub(crate) follows: Option<(u64, Ms)>,
    /// The history that counts since another one was ended.
    pub(crate) line: Option<Line>,
    /// Histories that the user ended with an EtcdRestore.
    pub(crate) dismissed: BTreeSet<Line>,
    /// Since when the record says that no quorum answers.
    pub(crate) quorum_lost: Option<Ms>,
    /// When the record began to keep old claims.
    pub(crate) claims_kept: Option<Ms>,
}

/// A rule that was broken.
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
    pub(crate) dice: Dice,
    /// Chance in matters of certificates: they are drawn beside everything else.
    pub(crate) trust_dice: Dice,
    pub(crate) queue: Queue,
    pub(crate) profile: Profile,
    pub(crate) subject: &'a Subject,
    pub(crate) calm: bool,

    pub(crate) kube: Kube,
    pub(crate) nodes: Vec<Node>,
    pub(crate) volumes: BTreeMap<Id, Volume>,
    pub(crate) processes: BTreeMap<Id, Process>,
    /// Pods as their kubelets know them: one that is cut off goes on with that.
    pub(crate) known: BTreeMap<Id, Rc<PodObject>>,
    /// Pods that are gone and whose kubelet said before that they have ended.
    pub(crate) said: Vec<Uid>,
    pub(crate) incarnations: u32,

    pub(crate) changes: Vec<Change>,
    pub(crate) serial: u32,
    pub(crate) lineages: u32,
    pub(crate) elections: BTreeMap<Line, Ms>,
    /// The alarms that are raised, by cluster.
    pub(crate) alarms: BTreeMap<u64, BTreeSet<(MemberId, Alarm)>>,
    pub(crate) foundings: BTreeMap<u64, Vec<Entry>>,
    /// When the network was last made whole.
    pub(crate) reconnected: Ms,

    pub(crate) operators: Vec<Operator>,
    pub(crate) ledger: Ledger,
    pub(crate) user: crate::user::User,
    pub(crate) backups: Vec<crate::restores::Backup>,
    /// EtcdRestores whose backup was proven.
    pub(crate) proven: BTreeSet<Id>,
    /// Rounds in a row that found everything as wished, and since when.
    pub(crate) settled: Option<Ms>,
    /// How often it came to rest and something was seen otherwise after that.
    pub(crate) unsettled: u32,
    pub(crate) rounds: u64,

    story: Option<Vec<String>>,
    pub(crate) broken: Option<Violation>,
}

/// How long a tick of etcd's clock is.
const TICK: Ms = 500;

impl<'a> Sim<'a> {
    pub(crate) fn new(seed: u64, profile: Profile, subject: &'a Subject, tell: bool) -> Self {
        let nodes = vec![Node::default(); profile.nodes];
        let skew = profile.skew;
        let mut sim = Self {
            now: 0,
            dice: Dice::new(seed),
            trust_dice: Dice::new(seed ^ 0x7e57_ca5e),
            queue: Queue::default(),
            profile,
            subject,
            calm: false,
            kube: Kube::default(),
            nodes,
            volumes: BTreeMap::new(),
            processes: BTreeMap::new(),
            known: BTreeMap::new(),
            said: Vec::new(),
            incarnations: 0,
            changes: Vec::new(),
            serial: 0,
            lineages: 0,
            elections: BTreeMap::new(),
            alarms: BTreeMap::new(),
            foundings: BTreeMap::new(),
            reconnected: 0,
            operators: vec![Operator::new('a', skew.0), Operator::new('b', skew.1)],
            ledger: Ledger::default(),
            user: crate::user::User::default(),
            backups: Vec::new(),
            proven: BTreeSet::new(),
            settled: None,
            unsettled: 0,
            rounds: 0,
            story: tell.then(Vec::new),
            broken: None,
        };
        sim.operators[0].leads = true;
        sim.queue.at(TICK, Event::Tick);
        sim
    }

    /// One line of the story, made only when somebody listens.
    pub(crate) fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(format!("{:>9.3} s  {}", self.now as f64 / 1000.0, line()));
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
        self.tell(|| line);
        self.broken = Some(violation);
    }

    pub(crate) fn take_story(&mut self) -> Vec<String> {
        self.story.take().unwrap_or_default()
    }

    /// Lets the next event happen. False: the time is over or a rule is broken.
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
                self.tend_restores();
                self.bring_certificates();
                self.probe_health();
                self.tend_readiness();
                if self.calm {
                    self.remove_strangers();
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
            Event::Round(operator) => self.begin_round(operator),
            Event::Step(operator, epoch) => self.next_step(operator, epoch),
            Event::Revive(operator) => self.revive_operator(operator),
            Event::Yield(operator) => self.yield_leadership(operator),
            Event::Fault => self.next_fault(),
            Event::TakeBack => self.take_back(),
            Event::Rotate => self.ask_for_another_authority(),
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
