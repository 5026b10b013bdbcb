//! What goes wrong.

use super::server::Ms;
use super::state::{NODES, Sim};
use super::transactions::Writer;
use crate::world::Ordinal;

/// A fault that passes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Repair {
    NodeUp(usize),
    NodeJoins(usize),
    Link(usize, usize),
}

impl Sim<'_> {
    /// A member, the primary more often than others.
    pub(super) fn any_member(&mut self) -> Ordinal {
        let primary = self.truth.memory.primary.filter(|_| self.rng.per_mille(450));
        let all: Vec<Ordinal> = self.kube.pods.keys().copied().collect();
        primary.or(self.rng.pick(&all).copied()).unwrap_or_default()
    }

    fn node_of(&mut self) -> usize {
        let member = self.any_member();
        let node = self.kube.pods.get(&member).and_then(|pod| pod.node);
        node.unwrap_or(0)
    }

    pub(super) fn fault(&mut self) {
        if self.profile.edits && (!self.profile.infrastructure || self.rng.per_mille(400)) {
            return self.user_edits();
        }
        if self.profile.infrastructure {
            self.break_something();
        }
        self.news = true;
        self.changed = true;
    }

    fn break_something(&mut self) {
        match self.rng.between(0, 24) {
            0..=4 => {
                let member = self.any_member();
                self.kill(member);
            }
            5..=7 => {
                let member = self.any_member();
                self.log(|| format!("somebody deletes the pod of {member}"));
                self.terminate_pod(member);
            }
            8 | 9 => self.freeze(),
            10 => self.slow_appliers(),
            11 | 12 => self.node_down(),
            13 | 14 => self.isolate(),
            15 | 16 => self.cut_links(),
            17 | 18 => {
                let member = self.any_member();
                self.lose_volume(member);
            }
            19 => {
                let crashed = usize::from(self.rng.per_mille(500));
                self.crash_operator(crashed);
            }
            20 | 21 => self.pass_leadership(),
            22 if self.profile.intruders => {
                let member = self.any_member();
                self.intrude(member);
            }
            23 => {
                self.log(|| "every server is killed".into());
                let all: Vec<Ordinal> = self.kube.pods.keys().copied().collect();
                for member in all {
                    self.kill(member);
                }
            }
            24 => {
                self.log(|| "certificates are due".into());
                self.kube.tls.due = true;
            }
            _ => self.fill_a_volume(),
        }
    }

    pub(super) fn kill(&mut self, member: Ordinal) {
        if let Some(boot) = self.by_host(member) {
            self.log(|| format!("mysqld b{boot} of {member} is killed"));
            self.end_process(boot);
        }
    }

    fn freeze(&mut self) {
        let (member, long) = (self.any_member(), self.rng.between(200, 9000));
        let until = self.now + long;
        if let Some(boot) = self.by_host(member)
            && let Some(process) = self.process_mut(boot)
        {
            process.frozen_until = until;
            self.log(|| format!("mysqld b{boot} of {member} hangs for {long} ms"));
        }
    }

    fn slow_appliers(&mut self) {
        let until = self.now + self.rng.between(1000, 15_000);
        let all = self.rng.per_mille(300);
        let one = self.any_member();
        self.log(|| format!("the applier of {one} is slow; of all: {all}"));
        for process in &mut self.processes {
            if all || process.member == one {
                process.slow_until = until;
            }
        }
    }

    fn node_down(&mut self) {
        let node = self.node_of();
        let gone = self.rng.per_mille(400);
        self.log(|| format!("node {node} ends, for good: {gone}"));
        let there: Vec<u32> = self
            .processes
            .iter()
            .filter(|process| process.node == node)
            .map(|process| process.boot)
            .collect();
        for boot in there {
            self.end_process(boot);
        }
        let back = self.now + self.rng.between(1000, 25_000);
        if let Some(one) = self.nodes.get_mut(node) {
            one.up = false;
        }
        if gone {
            // The machine ended, and later its node object says so.
            let told = self.now + self.rng.between(500, 15_000);
            self.repairs.push((told, Repair::NodeJoins(node)));
        }
        self.repairs
            .push((back.max(self.now + 16_000 * Ms::from(gone)), Repair::NodeUp(node)));
    }

    /// A node that runs on, and that others do not reach.
    fn isolate(&mut self) {
        let node = self.node_of();
        let until = self.now + self.rng.between(500, 20_000);
        let (from_api, from_operators, from_nodes) = (
            self.rng.per_mille(600),
            self.rng.per_mille(800),
            self.rng.per_mille(500),
        );
        self.log(|| {
            format!("node {node} is cut off: API {from_api}, operators {from_operators}, other nodes {from_nodes}")
        });
        if from_api && let Some(one) = self.nodes.get_mut(node) {
            one.cut = true;
            self.repairs.push((until, Repair::NodeUp(node)));
        }
        let operators = (NODES..NODES + 2).filter(|_| from_operators);
        let nodes = (0..NODES).filter(|other| from_nodes && *other != node);
        let others: Vec<usize> = operators.chain(nodes).collect();
        for other in others {
            self.cut(other, node, until);
            self.cut(node, other, until);
        }
    }

    fn cut_links(&mut self) {
        for _ in 0..self.rng.between(1, 3) {
            let (one, other) = (self.node_of(), self.node_of());
            let until = self.now + self.rng.between(300, 12_000);
            self.log(|| format!("nothing gets from node {one} to node {other}"));
            if one != other {
                self.cut(one, other, until);
            }
        }
    }

    fn cut(&mut self, from: usize, to: usize, until: Ms) {
        if let Some(cut) = self.cuts.get_mut(from).and_then(|row| row.get_mut(to)) {
            *cut = true;
            self.repairs.push((until, Repair::Link(from, to)));
        }
    }

    /// The volume of a member is lost, if the durability that is recorded allows it: one member less than all that hold an
    /// acknowledged write.
    pub(super) fn lose_volume(&mut self, member: Ordinal) {
        let memory = self.truth.memory.clone();
        let holds = memory.ackers.contains(&member) || memory.primary == Some(member);
        let weak = |one: &&Ordinal| {
            let claim = self.kube.claims.get(one);
            let same = claim.is_some_and(|claim| memory.claims.get(one) == Some(&claim.shown.uid));
            let whole = self.data_of(**one).is_some_and(|data| !data.hollow);
            **one != member && !(same && whole)
        };
        let already = memory.ackers.iter().chain(&memory.primary).filter(weak).count();
        let allowed = usize::try_from(memory.acks).unwrap_or(0);
        let changes = memory.failover.is_some() || memory.switchover.is_some() || memory.pending.is_some();
        let allowed = memory.founded() && memory.established() && !changes && already < allowed;
        if holds && !allowed || !holds && !memory.founded() {
            return;
        }
        let Some(claim) = self.kube.claims.get(&member).map(|claim| claim.volume) else {
            return;
        };
        let by_user = self.rng.per_mille(400);
        self.log(|| format!("the volume of {member} is lost, deleted by somebody: {by_user}"));
        let boot = self
            .processes
            .iter()
            .find(|process| process.volume == claim)
            .map(|process| process.boot);
        if let Some(boot) = boot {
            self.end_process(boot);
        }
        if let Some(volume) = self.volumes.get_mut(claim) {
            volume.lost = true;
        }
        if let Some(claim) = self.kube.claims_mut().get_mut(&member) {
            claim.shown.lost = !by_user;
            claim.shown.terminating |= by_user;
        }
        if by_user {
            self.terminate_pod(member);
        }
        self.news = true;
        self.changed = true;
    }

    /// Somebody writes on a replica, past its being read-only.
    pub(super) fn intrude(&mut self, member: Ordinal) {
        if self.truth.memory.primary == Some(member) {
            return; // What the primary has is the cluster's.
        }
        let Some(boot) = self.by_host(member) else { return };
        let Some(process) = self.process(boot) else { return };
        let founded = self
            .data(boot)
            .is_some_and(|data| data.cluster.is_some() && !data.hollow);
        if !founded || !process.read_only || process.waits || process.clone.is_some() || self.transactions.is_full() {
            return;
        }
        self.log(|| format!("somebody writes on {member}"));
        self.write(boot, Writer::Intruder, None);
    }

    fn fill_a_volume(&mut self) {
        let member = self.any_member();
        let Some(claim) = self.kube.claims.get(&member).map(|claim| claim.volume) else {
            return;
        };
        if let Some(volume) = self.volumes.get_mut(claim) {
            volume.ballast = volume.bytes / 100 * 78;
        }
    }

    pub(super) fn tick_repairs(&mut self) {
        let now = self.now;
        let due: Vec<Repair> = self
            .repairs
            .iter()
            .filter(|(at, _)| *at <= now)
            .map(|(_, repair)| *repair)
            .collect();
        if due.is_empty() {
            return;
        }
        self.repairs.retain(|(at, _)| *at > now);
        for repair in due {
            self.repair(repair);
        }
        self.news = true;
    }

    fn repair(&mut self, repair: Repair) {
        match repair {
            Repair::NodeUp(node) => {
                let was_gone = self.nodes.get(node).is_some_and(|node| node.gone);
                if was_gone {
                    // Another machine takes the place: nothing of the old one is there.
                    let pods: Vec<Ordinal> = self
                        .kube
                        .pods
                        .iter()
                        .filter(|(_, pod)| pod.node == Some(node))
                        .map(|(member, _)| *member)
                        .collect();
                    for member in pods {
                        self.remove_pod(member);
                    }
                }
                if let Some(one) = self.nodes.get_mut(node) {
                    one.up = true;
                    one.cut = false;
                    one.gone = false;
                }
                std::rc::Rc::make_mut(&mut self.kube.ended_nodes).remove(&node);
            }
            Repair::NodeJoins(node) => {
                if let Some(one) = self.nodes.get_mut(node).filter(|one| !one.up) {
                    one.gone = true;
                    std::rc::Rc::make_mut(&mut self.kube.ended_nodes).insert(node);
                }
            }
            Repair::Link(from, to) => {
                if let Some(cut) = self.cuts.get_mut(from).and_then(|row| row.get_mut(to)) {
                    *cut = false;
                }
            }
        }
    }

    /// Faults stop, and what is broken is repaired.
    pub(super) fn heal(&mut self) {
        self.log(|| "faults stop".into());
        self.calm = true;
        self.calm_since = self.now;
        let repairs = std::mem::take(&mut self.repairs);
        for (_, repair) in repairs {
            if !matches!(repair, Repair::NodeJoins(_)) {
                self.repair(repair);
            }
        }
        for process in &mut self.processes {
            process.frozen_until = 0;
            process.slow_until = 0;
        }
        for volume in &mut self.volumes {
            volume.ballast = 0;
        }
        self.yields.clear();
        let leader = usize::from(!self.operators.first().is_some_and(|first| first.leads));
        for index in 0..self.operators.len() {
            if self.operators.get(index).is_some_and(|operator| !operator.alive) {
                self.revive_operator(index);
            }
            if let Some(operator) = self.operators.get_mut(index) {
                operator.leads = index == leader;
            }
        }
        self.user_heals();
    }
}
