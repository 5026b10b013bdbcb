//! Servers: what a data directory holds, and what one process of mysqld does.

use std::collections::BTreeSet;

use stateward_core::Uid;

use super::transactions::{Bits, Transactions, Tx};
use crate::api::MySQLVersion;
use crate::world::{
    Channel, CloneState, Ordinal, Process as ProcessName, Receiver, Reply, SourceState, Volume as VolumeState,
};

/// Virtual milliseconds.
pub(super) type Ms = u64;

/// Members have ordinals below this.
pub(super) const MEMBERS: usize = 10;

pub(super) fn at(member: Ordinal) -> usize {
    usize::try_from(member.0).unwrap_or(MEMBERS)
}

/// A data directory.
#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    /// `auto.cnf`.
    pub(super) uuid: u128,
    /// Committed by the storage engine.
    pub(super) executed: Bits,
    /// The binlog: transactions are there, on disk, before they are committed. In their order.
    pub(super) binlog: Vec<Tx>,
    /// Executed, and not in the binlog any more.
    pub(super) purged: Bits,
    /// Complete transactions that were received, since the relay logs were begun.
    pub(super) retrieved: Bits,
    /// Those that are not executed, in their order.
    pub(super) relay: Vec<Tx>,
    /// `SOURCE_HOST`.
    pub(super) source: Option<Ordinal>,
    /// `stateward.cluster`.
    pub(super) cluster: Option<Uid>,
    /// Replication accounts that are locked.
    pub(super) locked: BTreeSet<Ordinal>,
    /// What the agent saved to the volume or to the store.
    pub(super) saved: Vec<Bits>,
    /// Why the last clone into it failed.
    pub(super) clone_error: Option<String>,
    /// A clone began and dropped the data, and was never complete: `gtid_executed` still says what was there.
    pub(super) hollow: bool,
}

impl Data {
    pub(super) fn new(uuid: u128) -> Self {
        Self {
            uuid,
            ..Self::default()
        }
    }

    /// Everything that it holds durably, as `Reply::received` and the transactions that are being committed.
    pub(super) fn holds(&self) -> Bits {
        if self.hollow {
            return Bits::default();
        }
        let mut all = self.received();
        for tx in self.binlog.iter().rev().take_while(|tx| !self.executed.has(**tx)) {
            all.insert(*tx);
        }
        all
    }

    /// Executed, or in the relay logs.
    pub(super) fn received(&self) -> Bits {
        self.executed.or(&self.retrieved)
    }

    /// The relay logs are deleted, as `CHANGE REPLICATION SOURCE` does. Returns what was not applied.
    pub(super) fn drop_relay(&mut self) -> Bits {
        let left = self.retrieved.minus(&self.executed);
        self.retrieved = Bits::default();
        self.relay.clear();
        left
    }
}

/// A volume, and the claim that leads to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Volume {
    pub(super) member: Ordinal,
    pub(super) data: Data,
    /// It is gone. What it held is only known to the rules.
    pub(super) lost: bool,
    pub(super) bytes: u64,
    /// What something else than binlogs takes of it.
    pub(super) ballast: u64,
}

impl Volume {
    fn free(&self) -> u64 {
        self.bytes
            .saturating_sub(self.ballast + binlogs(self.bytes, &self.data))
    }

    pub(super) fn is_almost_full(&self) -> bool {
        self.free() < self.bytes / 5
    }
}

/// A client's commit that waits for acknowledgements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) tx: Tx,
    /// Where it ends in the binlog.
    pub(super) at: usize,
    pub(super) client: Option<usize>,
}

/// The receiver of a replica while it runs.
#[derive(Clone, Debug)]
pub(super) struct Receiving {
    /// It acknowledges: `rpl_semi_sync_replica_enabled` at the moment it was started.
    pub(super) acknowledges: bool,
    /// Its connection: the process that serves it, and how much of its binlog was sent.
    pub(super) connection: Option<(u32, usize)>,
    /// It tries to connect again then.
    pub(super) retry: Ms,
}

/// A clone into a server.
#[derive(Clone, Debug)]
pub(super) struct Cloning {
    pub(super) donor: u32,
    pub(super) donor_host: String,
    pub(super) began: Ms,
    pub(super) ends: Ms,
}

/// A process of mysqld.
#[derive(Clone, Debug)]
pub(super) struct Process {
    /// It differs from that of every other process.
    pub(super) boot: u32,
    pub(super) member: Ordinal,
    pub(super) pod: u32,
    pub(super) node: usize,
    pub(super) volume: usize,
    pub(super) version: MySQLVersion,
    pub(super) replies_from: Ms,
    pub(super) frozen_until: Ms,
    pub(super) slow_until: Ms,
    pub(super) read_only: bool,
    /// `rpl_semi_sync_source_enabled`.
    pub(super) waits: bool,
    pub(super) acks: u32,
    /// Up to where in the binlog each replica has acknowledged.
    pub(super) acked: [usize; MEMBERS],
    /// `rpl_semi_sync_replica_enabled`.
    pub(super) acknowledges: bool,
    pub(super) receiver: Option<Receiving>,
    pub(super) receiver_error: Option<String>,
    /// The source has purged what this server needs.
    pub(super) lacks_purged: bool,
    pub(super) applier: bool,
    pub(super) waiting: Vec<Waiting>,
    pub(super) clone: Option<Cloning>,
    /// Client connections to it are cut when this grows.
    pub(super) sessions: u32,
    /// `max_connections`, by which configuration is followed.
    pub(super) setting: u64,
    /// The hash of the last `Action::SetVariables`.
    pub(super) config: Option<String>,
    pub(super) certificate: u32,
}

