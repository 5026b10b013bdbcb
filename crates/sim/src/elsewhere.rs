//! A cluster that something else created: its members have no pods, and the user's cluster is to adopt it.

use std::collections::BTreeSet;

use stateward_etcd::cluster::{Intent, MemberName, World};

use crate::queue::Id;
use crate::sim::{Process, Sim, Volume};

/// The prefix of such members' names. Their addresses belong to another service.
pub(crate) const OLD: &str = "old-";

/// The client endpoint of such a member.
pub(crate) fn endpoint(name: &MemberName) -> String {
    format!("http://{name}.old.default.svc:2379")
}

impl Sim<'_> {
    /// Probes such members at their endpoints.
    pub(crate) fn probe_elsewhere(&self, intent: &Intent, world: &mut World, asked: &mut Vec<Id>) {
        for (id, process) in &self.processes {
            let name = endpoint(&process.name);
            if process.name.0.starts_with(OLD) && intent.adopt.contains(&name) {
                world.probes.insert(MemberName(name), self.probe(*id));
                asked.push(*id);
            }
        }
    }

    #[cfg_attr(not(test), allow(dead_code))]
    pub(crate) fn create_elsewhere(&mut self, names: &[MemberName], version: &stateward_etcd::api::EtcdVersion) {
        let owner = self.truth.owner;
        for (index, name) in names.iter().enumerate() {
            let (id, volume) = (self.kube.new_id(), self.kube.new_id());
            self.volumes.insert(volume, Volume::default());
            self.incarnations += 1;
            let process = Process {
                owner,
                name: name.clone(),
                node: index % self.nodes.len(),
                volume,
                version: version.clone(),
                incarnation: self.incarnations,
                joins: false,
                serves: true,
                leads: false,
                hung: false,
                orphan: false,
                up_since: self.now,
                frozen_until: 0,
                slow_until: 0,
                crashes_until: 0,
                trusts: BTreeSet::new(),
                shows: BTreeSet::new(),
            };
            self.processes.insert(id, process);
            self.bootstrap(owner, name, volume, "old", names);
        }
    }
}
