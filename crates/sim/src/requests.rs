//! etcd's replies to requests that change something, above all the member list (docs/etcd-facts.md is the source of
//! every rule here).

use stateward_etcd::cluster::{ClusterId, Listed, MemberId};

use crate::etcd::hash;
use crate::queue::{Id, Ms};
use crate::raft::{Change, Data, Rejected, What, voters};
use crate::sim::Sim;

/// How long every voter must have been connected before a member is added.
const HEALTH_INTERVAL: Ms = 5000;

impl Sim<'_> {
    fn change(&mut self, leader: Id, change: Change) -> Result<(), Rejected> {
        if self.change_pending(leader) {
            return Err("etcdserver: a configuration change is pending".into());
        }
        self.changes.push(change);
        if self.propose(leader, What::Change(self.changes.len() - 1)) {
            Ok(())
        } else {
            Err("etcdserver: request timed out".into())
        }
    }

    fn fully_connected(&self, leader: Id, data: &Data) -> bool {
        voters(&data.conf).filter(|member| member.id != data.id).all(|member| {
            self.connected_since(leader, member.id)
                .is_some_and(|since| since + HEALTH_INTERVAL <= self.now)
        })
    }

    pub(crate) fn add_member(&mut self, cluster: ClusterId, url: &str, learner: bool) -> Result<(), Rejected> {
        let leader = self.leader_for_operator(cluster)?;
        let data = self.data_of(leader).ok_or("no data")?;
        let minor = self.processes[&leader].version.minor();
        let oldest = self
            .processes
            .values()
            .filter(|process| process.serves)
            .map(|process| process.version.minor())
            .min();
        if data
            .conf
            .iter()
            .any(|member| member.peer_urls.iter().any(|known| known == url))
        {
            return Err("etcdserver: Peer URLs already exists".into());
        }
        if learner && oldest.is_some_and(|oldest| oldest < 4) {
            return Err("unknown field: isLearner".into());
        }
        let learners = data.conf.iter().filter(|member| member.learner).count();
        if learner && learners > 0 && minor < 6 {
            return Err("etcdserver: too many learner members in cluster".into());
        }
        if !learner {
            let started = voters(&data.conf).filter(|member| member.name.is_some()).count();
            let all = voters(&data.conf).count();
            if !(all == 1 && started == 1) && started < all.div_ceil(2) + 1 {
                return Err("etcdserver: re-configuration failed due to not enough started members".into());
            }
        }
        if !self.fully_connected(leader, data) {
            return Err("etcdserver: unhealthy cluster".into());
        }
        let id = MemberId(hash(&[url, &self.serial.to_string()]) >> 16);
        self.change(
            leader,
            Change::Add(Listed {
                id,
                name: None,
                peer_urls: vec![url.to_owned()],
                learner,
            }),
        )
    }

    pub(crate) fn promote(&mut self, cluster: ClusterId, id: MemberId) -> Result<(), Rejected> {
        let leader = self.leader_for_operator(cluster)?;
        let data = self.data_of(leader).ok_or("no data")?;
        let Some(member) = data.conf.iter().find(|member| member.id == id) else {
            return Err("etcdserver: member not found".into());
        };
        if !member.learner {
            return Err("etcdserver: can only promote a learner member".into());
        }
        let has = self
            .process_of(data.line(), id)
            .filter(|process| self.connected(leader, *process))
            .and_then(|process| self.data_of(process))
            .map_or(0, |data| data.log.len());
        if (has as f64) < data.log.len() as f64 * 0.9 {
            return Err("etcdserver: can only promote a learner member which is in sync with leader".into());
        }
        self.change(leader, Change::Promote(id))
    }

    pub(crate) fn remove_member(&mut self, cluster: ClusterId, id: MemberId) -> Result<(), Rejected> {
        let leader = self.leader_for_operator(cluster)?;
        let data = self.data_of(leader).ok_or("no data")?;
        let Some(member) = data.conf.iter().find(|member| member.id == id) else {
            return Err("etcdserver: member not found".into());
        };
        if !member.learner {
            let others: Vec<&Listed> = voters(&data.conf).filter(|other| other.id != id).collect();
            let started = others.iter().filter(|other| other.name.is_some()).count();
            if others.is_empty() || started < others.len() / 2 + 1 {
                return Err("etcdserver: re-configuration failed due to not enough started members".into());
            }
            let active = |other: &Listed| {
                other.id == data.id
                    || self
                        .connected_since(leader, other.id)
                        .is_some_and(|since| since + HEALTH_INTERVAL <= self.now)
            };
            let is_up = member.id == data.id || self.connected_since(leader, id).is_some();
            let up = voters(&data.conf).filter(|other| active(other)).count();
            if is_up && up.saturating_sub(1) < 1 + (voters(&data.conf).count() - 1) / 2 {
                return Err("etcdserver: unhealthy cluster".into());
            }
        }
        self.change(leader, Change::Remove(id))
    }

    pub(crate) fn update_url(&mut self, cluster: ClusterId, id: MemberId, url: &str) -> Result<(), Rejected> {
        let leader = self.leader_for_operator(cluster)?;
        self.change(leader, Change::Url(id, url.to_owned()))
    }

    pub(crate) fn move_leader(&mut self, cluster: ClusterId, from: MemberId, to: MemberId) -> Result<(), Rejected> {
        let leader = self.leader_for_operator(cluster)?;
        let data = self.data_of(leader).ok_or("no data")?;
        if data.id != from {
            return Err("etcdserver: not leader".into());
        }
        let voter = voters(&data.conf).any(|member| member.id == to);
        let target = self
            .process_of(data.line(), to)
            .filter(|target| self.connected(leader, *target));
        let (true, Some(target)) = (voter, target) else {
            return Err("etcdserver: bad leader transferee".into());
        };
        if self.processes[&target].slow_until > self.now {
            return Err("etcdserver: request timed out, leader transfer took too long".into());
        }
        self.replicate(leader);
        if self.transfer_leadership(leader, target) {
            Ok(())
        } else {
            Err("etcdserver: request timed out, leader transfer took too long".into())
        }
    }
}
