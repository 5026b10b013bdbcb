//! etcd as the operator sees it: how a process starts, and how a cluster replies to requests (docs/etcd-facts.md is the
//! source of every rule here).

use std::rc::Rc;

use stateward_etcd::cluster::{
    ClusterId, Launch, Listed, MemberId, MemberList, MemberName, MemberProbe, NoReply, NoReplyKind, Reply,
};

use crate::queue::{Event, Id, stamp};
use crate::raft::{Change, Conf, Data, Entry, Rejected, What, quorum, voters};
use crate::sim::Sim;

/// The exit of a process that crashes for a reason that no operator knows.
pub(crate) const UNKNOWN_REASON: &str = "signal: out of memory";

pub(crate) fn peer_url(name: &MemberName) -> String {
    let service = if name.0.starts_with(crate::elsewhere::OLD) {
        "old"
    } else {
        "demo"
    };
    format!("http://{name}.{service}.default.svc:2380")
}

pub(crate) fn hash(parts: &[&str]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in parts.iter().flat_map(|part| part.bytes().chain([0])) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash
}

fn no_reply(message: &str) -> MemberProbe {
    MemberProbe::NoReply(NoReply::new(NoReplyKind::NotReached, message))
}

pub(crate) enum Start {
    Serve,
    Hang,
    Exit(i32, String),
}

