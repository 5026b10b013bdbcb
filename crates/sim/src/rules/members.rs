//! How a member starts and how it leaves, checked against the real state.

use std::rc::Rc;

use stateward_etcd::cluster::{ClusterId, Effect, Intent, Launch, MemberId, MemberName, Stop, World, members};

use super::name;
use crate::etcd::peer_url;
use crate::execute::is_rejected;
use crate::kube::{Cluster, node_name};
use crate::operator::by_name;
use crate::queue::{Id, stamp};
use crate::sim::Sim;

impl Sim<'_> {
    /// A first member may start only after the record that says so was written.
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

    /// A pod is stopped only in the state that the decision was based on, and no other pod of its name.
    pub(crate) fn check_stop(&mut self, world: &World, member: &MemberName, how: Stop) {
        let (Some(seen), Some(now)) = (world.pods.get(member), self.kube.now.pods.get(member)) else {
            return;
        };
        let (another, runs_by_now) = (seen.uid != now.shown.uid, now.shown.running && !seen.running);
        if another {
            self.break_rule(name::NO_RESTART, format!("another pod of {member} is stopped"));
        } else if how == Stop::Restart && runs_by_now {
            self.break_rule(name::NO_RESTART, format!("{member} is restarted, and runs by now"));
        }
    }

    /// Data is deleted by UID, and only that of members that are out of the list or have never started.
    pub(crate) fn check_claim_deletion(&mut self, world: &World, effect: &Effect, member: &MemberName, owner: Id) {
        let Some(claim) = self.kube.now.claims.get(member) else {
            return;
        };
        let another = world.claims.get(member).is_some_and(|seen| seen.uid != claim.shown.uid);
        if another {
            self.break_rule(name::DATA, format!("another claim of {member} is deleted"));
            return;
        }
        if claim.owner != owner {
            self.break_rule(
                name::DATA,
                format!("the claim of {member} belongs to another cluster of that name"),
            );
            return;
        }
        let url = peer_url(member);
        let mut lines = self.truth.conf.iter().filter(|line| line.peer_urls.contains(&url));
        let never_started = matches!(effect, Effect::DeleteUnstartedClaim { .. });
        let comes_back = lines.any(|line| !never_started || line.name.is_some());
        if comes_back && owner == self.truth.owner {
            let message = format!("the claim of {member} is deleted, which is in the list by now or has started");
            self.break_rule(name::DATA, message);
            return;
        }
        let data = claim
            .volume
            .and_then(|volume| self.volumes.get(&volume))
            .and_then(|volume| volume.data.as_ref());
        if let Some(data) = data
            && owner == self.truth.owner
            && self.truth.conf.iter().any(|listed| listed.id == data.id)
        {
            self.break_rule(
                name::DATA,
                format!("the data of {member} is deleted, and it is in the list"),
            );
        }
    }

    /// A restarted member has a successor that the API server accepts.
    pub(crate) fn check_successor(&mut self, intent: &Intent, world: &World, member: &MemberName) {
        let line = by_name(world, intent).remove(member);
        if is_rejected(intent) && line.is_some_and(|line| super::healthy(world, member, &line)) {
            self.break_rule(name::REJECTED_POD, format!("{member} is stopped"));
        }
    }

    /// A member leaves for one of three reasons: the size, a request, or a real loss.
    pub(crate) fn check_removal(&mut self, cluster: &Rc<Cluster>, world: &World, member: &MemberName, id: MemberId) {
        if cluster.id != self.truth.owner {
            return;
        }
        // By the current spec or the one just before it, not by the one that the operator read.
        let intent = match self.present() {
            Some((intent, _)) => intent,
            None => return,
        };
        let (durable, size) = (intent.is_durable(), self.smallest_size(intent.size));
        let ours = by_name(world, intent).len();
        let conf = self.truth.conf.clone();
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
        // A member that never started has no data to decide by; its last messages count.
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
            let last = self.truth.crash_removals.last();
            let soon = last.is_some_and(|last| last + 590_000 > self.now);
            self.truth.crash_removals.push(self.now);
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
        let differs = |right: u32| volume.data.as_ref().is_some_and(|data| data.content != right);
        if volume.corrupt || self.content_of_majority().is_some_and(differs) {
            return Some("corrupt");
        }
        if self.truth.given_up.get(member).is_some_and(|until| *until >= self.now) {
            return Some("its node was unreachable");
        }
        let pod = self.kube.now.pods.get(member);
        // Its volume may still exist, but nothing leads to it any more.
        let claim = self.kube.now.claims.get(member);
        if cluster.intent.is_durable() && pod.is_none() && claim.is_none_or(|claim| claim.shown.lost) {
            return Some("its claim is deleted");
        }
        if !cluster.intent.is_durable() && pod.is_none() {
            return Some("its pod is deleted");
        }
        if pod.is_some_and(|pod| pod.shown.restarts >= 6) {
            return Some("it crashes");
        }
        if let Some(node) = pod.and_then(|pod| pod.node)
            && let Some(since) = self.kube.now.dead_nodes.get(&node_name(node))
            && members::elapsed(*since, stamp(self.now)) >= cluster.intent.replace_after
        {
            return Some("its node is unreachable");
        }
        if let Some(node) = volume.node
            && self.nodes[node].gone
        {
            return Some("its node is lost");
        }
        // The observed state may be slightly old when it is acted on.
        if let Some(node) = volume.node
            && self.nodes[node].cordoned_until + 30_000 > self.now
            && pod.is_some_and(|pod| pod.node.is_none())
        {
            return Some("its node is cordoned");
        }
        None
    }

    pub(crate) fn first_member_started(&mut self, owner: Id, cluster: u64, own: MemberId, member: &MemberName) {
        if owner != self.truth.owner {
            return;
        }
        self.log(|| format!("etcd: {member} bootstraps cluster {} as {own}", ClusterId(cluster)));
        let another = self.truth.bootstrapped.iter().any(|known| *known != cluster);
        let again = self.truth.bootstrap_members.contains(&own) && self.truth.conf.iter().any(|line| line.id == own);
        let began = self.present().is_some_and(|(_, record)| record.began());
        if again && !self.truth.majority_lost {
            self.break_rule(
                name::MEMORY,
                format!("{member} starts empty as {own}, which it was before"),
            );
        } else if another || (again && began) {
            self.break_rule(name::ONE_BOOTSTRAP, format!("{member} bootstraps a second cluster"));
        }
        self.truth.bootstrapped.insert(cluster);
        self.truth.bootstrap_members.insert(own);
    }

    pub(crate) fn member_forgot(&mut self, process: Id) {
        let process = &self.processes[&process];
        if process.owner == self.truth.owner && !self.truth.majority_lost {
            let member = process.name.clone();
            self.break_rule(
                name::MEMORY,
                format!("{member} joins again, empty, under the ID it votes with"),
            );
        }
    }
}
