//! Faults, drawn from the seed, and their end.

use stateward_etcd::cluster::{Alarm, ClusterId, LaunchKind, MemberId, MemberName};

use crate::kube::node_name;
use crate::queue::{Event, Id, Ms};
use crate::raft::voters;
use crate::sim::Sim;

impl Sim<'_> {
    /// Injects the next fault or edit, until there were enough.
    pub(crate) fn next_fault(&mut self) {
        if self.calm {
            return;
        }
        if self.profile.faults == 0 {
            let rest = self.rng.between(0, 20_000);
            self.queue.at(self.now + rest, Event::Calm);
            return;
        }
        self.profile.faults -= 1;
        let of_the_world = self.profile.infrastructure && (!self.profile.edits || self.rng.per_mille(600));
        if of_the_world {
            self.draw_fault();
        } else if self.profile.edits {
            self.draw_edit();
        }
        // Some follow closely, in the middle of what the previous one caused.
        let gap = self.rng.between(1, self.profile.fault_gap);
        self.queue.at(self.now + gap, Event::Fault);
    }

    fn draw_fault(&mut self) {
        let long = self.rng.between(500, 60_000);
        match self.rng.between(0, 31) {
            28 => self.force_delete_a_pod(),
            29 => self.cut_a_zone_off(long),
            30 => {
                let node = self.rng.index(self.nodes.len());
                self.log(|| {
                    format!(
                        "fault: {} receives nothing for {long} ms, and can send",
                        node_name(node)
                    )
                });
                self.nodes[node].inbound_cut_until = self.now + long;
            }
            0 | 1 => self.crash_a_process(),
            2 => self.with_a_process(|sim, id| {
                let name = sim.processes[&id].name.clone();
                sim.log(|| format!("fault: {name} is frozen for {long} ms"));
                if let Some(process) = sim.processes.get_mut(&id) {
                    process.frozen_until = sim.now + long;
                }
            }),
            3 => self.with_a_process(|sim, id| {
                let name = sim.processes[&id].name.clone();
                sim.log(|| format!("fault: {name} is slow for {long} ms"));
                if let Some(process) = sim.processes.get_mut(&id) {
                    process.slow_until = sim.now + long;
                }
            }),
            4 | 5 => {
                let node = self.rng.index(self.nodes.len());
                let back = self.rng.between(1000, 200_000);
                self.node_down(node);
                self.queue.at(self.now + back, Event::NodeBack(node));
            }
            6 => self.node_gone(),
            7 => {
                let node = self.rng.index(self.nodes.len());
                if self.nodes[node].obeys() {
                    let back = self.rng.between(1000, 400_000);
                    self.log(|| format!("fault: {} is cut off from the API for {back} ms", node_name(node)));
                    self.cut_from_api(node);
                    self.queue.at(self.now + back, Event::NodeBack(node));
                }
            }
            8 | 9 => {
                for node in 0..self.nodes.len() {
                    self.nodes[node].side = u8::from(self.rng.per_mille(300));
                }
                let sides: Vec<String> = self.nodes.iter().map(|node| node.side.to_string()).collect();
                self.log(|| {
                    format!(
                        "fault: the network is cut in two for {long} ms: sides {}",
                        sides.join(" ")
                    )
                });
                self.queue.at(self.now + long, Event::Reconnect);
            }
            10 => {
                let node = self.rng.index(self.nodes.len());
                self.log(|| format!("fault: the operator does not reach {} for {long} ms", node_name(node)));
                self.nodes[node].cut_from_operator = true;
                self.queue.at(self.now + long, Event::Reconnect);
            }
            11 => self.wipe_a_volume(),
            12 => self.corrupt_a_volume(),
            13 => self.raise_alarm(Alarm::Corrupt),
            14 => self.raise_alarm(Alarm::NoSpace),
            15 => self.evict_one(),
            16 | 17 => {
                if let Some(pod) = self.some_pod()
                    && self.may_lose_pod(&pod)
                {
                    self.log(|| format!("user: deletes pod {pod}"));
                    self.delete_pod(&pod, None);
                }
            }
            18 => self.delete_all_pods(),
            19 | 20 => self.delete_pod_and_claim(),
            21 => self.lose_a_claim(),
            22 => {
                self.log(|| "user: deletes the services".into());
                self.kube.services = None;
                self.kube.changed = true;
            }
            23 => {
                let node = self.rng.index(self.nodes.len());
                self.log(|| format!("fault: {} cannot pull images for {long} ms", node_name(node)));
                self.nodes[node].no_images_until = self.now + long;
            }
            24 => self.with_a_process(|sim, id| {
                let process = sim.processes[&id].clone();
                sim.log(|| format!("fault: {} crashes repeatedly for {} ms", process.name, long * 4));
                if let Some(volume) = sim.volumes.get_mut(&process.volume) {
                    volume.crashes_until = sim.now + long * 4;
                }
                if long.is_multiple_of(3) {
                    // A replacement on the same node crashes too.
                    let until = sim.now + long * 40;
                    sim.nodes[process.node].crashes_until = until;
                }
                sim.container_ends(id, 2, crate::etcd::UNKNOWN_REASON);
            }),
            25 => self.pass_leadership(),
            27 => {
                let node = self.rng.index(self.nodes.len());
                let long = self.rng.between(10_000, 900_000);
                self.log(|| format!("user: drains {}, for {long} ms", node_name(node)));
                self.nodes[node].cordoned_until = self.now + long;
                let pods = self.kube.now.pods.values().filter(|pod| pod.node == Some(node));
                let pods: Vec<MemberName> = pods.map(|pod| pod.name.clone()).collect();
                // The disruption budget allows one eviction; the next one only when that pod is back.
                if let Some(pod) = self.rng.pick(&pods).cloned()
                    && self.may_lose_pod(&pod)
                {
                    self.delete_pod(&pod, None);
                }
            }
            26 => {
                let index = usize::from(!self.operators[0].leads);
                self.operators[index].stale_until = self.now + long / 4;
                self.log(|| format!("fault: the caches of the operator do not change for {} ms", long / 4));
                if self.rng.per_mille(500) {
                    self.operators[index].crashes_in = Some(self.rng.between(0, 6) as u32);
                }
            }
            _ => {
                if self.rng.per_mille(500) {
                    self.mark_to_leave();
                } else {
                    self.add_a_foreign_member();
                }
            }
        }
    }

    /// As people do when a node does not respond: the object is deleted immediately, and nothing else is known.
    fn force_delete_a_pod(&mut self) {
        let is_cut_off =
            |pod: &&std::rc::Rc<crate::kube::PodObject>| pod.node.is_some_and(|node| self.nodes[node].cut_from_api);
        let cut_off = self.kube.now.pods.values().filter(is_cut_off);
        let cut_off: Vec<MemberName> = cut_off.map(|pod| pod.name.clone()).collect();
        let all: Vec<MemberName> = if cut_off.is_empty() {
            self.some_pod().into_iter().collect()
        } else {
            cut_off
        };
        // The data that a first member without durable storage had before the first probe is lost with its pod, and no
        // operator can know.
        let replied = self
            .present()
            .is_some_and(|(intent, record)| intent.is_durable() || record.began());
        for name in all {
            if let Some(pod) = self.kube.now.pods.get(&name).cloned()
                && replied
                && self.may_lose_pod(&name)
            {
                self.log(|| format!("user: deletes pod {name} by force"));
                self.remove_pod(pod.id);
            }
        }
    }

    /// Several nodes are cut off from the API server and from the operator, but reach each other.
    fn cut_a_zone_off(&mut self, long: Ms) {
        let back = self.now + long * 12;
        let mut zone = Vec::new();
        for node in 1..self.nodes.len() {
            if self.nodes[node].obeys() && self.rng.per_mille(600) {
                zone.push(node_name(node));
                self.cut_from_api(node);
                self.nodes[node].side = 1;
                self.queue.at(back, Event::NodeBack(node));
            }
        }
        self.log(|| format!("fault: {} are cut off for {} ms", zone.join(", "), long * 12));
        self.queue.at(back, Event::Reconnect);
    }

    fn with_a_process(&mut self, act: impl FnOnce(&mut Self, Id)) {
        let ids: Vec<Id> = self.processes.keys().copied().collect();
        if let Some(id) = self.rng.pick(&ids).copied() {
            act(self, id);
        }
    }

    fn crash_a_process(&mut self) {
        self.with_a_process(|sim, id| sim.container_ends(id, 137, "killed"));
    }

    fn some_pod(&mut self) -> Option<MemberName> {
        let names: Vec<MemberName> = self.kube.now.pods.keys().cloned().collect();
        self.rng.pick(&names).cloned()
    }

    /// Whether these volumes may be lost without losing a majority.
    pub(crate) fn may_lose(&self, volumes: &[Id]) -> bool {
        if self.profile.catastrophes {
            return true;
        }
        let all = voters(&self.truth.conf).count();
        let goes = |volume: Id| {
            let mut claims = self.kube.now.claims.values();
            claims.any(|claim| claim.volume == Some(volume) && claim.shown.terminating)
        };
        let lives = voters(&self.truth.conf)
            .filter(|line| {
                self.volumes.iter().any(|(id, volume)| {
                    !volumes.contains(id)
                        && !goes(*id)
                        && !volume.corrupt
                        && volume
                            .data
                            .as_ref()
                            .is_some_and(|data| data.id == line.id && !Self::is_wrong(data))
                })
            })
            .count();
        lives > all / 2 && all > 0
    }

    fn may_lose_pod(&self, name: &MemberName) -> bool {
        let Some(pod) = self.kube.now.pods.get(name) else {
            return false;
        };
        pod.durable || pod.volume.is_some_and(|volume| self.may_lose(&[volume]))
    }

    pub(crate) fn lose_volume(&mut self, volume: Id, by_operator: bool) {
        self.volumes.remove(&volume);
        self.judge_loss(by_operator);
    }

    pub(crate) fn node_down(&mut self, node: usize) {
        if !self.nodes[node].obeys() {
            return;
        }
        let ephemeral: Vec<Id> = self
            .kube
            .now
            .pods
            .values()
            .filter(|pod| pod.node == Some(node) && !pod.durable)
            .filter_map(|pod| pod.volume)
            .collect();
        if !ephemeral.is_empty() && !self.may_lose(&ephemeral) {
            return;
        }
        self.log(|| format!("fault: {} is down", node_name(node)));
        self.nodes[node].down = true;
        self.processes.retain(|_, process| process.node != node);
        // Volumes in memory are empty after a restart; the kubelet ends such pods when it is back.
        for volume in ephemeral {
            if let Some(volume) = self.volumes.get_mut(&volume) {
                volume.data = None;
            }
        }
        self.judge_loss(false);
        self.node_unavailable(node);
    }

    fn node_gone(&mut self) {
        let node = self.rng.index(self.nodes.len());
        let left = self.nodes.iter().filter(|node| !node.gone).count();
        let on_it: Vec<Id> = self
            .volumes
            .iter()
            .filter(|(_, volume)| volume.node == Some(node))
            .map(|(id, _)| *id)
            .collect();
        if left <= 2 || !self.nodes[node].obeys() || !self.may_lose(&on_it) {
            return;
        }
        let (stays, zone_sleeps) = match self.rng.between(0, 3) {
            0 => (true, false),
            1 => (false, self.profile.local_volumes),
            _ => (false, false),
        };
        self.log(|| {
            format!(
                "fault: {} is gone for good{}{}",
                node_name(node),
                if stays { ", and its object stays" } else { "" },
                if zone_sleeps { ", and its volumes are there" } else { "" },
            )
        });
        let state = &mut self.nodes[node];
        (state.down, state.gone, state.stays, state.zone_sleeps) = (true, true, stays, zone_sleeps);
        self.processes.retain(|_, process| process.node != node);
        let lost: Vec<Id> = on_it
            .into_iter()
            .filter(|volume| !zone_sleeps || !self.is_durable(*volume))
            .collect();
        for volume in lost {
            if let Some(volume) = self.volumes.get_mut(&volume) {
                volume.data = None;
            }
        }
        self.judge_loss(false);
        self.node_unavailable(node);
    }

    fn is_durable(&self, volume: Id) -> bool {
        let mut claims = self.kube.now.claims.values();
        claims.any(|claim| claim.volume == Some(volume))
    }

    /// A member that may lose its data now: it is sealed, so it cannot vote after it starts empty.
    pub(crate) fn some_sealed(&mut self) -> Option<(Id, Id)> {
        let is_restoring = self.present().is_some_and(|(_, record)| record.restoring().is_some());
        let pods: Vec<(Id, Id)> = self
            .kube
            .now
            .pods
            .values()
            .filter(|pod| {
                // A kubelet that has not seen the annotation yet may start it as it was before.
                let informed =
                    pod.kubelet_knows_from <= self.now && pod.node.is_none_or(|node| self.nodes[node].obeys());
                let sealed = pod.shown.launch == LaunchKind::Sealed && informed;
                sealed || (pod.shown.launch == LaunchKind::Restore && is_restoring)
            })
            .filter_map(|pod| Some((pod.id, pod.volume?)))
            .filter(|(_, volume)| self.may_lose(&[*volume]))
            .collect();
        self.rng.pick(&pods).copied()
    }

    fn wipe_a_volume(&mut self) {
        if let Some((pod, volume)) = self.some_sealed() {
            self.wipe(pod, volume);
        }
    }

    pub(crate) fn wipe(&mut self, pod: Id, volume: Id) {
        let name = self.kube.pod(pod).map(|pod| pod.name.clone());
        self.log(|| {
            format!(
                "fault: the volume of {} is emptied",
                name.map_or_else(String::new, |name| name.0)
            )
        });
        if let Some(volume) = self.volumes.get_mut(&volume) {
            volume.data = None;
        }
        self.judge_loss(false);
        self.container_ends(pod, 137, "killed");
    }

    fn corrupt_a_volume(&mut self) {
        let Some((pod, volume)) = self.some_sealed() else {
            return;
        };
        let name = self.kube.pod(pod).map(|pod| pod.name.clone());
        self.log(|| {
            format!(
                "fault: the data of {} is broken",
                name.map_or_else(String::new, |name| name.0)
            )
        });
        if let Some(volume) = self.volumes.get_mut(&volume) {
            volume.corrupt = true;
        }
        self.judge_loss(false);
        self.container_ends(pod, 137, "killed");
    }

    fn evict_one(&mut self) {
        let Some(name) = self.some_pod().filter(|name| self.may_lose_pod(name)) else {
            return;
        };
        let Some(pod) = self.kube.now.pods.get(&name).cloned() else {
            return;
        };
        if pod.node.is_none_or(|node| !self.nodes[node].obeys()) {
            return;
        }
        self.log(|| format!("fault: pod {name} is evicted"));
        self.processes.remove(&pod.id);
        self.known.remove(&pod.id);
        self.kube.change_pod(pod.id, |pod| {
            pod.shown.ended = true;
            pod.shown.stopped = true;
            pod.shown.running = false;
            pod.shown.ready = false;
        });
        if !pod.durable
            && let Some(volume) = pod.volume
        {
            self.lose_volume(volume, false);
        }
    }

    fn delete_all_pods(&mut self) {
        let names: Vec<MemberName> = self.kube.now.pods.keys().cloned().collect();
        if self.kube.now.pods.values().any(|pod| !pod.durable) && !self.profile.catastrophes {
            return;
        }
        self.log(|| "user: deletes all pods".into());
        for name in names {
            self.delete_pod(&name, None);
        }
    }

    fn delete_pod_and_claim(&mut self) {
        let names: Vec<MemberName> = self.kube.now.claims.keys().cloned().collect();
        let Some(name) = self.rng.pick(&names).cloned() else {
            return;
        };
        let volume = self.kube.now.claims.get(&name).and_then(|claim| claim.volume);
        if volume.is_some_and(|volume| !self.may_lose(&[volume])) {
            return;
        }
        self.log(|| format!("user: deletes pod and claim {name}"));
        self.delete_claim(&name);
        self.delete_pod(&name, None);
        // Data that is about to be deleted counts as lost from now on.
        let was = volume
            .and_then(|volume| self.volumes.get(&volume))
            .is_some_and(|volume| volume.corrupt);
        if let Some(volume) = volume.and_then(|volume| self.volumes.get_mut(&volume)) {
            volume.corrupt = true;
        }
        self.judge_loss(false);
        if let Some(volume) = volume.and_then(|volume| self.volumes.get_mut(&volume)) {
            volume.corrupt = was;
        }
    }

    fn lose_a_claim(&mut self) {
        let Some((pod, volume)) = self.some_sealed() else {
            return;
        };
        let Some(name) = self.kube.pod(pod).filter(|pod| pod.durable).map(|pod| pod.name.clone()) else {
            return;
        };
        self.log(|| format!("fault: the volume behind the claim of {name} is gone"));
        self.kube.change_claim(&name, |claim| claim.shown.lost = true);
        if let Some(volume) = self.volumes.get_mut(&volume) {
            volume.data = None;
        }
        self.judge_loss(false);
        self.container_ends(pod, 137, "killed");
    }

    fn mark_to_leave(&mut self) {
        if let Some(name) = self.some_pod()
            && let Some(pod) = self.kube.now.pods.get(&name).cloned()
        {
            self.log(|| format!("user: marks {name} to leave"));
            self.kube.change_pod(pod.id, |pod| pod.shown.marked_to_leave = true);
        }
    }

    /// Another client adds a learner with etcdctl.
    pub(crate) fn add_a_foreign_member(&mut self) {
        let cluster = self.processes.keys().find_map(|id| Some(self.data_of(*id)?.cluster));
        let known = self
            .truth
            .conf
            .iter()
            .any(|line| line.peer_urls.iter().any(|url| url.contains("elsewhere")));
        if let Some(cluster) = cluster
            && !known
            && self
                .add_member(ClusterId(cluster), "http://elsewhere:2380", true)
                .is_ok()
        {
            self.log(|| "user: adds a learner of their own with etcdctl".into());
        }
    }

    /// The client that added foreign members removes them.
    pub(crate) fn remove_foreign_members(&mut self) {
        let foreign: Vec<MemberId> = self
            .truth
            .conf
            .iter()
            .filter(|line| line.peer_urls.iter().any(|url| url.contains("elsewhere")))
            .map(|line| line.id)
            .collect();
        let cluster = self.processes.keys().find_map(|id| Some(self.data_of(*id)?.cluster));
        for id in foreign {
            if let Some(cluster) = cluster
                && self.remove_member(ClusterId(cluster), id).is_ok()
            {
                self.log(|| "user: removes the learner of their own".into());
            }
        }
    }

    /// Faults stop. Lost data stays lost, everything else heals, and the user reverts to a spec that can be satisfied.
    pub(crate) fn calm_down(&mut self) {
        self.log(|| "faults stop".into());
        self.calm = true;
        self.revert();
        self.reconnect();
        for node in 0..self.nodes.len() {
            self.nodes[node].no_images_until = 0;
            self.nodes[node].cordoned_until = self.nodes[node].cordoned_until.min(self.now);
            self.nodes[node].crashes_until = 0;
            self.nodes[node].inbound_cut_until = 0;
            if self.nodes[node].zone_sleeps {
                self.nodes[node].zone_sleeps = false;
                self.nodes[node].gone = false;
            }
            self.node_back(node);
        }
        let now: Ms = self.now;
        for process in self.processes.values_mut() {
            process.frozen_until = process.frozen_until.min(now);
            process.slow_until = process.slow_until.min(now);
            process.crashes_until = 0;
        }
        for volume in self.volumes.values_mut() {
            volume.crashes_until = 0;
        }
        let old: Vec<MemberName> = self
            .kube
            .now
            .claims
            .iter()
            .filter(|(_, claim)| claim.owner != self.truth.owner)
            .map(|(name, _)| name.clone())
            .collect();
        if !old.is_empty() && self.rng.per_mille(500) {
            self.edit(|intent| intent.ignore_old_claims = true);
        } else {
            for claim in old {
                self.delete_claim(&claim);
            }
        }
        self.clear_failed_restores();
        self.queue.at(self.now + 1000, Event::Collect);
        self.queue.at(self.now + 10_000, Event::Collect);
        for index in 0..self.operators.len() {
            self.operators[index].stale_until = 0;
            self.operators[index].crashes_in = None;
            self.revive_operator(index);
        }
        if self.operators.iter().all(|operator| !operator.leads) {
            self.operators[0].leads = true;
        }
        self.yield_leadership(1);
        let soon = self.now + 10;
        self.wake_operator(0, soon);
        self.wake_operator(1, soon);
    }
}