impl Process {
    pub(super) fn name(&self, data: &Data) -> ProcessName {
        ProcessName {
            uuid: data.uuid,
            boot: boot_name(self.boot),
        }
    }

    pub(super) fn replies(&self, now: Ms) -> bool {
        now >= self.replies_from && now >= self.frozen_until
    }

    /// Members that acknowledged everything up to this place.
    pub(super) fn acked_by(&self, place: usize) -> impl Iterator<Item = Ordinal> + '_ {
        let all = self.acked.iter().enumerate();
        let those = all.filter(move |(_, upto)| **upto >= place);
        those.filter_map(|(member, _)| u32::try_from(member).ok().map(Ordinal))
    }

    /// Its commits are released: it waits for nothing, or enough replicas have acknowledged.
    pub(super) fn is_released(&self, place: usize) -> bool {
        let enough = usize::try_from(self.acks).unwrap_or(usize::MAX);
        !self.waits || self.acked_by(place).count() >= enough
    }

    /// What it says of its channel. It is read before the GTID sets.
    pub(super) fn receiver_state(&self) -> Receiver {
        match &self.receiver {
            None => Receiver::Stopped,
            Some(Receiving { connection: None, .. }) => Receiver::Connecting,
            Some(_) => Receiver::Running,
        }
    }
}

pub(super) fn boot_name(boot: u32) -> String {
    format!("b{boot}")
}

/// What a server says of itself; `receiver` was read before.
pub(super) struct Asked<'a> {
    pub(super) process: &'a Process,
    pub(super) volume: &'a Volume,
    pub(super) all: &'a Transactions,
    pub(super) receiver: Receiver,
    pub(super) connected: BTreeSet<u32>,
    pub(super) host: Option<String>,
    pub(super) server_id: u32,
    pub(super) lag: Option<u64>,
    pub(super) now: Ms,
    pub(super) old_passwords: bool,
}

impl Asked<'_> {
    pub(super) fn reply(self) -> Reply {
        let Self {
            process, volume, all, ..
        } = self;
        let data = &volume.data;
        let waiting: Bits = process.waiting.iter().map(|waiting| waiting.tx).collect();
        let channel = self.host.map(|host| Channel {
            host,
            receiver: self.receiver,
            applier: process.applier,
            retrieved: all.gtids(&data.retrieved),
            lag: self.lag,
            receiver_error: process.receiver_error.clone(),
            applier_error: None,
            purged: process.lacks_purged,
        });
        let running = process.clone.as_ref();
        let clone = running.map(|clone| {
            let (done, whole) = (self.now.saturating_sub(clone.began), clone.ends - clone.began);
            CloneState {
                running: true,
                percent: u32::try_from(done * 100 / whole.max(1)).unwrap_or(100).min(100),
                donor: clone.donor_host.clone(),
                error: None,
            }
        });
        let failed = data.clone_error.clone().map(|error| CloneState {
            error: Some(error),
            ..CloneState::default()
        });
        let acknowledging = process.receiver.as_ref();
        Reply {
            process: process.name(data),
            server_id: self.server_id,
            version: process.version,
            read_only: process.read_only,
            executed: all.gtids(&data.executed),
            purged: all.gtids(&data.purged),
            owned: all.gtids(&waiting),
            source: SourceState {
                enabled: process.waits,
                acks: process.acks.max(1),
                status: process.waits,
                waiting: u32::try_from(process.waiting.len()).unwrap_or(0),
                connected: self.connected,
            },
            acknowledges: process.acknowledges,
            acknowledging: acknowledging.is_some_and(|one| one.acknowledges && one.connection.is_some()),
            channel,
            locked: data.locked.clone(),
            clone: clone.or(failed),
            cluster: data.cluster.clone(),
            saved: data.saved.iter().map(|saved| all.gtids(saved)).collect(),
            volume: Some(VolumeState {
                size: self.volume.bytes,
                free: self.volume.free(),
                binlogs: binlogs(self.volume.bytes, data),
            }),
            certificate: Some(format!("c{}", process.certificate)),
            config: process.config.clone(),
            old_passwords: self.old_passwords,
        }
    }
}

/// What binlogs take of a volume.
fn binlogs(bytes: u64, data: &Data) -> u64 {
    let count = data.binlog.iter().filter(|tx| !data.purged.has(**tx)).count();
    bytes / 1000 * u64::try_from(count).unwrap_or(0)
}
