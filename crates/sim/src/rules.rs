//! The rules that no plan may break (design.md), checked on every plan and on every effect, by what really is.

use std::collections::BTreeSet;
use std::rc::Rc;

use stateward_plan::etcd::{
    Alarm, ClusterId, Effect, Intent, Launch, Listed, MemberId, MemberName, Plan, Record, Recovery, Stop, Voice, World,
    members,
};

use crate::kube::{Cluster, node_name};
use crate::operator::by_name;
use crate::queue::{Id, stamp};
use crate::raft::{What, voters};
use crate::sim::Sim;

/// The names of the rules, as tests and stories name them.
pub(crate) mod name {
    pub(crate) const QUORUM: &str = "rule 1: never fewer voters than a quorum while something safer exists";
    pub(crate) const ONE_CHANGE: &str = "rule 2: one membership change at a time";
    pub(crate) const ONE_BOOTSTRAP: &str = "rule 3: a cluster is bootstrapped once";
    pub(crate) const DATA: &str = "rule 4: data is deleted only when its member is out of the list";
    pub(crate) const EVIDENCE: &str = "rule 5: destruction rests on evidence";
    pub(crate) const NO_RESTART: &str = "rule 6: members are not restarted without a reason";
    pub(crate) const WORDS: &str = "rule 7: every wait has a reason";
    pub(crate) const PAUSED: &str = "a paused cluster is not touched";
    pub(crate) const LEADER: &str = "the leader is not removed or restarted while another choice exists";
    pub(crate) const STRANGERS: &str = "members that are not ours are never removed";
    pub(crate) const MEMORY: &str = "a member never comes back without its memory";
    pub(crate) const WRITES: &str = "no acknowledged write is lost while a majority of volumes lived";
    pub(crate) const RESTORE_ONCE: &str = "an EtcdRestore is followed once";
    pub(crate) const RESTORE_PROVEN: &str = "without a proven backup nothing is touched";
    pub(crate) const RESTORE_FENCED: &str = "old members never take part beside or in the new cluster";
    pub(crate) const RESTORE_WHOLE: &str = "a restored cluster has every write of its backup";
    pub(crate) const CRASHES: &str = "a member that crashes like its predecessor is not replaced again soon";
    pub(crate) const VERSIONS: &str = "no member runs more than one minor version ahead of the cluster's version";
    pub(crate) const TRUST: &str = "no running member meets a peer that it cannot verify";
    pub(crate) const CONVERGES: &str = "once faults stop the cluster comes to match the spec and stays so";
}

/// What one member says in this round: it serves as the member the list knows.
fn healthy(world: &World, member: &MemberName, listed: &Listed) -> bool {
    matches!(world.voices.get(member), Some(Voice::Answered(answer)) if answer.leader.is_some() && answer.id == listed.id)
}

