//! etcd's consensus without messages: terms, logs, elections, commitment, and membership changes as log entries.
//!
//! A member's log is kept entry by entry, so that a member that lost what it had acknowledged can elect a leader that
//! never had it, as in reality.

use std::rc::Rc;

use stateward_etcd::cluster::{Listed, MemberId, MemberName};

use crate::queue::{Id, Ms};
use crate::sim::Sim;

/// One entry of a log. The serial number is unique, so equal serials at an index mean equal logs up to there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) term: u32,
    pub(crate) serial: u32,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A new leader's first entry.
    Nothing,
    /// A client's write.
    Write,
    /// A change of the member list, by its number.
    Change(usize),
}

/// A change of the member list.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Add(Listed),
    Promote(MemberId),
    Remove(MemberId),
    /// A member that started publishes its name.
    Name(MemberId, MemberName),
    Url(MemberId, String),
}

/// The member list, as of a committed entry.
pub(crate) type Conf = Vec<Listed>;

/// A cluster and one of its histories: members of one history take no part in another one.
pub(crate) type Line = (u64, u32);

/// What a member has on its volume.
#[derive(Clone, Debug)]
pub(crate) struct Data {
    pub(crate) cluster: u64,
    /// Which history of that cluster: a member that was made the only one has left the others' history.
    pub(crate) lineage: u32,
    pub(crate) id: MemberId,
    pub(crate) term: u32,
    pub(crate) log: Vec<Entry>,
    /// How far it knows its log to be committed. The cluster may have committed more, and its log may be longer.
    pub(crate) committed: usize,
    pub(crate) conf: Rc<Conf>,
    /// The content of its keys. 0 is what the log says; anything else comes from a faulty disk or process.
    pub(crate) content: u32,
}

impl Data {
    pub(crate) fn line(&self) -> Line {
        (self.cluster, self.lineage)
    }

    fn last(&self) -> (u32, usize) {
        (self.log.last().map_or(0, |entry| entry.term), self.log.len())
    }

    fn follow(&mut self, leader: &Data) {
        let same = self.log.len().min(leader.log.len());
        let agrees = |len: usize| len == 0 || self.log[len - 1].serial == leader.log[len - 1].serial;
        let mut keep = same;
        while !agrees(keep) {
            keep -= 1;
        }
        if self.log.is_empty() {
            self.content = leader.content; // a new member is sent a snapshot of its leader
        }
        self.log.truncate(keep);
        self.log.extend_from_slice(&leader.log[keep..]);
        self.term = leader.term;
    }
}

pub(crate) fn voters(conf: &Conf) -> impl Iterator<Item = &Listed> {
    conf.iter().filter(|member| !member.learner)
}

pub(crate) fn quorum(conf: &Conf) -> usize {
    voters(conf).count() / 2 + 1
}

/// Why a request to etcd failed.
pub(crate) type Rejected = String;

