//! etcd's alarms and the members' real data. Alarms belong to the cluster: they outlive their member and may name
//! member 0, which does not exist. NOSPACE stops all writes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use stateward_etcd::cluster::{Alarm, ClusterId, DataHash, Effect, Listed, MemberId, Plan, Reason, World, members};

use crate::queue::{Id, stamp};
use crate::raft::{Data, Rejected, What, voters};
use crate::rules::name;
use crate::sim::Sim;

/// The member that CORRUPT names where etcd cannot tell which member is wrong.
const NO_MEMBER: MemberId = MemberId(0);
/// A member that was removed long ago.
const REMOVED: MemberId = MemberId(0xdead);

impl Sim<'_> {
    pub(crate) fn raised(&self, cluster: u64, alarm: Alarm) -> bool {
        let alarms = self.alarms.get(&cluster);
        alarms.is_some_and(|alarms| alarms.iter().any(|(_, raised)| *raised == alarm))
    }

    /// The cluster's alarms as reported by the members that the operator reaches, and the hashes of their data.
    pub(crate) fn observe_alarms(&self, asked: &[Id], world: &mut World) {
        let reached = || asked.iter().filter(|process| self.operator_reaches(**process));
        for data in reached().filter_map(|process| self.data_of(*process)) {
            world
                .alarms
                .extend(self.alarms.get(&data.cluster).into_iter().flatten());
        }
        if world.list.is_some() && world.has_alarm(Alarm::Corrupt) {
            let hash = |process: &Id| Some((self.data_of(*process)?.id, self.hash_of(*process)?));
            world.hashes = reached().filter_map(hash).collect();
        }
    }

    /// The hash of a voter's data once it has applied every committed entry: etcd replies through its log before that.
    fn hash_of(&self, process: Id) -> Option<DataHash> {
        let data = self.data_of(process)?;
        let leader = self.leader_of(data.line())?;
        let reaches = leader == process || self.connected(process, leader);
        let applied = self
            .data_of(leader)
            .is_some_and(|known| known.committed == data.committed);
        let learner = data.conf.iter().any(|member| member.id == data.id && member.learner);
        if !reaches || !applied || learner || !self.raised(data.cluster, Alarm::Corrupt) {
            return None;
        }
        let writes = data.log.iter().filter(|entry| entry.what == What::Write).count();
        Some(DataHash {
            revision: writes as i64,
            compact_revision: 0,
            hash: data.content,
        })
    }

    /// The hashes of these members' data, of those that the operator reaches.
    pub(crate) fn hashes_of(&self, cluster: ClusterId, ids: &[MemberId]) -> BTreeMap<MemberId, DataHash> {
        let leader = self.leader_for_operator(cluster).ok();
        let line = leader.and_then(|leader| self.data_of(leader)).map(Data::line);
        let hash = |id: &MemberId| {
            let process = self.process_of(line?, *id)?;
            Some((*id, self.hash_of(process).filter(|_| self.operator_reaches(process))?))
        };
        ids.iter().filter_map(hash).collect()
    }

    pub(crate) fn disarm(&mut self, cluster: ClusterId, id: MemberId, alarm: Alarm) -> Result<(), Rejected> {
        self.leader_for_operator(cluster)?;
        if let Some(alarms) = self.alarms.get_mut(&cluster.0) {
            alarms.remove(&(id, alarm));
        }
        self.alarms.retain(|_, alarms| !alarms.is_empty());
        Ok(())
    }

    /// The data that more than half of the voters of the user's cluster have.
    pub(crate) fn content_of_majority(&self) -> Option<u32> {
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for data in voters(&self.truth.conf).filter_map(|line| self.data_of_member(line)) {
            *counts.entry(data.content).or_default() += 1;
        }
        let (content, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        (2 * count > voters(&self.truth.conf).count()).then_some(content)
    }

    fn data_of_member(&self, line: &Listed) -> Option<&Data> {
        let mut data = self.volumes.values().filter_map(|volume| volume.data.as_ref());
        data.find(|data| data.id == line.id)
    }

    /// This data differs from what the log says.
    pub(crate) fn is_wrong(data: &Data) -> bool {
        data.content != 0
    }

    /// etcd reports no member as ready while CORRUPT is raised.
    pub(crate) fn update_readiness(&mut self) {
        let changed: Vec<(Id, bool)> = self
            .processes
            .iter()
            .filter(|(_, process)| process.serves)
            .filter_map(|(id, _)| {
                let ready = !self.raised(self.data_of(*id)?.cluster, Alarm::Corrupt);
                let shown = self.kube.pod(*id)?.shown.ready;
                (shown != ready).then_some((*id, ready))
            })
            .collect();
        let since = stamp(self.now);
        for (id, ready) in changed {
            self.kube.change_pod(id, |pod| {
                pod.shown.ready = ready;
                pod.shown.ready_since = ready.then_some(since);
            });
        }
    }

    /// etcd raises an alarm, or another client does over its API: for a member, for a removed member, or for no member.
    /// In half of all cases there is a reason for CORRUPT.
    pub(crate) fn raise_alarm(&mut self, alarm: Alarm) {
        let Some((pod, volume)) = self.some_sealed() else {
            return;
        };
        // etcd 3.2 does not know CORRUPT.
        let known = self.processes.values().all(|process| process.version.minor() >= 3);
        let differs = alarm == Alarm::Corrupt && self.rng.per_mille(500);
        if alarm == Alarm::Corrupt && !known {
            return;
        }
        let leads = self
            .processes
            .iter()
            .find(|(_, process)| process.leads)
            .map(|(id, _)| *id);
        let Some(data) = self.volumes.get(&volume).and_then(|volume| volume.data.as_ref()) else {
            return;
        };
        let (cluster, own) = (data.cluster, data.id);
        if self.leader_of(data.line()).is_none() {
            return;
        }
        let of = *self.rng.pick(&[own, NO_MEMBER, REMOVED]).unwrap_or(&NO_MEMBER);
        self.raise(cluster, of, alarm);
        if differs {
            // The leader is as likely as all others together.
            let target = leads.filter(|_| self.rng.per_mille(300)).unwrap_or(pod);
            self.change_content(target);
        }
    }

    pub(crate) fn raise(&mut self, cluster: u64, of: MemberId, alarm: Alarm) {
        self.log(|| format!("fault: etcd raises {alarm} for {of}"));
        self.alarms.entry(cluster).or_default().insert((of, alarm));
    }

    /// Changes a member's data, unless a majority could then have wrong data.
    pub(crate) fn change_content(&mut self, pod: Id) {
        let Some(process) = self.processes.get(&pod).cloned() else {
            return;
        };
        if !self.may_lose(&[process.volume]) {
            return;
        }
        self.log(|| format!("fault: the data of {} changes", process.name));
        let content = self.rng.between(1, 3) as u32;
        if let Some(data) = self
            .volumes
            .get_mut(&process.volume)
            .and_then(|volume| volume.data.as_mut())
        {
            data.content = content;
        }
        self.judge_loss(false);
    }

    /// Rules about alarms, checked against the input of the plan and the real state.
    pub(crate) fn check_alarms(&mut self, world: &World, plan: &Plan) {
        if world.list.is_some() {
            let report = &plan.report;
            if !world.alarms.is_empty() && (report.available.holds || !report.degraded.holds) {
                self.break_rule(
                    name::ALARMED,
                    "an alarm is raised and the status says that the cluster is healthy",
                );
            }
            if report.available.reason == Reason::QuorumLost {
                self.break_rule(name::ALARMED, "a quorum replies and the status says that it is lost");
            }
        }
        let disarms = |effect: &Effect| {
            matches!(
                effect,
                Effect::Disarm {
                    alarm: Alarm::Corrupt,
                    ..
                }
            )
        };
        if plan.effects.iter().any(disarms) {
            self.check_agreement();
        }
    }

    /// An alarm is disarmed only while the voters' data agrees.
    pub(crate) fn check_agreement(&mut self) {
        let lines = voters(&self.truth.conf);
        let contents: BTreeSet<_> = lines
            .map(|line| self.data_of_member(line).map(|data| data.content))
            .collect();
        if contents.len() > 1 && !self.truth.majority_lost {
            self.break_rule(name::AGREEMENT, "CORRUPT is disarmed while members' data differs");
        }
    }

    /// What keeps a pod from running for long is reported, by the clock of the operator that observes it.
    pub(crate) fn check_reported(&mut self, world: &World, plan: &Plan, now: Timestamp) {
        let lasts = |pod: &stateward_etcd::cluster::Pod| {
            let blocked = pod.blocked.as_ref().filter(|_| !pod.terminating && !pod.ended);
            blocked.is_some_and(|blocked| {
                let since = blocked.since.filter(|_| blocked.reason != "CrashLoopBackOff");
                since.is_some_and(|since| members::elapsed(since, now) >= Duration::from_secs(10))
            })
        };
        if !plan.record.hibernating && world.pods.values().any(lasts) && !plan.report.degraded.holds {
            self.break_rule(
                name::REPORTED,
                "a pod has been blocked for ten seconds, and the status does not say so",
            );
        }
    }

    /// A member is added while CORRUPT is known: it will copy the leader's data.
    pub(crate) fn check_source(&mut self, world: &World, cluster: ClusterId) {
        let leader = self.leader_for_operator(cluster).ok();
        let leader = leader.and_then(|leader| self.data_of(leader));
        let (Some(leader), Some(right)) = (leader, self.content_of_majority()) else {
            return;
        };
        let wrong = leader.content != right;
        if wrong && world.has_alarm(Alarm::Corrupt) && !self.truth.majority_lost {
            self.break_rule(
                name::SOURCE,
                "a member is added that will copy what the majority does not have",
            );
        }
    }
}
