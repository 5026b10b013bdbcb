//! Clients: they write through the Service of the primary, or through connections that they already have, and remember which
//! transactions were acknowledged.

use super::rules::Moment;
use super::server::Ms;
use super::state::Sim;
use super::transactions::{Tx, Writer};
use crate::world::Role;

/// A client with one connection.
#[derive(Clone, Default)]
pub(super) struct Client {
    /// The process, and how many times its connections had been cut.
    connection: Option<(u32, u32)>,
    /// It waits for its commit.
    waits: bool,
    /// It does something then.
    next: Ms,
}

impl Sim<'_> {
    pub(super) fn tick_clients(&mut self) {
        for index in 0..self.clients.len() {
            self.tick_client(index);
        }
    }

    fn tick_client(&mut self, index: usize) {
        let Some(mut client) = self.clients.get(index).cloned() else {
            return;
        };
        let now = self.now;
        let alive = |(boot, sessions)| {
            let process = self.process(boot);
            process.is_some_and(|process| process.sessions == sessions)
        };
        if client.connection.is_some_and(|connection| !alive(connection)) {
            client.connection = None;
            client.waits = false;
        }
        let mut writes = None;
        if !client.waits && now >= client.next {
            client.next = now + self.rng.between(50, self.profile.client_pause);
            match client.connection {
                None => client.connection = self.by_service(),
                Some((boot, _)) => match self.process(boot) {
                    Some(process) if !process.replies(now) => {}
                    // A pool may keep it, and use it again when the server is writable.
                    Some(process) if process.read_only => {
                        client.connection = client.connection.filter(|_| !self.rng.per_mille(600));
                    }
                    Some(_) if !self.transactions.is_full() => {
                        client.waits = true;
                        writes = Some(boot);
                    }
                    _ => {}
                },
            }
        }
        if let Some(place) = self.clients.get_mut(index) {
            *place = client;
        }
        if let Some(boot) = writes {
            self.write(boot, Writer::Client, Some(index));
        }
    }

    /// A process that the Service of the primary leads to.
    fn by_service(&mut self) -> Option<(u32, u32)> {
        let pods = self.kube.pods.values();
        let pods = pods.filter(|pod| pod.shown.role == Some(Role::Primary) && pod.shown.facts.ready);
        let pods: Vec<u32> = pods.map(|pod| pod.id).collect();
        let pod = *self.rng.pick(&pods)?;
        let process = self.processes.iter().find(|process| process.pod == pod)?;
        let answers = process.replies(self.now);
        answers.then_some((process.boot, process.sessions))
    }

    /// A client's commit returned: the write must never be lost.
    pub(super) fn acknowledged(&mut self, client: usize, tx: Tx, boot: u32) {
        let Some(client) = self.clients.get_mut(client) else {
            return;
        };
        let sessions = self
            .processes
            .iter()
            .find(|process| process.boot == boot)
            .map(|process| process.sessions);
        if client
            .connection
            .is_none_or(|(to, at)| to != boot || Some(at) != sessions)
        {
            return; // nobody hears it
        }
        client.waits = false;
        self.truth.acknowledged.insert(tx);
        self.writes += 1;
        self.judge(&Moment::Acknowledged { tx, boot });
    }
}