impl Sim<'_> {
    /// A process has read its data and flags: it serves, hangs or ends.
    pub(crate) fn boot(&mut self, id: Id, incarnation: u32) {
        let Some(process) = self.processes.get(&id) else { return };
        if process.serves || process.incarnation != incarnation || self.nodes[process.node].down {
            return;
        }
        match self.how_it_starts(id) {
            Start::Serve => {
                let lag = if self.calm { 200 } else { self.rng.between(0, 3000) };
                if let Some(process) = self.processes.get_mut(&id) {
                    process.serves = true;
                    process.up_since = self.now;
                    process.slow_until = process.slow_until.max(self.now + lag);
                    let name = process.name.clone();
                    self.log(|| format!("etcd: {name} serves"));
                }
                let since = stamp(self.now);
                self.kubelet_says(id, |pod| {
                    pod.shown.ready = true;
                    pod.shown.ready_since = Some(since);
                });
            }
            Start::Hang => {
                let more = self.rng.between(7000, 14000);
                if let Some(process) = self.processes.get_mut(&id) {
                    process.hung = true;
                }
                self.queue.at(self.now + more, Event::Boot(id, incarnation));
            }
            Start::Exit(code, message) => self.container_ends(id, code, &message),
        }
    }

    fn how_it_starts(&mut self, id: Id) -> Start {
        let Some(pod) = self.known_pod(id) else {
            return Start::Exit(137, "killed".into());
        };
        let process = &self.processes[&id];
        let (place, minor) = (process.volume, process.version.minor());
        let Some(volume) = self.volumes.get(&place) else {
            return Start::Exit(1, "no such volume".into());
        };
        if pod.shown.template.contains("bad-flag") {
            return Start::Exit(2, "flag provided but not defined: -no-such-flag".into());
        }
        if volume.corrupt {
            return Start::Exit(1, "panic: walpb: crc mismatch".into());
        }
        if process.crashes_until > self.now {
            return Start::Exit(2, UNKNOWN_REASON.into());
        }
        if pod.owner == self.truth.owner && minor < self.truth.floor {
            return Start::Exit(
                1,
                format!(
                    "cluster cannot be downgraded (current version: 3.{minor} is lower than determined cluster version: 3.{})",
                    self.truth.floor
                ),
            );
        }
        let (has_data, old_log) = (volume.data.is_some(), volume.old_log);
        let floor = self.truth.floor;
        if pod.owner == self.truth.owner && floor > 0 && minor > floor + 1 {
            let message = format!("{} runs 3.{minor} in a cluster of version 3.{floor}", pod.name);
            self.break_rule(crate::rules::name::VERSIONS, message);
        }
        if minor >= 6 && old_log {
            return Start::Exit(2, "panic: detected disallowed v2 WAL".into());
        }
        if let Launch::Restore { source, .. } = &pod.launch
            && minor < self.backup_minor(source)
        {
            let message = format!("{} runs 3.{minor} and is given {}", pod.name, source.location);
            self.break_rule(crate::rules::name::RESTORE_READABLE, message);
        }
        let sweeps = pod.shown.template.ends_with("-sweep");
        if has_data {
            if let Some(volume) = self.volumes.get_mut(&place).filter(|_| sweeps) {
                volume.old_log = false;
            }
            return self.start_with_data(id, place, &pod.launch);
        }
        match &pod.launch {
            Launch::Sealed | Launch::ForceNew | Launch::Restore { .. } => Start::Exit(
                1,
                "cannot fetch cluster info from peer urls: could not retrieve cluster information from the given URLs"
                    .into(),
            ),
            Launch::Join { members } => self.start_joining(id, place, members, sweeps),
            Launch::Seed { token } => {
                let first = vec![pod.name.clone()];
                self.bootstrap(pod.owner, &pod.name, place, token, &first)
            }
            Launch::Static { token, members } => self.bootstrap(pod.owner, &pod.name, place, token, members),
        }
    }

    fn start_with_data(&mut self, id: Id, place: Id, launch: &Launch) -> Start {
        let Some(data) = self.volumes.get_mut(&place).and_then(|volume| volume.data.as_mut()) else {
            return Start::Exit(1, "no data".into());
        };
        if data.conf.iter().all(|member| member.id != data.id) {
            return Start::Exit(0, "the member has been permanently removed from the cluster".into());
        }
        if matches!(launch, Launch::ForceNew) {
            let own = data.id;
            // "discarding uncommitted WAL entries": it loses what it does not know to be committed.
            data.log.truncate(data.committed);
            self.lineages += 1;
            data.lineage = self.lineages;
            data.term += 1;
            let conf = Rc::make_mut(&mut data.conf);
            conf.retain(|member| member.id == own);
            conf.iter_mut().for_each(|member| member.learner = false);
            self.history_was_ended(id);
        }
        if let Launch::Restore { token, source } = launch {
            self.restored_member_starts(id, source, token);
        }
        Start::Serve
    }

    /// A new member without data takes the list from the first peer that answers, and with it its own ID.
    fn start_joining(&mut self, id: Id, place: Id, members: &[(MemberName, String)], sweeps: bool) -> Start {
        let own = &self.processes[&id];
        let side = self.nodes[own.node].side;
        let waits_for_another = self.processes.iter().any(|(other, process)| {
            *other != id
                && process.owner == own.owner
                && process.joins
                && !process.serves
                && process.up_since + 7000 > self.now
        });
        if waits_for_another && !own.hung {
            return Start::Hang;
        }
        let own_url = peer_url(&own.name);
        let peer = self.processes.iter().find(|(other, process)| {
            **other != id
                && self.awake(**other)
                && process.owner == own.owner
                && self.nodes[process.node].side == side
                && members.iter().any(|(name, _)| *name == process.name)
        });
        let old_log = peer.is_some_and(|(_, peer)| self.volumes.get(&peer.volume).is_some_and(|volume| volume.old_log));
        if old_log && own.version.minor() >= 6 {
            return Start::Exit(2, "panic: detected disallowed v2 WAL".into());
        }
        let Some(known) = peer.and_then(|(other, _)| self.data_of(*other)) else {
            return Start::Exit(
                1,
                "cannot fetch cluster info from peer urls: could not retrieve cluster information from the given URLs"
                    .into(),
            );
        };
        let urls: usize = known.conf.iter().map(|member| member.peer_urls.len()).sum();
        if urls != members.len() {
            return Start::Exit(1, "error validating peerURLs: member count is unequal".into());
        }
        let unmatched = known.conf.iter().any(|member| {
            member
                .peer_urls
                .iter()
                .any(|url| members.iter().all(|(_, other)| other != url))
        });
        let Some(listed) = known.conf.iter().find(|member| member.peer_urls.contains(&own_url)) else {
            return Start::Exit(
                1,
                "error validating peerURLs: unmatched member while checking PeerURLs".into(),
            );
        };
        if unmatched {
            return Start::Exit(
                1,
                "error validating peerURLs: unmatched member while checking PeerURLs".into(),
            );
        }
        let (votes, forgot) = (!listed.learner, listed.name.is_some() && !listed.learner);
        let data = Data {
            cluster: known.cluster,
            lineage: known.lineage,
            id: listed.id,
            term: 0,
            log: Vec::new(),
            committed: 0,
            conf: known.conf.clone(),
            content: 0,
        };
        if forgot {
            self.member_forgot(id);
        }
        if votes {
            self.truth.took_part.insert(data.id);
        }
        if let Some(volume) = self.volumes.get_mut(&place) {
            volume.data = Some(data);
            volume.old_log = old_log && !sweeps;
        }
        Start::Serve
    }

    /// A first member bootstraps a cluster. IDs follow from URLs and token, so the same ones give the same cluster
    /// again.
    pub(crate) fn bootstrap(
        &mut self,
        owner: Id,
        name: &MemberName,
        place: Id,
        token: &str,
        first: &[MemberName],
    ) -> Start {
        let mut conf: Conf = first
            .iter()
            .map(|name| Listed {
                id: MemberId(hash(&[&peer_url(name), token]) >> 16),
                name: Some(name.clone()),
                peer_urls: vec![peer_url(name)],
                learner: false,
            })
            .collect();
        conf.sort_by_key(|member| member.id);
        let ids: Vec<String> = conf.iter().map(|member| member.id.to_string()).collect();
        let cluster = hash(&ids.iter().map(String::as_str).collect::<Vec<_>>()) >> 16;
        let Some(own) = conf
            .iter()
            .find(|member| member.name.as_ref() == Some(name))
            .map(|member| member.id)
        else {
            return Start::Exit(
                1,
                "couldn't find local name in the initial cluster configuration".into(),
            );
        };
        if first.len() > 1 {
            // One of several first members asks the others whether it has been bootstrapped before.
            let known = self.processes.iter().any(|(id, process)| {
                process.owner == owner
                    && process.name != *name
                    && self.awake(*id)
                    && self
                        .data_of(*id)
                        .is_some_and(|data| data.cluster == cluster && data.log.len() > first.len())
            });
            if known && self.truth.bootstrap_members.contains(&own) {
                return Start::Exit(1, format!("member {} has already been bootstrapped", own));
            }
        }
        self.first_member_started(owner, cluster, own, name);
        let entries = match self.bootstraps.get(&cluster) {
            Some(entries) => entries.clone(),
            None => {
                let entries: Vec<Entry> = conf
                    .iter()
                    .map(|listed| {
                        self.changes.push(Change::Add(listed.clone()));
                        self.serial += 1;
                        Entry {
                            term: 1,
                            serial: self.serial,
                            what: What::Change(self.changes.len() - 1),
                        }
                    })
                    .collect();
                self.bootstraps.insert(cluster, entries.clone());
                entries
            }
        };
        if let Some(volume) = self.volumes.get_mut(&place) {
            volume.data = Some(Data {
                cluster,
                lineage: 0,
                id: own,
                term: 1,
                committed: entries.len(),
                log: entries,
                conf: Rc::new(conf),
                content: 0,
            });
        }
        Start::Serve
    }

    pub(crate) fn operator_reaches(&self, process: Id) -> bool {
        self.awake(process)
            && self.processes.get(&process).is_some_and(|process| {
                let node = &self.nodes[process.node];
                !node.cut_from_operator && node.side == 0 && !node.inbound_is_cut(self.now)
            })
    }

    /// What a probe of a member returns.
    pub(crate) fn probe(&self, process: Id) -> MemberProbe {
        if !self.operator_reaches(process) {
            return no_reply("timed out");
        }
        let (Some(process_state), Some(data)) = (self.processes.get(&process), self.data_of(process)) else {
            return no_reply("connection refused");
        };
        let leader = self
            .leader_of(data.line())
            .filter(|leader| self.connected(process, *leader) || *leader == process)
            .and_then(|leader| self.data_of(leader))
            .map(|data| data.id);
        MemberProbe::Reply(Reply {
            id: data.id,
            cluster: ClusterId(data.cluster),
            leader,
            learner: data.conf.iter().any(|member| member.id == data.id && member.learner),
            version: process_state.version.clone(),
            term: u64::from(data.term),
            // etcd reports how far it knows its log to be committed (`RaftIndex`), not how long the log is.
            index: data.committed as u64,
            storage_minor: (process_state.version.minor() >= 6).then_some(self.truth.floor),
            cluster_minor: Some(self.truth.floor).filter(|minor| *minor > 0),
            downgrading: self.truth.downgrade.filter(|_| process_state.version.minor() >= 6),
            db_size: 1 << 20,
            db_in_use: 1 << 20,
            list: data.conf.as_ref().clone(),
        })
    }

    /// The member list by a read that a quorum confirms, through any of these processes.
    pub(crate) fn proven_list(&self, through: &[Id]) -> Option<MemberList> {
        let (_, leader) = through
            .iter()
            .filter(|process| self.operator_reaches(**process))
            .find_map(|process| {
                let leader = self.leader_of(self.data_of(*process)?.line())?;
                (leader == *process || self.connected(*process, leader)).then_some((*process, leader))
            })?;
        let data = self.data_of(leader)?;
        Some(MemberList {
            cluster: ClusterId(data.cluster),
            leader: Some(data.id),
            members: data.conf.as_ref().clone(),
        })
    }

    /// The lists of all members that the operator reaches.
    pub(crate) fn lists_of(&self, cluster: ClusterId) -> Result<Vec<Conf>, Rejected> {
        let reached = self.processes.keys().filter(|id| self.operator_reaches(**id));
        let lists: Vec<Conf> = reached
            .filter_map(|id| self.data_of(*id))
            .filter(|data| data.cluster == cluster.0)
            .map(|data| data.conf.as_ref().clone())
            .collect();
        if lists.is_empty() {
            return Err("no member of that cluster replies".into());
        }
        Ok(lists)
    }

    /// The leader that a request of the operator reaches, if it is of the right cluster.
    pub(crate) fn leader_for_operator(&self, cluster: ClusterId) -> Result<Id, Rejected> {
        let entry = self
            .processes
            .keys()
            .copied()
            .filter(|id| self.operator_reaches(*id))
            .filter_map(|id| Some((id, self.data_of(id)?)))
            .filter(|(_, data)| data.cluster == cluster.0)
            .max_by_key(|(_, data)| data.lineage)
            .map(|(id, _)| id)
            .ok_or("no member of that cluster replies")?;
        let line = self.data_of(entry).ok_or("no data")?.line();
        let leader = self.leader_of(line).ok_or("etcdserver: no leader")?;
        if leader == entry || self.connected(entry, leader) {
            Ok(leader)
        } else {
            Err("etcdserver: request timed out".into())
        }
    }

    /// Clients everywhere: one write per tick through the leader. Clients in a zone that is cut off continue with the
    /// leader there.
    pub(crate) fn client_writes(&mut self) {
        let leaders: Vec<Id> = self
            .lines()
            .into_iter()
            .filter(|line| self.truth.bootstrapped.contains(&line.0))
            .filter_map(|line| self.leader_of(line))
            .filter(|leader| self.processes[leader].owner == self.truth.owner)
            .collect();
        if leaders.len() > 1 {
            self.check_one_cluster(&leaders);
        }
        for leader in leaders {
            let rejects = self
                .data_of(leader)
                .is_some_and(|data| self.alarms.contains_key(&data.cluster));
            if rejects || self.data_of(leader).is_some_and(|data| data.log.len() > 600) {
                continue;
            }
            let line = self.data_of(leader).map(Data::line);
            if self.propose(leader, What::Write) && (self.truth.line.is_none() || self.truth.line == line) {
                self.truth.acknowledged.insert(self.serial);
            }
        }
    }

    /// The cluster's version follows the version of its oldest member, once all members are connected.
    pub(crate) fn follow_version(&mut self) {
        let conf = self.truth.conf.clone();
        if conf.is_empty() {
            return;
        }
        let versions: Vec<u64> = voters(&conf)
            .filter_map(|member| {
                let process = self.processes.iter().find(|(id, process)| {
                    process.serves && self.data_of(**id).is_some_and(|data| data.id == member.id)
                })?;
                Some(process.1.version.minor())
            })
            .collect();
        if versions.len() < quorum(&conf).max(voters(&conf).count()) {
            return;
        }
        let oldest = versions.iter().copied().min().unwrap_or(0);
        match self.truth.downgrade {
            Some(target) if versions.iter().all(|minor| *minor == target) => self.truth.downgrade = None,
            Some(_) => {}
            None if oldest <= self.truth.floor => self.truth.follows = None,
            None => match self.truth.follows {
                Some((minor, at)) if minor == oldest && at <= self.now => self.truth.floor = oldest,
                Some((minor, _)) if minor == oldest => {}
                // The leader reads all members' versions every few seconds.
                _ => {
                    let delay = if self.truth.floor == 0 {
                        0
                    } else {
                        self.rng.between(500, 8000)
                    };
                    self.truth.follows = Some((oldest, self.now + delay));
                }
            },
        }
    }

    /// A health probe of a member before 3.5 writes an entry to the log.
    pub(crate) fn probe_health(&mut self) {
        let owner = self.truth.owner;
        let leads = |process: &crate::sim::Process| process.leads && process.owner == owner;
        if !self.processes.values().any(leads) {
            return; // it waits for a leader and is written nowhere
        }
        let serving = self
            .processes
            .values()
            .filter(|process| process.serves && process.owner == owner);
        let volumes: Vec<(Id, u64)> = serving
            .map(|process| (process.volume, process.version.minor()))
            .collect();
        if volumes.iter().all(|(_, minor)| *minor >= 5) {
            return;
        }
        for (volume, _) in volumes {
            if let Some(volume) = self.volumes.get_mut(&volume) {
                volume.old_log = true;
            }
        }
    }
}
