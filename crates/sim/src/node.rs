//! Scheduler, kubelets, volumes and garbage collection, as far as they affect a member.

use std::rc::Rc;

use stateward_etcd::cluster::{Blocked, Exit, Launch, LaunchKind, MemberName, NodeEnd, Pod, Stop};

use crate::kube::{ClaimObject, PodObject, node_name, uid};
use crate::kubelet::volume_name;
use crate::queue::{Event, Id, Ms, stamp};
use crate::sim::{Process, Sim, Volume};

/// Kubernetes marks a node as unreachable after this time without a heartbeat.
const NODE_GRACE: Ms = 40_000;
/// It evicts the node's pods after this time.
const EVICTION: Ms = 300_000;
/// After this time it detaches the volumes of deleted pods from the node.
const FORCED_DETACH: Ms = 360_000;
/// A kubelet's longest pause between restarts (shorter than the default of 5 minutes, to keep histories short).
const LONGEST_BACKOFF: Ms = 80_000;

impl Sim<'_> {
    pub(crate) fn create_pod(
        &mut self,
        owner: Id,
        name: &MemberName,
        launch: Launch,
        shown: Pod,
        durable: bool,
    ) -> Result<(), String> {
        if self.kube.now.pods.contains_key(name) {
            return Err(format!("pods \"{name}\" already exists"));
        }
        let id = self.kube.new_id();
        let mut shown = shown;
        shown.uid = uid(id);
        let pod = PodObject {
            id,
            name: name.clone(),
            owner,
            shown,
            launch,
            durable,
            volume: None,
            node: None,
            by_operator: false,
            kubelet_knows_from: 0,
        };
        self.kube.pods_mut().insert(name.clone(), Rc::new(pod));
        let delay = self.rng.between(5, 100);
        self.queue.at(self.now + delay, Event::Schedule(id));
        Ok(())
    }

    pub(crate) fn create_claim(&mut self, owner: Id, name: &MemberName, bytes: u64) -> Result<(), String> {
        if self.kube.now.claims.contains_key(name) {
            return Err(format!("persistentvolumeclaims \"{name}\" already exists"));
        }
        let id = self.kube.new_id();
        let claim = ClaimObject {
            owner,
            volume: None,
            shown: stateward_etcd::cluster::Claim {
                uid: uid(id),
                bound: false,
                terminating: false,
                problem: None,
                requested: bytes,
                lost: false,
                volume: None,
                created: stamp(self.now),
            },
        };
        self.kube.claims_mut().insert(name.clone(), Rc::new(claim));
        Ok(())
    }

    fn block(&mut self, pod: Id, reason: &str, message: &str, retry: Option<Event>) {
        let same = self.kube.pod(pod).is_some_and(|pod| {
            pod.shown
                .blocked
                .as_ref()
                .is_some_and(|blocked| blocked.reason == reason && blocked.message == message)
        });
        if !same {
            let since = Some(stamp(self.now));
            self.kube.change_pod(pod, |pod| {
                pod.shown.blocked = Some(Blocked {
                    reason: reason.into(),
                    message: message.into(),
                    since,
                });
            });
        }
        if let Some(event) = retry {
            let pause = self.rng.between(1000, 4000);
            self.queue.at(self.now + pause, event);
        }
    }

    pub(crate) fn schedule_pod(&mut self, id: Id) {
        let Some(pod) = self.kube.pod(id).cloned() else { return };
        if pod.shown.terminating || pod.node.is_some() {
            return;
        }
        let again = Some(Event::Schedule(id));
        if pod.shown.template.contains("bad-selector") {
            return self.block(id, "Unschedulable", "0 nodes match the node selector", None);
        }
        let mut volume = None;
        let mut pinned = None;
        if pod.durable {
            let Some(claim) = self.kube.now.claims.get(&pod.name).cloned() else {
                return self.block(id, "Unschedulable", "persistentvolumeclaim not found", again);
            };
            if claim.shown.terminating || claim.shown.lost {
                return self.block(
                    id,
                    "Unschedulable",
                    "persistentvolumeclaim is being deleted or lost",
                    again,
                );
            }
            volume = claim.volume;
            pinned = volume
                .and_then(|volume| self.volumes.get(&volume))
                .and_then(|volume| volume.node);
        }
        let used = |node: usize| self.kube.now.pods.values().filter(|pod| pod.node == Some(node)).count();
        let fits: Vec<usize> = (0..self.nodes.len())
            .filter(|node| !self.nodes[*node].gone && !self.kube.now.dead_nodes.contains_key(&node_name(*node)))
            .filter(|node| self.nodes[*node].cordoned_until <= self.now)
            .filter(|node| pinned.is_none_or(|pinned| pinned == *node))
            .collect();
        let fewest = fits.iter().map(|node| used(*node)).min();
        let best: Vec<usize> = fits.into_iter().filter(|node| Some(used(*node)) == fewest).collect();
        let Some(&node) = self.rng.pick(&best) else {
            return self.block(id, "Unschedulable", &self.why_no_node_fits(pinned), again);
        };
        let volume = volume.unwrap_or_else(|| {
            let made = self.kube.new_id();
            self.volumes.insert(
                made,
                Volume {
                    node: (self.profile.local_volumes || !pod.durable).then_some(node),
                    ..Volume::default()
                },
            );
            made
        });
        if pod.durable {
            self.kube.change_claim(&pod.name, |claim| {
                claim.volume = Some(volume);
                claim.shown.volume = Some(volume_name(volume));
                claim.shown.bound = true;
            });
        }
        self.kube.change_pod(id, |pod| {
            pod.node = Some(node);
            pod.volume = Some(volume);
            pod.shown.node = Some(node_name(node));
            pod.shown.blocked = None;
        });
        let delay = self.rng.between(200, self.profile.slowest_start);
        self.queue.at(self.now + delay, Event::Start(id));
    }

    /// The message of the scheduler.
    fn why_no_node_fits(&self, pinned: Option<usize>) -> String {
        let exists = |node: &usize| {
            !self.nodes[*node].gone
                || self.kube.now.dead_nodes.contains_key(&node_name(*node))
                || !self.nodes[*node].removed
        };
        let all: Vec<usize> = (0..self.nodes.len()).filter(exists).collect();
        let count = all.len();
        let cordoned = all.iter().filter(|node| self.nodes[**node].cordoned_until > self.now);
        let cordoned: Vec<usize> = cordoned.copied().collect();
        let meant = |node: &&usize| (Some(**node) == pinned || pinned.is_none()) && !cordoned.contains(node);
        let tainted = all.iter().filter(meant).count();
        let reasons = [
            (tainted, "node(s) had untolerated taint(s)"),
            (cordoned.len(), "node(s) were unschedulable"),
            (
                count - tainted - cordoned.len(),
                "node(s) had volume node affinity conflict",
            ),
        ];
        let reasons = reasons.iter().filter(|(count, _)| *count > 0);
        let reasons: Vec<String> = reasons.map(|(count, message)| format!("{count} {message}")).collect();
        format!("0/{count} nodes are available: {}.", reasons.join(", "))
    }

    pub(crate) fn start_container(&mut self, id: Id) {
        let Some(pod) = self.look_at_pod(id) else { return };
        let (Some(node), Some(volume)) = (pod.node, pod.volume) else {
            return;
        };
        if pod.shown.terminating || pod.shown.ended || self.nodes[node].down || self.processes.contains_key(&id) {
            return;
        }
        if pod.shown.template.contains("bad-image") {
            return self.block(id, "ImagePullBackOff", "the image does not exist", None);
        }
        if self.nodes[node].no_images_until > self.now && !pod.shown.ever_ran {
            return self.block(
                id,
                "ImagePullBackOff",
                "the registry does not respond",
                Some(Event::Start(id)),
            );
        }
        if !self.make_data_from_backup(id, volume) {
            self.block(id, "Init:Error", "the store does not respond", None);
            return self.retry_start(id);
        }
        self.incarnations += 1;
        let incarnation = self.incarnations;
        let shows = self.certificates_at_start();
        let place = self.volumes.get(&volume);
        let process = Process {
            owner: pod.owner,
            name: pod.name.clone(),
            node,
            volume,
            version: pod.shown.version.clone(),
            incarnation,
            joins: pod.shown.launch == LaunchKind::Join && place.is_some_and(|volume| volume.data.is_none()),
            serves: false,
            leads: false,
            hung: false,
            orphan: self.kube.pod(id).is_none(),
            up_since: self.now,
            frozen_until: 0,
            slow_until: 0,
            crashes_until: place
                .map_or(0, |volume| volume.crashes_until)
                .max(self.nodes[node].crashes_until),
            trusts: pod.shown.trusts.clone().unwrap_or_default(),
            shows,
        };
        let user = self.processes.values().find(|other| other.volume == volume);
        if user.is_some() && self.kube.pod(id).is_none() {
            return; // It was taken away from here.
        }
        if self.is_held(id, volume) {
            let message = "Multi-Attach error: the volume is used on another node";
            return self.block(id, "FailedAttachVolume", message, Some(Event::Start(id)));
        }
        if user.is_some() {
            self.break_rule(
                "two processes on one volume",
                format!("pod {} starts on a volume in use", pod.name),
            );
        }
        self.processes.insert(id, process);
        self.show_attachments();
        self.kubelet_says(id, |pod| {
            pod.shown.running = true;
            pod.shown.ever_ran = true;
            pod.shown.blocked = None;
            pod.shown.address = Some(format!("10.0.0.{}", id % 250));
        });
        let delay = self.rng.between(100, 1500);
        self.queue.at(self.now + delay, Event::Boot(id, incarnation));
    }

    /// A container ended by itself; its kubelet restarts it, with a longer pause each time.
    pub(crate) fn container_ends(&mut self, id: Id, code: i32, message: &str) {
        let Some(process) = self.processes.remove(&id) else {
            return;
        };
        self.log(|| format!("etcd: {} ends with {code}: {message}", process.name));
        let Some(pod) = self.known_pod(id) else { return };
        let count = pod.shown.restarts + 1;
        let pause = if count <= 1 {
            self.rng.between(50, 1000)
        } else {
            (10_000_u64 << (count - 2).min(8)).min(LONGEST_BACKOFF)
        };
        let at = stamp(self.now);
        let message = message.to_owned();
        self.kubelet_says(id, |pod| {
            pod.shown.running = false;
            pod.shown.ready = false;
            pod.shown.restarts = count;
            pod.shown.last_exit = Some(Exit {
                code,
                message: message.clone(),
                at,
            });
            pod.shown.blocked = (count > 1).then(|| Blocked {
                reason: "CrashLoopBackOff".into(),
                message: format!("restarting after {} s", pause / 1000),
                since: Some(at),
            });
        });
        self.queue.at(self.now + pause, Event::Start(id));
    }

    pub(crate) fn delete_pod(&mut self, name: &MemberName, how: Option<Stop>) {
        let Some(pod) = self.kube.now.pods.get(name).cloned() else {
            return;
        };
        let operator = how.is_some();
        if how == Some(Stop::Force) {
            self.kube.change_pod(pod.id, |pod| pod.by_operator = true);
            self.remove_pod(pod.id);
            return;
        }
        if !pod.shown.terminating {
            self.kube.change_pod(pod.id, |pod| {
                pod.shown.terminating = true;
                pod.by_operator = operator;
            });
        }
        if pod.node.is_none() {
            self.remove_pod(pod.id);
        } else {
            let grace = self.rng.between(50, 3000);
            self.queue.at(self.now + grace, Event::Stopped(pod.id));
        }
    }

    pub(crate) fn pod_stopped(&mut self, id: Id) {
        let Some(pod) = self.kube.pod(id) else { return };
        if pod.node.is_none_or(|node| self.nodes[node].obeys()) {
            self.reported_exits.push(pod.shown.uid.clone());
            self.remove_pod(id);
        }
    }

    /// Deletes the pod object, and its process unless its kubelet cannot see the deletion.
    pub(crate) fn remove_pod(&mut self, id: Id) {
        let Some(pod) = self.kube.pod(id).cloned() else { return };
        self.kube.pods_mut().remove(&pod.name);
        if pod.shown.stopped || pod.node.is_none() {
            self.reported_exits.push(pod.shown.uid.clone());
        }
        let is_notified = pod.node.is_none_or(|node| !self.nodes[node].cut_from_api);
        if is_notified {
            self.processes.remove(&id);
            self.known.remove(&id);
        } else {
            self.queue.at(self.now + FORCED_DETACH, Event::Detach(id));
            if let Some(process) = self.processes.get_mut(&id) {
                process.orphan = true;
            }
        }
        if !pod.durable
            && let Some(volume) = pod.volume
            && !self.processes.contains_key(&id)
        {
            let replaced = self.present().is_some_and(|(_, record)| record.restoring().is_some());
            self.lose_volume(volume, pod.by_operator && !replaced);
        }
        self.show_attachments();
        self.finish_claims();
    }

    pub(crate) fn delete_claim(&mut self, name: &MemberName) {
        self.kube.change_claim(name, |claim| claim.shown.terminating = true);
        self.finish_claims();
    }

    /// Claims that are being deleted disappear when no pod uses them any more, and their volumes with them.
    fn finish_claims(&mut self) {
        let done: Vec<MemberName> = self
            .kube
            .now
            .claims
            .iter()
            .filter(|(name, claim)| {
                claim.shown.terminating && !self.kube.now.pods.get(*name).is_some_and(|pod| pod.durable)
            })
            .map(|(name, _)| name.clone())
            .collect();
        for name in done {
            let volume = self.kube.claims_mut().remove(&name).and_then(|claim| claim.volume);
            // A volume that is in use is deleted later.
            if let Some(volume) = volume.filter(|volume| !self.is_held(0, *volume)) {
                self.lose_volume(volume, false);
            }
        }
    }

    /// A node stops responding to Kubernetes: it is down or cut off.
    pub(crate) fn node_unavailable(&mut self, node: usize) {
        self.nodes[node].absence += 1;
        let absence = self.nodes[node].absence;
        self.queue.at(self.now + NODE_GRACE, Event::NodeSilent(node, absence));
        self.queue.at(self.now + EVICTION, Event::Evict(node, absence));
    }

    pub(crate) fn node_given_up(&mut self, node: usize, absence: u32) {
        if self.nodes[node].obeys() || self.nodes[node].absence != absence {
            return;
        }
        let since = stamp(self.now);
        self.log(|| format!("kubernetes: {} is unreachable", node_name(node)));
        self.kube.dead_nodes_mut().insert(node_name(node), since);
        for pod in self.pods_on(node) {
            self.kube.change_pod(pod, |pod| pod.shown.ready = false);
        }
    }

    pub(crate) fn pods_on(&self, node: usize) -> Vec<Id> {
        self.kube
            .now
            .pods
            .values()
            .filter(|pod| pod.node == Some(node))
            .map(|pod| pod.id)
            .collect()
    }

    pub(crate) fn evict_pods(&mut self, node: usize, absence: u32) {
        if self.nodes[node].obeys() || self.nodes[node].absence != absence {
            return;
        }
        for pod in self.pods_on(node) {
            self.kube.change_pod(pod, |pod| pod.shown.terminating = true);
        }
        if self.nodes[node].gone && !self.nodes[node].stays {
            // The cloud provider deletes the node object; its pods are deleted with it.
            self.log(|| format!("kubernetes: {} is removed, its pods with it", node_name(node)));
            self.node_object_deleted(node);
        }
    }

    /// Deletes the node's object, and its pods with it.
    pub(crate) fn node_object_deleted(&mut self, node: usize) {
        self.kube.dead_nodes_mut().remove(&node_name(node));
        self.kube.ended_nodes_mut().insert(node_name(node), NodeEnd::Deleted);
        self.nodes[node].removed = true;
        for pod in self.pods_on(node) {
            self.remove_pod(pod);
        }
    }

    pub(crate) fn node_back(&mut self, node: usize) {
        if self.nodes[node].gone || self.nodes[node].obeys() {
            return;
        }
        self.log(|| format!("{} is back", node_name(node)));
        let state = &mut self.nodes[node];
        state.down = false;
        state.cut_from_api = false;
        state.removed = false;
        self.kube.ended_nodes_mut().remove(&node_name(node));
        if self.kube.dead_nodes_mut().remove(&node_name(node)).is_some() {
            let until = self.now + 30_000;
            let names: Vec<MemberName> = self
                .kube
                .now
                .pods
                .values()
                .filter(|pod| pod.node == Some(node))
                .map(|pod| pod.name.clone())
                .collect();
            self.truth.given_up.extend(names.into_iter().map(|name| (name, until)));
        }
        self.end_orphans(node);
        for id in self.pods_on(node) {
            let Some(pod) = self.kube.pod(id).cloned() else {
                continue;
            };
            self.catch_up(id);
            if pod.shown.terminating {
                self.queue.at(self.now + 100, Event::Stopped(id));
            } else if !self.processes.contains_key(&id) {
                let at = stamp(self.now);
                self.kube.change_pod(id, |pod| {
                    if pod.shown.running {
                        pod.shown.restarts += 1;
                        let message = "the node was restarted".into();
                        pod.shown.last_exit = Some(Exit { code: 255, message, at });
                    }
                    pod.shown.running = false;
                    pod.shown.ready = false;
                });
                let delay = self.rng.between(200, 3000);
                self.queue.at(self.now + delay, Event::Start(id));
            }
        }
    }

    pub(crate) fn reconnect(&mut self) {
        if self.nodes.iter().any(|node| node.side != 0 || node.cut_from_operator) {
            self.log(|| "the network heals".into());
            self.reconnected = self.now;
            for node in &mut self.nodes {
                node.side = 0;
                node.cut_from_operator = false;
            }
        }
    }

    /// Objects of a deleted cluster object are deleted; claims only where the user does not keep them.
    pub(crate) fn collect_garbage(&mut self) {
        let owner = self.kube.now.cluster.as_ref().map(|cluster| cluster.id);
        let pods: Vec<MemberName> = self
            .kube
            .now
            .pods
            .values()
            .filter(|pod| Some(pod.owner) != owner && !pod.shown.terminating)
            .map(|pod| pod.name.clone())
            .collect();
        for pod in &pods {
            self.delete_pod(pod, None);
        }
        if self.kube.services.as_ref().is_some_and(|(id, _)| Some(*id) != owner) {
            self.kube.services = None;
            self.kube.changed = true;
        }
        // In the end the user deletes what the status names, including what appeared after they first read it.
        let informed = self.calm && self.present().is_some_and(|(intent, _)| !intent.ignore_old_claims);
        if !self.profile.retain_claims || informed {
            let claims: Vec<MemberName> = self
                .kube
                .now
                .claims
                .iter()
                .filter(|(_, claim)| Some(claim.owner) != owner && !claim.shown.terminating)
                .map(|(name, _)| name.clone())
                .collect();
            for claim in &claims {
                self.delete_claim(claim);
            }
        }
        let left = self.kube.now.pods.values().any(|pod| Some(pod.owner) != owner);
        if left {
            self.queue.at(self.now + 5000, Event::Collect);
        }
    }
}
