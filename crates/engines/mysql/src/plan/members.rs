//! What follows from the observation of each member. Several chapters rest on these judgements.

use std::time::Duration;

use jiff::Timestamp;

use super::round::{Round, View};
use crate::api::MySQLVersion;
use crate::gtid::GtidSet;
use crate::layout;
use crate::memory::{Memory, Quarantine};
use crate::world::{Member, Ordinal, Pod, Receiver, Reply, Server};

/// A replica that lacks more transactions than this has not caught up.
const CAUGHT_UP: u64 = 1000;

/// What a server's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Data {
    /// It did not reply.
    Unknown,
    /// It has none.
    Blank,
    /// It is this cluster's.
    Ours,
    /// It is of something else.
    Foreign,
}

impl View<'_> {
    pub(super) fn member(&self, member: Ordinal) -> Option<&Member> {
        self.world.members.get(&member)
    }

    pub(super) fn reply(&self, member: Ordinal) -> Option<&Reply> {
        self.member(member)?.reply()
    }

    pub(super) fn pod(&self, member: Ordinal) -> Option<&Pod> {
        self.member(member)?.pod.as_ref()
    }

    pub(super) fn name(&self, member: Ordinal) -> String {
        self.intent.pod_name(member)
    }

    pub(super) fn names<'m>(&self, members: impl IntoIterator<Item = &'m Ordinal>) -> String {
        let names: Vec<String> = members.into_iter().map(|member| self.name(*member)).collect();
        names.join(", ")
    }

    /// Its pod has a deletion timestamp, or is gone.
    pub(super) fn is_ending(&self, member: Ordinal) -> bool {
        self.pod(member).is_none_or(|pod| pod.facts.terminating)
    }

    pub(super) fn data(&self, memory: &Memory, member: Ordinal) -> Data {
        let Some(reply) = self.reply(member) else {
            return Data::Unknown;
        };
        // After a clone that did not end well there is nothing to rely on, whatever it says it has executed.
        let cloned = reply.clone.as_ref();
        if reply.is_blank() || cloned.is_some_and(|clone| clone.running || clone.error.is_some()) {
            Data::Blank
        } else if reply.cluster.as_ref() == Some(&self.intent.uid) && reply.executed.contains(&memory.first()) {
            Data::Ours
        } else {
            Data::Foreign
        }
    }

    /// Its container ended because the volume holds no data directory.
    pub(super) fn found_no_data(&self, member: Ordinal) -> bool {
        let facts = self.pod(member).map(|pod| &pod.facts).filter(|facts| !facts.running);
        let exit = facts.and_then(|facts| facts.last_exit.as_ref());
        exit.is_some_and(|exit| exit.code == layout::NO_DATA)
    }

    /// Its data is lost: another claim than the one that held it, an empty volume or server, or the user's word for a member that does not
    /// reply.
    pub(super) fn is_lost(&self, memory: &Memory, member: Ordinal) -> bool {
        let known = memory.claims.get(&member);
        let claim = self.member(member).and_then(|member| member.claim.as_ref());
        let replaced = known.zip(claim).is_some_and(|(known, claim)| *known != claim.uid);
        match self.data(memory, member) {
            Data::Blank => known.is_some(),
            Data::Unknown => {
                replaced
                    || claim.is_some_and(|claim| claim.lost)
                    || self.intent.requests.confirm_lost.contains(&member)
                    || self.found_no_data(member)
            }
            Data::Ours | Data::Foreign => replaced,
        }
    }

    /// Everything that the primary has: executed, being committed, and what it received before it became the primary. Read after
    /// the other members' replies.
    pub(super) fn lead(&self, memory: &Memory) -> Option<GtidSet> {
        let primary = memory.primary.filter(|primary| Some(*primary) == self.stored.primary)?;
        // An empty server would make everybody else's transactions look like their own.
        if self.data(memory, primary) != Data::Ours || self.is_lost(memory, primary) {
            return None;
        }
        let reply = self.reply(primary)?;
        Some(self.world.ahead.as_ref()?.union(&reply.received()))
    }

    /// What a member has and the primary does not. `None`: not known.
    pub(super) fn errant(&self, memory: &Memory, member: Ordinal) -> Option<GtidSet> {
        let lead = self.lead(memory)?;
        Some(self.reply(member)?.received().subtract(&lead))
    }

    /// It has this cluster's data and nothing that the primary lacks.
    pub(super) fn is_clean(&self, memory: &Memory, member: Ordinal) -> bool {
        self.data(memory, member) == Data::Ours
            && !memory.quarantine.contains_key(&member)
            && self.errant(memory, member).is_some_and(|errant| errant.is_empty())
    }

    /// The primary, if it replies and has the cluster's data.
    pub(super) fn primary(&self, memory: &Memory) -> Option<(Ordinal, &Reply)> {
        let primary = memory.primary?;
        let usable = self.data(memory, primary) == Data::Ours && !self.is_lost(memory, primary);
        Some((primary, self.reply(primary).filter(|_| usable)?))
    }

    /// What a member that is not the primary wrote itself in this epoch. Nothing of it was acknowledged: only the primary's own
    /// transactions are.
    pub(super) fn written_aside(&self, memory: &Memory, reply: &Reply) -> GtidSet {
        let own = reply.executed.of_source(reply.process.uuid);
        own.subtract(&memory.received_at_promotion).subtract(&memory.first())
    }

    /// Its channel leads to the primary, and both threads run.
    pub(super) fn follows(&self, memory: &Memory, member: Ordinal) -> bool {
        let Some((primary, reply)) = memory.primary.zip(self.reply(member)) else {
            return false;
        };
        let host = self.intent.host(primary);
        reply.read_only
            && reply
                .channel
                .as_ref()
                .is_some_and(|channel| channel.host == host && channel.receiver == Receiver::Running && channel.applier)
    }

    /// It follows, and lacks little of what the primary has.
    pub(super) fn has_caught_up(&self, memory: &Memory, member: Ordinal) -> bool {
        let lead = self.lead(memory);
        let missing = lead
            .zip(self.reply(member))
            .map(|(lead, reply)| lead.subtract(&reply.received()));
        self.follows(memory, member) && missing.is_some_and(|missing| missing.count() <= CAUGHT_UP)
    }

    /// It receives from the primary and acknowledges.
    pub(super) fn acknowledges(&self, memory: &Memory, member: Ordinal) -> bool {
        let acknowledging = self
            .reply(member)
            .is_some_and(|reply| reply.acknowledges && reply.acknowledging);
        acknowledging && self.follows(memory, member)
    }

    /// Why it is taken for unavailable: its process does not run, or it has not replied for `spec.failover.afterSeconds`. That proves
    /// nothing of the process.
    pub(super) fn away(&self, member: Ordinal) -> Option<String> {
        self.away_for(member, self.intent.failover_after)
    }

    pub(super) fn away_for(&self, member: Ordinal, after: Duration) -> Option<String> {
        let Some(observed) = self.member(member) else {
            return Some("its pod is gone".into());
        };
        let Server::NoReply(silence) = &observed.server else {
            return None;
        };
        let Some(pod) = &observed.pod else {
            return Some("its pod is gone".into());
        };
        if pod.node_ended {
            return Some("its node is gone".into());
        }
        if !pod.facts.running {
            return Some(match &pod.facts.blocked {
                Some(blocked) => format!("its container does not run: {}", blocked.reason),
                None => "its container does not run".into(),
            });
        }
        let long = silence.since.is_some_and(|since| elapsed(since, self.now) >= after);
        long.then(|| format!("it does not reply ({})", silence.reason))
    }

    /// How long until a member that does not reply counts as unavailable.
    pub(super) fn patience(&self, member: Ordinal) -> Option<Duration> {
        match &self.member(member)?.server {
            Server::NoReply(silence) if self.away(member).is_none() => {
                let waited = silence.since.map_or(Duration::ZERO, |since| elapsed(since, self.now));
                Some(self.intent.failover_after.saturating_sub(waited))
            }
            Server::NoReply(_) | Server::Reply(_) => None,
        }
    }

    /// Its receiver runs, whatever it receives.
    pub(super) fn receives(&self, member: Ordinal) -> bool {
        let channel = self.reply(member).and_then(|reply| reply.channel.as_ref());
        channel.is_some_and(|channel| channel.receiver == Receiver::Running) && !self.is_ending(member)
    }

    /// The primary lets it not connect. Its own word is not enough: another operator may still be about to start its receiver.
    pub(super) fn is_kept_from_acknowledging(&self, memory: &Memory, member: Ordinal) -> bool {
        let runs = self.reply(member).is_some_and(|reply| !reply.is_fenced());
        if runs || !self.stored.expelled.contains(&member) {
            return false;
        }
        let id = self.intent.server_id(member);
        let primary = memory.primary.and_then(|primary| self.reply(primary));
        primary.is_some_and(|primary| primary.locked.contains(&member) && !primary.source.connected.contains(&id))
    }

    /// Why a member does not reply, in words.
    pub(super) fn why_silent(&self, member: Ordinal) -> Option<String> {
        let name = self.name(member);
        let missing = format!("waiting until the pod {name} is created");
        let Some(observed) = self.member(member) else {
            return Some(missing);
        };
        let Server::NoReply(silence) = &observed.server else {
            return None;
        };
        let claim = observed.claim.as_ref().filter(|claim| !claim.bound);
        if let Some(problem) = claim.and_then(|claim| claim.problem.as_ref()) {
            return Some(format!("the claim of {name} is not bound: {problem}"));
        }
        let Some(pod) = &observed.pod else {
            return Some(missing);
        };
        if let Some(blocked) = &pod.facts.blocked {
            let exit = pod.facts.last_exit.as_ref();
            let last = exit
                .and_then(|exit| exit.message.trim().lines().last())
                .unwrap_or_default();
            let words = [blocked.reason.as_str(), blocked.message.as_str(), last];
            let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
            return Some(format!("{name} does not run: {}", words.join(": ")));
        }
        if !pod.facts.running {
            return Some(format!("waiting until {name} runs"));
        }
        Some(format!("{name} runs and does not reply: {}", silence.reason))
    }

    /// Its own transactions may be discarded once they are saved.
    pub(super) fn may_discard(&self, quarantine: &Quarantine, member: Ordinal) -> bool {
        quarantine.automatic || self.intent.requests.discard.contains(&member)
    }

    pub(super) fn version(&self, member: Ordinal) -> Option<MySQLVersion> {
        let said = self.reply(member).map(|reply| reply.version);
        said.or_else(|| self.pod(member)?.version)
    }

    /// A replica is never older than its primary.
    pub(super) fn may_follow_version(&self, member: Ordinal, primary: Ordinal) -> bool {
        match (self.version(member), self.version(primary)) {
            (Some(own), Some(of_primary)) => own >= of_primary,
            _ => false,
        }
    }

    /// The members that replied, without the primary.
    pub(super) fn others(&self, memory: &Memory) -> impl Iterator<Item = (Ordinal, &Reply)> {
        let primary = memory.primary;
        let members = self.world.members.iter();
        members
            .filter(move |(member, _)| Some(**member) != primary)
            .filter_map(|(member, observed)| Some((*member, observed.reply()?)))
    }

    /// The StatefulSet has a place for it.
    pub(super) fn has_place(&self, member: Ordinal) -> bool {
        self.world.set.as_ref().is_some_and(|set| member.0 < set.replicas)
    }
}

/// The primary's server takes writes.
pub(super) fn is_open(view: &View<'_>, round: &Round) -> bool {
    let primary = round.memory.primary;
    primary
        .and_then(|primary| view.reply(primary))
        .is_some_and(|reply| !reply.read_only)
}

pub(super) fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}