impl Sim<'_> {
    pub(crate) fn data_of(&self, process: Id) -> Option<&Data> {
        self.volumes.get(&self.processes.get(&process)?.volume)?.data.as_ref()
    }

    /// The serving process that is this member.
    pub(crate) fn process_of(&self, line: Line, member: MemberId) -> Option<Id> {
        self.processes
            .iter()
            .find(|(id, process)| {
                process.serves
                    && self
                        .data_of(**id)
                        .is_some_and(|data| data.id == member && data.line() == line)
            })
            .map(|(id, _)| *id)
    }

    pub(crate) fn awake(&self, process: Id) -> bool {
        self.processes
            .get(&process)
            .is_some_and(|process| process.serves && process.frozen_until <= self.now)
    }

    /// Two members can exchange messages.
    pub(crate) fn connected(&self, one: Id, other: Id) -> bool {
        let (Some(a), Some(b)) = (self.processes.get(&one), self.processes.get(&other)) else {
            return false;
        };
        let (a, b) = (&self.nodes[a.node], &self.nodes[b.node]);
        self.awake(one)
            && self.awake(other)
            && a.side == b.side
            && !a.inbound_is_cut(self.now)
            && !b.inbound_is_cut(self.now)
    }

    /// The leader of a cluster that can commit now.
    pub(crate) fn leader_of(&self, line: Line) -> Option<Id> {
        self.processes
            .iter()
            .filter(|(id, process)| process.leads && self.awake(**id))
            .filter_map(|(id, _)| Some((*id, self.data_of(*id)?)))
            .filter(|(id, data)| data.line() == line && self.has_quorum(*id, data))
            .max_by_key(|(_, data)| data.term)
            .map(|(id, _)| id)
    }

    fn has_quorum(&self, leader: Id, data: &Data) -> bool {
        let near = voters(&data.conf)
            .filter(|member| {
                member.id == data.id
                    || self
                        .process_of(data.line(), member.id)
                        .is_some_and(|other| self.connected(leader, other))
            })
            .count();
        near >= quorum(&data.conf)
    }

    /// The clusters that have a serving process.
    pub(crate) fn lines(&self) -> Vec<Line> {
        let mut clusters: Vec<Line> = self
            .processes
            .iter()
            .filter(|(_, process)| process.serves)
            .filter_map(|(id, _)| Some(self.data_of(*id)?.line()))
            .collect();
        clusters.sort_unstable();
        clusters.dedup();
        clusters
    }

    /// A member that the leader meets has a higher term, so another election follows.
    pub(crate) fn election_is_due(&self) -> bool {
        self.lines().into_iter().any(|line| {
            let term = self
                .leader_of(line)
                .and_then(|leader| self.data_of(leader))
                .map(|data| data.term);
            let mut others = self.processes.keys().filter_map(|id| self.data_of(*id));
            others.any(|data| data.line() == line && term.is_some_and(|term| data.term > term))
        })
    }

    /// Heartbeats: logs follow their leaders, leaders without a quorum step down, elections are held.
    pub(crate) fn tick_etcd(&mut self) {
        for cluster in self.lines() {
            match self.leader_of(cluster) {
                Some(leader) => {
                    self.elections.remove(&cluster);
                    self.replicate(leader);
                    self.publish_names(leader);
                }
                None => {
                    let due = match self.elections.get(&cluster) {
                        Some(due) => *due,
                        None => {
                            // A random 1 to 2 s (docs/etcd-facts.md).
                            let due = self.now + self.rng.between(1000, 2000);
                            self.elections.insert(cluster, due);
                            due
                        }
                    };
                    if due <= self.now {
                        self.elections.remove(&cluster);
                        self.elect(cluster);
                    }
                }
            }
        }
        self.stop_removed_members();
    }

    fn elect(&mut self, line: Line) {
        let mut candidates: Vec<Id> = self
            .processes
            .keys()
            .copied()
            .filter(|id| self.awake(*id) && self.data_of(*id).is_some_and(|data| data.line() == line))
            .collect();
        while !candidates.is_empty() {
            let candidate = candidates.swap_remove(self.rng.index(candidates.len()));
            if self.campaign(candidate) {
                return;
            }
            // A candidate that fails has raised its term (before 3.5 there is no pre-vote).
            if self.rng.per_mille(200)
                && let Some(process) = self.processes.get_mut(&candidate)
                && let Some(data) = self
                    .volumes
                    .get_mut(&process.volume)
                    .and_then(|volume| volume.data.as_mut())
            {
                process.leads = false;
                data.term += 1;
            }
        }
    }

    /// A candidate requests votes. Each voter decides by its own log.
    fn campaign(&mut self, candidate: Id) -> bool {
        let Some(own) = self.data_of(candidate) else {
            return false;
        };
        if !voters(&own.conf).any(|member| member.id == own.id) {
            return false;
        }
        let mut granted = Vec::new();
        let mut term = own.term;
        for member in voters(&own.conf) {
            if member.id == own.id {
                granted.push(candidate);
                continue;
            }
            let Some(voter) = self.process_of(own.line(), member.id) else {
                continue;
            };
            let Some(data) = self.data_of(voter).filter(|_| self.connected(candidate, voter)) else {
                continue;
            };
            term = term.max(data.term);
            if data.last() <= own.last() {
                granted.push(voter);
            }
        }
        if granted.len() < quorum(&own.conf) {
            return false;
        }
        self.become_leader(candidate, &granted, term + 1);
        true
    }

    /// A leader transfers leadership to a follower that has every entry.
    pub(crate) fn transfer_leadership(&mut self, leader: Id, target: Id) -> bool {
        let done = self.campaign(target);
        if done && let Some(process) = self.processes.get_mut(&leader) {
            process.leads = false;
        }
        done
    }

    fn become_leader(&mut self, leader: Id, followers: &[Id], term: u32) {
        let cluster = self.data_of(leader).map(Data::line);
        let deposed: Vec<Id> = self
            .processes
            .keys()
            .copied()
            .filter(|id| followers.contains(id) && self.data_of(*id).map(Data::line) == cluster)
            .collect();
        for id in deposed {
            if let Some(process) = self.processes.get_mut(&id) {
                process.leads = id == leader;
                if let Some(data) = self
                    .volumes
                    .get_mut(&process.volume)
                    .and_then(|volume| volume.data.as_mut())
                {
                    data.term = term;
                }
            }
        }
        if let Some(process) = self.processes.get_mut(&leader) {
            process.leads = true;
            let name = process.name.clone();
            self.log(|| format!("etcd: {name} is the leader of term {term}"));
        }
        self.check_leader_has_everything(leader);
        self.propose(leader, What::Nothing);
    }

    /// Appends an entry to a leader's log and tries to commit it. Returns false if it is not committed now; it may be
    /// later.
    pub(crate) fn propose(&mut self, leader: Id, what: What) -> bool {
        self.serial += 1;
        let serial = self.serial;
        let Some(data) = self
            .processes
            .get(&leader)
            .and_then(|process| self.volumes.get_mut(&process.volume))
            .and_then(|volume| volume.data.as_mut())
        else {
            return false;
        };
        data.log.push(Entry {
            term: data.term,
            serial,
            what,
        });
        let length = data.log.len();
        self.replicate(leader);
        self.data_of(leader).is_some_and(|data| {
            data.committed >= length && data.log.get(length - 1).map(|entry| entry.serial) == Some(serial)
        })
    }

    /// Sends the leader's log to all members that it reaches and commits what a majority has.
    pub(crate) fn replicate(&mut self, leader: Id) {
        let Some(volume) = self.processes.get(&leader).map(|process| process.volume) else {
            return;
        };
        let Some(mut own) = self.volumes.get_mut(&volume).and_then(|volume| volume.data.take()) else {
            return;
        };
        let mut acknowledged = 0;
        let mut followed = Vec::new();
        let mut deposed = false;
        // The leader's data is taken out of its volume meanwhile, so that only the others are found.
        for member in own.conf.clone().iter() {
            if member.id == own.id {
                acknowledged += usize::from(!member.learner);
                continue;
            }
            let Some(other) = self
                .process_of(own.line(), member.id)
                .filter(|other| self.connected(leader, *other))
            else {
                continue;
            };
            let (slow, place) = match self.processes.get_mut(&other) {
                Some(process) => (process.slow_until > self.now, process.volume),
                None => continue,
            };
            let Some(data) = self.volumes.get_mut(&place).and_then(|volume| volume.data.as_mut()) else {
                continue;
            };
            if data.term > own.term {
                deposed = true;
                continue;
            }
            if slow {
                continue;
            }
            data.follow(&own);
            if let Some(process) = self.processes.get_mut(&other) {
                process.leads = false;
            }
            acknowledged += usize::from(!member.learner);
            followed.push(place);
        }
        // Only entries of its own term are committed by counting replicas; each leader begins its term with an entry.
        let current = own.log.last().is_some_and(|entry| entry.term == own.term);
        let (mut notified, mut conf) = (own.committed, own.conf.clone());
        if !deposed && current && acknowledged >= quorum(&own.conf) {
            let new = own.committed..own.log.len();
            let changes: Vec<usize> = own.log[new]
                .iter()
                .filter_map(|entry| match entry.what {
                    What::Change(number) => Some(number),
                    _ => None,
                })
                .collect();
            for number in &changes {
                apply(Rc::make_mut(&mut own.conf), &self.changes[*number]);
            }
            own.committed = own.log.len();
            if !changes.is_empty() {
                (notified, conf) = (own.committed, own.conf.clone());
            }
            let ours = self
                .processes
                .get(&leader)
                .is_some_and(|process| process.owner == self.truth.owner);
            if ours && self.truth.line.is_none_or(|line| line == own.line()) {
                self.truth.conf = own.conf.clone();
            }
        }
        // Followers learn with the next message what this one committed. A change of the member list reaches them
        // immediately; the model has no leader that is lost between the two.
        if !deposed {
            for place in followed {
                if let Some(data) = self.volumes.get_mut(&place).and_then(|volume| volume.data.as_mut())
                    && data.committed <= notified
                {
                    data.committed = notified;
                    data.conf = conf.clone();
                }
            }
        }
        let removed = !own.conf.iter().any(|member| member.id == own.id);
        if let Some(place) = self.volumes.get_mut(&volume) {
            place.data = Some(own);
        }
        if (deposed || removed)
            && let Some(process) = self.processes.get_mut(&leader)
        {
            process.leads = false;
        }
    }

    /// Members that started but have no name in the list yet publish it.
    fn publish_names(&mut self, leader: Id) {
        let Some(data) = self.data_of(leader) else { return };
        let unnamed: Vec<(MemberId, Id)> = data
            .conf
            .iter()
            .filter(|member| member.name.is_none())
            .filter_map(|member| Some((member.id, self.process_of(data.line(), member.id)?)))
            .filter(|(_, process)| self.connected(leader, *process))
            .collect();
        if self.change_pending(leader) {
            return;
        }
        for (id, process) in unnamed {
            let Some(name) = self.processes.get(&process).map(|process| process.name.clone()) else {
                continue;
            };
            self.changes.push(Change::Name(id, name));
            self.propose(leader, What::Change(self.changes.len() - 1));
        }
    }

    pub(crate) fn change_pending(&self, leader: Id) -> bool {
        self.data_of(leader).is_some_and(|data| {
            data.log[data.committed.min(data.log.len())..]
                .iter()
                .any(|entry| matches!(entry.what, What::Change(_)))
        })
    }

    /// A member that is out of the list learns it from any member that knows, and ends.
    fn stop_removed_members(&mut self) {
        let out: Vec<Id> = self
            .processes
            .keys()
            .copied()
            .filter(|id| self.awake(*id))
            .filter(|id| {
                let Some(data) = self.data_of(*id) else { return false };
                if data.conf.iter().all(|member| member.id != data.id) {
                    return true;
                }
                self.leader_of(data.line()).is_some_and(|leader| {
                    self.connected(*id, leader)
                        && self
                            .data_of(leader)
                            .is_some_and(|known| known.conf.iter().all(|member| member.id != data.id))
                })
            })
            .collect();
        for id in out {
            if let Some(process) = self.processes.get_mut(&id)
                && let Some(data) = self
                    .volumes
                    .get_mut(&process.volume)
                    .and_then(|volume| volume.data.as_mut())
            {
                let own = data.id;
                Rc::make_mut(&mut data.conf).retain(|member| member.id != own);
            }
            self.container_ends(id, 0, "the member has been permanently removed from the cluster");
        }
    }

    /// Since when a voter has been connected, for etcd's strict check.
    pub(crate) fn connected_since(&self, leader: Id, member: MemberId) -> Option<Ms> {
        let process = self.process_of(self.data_of(leader)?.line(), member)?;
        if process != leader && !self.connected(leader, process) {
            return None;
        }
        self.processes
            .get(&process)
            .map(|process| process.up_since.max(process.frozen_until).max(self.reconnected))
    }
}

pub(crate) fn apply(conf: &mut Conf, change: &Change) {
    match change {
        Change::Add(listed) => {
            if conf.iter().all(|member| member.id != listed.id) {
                conf.push(listed.clone());
            }
        }
        Change::Promote(id) => {
            if let Some(member) = conf.iter_mut().find(|member| member.id == *id) {
                member.learner = false;
            }
        }
        Change::Remove(id) => conf.retain(|member| member.id != *id),
        Change::Name(id, name) => {
            if let Some(member) = conf.iter_mut().find(|member| member.id == *id) {
                member.name = Some(name.clone());
            }
        }
        Change::Url(id, url) => {
            if let Some(member) = conf.iter_mut().find(|member| member.id == *id) {
                member.peer_urls = vec![url.clone()];
            }
        }
    }
}
