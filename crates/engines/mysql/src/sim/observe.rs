//! What a server replies to an operator, and what an operator makes of no reply.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::kube::Kube;
use super::server::Asked;
use super::state::{NODES, Sim};
use crate::world::{NoReply, Ordinal, Reply, Server};
use crate::{Intent, Memory, World};

impl Sim<'_> {
    /// What the operator knows: objects from its caches, and what servers say now.
    pub(super) fn observe(
        &mut self,
        index: usize,
        cache: &Kube,
        intent: &Intent,
        memory: &Memory,
        clock: Timestamp,
    ) -> World {
        let mut world = World {
            objects: cache.objects.as_ref().clone(),
            set: cache.set.as_ref().map(|set| set.shown.clone()),
            secrets: cache.secrets.clone(),
            tls: cache.tls.clone(),
            backup: cache.backup.clone(),
            ..World::default()
        };
        for member in (0..intent.size)
            .map(Ordinal)
            .chain(cache.pods.keys().copied())
            .chain(cache.claims.keys().copied())
        {
            world.members.entry(member).or_default();
        }
        for (member, pod) in cache.pods.iter() {
            let Some(one) = world.members.get_mut(member) else {
                continue;
            };
            let mut shown = pod.shown.clone();
            shown.node_ended = pod.node.is_some_and(|node| cache.ended_nodes.contains(&node));
            one.pod = Some(shown);
        }
        for (member, claim) in cache.claims.iter() {
            if let Some(one) = world.members.get_mut(member) {
                one.claim = Some(claim.shown.clone());
                one.owned = claim.owned;
            }
        }
        let mut order: Vec<Ordinal> = world.members.keys().copied().collect();
        let first = self.rng.between(0, order.len().max(1) as u64 - 1);
        order.rotate_left(usize::try_from(first).unwrap_or(0));
        for member in order {
            let reply = cache.pods.get(&member).and_then(|pod| self.ask(index, pod.id, intent));
            let server = self.heard(index, member, reply, clock);
            if let Some(one) = world.members.get_mut(&member) {
                one.server = server;
            }
        }
        let primary = memory
            .primary
            .and_then(|primary| cache.pods.get(&primary))
            .map(|pod| pod.id);
        let ahead = primary.and_then(|pod| self.ask(index, pod, intent));
        world.ahead = ahead.map(|reply| reply.executed.union(&reply.owned));
        world
    }

    /// Asks the server of a pod.
    pub(super) fn ask(&mut self, operator: usize, pod: u32, intent: &Intent) -> Option<Reply> {
        let process = self.processes.iter().find(|process| process.pod == pod)?;
        if !process.replies(self.now) || !self.linked(NODES + operator, process.node) {
            return None;
        }
        let (boot, receiver) = (process.boot, process.receiver_state());
        // The state of the receiver is read before the GTID sets; servers do not wait for that.
        if !self.calm && self.rng.per_mille(50) {
            self.tick_servers();
        }
        let process = self.process(boot)?;
        let volume = self.volumes.get(process.volume)?;
        let id = |member: Ordinal| intent.server_id(member);
        let connected: BTreeSet<u32> = self
            .processes
            .iter()
            .filter(|other| {
                let connection = other.receiver.as_ref().and_then(|receiver| receiver.connection);
                connection.is_some_and(|(to, _)| to == boot)
            })
            .map(|other| id(other.member))
            .collect();
        let asked = Asked {
            process,
            volume,
            all: &self.transactions,
            receiver,
            connected,
            host: volume.data.source.map(|source| intent.host(source)),
            server_id: id(process.member),
            lag: Some(if process.slow_until > self.now { 30 } else { 0 }),
            now: self.now,
            old_passwords: self.old_passwords,
        };
        Some(asked.reply())
    }

    /// Since when a server has not replied is only known to the operator that asked it.
    pub(super) fn heard(&mut self, index: usize, member: Ordinal, reply: Option<Reply>, clock: Timestamp) -> Server {
        let Some(operator) = self.operators.get_mut(index) else {
            return Server::default();
        };
        match reply {
            Some(reply) => {
                operator.silent.remove(&member);
                Server::Reply(Box::new(reply))
            }
            None => Server::NoReply(NoReply {
                since: Some(*operator.silent.entry(member).or_insert(clock)),
                reason: "timed out".into(),
            }),
        }
    }
}
