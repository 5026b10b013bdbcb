//! What servers do by themselves: commit, send, receive, acknowledge, apply, clone.

use super::server::{Cloning, Data, Ms, Process, Receiving, at};
use super::state::Sim;
use super::transactions::{Bits, Tx, Writer};
use crate::world::Ordinal;

/// An acknowledgement on its way.
pub(super) struct Acknowledgement {
    to: u32,
    from: Ordinal,
    place: usize,
    arrives: Ms,
}

impl Acknowledgement {
    pub(super) fn is_of(&self, to: u32, from: Ordinal) -> bool {
        self.to == to && self.from == from
    }
}

impl Sim<'_> {
    pub(super) fn process(&self, boot: u32) -> Option<&Process> {
        self.processes.iter().find(|process| process.boot == boot)
    }

    pub(super) fn process_mut(&mut self, boot: u32) -> Option<&mut Process> {
        self.processes.iter_mut().find(|process| process.boot == boot)
    }

    pub(super) fn data(&self, boot: u32) -> Option<&Data> {
        Some(&self.volumes.get(self.process(boot)?.volume)?.data)
    }

    pub(super) fn data_mut(&mut self, boot: u32) -> Option<&mut Data> {
        let volume = self.process(boot)?.volume;
        Some(&mut self.volumes.get_mut(volume)?.data)
    }

    /// The process that a member's host name leads to.
    pub(super) fn by_host(&self, member: Ordinal) -> Option<u32> {
        let pod = self.kube.pods.get(&member)?;
        let mut processes = self.processes.iter();
        processes
            .find(|process| process.pod == pod.id)
            .map(|process| process.boot)
    }

    /// Both directions work between two nodes.
    pub(super) fn linked(&self, one: usize, other: usize) -> bool {
        !self.cuts[one][other] && !self.cuts[other][one]
    }

    /// Lets servers go on for a moment.
    pub(super) fn tick_servers(&mut self) {
        for index in 0..self.processes.len() {
            let Some(process) = self.processes.get(index) else {
                break;
            };
            let boot = process.boot;
            if process.clone.is_some() {
                self.go_on_cloning(boot);
            } else if process.replies(self.now) {
                if process.receiver.is_some() {
                    self.receive(boot);
                }
                self.apply(index);
            }
        }
        self.deliver_acknowledgements();
        for index in 0..self.processes.len() {
            self.release(index);
        }
    }

    /// A transaction is committed on a server, or begins to wait for acknowledgements.
    pub(super) fn write(&mut self, boot: u32, writer: Writer, client: Option<usize>) -> Option<Tx> {
        let process = self.processes.iter_mut().find(|process| process.boot == boot)?;
        let data = &mut self.volumes.get_mut(process.volume)?.data;
        let tx = self.transactions.add(data.uuid, &data.holds(), writer);
        data.binlog.push(tx);
        let waiting = super::server::Waiting {
            tx,
            at: data.binlog.len(),
            client,
        };
        process.waiting.push(waiting);
        self.changed = true;
        if let Some(index) = self.processes.iter().position(|process| process.boot == boot) {
            self.release(index);
        }
        Some(tx)
    }

    /// Commits that wait no more.
    fn release(&mut self, index: usize) {
        while let Some(process) = self.processes.get_mut(index) {
            let Some(first) = process.waiting.first().copied() else {
                return;
            };
            let frozen = self.now < process.frozen_until;
            if frozen || !process.is_released(first.at) {
                return;
            }
            process.waiting.remove(0);
            let (boot, volume) = (process.boot, process.volume);
            if let Some(volume) = self.volumes.get_mut(volume) {
                volume.data.executed.insert(first.tx);
            }
            if let Some(client) = first.client {
                self.acknowledged(client, first.tx, boot);
            }
        }
    }

    /// A replica asks its source for more.
    fn receive(&mut self, boot: u32) {
        let now = self.now;
        let Some(process) = self.process(boot) else { return };
        let (member, node) = (process.member, process.node);
        let Some(receiver) = process.receiver.clone() else {
            return;
        };
        let Some(source) = self.data(boot).and_then(|data| data.source) else {
            return;
        };
        let Some((from, sent)) = receiver.connection else {
            if now >= receiver.retry {
                self.connect(boot, source);
            }
            return;
        };
        let at_most = self.rng.between(1, 8);
        let there = self.process(from).filter(|other| other.replies(now));
        let Some(there) = there.filter(|other| self.linked(node, other.node)) else {
            // A dead connection is noticed later, and the receiver counts as running till then.
            if self.process(from).is_none() || self.rng.per_mille(200) {
                self.disconnect(boot);
            }
            return;
        };
        let asks = there.waits;
        let Some(binlog) = self.volumes.get(there.volume).map(|volume| &volume.data.binlog) else {
            return;
        };
        let end = binlog.len();
        let Some(own) = self.data(boot) else { return };
        let (mut has, mut next, mut new) = (own.received(), sent, Vec::new());
        while let Some(tx) = binlog.get(next)
            && (new.len() as u64) < at_most
        {
            if !self.transactions.is_in(*tx, &has) {
                new.push(*tx);
                has.insert(*tx);
            }
            next += 1;
        }
        if next == sent {
            return;
        }
        if let Some(data) = self.data_mut(boot) {
            for tx in &new {
                data.retrieved.insert(*tx);
                data.relay.push(*tx);
            }
        }
        if let Some(receiver) = self.process_mut(boot).and_then(|process| process.receiver.as_mut()) {
            receiver.connection = Some((from, next.min(end)));
        }
        self.changed = true;
        // Only what was sent just now is acknowledged, and with it all before it.
        if receiver.acknowledges && asks && !new.is_empty() {
            let arrives = now
                + if self.rng.per_mille(700) {
                    0
                } else {
                    self.rng.between(1, 400)
                };
            self.in_flight.push(Acknowledgement {
                to: from,
                from: member,
                place: next,
                arrives,
            });
        }
    }

    fn connect(&mut self, boot: u32, source: Ordinal) {
        let retry = self.now + self.rng.between(50, 1000);
        let outcome = self.dial(boot, source);
        let Some(process) = self.process_mut(boot) else { return };
        match outcome {
            Ok(from) => {
                process.receiver_error = None;
                if let Some(receiver) = &mut process.receiver {
                    receiver.connection = Some((from, 0));
                }
                self.changed = true;
                self.news = true;
            }
            Err(Refused::Again(why)) => {
                process.receiver_error = Some(why.into());
                if let Some(receiver) = &mut process.receiver {
                    receiver.retry = retry;
                }
            }
            Err(Refused::ForGood { why, purged }) => {
                process.receiver = None;
                process.receiver_error = Some(why.into());
                process.lacks_purged = purged;
                self.changed = true;
                self.news = true;
            }
        }
    }

    fn dial(&self, boot: u32, source: Ordinal) -> Result<u32, Refused> {
        let again = Err(Refused::Again("cannot connect"));
        let (Some(process), Some(own)) = (self.process(boot), self.data(boot)) else {
            return again;
        };
        let Some(from) = self.by_host(source) else { return again };
        let (Some(there), Some(data)) = (self.process(from), self.data(from)) else {
            return again;
        };
        if !there.replies(self.now) || !self.linked(process.node, there.node) || there.clone.is_some() {
            return again;
        }
        if data.locked.contains(&process.member) {
            return Err(Refused::Again("the account is locked"));
        }
        let has = own.received();
        let theirs = self.transactions.of_server(data.uuid);
        if !data.holds().contains(&has.and(&theirs)) {
            return Err(Refused::ForGood {
                why: "the replica has more GTIDs of the source than the source",
                purged: false,
            });
        }
        if !has.contains(&data.purged) {
            return Err(Refused::ForGood {
                why: "the source has purged required binlogs",
                purged: true,
            });
        }
        Ok(from)
    }

    pub(super) fn disconnect(&mut self, boot: u32) {
        let retry = self.now + self.rng.between(10, 500);
        let receiver = self.process_mut(boot).and_then(|process| process.receiver.as_mut());
        if let Some(receiver) = receiver {
            receiver.connection = None;
            receiver.retry = retry;
            self.changed = true;
            self.news = true;
        }
    }

    fn deliver_acknowledgements(&mut self) {
        let now = self.now;
        let mut left = std::mem::take(&mut self.in_flight);
        left.retain(|one| {
            if one.arrives > now {
                return true;
            }
            if let Some(process) = self.process_mut(one.to)
                && let Some(upto) = process.acked.get_mut(at(one.from))
            {
                *upto = (*upto).max(one.place);
            }
            false
        });
        self.in_flight.append(&mut left);
    }

    fn apply(&mut self, index: usize) {
        let (now, at_most) = (self.now, 6);
        let Some(process) = self.processes.get(index) else {
            return;
        };
        // An applier on a server that waits for acknowledgements waits itself, and nobody follows it.
        if !process.applier || process.waits || now < process.slow_until {
            return;
        }
        let Some(volume) = self.volumes.get_mut(process.volume) else {
            return;
        };
        let data = &mut volume.data;
        let many = data.relay.len().min(at_most);
        for tx in data.relay.drain(..many) {
            if !self.transactions.is_in(tx, &data.executed) {
                data.executed.insert(tx);
                data.binlog.push(tx);
            }
            self.changed = true;
        }
    }

    pub(super) fn begin_clone(&mut self, boot: u32, donor: u32, donor_host: String) {
        let ends = self.now + self.rng.between(300, self.profile.slowest_clone);
        let now = self.now;
        if let Some(process) = self.process_mut(boot) {
            process.receiver = None;
            process.applier = false;
            process.clone = Some(Cloning {
                donor,
                donor_host,
                began: now,
                ends,
            });
        }
        if let Some(data) = self.data_mut(boot) {
            data.hollow = data.hollow || !data.executed.is_empty();
            data.clone_error = None;
        }
        self.changed = true;
        self.news = true;
    }

    fn go_on_cloning(&mut self, boot: u32) {
        let now = self.now;
        let Some(process) = self.process(boot) else { return };
        let (node, Some(clone)) = (process.node, process.clone.clone()) else {
            return;
        };
        let donor = self.process(clone.donor);
        let there = donor.is_some_and(|donor| self.linked(node, donor.node) && now >= donor.frozen_until);
        // A clone waits for the donor's commits that are in its binlog and not in its tables.
        let is_idle = donor.is_some_and(|donor| donor.waiting.is_empty());
        if !there || (!self.calm && self.rng.per_mille(self.profile.clones_fail)) {
            if let Some(process) = self.process_mut(boot) {
                process.clone = None;
            }
            if let Some(data) = self.data_mut(boot) {
                data.clone_error = Some("the connection to the donor was lost".into());
            }
            self.changed = true;
            self.news = true;
        } else if now >= clone.ends
            && is_idle
            && let Some(donor) = self.data(clone.donor).cloned()
        {
            self.finish_clone(boot, donor);
        }
    }

    /// The recipient has the donor's data, and restarts.
    fn finish_clone(&mut self, boot: u32, donor: Data) {
        let uuid = if self.subject.clones_keep_uuid {
            None
        } else {
            Some(self.new_uuid())
        };
        if let Some(data) = self.data_mut(boot) {
            *data = Data {
                uuid: uuid.unwrap_or(data.uuid),
                executed: donor.executed,
                purged: donor.executed,
                cluster: donor.cluster,
                locked: donor.locked,
                saved: std::mem::take(&mut data.saved),
                hollow: donor.hollow,
                ..Data::default()
            };
        }
        self.log(|| format!("a clone into b{boot} is complete"));
        self.restart_in_place(boot);
    }

    pub(super) fn new_uuid(&mut self) -> u128 {
        self.uuids += 1;
        0xa000_0000_0000_0000_0000_0000_0000_0000 + self.uuids
    }

    /// A process ends. What is in its binlog is committed when the next one starts, acknowledged or not.
    pub(super) fn end_process(&mut self, boot: u32) -> Option<Process> {
        let index = self.processes.iter().position(|process| process.boot == boot)?;
        let process = self.processes.remove(index);
        if let Some(volume) = self.volumes.get_mut(process.volume) {
            let data = &mut volume.data;
            let committed: Bits = data.binlog.iter().copied().collect();
            data.executed = data.executed.or(&committed);
            if process.clone.is_some() {
                data.clone_error = Some("the server ended while it cloned".into());
            }
        }
        self.changed = true;
        self.news = true;
        Some(process)
    }

    /// A new process of mysqld on a volume: read-only, following nobody, acknowledging nothing.
    pub(super) fn start_process(&mut self, member: Ordinal, pod: u32, node: usize, volume: usize) -> u32 {
        let uuid = self.new_uuid();
        if let Some(volume) = self.volumes.get_mut(volume)
            && volume.data.uuid == 0
        {
            volume.data = Data::new(uuid);
        }
        self.boots += 1;
        let boot = self.boots;
        let slow = self.rng.between(50, self.profile.slowest_start);
        let version = self.kube.pods.get(&member).and_then(|pod| pod.version);
        self.processes.push(Process {
            boot,
            member,
            pod,
            node,
            volume,
            version: version.unwrap_or_default(),
            replies_from: self.now + slow,
            frozen_until: 0,
            slow_until: 0,
            read_only: true,
            waits: false,
            acks: 1,
            acked: Default::default(),
            acknowledges: false,
            receiver: None,
            receiver_error: None,
            lacks_purged: false,
            applier: false,
            waiting: Vec::new(),
            clone: None,
            sessions: 0,
            setting: self.kube.setting,
            config: None,
            certificate: self.kube.certificate,
        });
        self.changed = true;
        self.news = true;
        boot
    }

    fn restart_in_place(&mut self, boot: u32) {
        if let Some(old) = self.end_process(boot) {
            if let Some(volume) = self.volumes.get_mut(old.volume) {
                volume.data.clone_error = None;
            }
            let new = self.start_process(old.member, old.pod, old.node, old.volume);
            if let Some(process) = self.process_mut(new) {
                process.version = old.version;
            }
            self.restarted_inside(old.member, new);
        }
    }

    /// Lets a server follow another: `CHANGE REPLICATION SOURCE` only if it follows somebody else.
    pub(super) fn follow(&mut self, boot: u32, source: Ordinal, acknowledge: bool) {
        let now = self.now;
        let Some(data) = self.data_mut(boot) else { return };
        let mut discarded = Bits::default();
        let another = data.source != Some(source);
        if another {
            discarded = data.drop_relay();
            data.source = Some(source);
        }
        let Some(process) = self.process_mut(boot) else { return };
        let member = process.member;
        let old = process.receiver.take();
        process.waits = false;
        process.acknowledges = acknowledge;
        process.applier = true;
        // `START REPLICA` does nothing to a receiver that runs.
        let same = old.filter(|old| old.acknowledges == acknowledge && !another);
        process.receiver = Some(same.unwrap_or(Receiving {
            acknowledges: acknowledge,
            connection: None,
            retry: now,
        }));
        process.receiver_error = None;
        process.lacks_purged = false;
        self.changed = true;
        if !discarded.is_empty() {
            self.discarded(member, discarded);
        }
    }
}

/// Why a source refuses a replica.
enum Refused {
    Again(&'static str),
    ForGood { why: &'static str, purged: bool },
}
