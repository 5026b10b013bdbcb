//! A cluster that somebody else made: members that no pod belongs to, which the user's cluster is to take over.

use std::collections::BTreeSet;

use stateward_plan::etcd::{Intent, MemberName, World};

use crate::queue::Id;
use crate::sim::{Process, Sim, Volume};

/// How names of such members begin: they have addresses of another service.
pub(crate) const OLD: &str = "old-";

/// The endpoint under which such a member is asked.
pub(crate) fn endpoint(name: &MemberName) -> String {
    format!("http://{name}.old.default.svc:2379")
}

impl Sim<'_> {
    /// Such members are heard by their endpoints.
    pub(crate) fn hear_elsewhere(&self, intent: &Intent, world: &mut World, asked: &mut Vec<Id>) {
        for (id, process) in &self.processes {
            let name = endpoint(&process.name);
            if process.name.0.starts_with(OLD) && intent.adopt.contains(&name) {
                world.voices.insert(MemberName(name), self.ask(*id));
                asked.push(*id);
            }
        }
    }

    /// Starts such a cluster.
    #[cfg_attr(not(test), allow(dead_code))]
    pub(crate) fn found_elsewhere(&mut self, names: &[MemberName], version: &stateward_api::EtcdVersion) {
        let owner = self.ledger.owner;
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
            self.found(owner, name, volume, "old", names);
        }
    }
}