impl Sim<'_> {
    /// Rules that can be judged from the plan and what it was made from.
    pub(crate) fn check_plan(&mut self, intent: &Intent, record: &Record, world: &World, plan: &Plan) {
        let listed = by_name(world, intent);
        let list_leader = world.list.as_ref().and_then(|list| list.leader);
        let all_voters = world.list.as_ref().map_or(0, |list| list.voters().count());
        let quorum = all_voters / 2 + 1;
        // etcd 3.2 knows no call that hands leadership over.
        let can_hand_over = |member: &MemberName| match world.voices.get(member) {
            Some(Voice::Answered(answer)) => answer.version.at_least(3, 3, 0),
            _ => true,
        };
        let is_healthy_voter = |name: &MemberName| {
            listed
                .get(name)
                .is_some_and(|line| !line.learner && healthy(world, name, line))
        };
        let healthy_voters = listed.keys().filter(|name| is_healthy_voter(name)).count();
        let restores = plan.record.restoring().is_some();
        let recovers = plan.record.recovery.is_some() || record.recovery.is_some() || restores;
        if intent.paused && !plan.effects.is_empty() {
            self.break_rule(name::PAUSED, format!("{}", plan.effects[0]));
        }
        let mut changes = 0;
        let mut added_learners = 0;
        let mut stopped = 0;
        for effect in &plan.effects {
            match effect {
                Effect::AddMember { learner: true, .. } => added_learners += 1,
                Effect::AddMember { learner: false, .. } => {
                    changes += 1;
                    let learners_can_be = world
                        .pods
                        .values()
                        .map(|pod| &pod.version)
                        .chain(&plan.record.target)
                        .all(|version| version.has_learners());
                    if learners_can_be {
                        self.break_rule(name::ONE_CHANGE, format!("{effect} although learners can be added"));
                    }
                    if listed.values().any(|line| line.name.is_none() && !line.learner) {
                        self.break_rule(name::ONE_CHANGE, format!("{effect} while another one has not started"));
                    }
                }
                Effect::Promote { .. } => changes += 1,
                Effect::RemoveMember { member, id, .. } => {
                    changes += 1;
                    let line = world
                        .list
                        .iter()
                        .flat_map(|list| &list.members)
                        .find(|line| line.id == *id);
                    if line.is_some_and(|line| members::owner(intent, line).is_none()) {
                        self.break_rule(name::STRANGERS, format!("{effect}"));
                    }
                    if list_leader == Some(*id)
                        && can_hand_over(member)
                        && healthy_voters > usize::from(is_healthy_voter(member))
                    {
                        self.break_rule(name::LEADER, format!("{effect}"));
                    }
                    if is_healthy_voter(member) && all_voters > 1 && healthy_voters - 1 < (all_voters - 1) / 2 + 1 {
                        self.break_rule(
                            name::QUORUM,
                            format!("{effect} leaves {} of {} voters", healthy_voters - 1, all_voters - 1),
                        );
                    }
                }
                Effect::ReleaseMember { id, .. } => {
                    changes += 1;
                    if !intent.release_adopted || listed.values().any(|line| line.id == *id) {
                        self.break_rule(name::STRANGERS, format!("{effect} without the user's word"));
                    }
                    let well = |line: &&stateward_plan::etcd::Listed| {
                        let mut voices = world.voices.values();
                        voices.any(|voice| matches!(voice, Voice::Answered(answer) if answer.id == line.id && answer.leader.is_some()))
                    };
                    let stay: Vec<_> = world
                        .list
                        .iter()
                        .flat_map(|list| list.voters())
                        .filter(|line| line.id != *id)
                        .collect();
                    if stay.iter().filter(|line| well(line)).count() < stay.len() / 2 + 1 {
                        self.break_rule(name::QUORUM, format!("{effect} leaves no quorum"));
                    }
                }
                Effect::DeletePod { member, how, .. } => {
                    let voter = is_healthy_voter(member);
                    stopped += usize::from(voter);
                    let hibernates = *how == Stop::Hibernate && intent.hibernate;
                    if *how == Stop::Replaced && !restores {
                        self.break_rule(name::RESTORE_PROVEN, format!("{effect} without a restore"));
                    }
                    if *how == Stop::Hibernate && !intent.hibernate {
                        self.break_rule(name::QUORUM, format!("{effect} without spec.hibernate"));
                    }
                    if hibernates || recovers {
                        continue;
                    }
                    if *how == Stop::Gone && listed.contains_key(member) {
                        self.break_rule(name::DATA, format!("{effect}: it has not left the list"));
                    }
                    if voter && healthy_voters >= quorum && all_voters >= 3 && healthy_voters - stopped < quorum {
                        self.break_rule(
                            name::QUORUM,
                            format!("{effect} leaves {} of {all_voters} voters", healthy_voters - stopped),
                        );
                    }
                    if stopped > 1 {
                        self.break_rule(name::QUORUM, format!("{effect}: two members stopped in one round"));
                    }
                    let leads = listed.get(member).is_some_and(|line| list_leader == Some(line.id));
                    if leads && voter && can_hand_over(member) && healthy_voters > 1 {
                        self.break_rule(name::LEADER, format!("{effect}"));
                    }
                    let answers = matches!(world.voices.get(member), Some(Voice::Answered(_)));
                    if world.list.is_none() && answers {
                        self.break_rule(name::QUORUM, format!("{effect}: it answers and nobody proves a list"));
                    }
                    let wish = world.pods.get(member).is_some_and(|pod| {
                        pod.template == intent.template
                            && Some(&pod.version) == plan.record.target.as_ref()
                            && !pod.ended
                            && pod.trusts.as_ref() == world.trust.as_ref().map(|trust| &trust.bundle)
                    });
                    if voter && wish && *how == Stop::Restart {
                        self.break_rule(name::NO_RESTART, format!("{effect}: it is as wished"));
                    }
                }
                Effect::DeleteClaim { member, .. } if world.list.is_none() || listed.contains_key(member) => {
                    self.break_rule(name::DATA, format!("{effect}: not proven to be out of the list"));
                }
                Effect::DeleteUnstartedClaim { member, .. } => {
                    let knows = |listed: &&Listed| listed.name.is_none();
                    let mut lists = world.voices.values().filter_map(|voice| match voice {
                        Voice::Answered(answer) => Some(&answer.list),
                        Voice::Silent(_) => None,
                    });
                    let unstarted = lists.any(|list| {
                        let mut lines = list.iter().filter(knows);
                        lines.any(|line| members::owner(intent, line).as_ref() == Some(member))
                    });
                    if world.list.is_some() || !unstarted {
                        self.break_rule(name::DATA, format!("{effect}: nobody says that it never started"));
                    }
                }
                Effect::CreatePod {
                    member,
                    launch: Launch::Join { .. },
                    ..
                } if listed
                    .get(member)
                    .is_some_and(|line| line.name.is_some() && !line.learner) =>
                {
                    self.break_rule(name::MEMORY, format!("{effect}: it votes already"));
                }
                Effect::CreatePod { launch, .. } => {
                    let first = matches!(launch, Launch::Seed { .. } | Launch::Static { .. });
                    if first
                        && record
                            .bootstrap
                            .as_ref()
                            .is_some_and(|bootstrap| bootstrap.cluster.is_some())
                    {
                        self.break_rule(
                            name::ONE_BOOTSTRAP,
                            format!("{effect}: the record says that it has begun"),
                        );
                    }
                }
                _ => {}
            }
        }
        let many = world
            .pods
            .values()
            .map(|pod| &pod.version)
            .all(|version| version.has_max_learners());
        if changes + usize::from(added_learners > 0) > 1 || (added_learners > 1 && !many) {
            self.break_rule(
                name::ONE_CHANGE,
                format!("{changes} changes and {added_learners} new learners in one plan"),
            );
        }
        let acts = plan.effects.iter().any(|effect| !matches!(effect, Effect::Tell(_)));
        if !acts
            && plan.report.waiting.is_empty()
            && let Some(why) = not_as_wished(intent, world)
        {
            self.break_rule(name::WORDS, format!("nothing is done and nothing said, but {why}"));
        }
    }

    /// A first member may start only with the record that says so already written.
    pub(crate) fn check_launch(&mut self, cluster: &Cluster, launch: &Launch, member: &MemberName) {
        let token = match launch {
            Launch::Seed { token } | Launch::Static { token, .. } => token,
            _ => return,
        };
        let Some(now) = self.kube.now.cluster.as_ref().filter(|now| now.id == cluster.id) else {
            return;
        };
        let recorded = now
            .record
            .bootstrap
            .as_ref()
            .is_some_and(|bootstrap| bootstrap.token == *token && bootstrap.first.contains(member));
        if !recorded {
            self.break_rule(
                name::ONE_BOOTSTRAP,
                format!("{member} starts as a first member that no record names"),
            );
        }
    }

    pub(crate) fn check_claim_deletion(&mut self, member: &MemberName, owner: Id) {
        let Some(claim) = self.kube.now.claims.get(member) else {
            return;
        };
        if claim.owner != owner {
            self.break_rule(
                name::DATA,
                format!("the claim of {member} belongs to another cluster of that name"),
            );
            return;
        }
        let data = claim
            .volume
            .and_then(|volume| self.volumes.get(&volume))
            .and_then(|volume| volume.data.as_ref());
        if let Some(data) = data
            && owner == self.ledger.owner
            && self.ledger.conf.iter().any(|listed| listed.id == data.id)
        {
            self.break_rule(
                name::DATA,
                format!("the data of {member} is deleted, and it is in the list"),
            );
        }
    }

    /// A member leaves for one of three reasons: too many, asked to, or really lost.
    pub(crate) fn check_removal(&mut self, cluster: &Rc<Cluster>, world: &World, member: &MemberName, id: MemberId) {
        if cluster.id != self.ledger.owner {
            return;
        }
        // By the spec of this moment, not by the one that the operator remembers.
        let intent = match self.present() {
            Some((intent, _)) => intent,
            None => return,
        };
        let (durable, size) = (intent.is_durable(), intent.size);
        let ours = by_name(world, intent).len();
        let conf = self.ledger.conf.clone();
        let Some(line) = conf.iter().find(|line| line.id == id) else {
            return;
        };
        let asked = world
            .pods
            .get(member)
            .is_some_and(|pod| pod.marked_to_leave || !durable);
        if ours > size || asked {
            return;
        }
        let why_lost = self.really_lost(cluster, member, id);
        // One that never started has no data to judge by; its last words tell.
        let never_started = line.learner || line.name.is_none();
        let crashes = |pod: &Rc<crate::kube::PodObject>| {
            let last = pod.shown.last_exit.as_ref();
            pod.shown.restarts >= 6 && last.is_some_and(|exit| exit.message == crate::etcd::UNKNOWN_REASON)
        };
        let crashed = match why_lost {
            Some("no data") => never_started && self.kube.now.pods.get(member).is_some_and(crashes),
            why => why == Some("it crashes"),
        };
        if crashed {
            let last = self.ledger.crash_removals.last();
            let soon = last.is_some_and(|last| last + 590_000 > self.now);
            self.ledger.crash_removals.push(self.now);
            if soon {
                self.break_rule(name::CRASHES, format!("{member} is removed"));
            }
        }
        if never_started {
            return;
        }
        if why_lost.is_none() {
            self.break_rule(
                name::EVIDENCE,
                format!("{member} is removed from a cluster of {ours}, and it is not lost"),
            );
        }
    }

    fn really_lost(&self, cluster: &Cluster, member: &MemberName, id: MemberId) -> Option<&'static str> {
        let volume = self
            .volumes
            .values()
            .find(|volume| volume.data.as_ref().is_some_and(|data| data.id == id));
        let Some(volume) = volume else {
            return Some("no data");
        };
        if volume.corrupt
            || volume
                .data
                .as_ref()
                .is_some_and(|data| data.alarm == Some(Alarm::Corrupt))
        {
            return Some("corrupt");
        }
        if self.ledger.given_up.get(member).is_some_and(|until| *until >= self.now) {
            return Some("its node was dead");
        }
        let pod = self.kube.now.pods.get(member);
        // The volume behind it may still be there, but nothing leads to it any more.
        let claim = self.kube.now.claims.get(member);
        if cluster.intent.is_durable() && pod.is_none() && claim.is_none_or(|claim| claim.shown.lost) {
            return Some("its claim is gone");
        }
        if pod.is_some_and(|pod| pod.shown.restarts >= 6) {
            return Some("it crashes");
        }
        if let Some(node) = pod.and_then(|pod| pod.node)
            && let Some(since) = self.kube.now.dead_nodes.get(&node_name(node))
            && members::elapsed(*since, stamp(self.now)) >= cluster.intent.replace_after
        {
            return Some("its node is dead");
        }
        if let Some(node) = volume.node
            && self.nodes[node].gone
        {
            return Some("its node is gone");
        }
        // What was seen may be a little old when it is acted upon.
        if let Some(node) = volume.node
            && self.nodes[node].cordoned_until + 30_000 > self.now
            && pod.is_some_and(|pod| pod.node.is_none())
        {
            return Some("its node is cordoned");
        }
        None
    }

    pub(crate) fn first_member_started(&mut self, owner: Id, cluster: u64, own: MemberId, member: &MemberName) {
        if owner != self.ledger.owner {
            return;
        }
        self.tell(|| format!("etcd: {member} founds cluster {} as {own}", ClusterId(cluster)));
        let another = self.ledger.founded.iter().any(|known| *known != cluster);
        let again = self.ledger.founders.contains(&own) && self.ledger.conf.iter().any(|line| line.id == own);
        let began = self.present().is_some_and(|(_, record)| {
            record
                .bootstrap
                .as_ref()
                .is_some_and(|bootstrap| bootstrap.cluster.is_some())
        });
        if again && !self.ledger.majority_lost {
            self.break_rule(
                name::MEMORY,
                format!("{member} starts empty as {own}, which it was before"),
            );
        } else if another || (again && began) {
            self.break_rule(name::ONE_BOOTSTRAP, format!("{member} founds a second cluster"));
        }
        self.ledger.founded.insert(cluster);
        self.ledger.founders.insert(own);
    }

    pub(crate) fn member_forgot(&mut self, process: Id) {
        let process = &self.processes[&process];
        if process.owner == self.ledger.owner && !self.ledger.majority_lost {
            let member = process.name.clone();
            self.break_rule(
                name::MEMORY,
                format!("{member} joins again, empty, under the ID it votes with"),
            );
        }
    }

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
                        .is_some_and(|data| data.id == line.id && data.alarm != Some(Alarm::Corrupt));
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
            .filter(|line| line.name.is_some())
            .filter(|line| {
                !self.volumes.values().any(|volume| {
                    !volume.corrupt
                        && volume
                            .data
                            .as_ref()
                            .is_some_and(|data| data.id == line.id && data.alarm != Some(Alarm::Corrupt))
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

/// What differs between wish and observation, if anything.
pub(crate) fn not_as_wished(intent: &Intent, world: &World) -> Option<String> {
    let Some(list) = &world.list else {
        return (!intent.hibernate || !world.pods.is_empty()).then(|| "nobody proves a member list".into());
    };
    let voters = list
        .members
        .iter()
        .filter(|line| !line.learner && members::owner(intent, line).is_some())
        .count();
    if voters != intent.size {
        return Some(format!("{voters} members vote and {} are wanted", intent.size));
    }
    for line in &list.members {
        let Some(owner) = members::owner(intent, line) else {
            continue;
        };
        if line.learner {
            return Some(format!("{owner} is a learner"));
        }
        if !healthy(world, &owner, line) {
            return Some(format!("{owner} does not answer"));
        }
        match world.pods.get(&owner) {
            None => return Some(format!("{owner} has no pod")),
            Some(pod) if pod.terminating => return Some(format!("{owner} is stopping")),
            Some(pod) if pod.template != intent.template => return Some(format!("{owner} has old settings")),
            Some(pod) if pod.metadata != intent.metadata => return Some(format!("{owner} has old labels")),
            Some(pod) if pod.launch != stateward_plan::etcd::LaunchKind::Sealed => {
                return Some(format!("{owner} is not sealed"));
            }
            Some(_) => {}
        }
    }
    if let Some(trust) = &world.trust {
        let trusted = |pod: &stateward_plan::etcd::Pod| pod.trusts.as_ref() == Some(&trust.wanted);
        if trust.renew
            || trust.issued != trust.wanted
            || trust.bundle != trust.wanted
            || !world.pods.values().all(trusted)
        {
            return Some("the rotation of the certificate authority is not done".into());
        }
    }
    let is_ours = |name: &&MemberName| {
        list.members
            .iter()
            .any(|line| members::owner(intent, line).as_ref() == Some(*name))
    };
    if let Some(extra) = world.pods.keys().chain(world.claims.keys()).find(|name| !is_ours(name)) {
        return Some(format!("{extra} is no member and still has a pod or a claim"));
    }
    None
}
