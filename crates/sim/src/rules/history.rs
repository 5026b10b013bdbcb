//! Acknowledged writes are kept, and a history ends only with the user's consent.

use std::collections::BTreeSet;

use stateward_etcd::cluster::{Intent, MemberName, Record, Recovering, Recovery, Uid};

use super::name;
use crate::kube::node_name;
use crate::queue::Id;
use crate::raft::{Data, What, voters};
use crate::sim::Sim;

impl Sim<'_> {
    /// A survivor is chosen: only with the user's consent, and only when the others cannot be a majority any more.
    pub(crate) fn check_recovery(&mut self, intent: &Intent, recovering: Option<&Recovering>) {
        self.check_consent(intent);
        self.check_majority_cannot_come_back();
        self.check_delay(intent);
        if let Some(recovering) = recovering {
            self.check_survivor(recovering);
        }
        self.truth.consented = true;
    }

    fn check_consent(&mut self, intent: &Intent) {
        if !matches!(intent.recovery, Recovery::FromSurvivor(_)) {
            self.break_rule(
                name::EVIDENCE,
                "a survivor is to become the cluster without the user's consent",
            );
        }
    }

    /// The survivor is about to be started as the only member: the user may have changed their mind since it was chosen.
    pub(crate) fn check_consent_lasts(&mut self, intent: &Intent, before: &Record, after: &Record) {
        let started = |record: &Record| record.recovery.as_ref().is_some_and(|recovery| recovery.started);
        if !started(before) && started(after) {
            self.check_consent(intent);
        }
    }

    /// No member that the operator reaches knows more entries to be committed.
    fn check_survivor(&mut self, recovering: &Recovering) {
        let known = self.processes.iter().filter(|(id, _)| self.operator_reaches(**id));
        let known: Vec<(MemberName, usize)> = known
            .filter(|(_, process)| process.owner == self.truth.owner)
            .filter_map(|(id, process)| {
                let data = self.data_of(*id)?;
                let votes = voters(&self.truth.conf).any(|line| line.id == data.id);
                (votes && !Self::is_wrong(data)).then(|| (process.name.clone(), data.committed))
            })
            .collect();
        let has = known.iter().find(|(name, _)| *name == recovering.survivor);
        let has = has.map_or(0, |(_, committed)| *committed);
        if let Some((name, more)) = known.iter().find(|(_, committed)| *committed > has) {
            let survivor = &recovering.survivor;
            let what = format!("{survivor} with {has} entries is chosen, and {name} has {more}");
            self.break_rule(name::SURVIVOR, what);
        }
    }

    /// `delaySeconds` have passed, by a clock that is right.
    pub(crate) fn check_delay(&mut self, intent: &Intent) {
        let (Recovery::FromSurvivor(delay) | Recovery::FromBackup(delay)) = intent.recovery else {
            return;
        };
        let waited = self.truth.quorum_lost.map(|since| self.now - since);
        if waited.is_none_or(|waited| u128::from(waited) < delay.as_millis()) {
            let what = format!("the cluster is to be recovered after {waited:?} ms, and not {delay:?}");
            self.break_rule(name::DELAY, what);
        }
    }

    /// When the record began to contain the times from which timers count.
    pub(crate) fn note_times(&mut self, before: &Record, after: &Record) {
        if before.quorum_lost != after.quorum_lost {
            self.truth.quorum_lost = after.quorum_lost.map(|_| self.now);
        }
        if after.old_claims.is_some() && before.old_claims.is_none() {
            self.truth.claims_kept = Some(self.now);
        }
    }

    /// Old claims are kept for as long as the user wants.
    pub(crate) fn check_claim_is_not_kept(&mut self, member: &MemberName, uid: &Uid) {
        let Some((intent, record)) = self.present() else { return };
        let old = record.old_claims.as_ref();
        let is_old = old.is_some_and(|old| old.claims.iter().any(|(name, of)| name == member && of == uid));
        let keep = intent.keep_old_claims;
        let kept = self.truth.claims_kept.map_or(0, |since| self.now - since);
        if is_old && u128::from(kept) < keep.as_millis() {
            let what = format!("the claim of {member} is deleted after {kept} ms, and not {keep:?}");
            self.break_rule(name::OLD_CLAIMS, what);
        }
    }

    /// Checked when a new cluster begins: every process of the old one must have ended, wherever it ran and whatever
    /// the API shows.
    pub(crate) fn check_no_other_member_runs(&mut self, process: Id) {
        let line = self.data_of(process).map(Data::line);
        let other = self.processes.iter().find(|(id, other)| {
            **id != process
                && other.owner == self.truth.owner
                && self.data_of(**id).is_some_and(|data| Some(data.line()) != line)
        });
        if let Some((_, other)) = other {
            let what = format!("{} still runs on {}", other.name, node_name(other.node));
            self.break_rule(name::ONE_CLUSTER, what);
        }
    }

    /// Several histories have a leader that can commit: each acknowledges writes that the others do not have.
    pub(crate) fn check_one_cluster(&mut self, leaders: &[Id]) {
        let lines = leaders.iter().filter_map(|id| Some(self.data_of(*id)?.line()));
        let lines: Vec<_> = lines.filter(|line| !self.truth.dismissed.contains(line)).collect();
        if lines.len() > 1 {
            let names: Vec<String> = leaders.iter().map(|id| self.processes[id].name.0.clone()).collect();
            self.break_rule(name::ONE_CLUSTER, format!("led by {}", names.join(" and by ")));
        }
    }

    /// The members that are not lost for good must be fewer than a majority. An unavailable node proves nothing.
    pub(crate) fn check_majority_cannot_come_back(&mut self) {
        let confirmed = self.present().map(|(intent, _)| intent.confirmed_lost.clone());
        let confirmed = confirmed.unwrap_or_default();
        let all = voters(&self.truth.conf).count();
        let could_come_back = voters(&self.truth.conf)
            .filter(|line| line.name.as_ref().is_none_or(|name| !confirmed.contains(name)))
            .filter(|line| {
                self.volumes.values().any(|volume| {
                    let data = volume.data.as_ref().filter(|_| !volume.corrupt);
                    let holds = data.is_some_and(|data| data.id == line.id && !Self::is_wrong(data));
                    holds && self.is_led_to(volume)
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

    /// A claim, a pod or a process uses the volume: otherwise it cannot be found any more.
    fn is_led_to(&self, volume: &crate::sim::Volume) -> bool {
        let is_it = |id: Id| self.volumes.get(&id).is_some_and(|other| std::ptr::eq(other, volume));
        let claims = self
            .kube
            .now
            .claims
            .values()
            .filter(|claim| !claim.shown.terminating && !claim.shown.lost);
        claims.filter_map(|claim| claim.volume).any(is_it)
            || self.kube.now.pods.values().filter_map(|pod| pod.volume).any(is_it)
            || self.processes.values().any(|process| is_it(process.volume))
    }

    /// A member was started as the only one of its cluster.
    pub(crate) fn history_was_ended(&mut self, process: Id) {
        let Some(state) = self
            .processes
            .get(&process)
            .filter(|state| state.owner == self.truth.owner)
        else {
            return;
        };
        let member = state.name.clone();
        self.check_no_other_member_runs(process);
        let others = self.truth.conf.iter().filter(|line| !line.learner).count() > 1;
        if others && !self.truth.consented {
            self.break_rule(name::WRITES, format!("{member} drops all others"));
            return;
        }
        self.truth.consented = false;
        // From here on only the survivor's history counts.
        let Some(data) = self.data_of(process) else { return };
        let kept: BTreeSet<u32> = data.log.iter().map(|entry| entry.serial).collect();
        let (conf, line) = (data.conf.clone(), data.line());
        self.truth.conf = conf;
        self.truth.line = Some(line);
        self.truth.acknowledged.retain(|write| kept.contains(write));
        self.truth.majority_lost = false;
    }

    /// A new leader must have every acknowledged write.
    pub(crate) fn check_leader_has_everything(&mut self, leader: Id) {
        let ours = self
            .processes
            .get(&leader)
            .is_some_and(|process| process.owner == self.truth.owner);
        if !ours || self.truth.majority_lost {
            return;
        }
        let Some(data) = self.data_of(leader) else { return };
        if !self.truth.bootstrapped.contains(&data.cluster) || self.truth.line.is_some_and(|line| line != data.line()) {
            return; // A restored one that another took the place of before it was the cluster.
        }
        let has = data
            .log
            .iter()
            .filter(|entry| entry.what == What::Write && self.truth.acknowledged.contains(&entry.serial))
            .count();
        let (id, lost) = (data.id, self.truth.acknowledged.len() - has);
        if lost > 0 {
            self.break_rule(
                name::WRITES,
                format!("the new leader {id} lacks {lost} acknowledged writes"),
            );
        }
    }

    /// Data was lost: was the data of a majority of the voters lost?
    pub(crate) fn judge_loss(&mut self, by_operator: bool) {
        if self.truth.majority_lost {
            return;
        }
        let conf = self.truth.conf.clone();
        let all = voters(&conf).count();
        let lost = voters(&conf)
            .filter(|line| line.name.is_some() || self.truth.took_part.contains(&line.id))
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
            // Nothing is committed yet: the bootstrap members are all there is.
            let lives = self
                .volumes
                .values()
                .filter(|volume| !volume.corrupt && volume.data.is_some())
                .count();
            self.truth.majority_lost =
                !self.truth.bootstrap_members.is_empty() && lives <= self.truth.bootstrap_members.len() / 2;
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
            self.log(|| format!("a majority of volumes is lost: {lost} of {all}"));
            self.truth.majority_lost = true;
        }
    }
}
