//! What was acknowledged is kept, and a history ends only with the user's consent.

use std::collections::BTreeSet;

use stateward_plan::etcd::{Intent, Recovery};

use super::name;
use crate::queue::Id;
use crate::raft::{What, voters};
use crate::sim::Sim;

impl Sim<'_> {
    /// A survivor is chosen: only with the user's consent, and only when the others cannot be a majority any more.
    pub(crate) fn check_recovery(&mut self, intent: &Intent) {
        if !matches!(intent.recovery, Recovery::FromSurvivor(_)) {
            self.break_rule(
                name::EVIDENCE,
                "a survivor is to become the cluster without the user's consent",
            );
        }
        self.check_majority_cannot_come_back();
        self.ledger.consented = true;
    }

    /// Those that are not lost for good must be fewer than a majority.
    pub(crate) fn check_majority_cannot_come_back(&mut self) {
        let all = voters(&self.ledger.conf).count();
        let could_come_back = voters(&self.ledger.conf)
            .filter(|line| {
                self.volumes.iter().any(|(id, volume)| {
                    let holds = volume
                        .data
                        .as_ref()
                        .is_some_and(|data| data.id == line.id && !Self::is_wrong(data));
                    let pod = self.kube.now.pods.values().find(|pod| pod.volume == Some(*id));
                    let on_a_dead_node = pod
                        .and_then(|pod| pod.node)
                        .or(volume.node)
                        .is_some_and(|node| !self.nodes[node].obeys());
                    holds && !volume.corrupt && !on_a_dead_node
                })
            })
            .count();
        if could_come_back > all / 2 && all > 0 {
            self.break_rule(
                name::EVIDENCE,
                format!("the cluster is to be recovered, but {could_come_back} of {all} can come back"),
            );
        }
    }

    /// A member was started as the only one of its cluster.
    pub(crate) fn history_was_ended(&mut self, process: Id) {
        let Some(state) = self
            .processes
            .get(&process)
            .filter(|state| state.owner == self.ledger.owner)
        else {
            return;
        };
        let member = state.name.clone();
        let others = self.ledger.conf.iter().filter(|line| !line.learner).count() > 1;
        if others && !self.ledger.consented {
            self.break_rule(name::WRITES, format!("{member} drops all others"));
            return;
        }
        self.ledger.consented = false;
        // From here on the survivor's history is the history.
        let Some(data) = self.data_of(process) else { return };
        let kept: BTreeSet<u32> = data.log.iter().map(|entry| entry.serial).collect();
        self.ledger.conf = data.conf.clone();
        self.ledger.acknowledged.retain(|write| kept.contains(write));
        self.ledger.majority_lost = false;
    }

    /// A new leader must have every write that was acknowledged.
    pub(crate) fn check_leader_has_everything(&mut self, leader: Id) {
        let ours = self
            .processes
            .get(&leader)
            .is_some_and(|process| process.owner == self.ledger.owner);
        if !ours || self.ledger.majority_lost {
            return;
        }
        let Some(data) = self.data_of(leader) else { return };
        if !self.ledger.founded.contains(&data.cluster) {
            return; // A restored one that another took the place of before it was the cluster.
        }
        let has = data
            .log
            .iter()
            .filter(|entry| entry.what == What::Write && self.ledger.acknowledged.contains(&entry.serial))
            .count();
        let (id, lost) = (data.id, self.ledger.acknowledged.len() - has);
        if lost > 0 {
            self.break_rule(
                name::WRITES,
                format!("the new leader {id} lacks {lost} acknowledged writes"),
            );
        }
    }

    /// Data is gone: is a majority of the voters' data gone with it?
    pub(crate) fn judge_loss(&mut self, by_operator: bool) {
        if self.ledger.majority_lost {
            return;
        }
        let conf = self.ledger.conf.clone();
        let all = voters(&conf).count();
        let lost = voters(&conf)
            .filter(|line| line.name.is_some() || self.ledger.took_part.contains(&line.id))
            .filter(|line| {
                !self.volumes.values().any(|volume| {
                    !volume.corrupt
                        && volume
                            .data
                            .as_ref()
                            .is_some_and(|data| data.id == line.id && !Self::is_wrong(data))
                })
            })
            .count();
        if all == 0 {
            // Nothing is committed yet: the founders are all there is.
            let lives = self
                .volumes
                .values()
                .filter(|volume| !volume.corrupt && volume.data.is_some())
                .count();
            self.ledger.majority_lost = !self.ledger.founders.is_empty() && lives <= self.ledger.founders.len() / 2;
            return;
        }
        if all - lost > all / 2 {
            return;
        }
        if by_operator {
            self.break_rule(
                name::WRITES,
                format!("the operator destroyed the data of {lost} of {all} voters"),
            );
        } else {
            self.tell(|| format!("a majority of volumes is lost: {lost} of {all}"));
            self.ledger.majority_lost = true;
        }
    }
}
