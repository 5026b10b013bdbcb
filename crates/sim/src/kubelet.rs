//! What kubelets know and report, and what continues to run after the object of its pod is deleted.
//!
//! A kubelet that is cut off from the API server continues with what it knows: it restarts containers with the spec
//! that it last read, and reports their status when it is back. Processes of pods whose object is deleted continue to
//! run.

use std::collections::BTreeSet;
use std::rc::Rc;

use stateward_core::pod::Facts;
use stateward_etcd::cluster::LaunchKind;

use crate::kube::{PodObject, node_name};
use crate::queue::{Id, Ms};
use crate::sim::Sim;

/// How late a kubelet may see a changed annotation.
const LATE: Ms = 10_000;

pub(crate) fn volume_name(volume: Id) -> String {
    format!("pv-{volume}")
}

impl Sim<'_> {
    fn obeys(&self, pod: &PodObject) -> bool {
        pod.node.is_none_or(|node| self.nodes[node].obeys())
    }

    /// The pod as its kubelet knows it.
    pub(crate) fn known_pod(&self, id: Id) -> Option<Rc<PodObject>> {
        self.known.get(&id).or_else(|| self.kube.pod(id)).cloned()
    }

    /// A kubelet reads what it is to run. While it is cut off, it knows only the pods that it ran before.
    pub(crate) fn look_at_pod(&mut self, id: Id) -> Option<Rc<PodObject>> {
        let now = self.kube.pod(id).filter(|pod| self.obeys(pod)).cloned();
        if let Some(pod) = now {
            let known = self.known.get(&id);
            let late = known.is_some_and(|known| {
                known.shown.launch == LaunchKind::ForceNew
                    && pod.kubelet_knows_from > self.now
                    && known.shown.launch != pod.shown.launch
            });
            if late {
                return self.known_pod(id);
            }
            self.known.insert(id, pod);
        }
        self.known.get(&id).cloned()
    }

    /// The annotations of a pod were changed; its kubelet sees that later.
    pub(crate) fn patched(&mut self, id: Id) {
        let kubelet_knows_from = self.now + self.rng.between(0, LATE);
        self.kube
            .change_pod(id, |pod| pod.kubelet_knows_from = kubelet_knows_from);
    }

    /// A node's kubelet receives nothing from now on. It knows what it would have received until now.
    pub(crate) fn cut_from_api(&mut self, node: usize) {
        let pods = self.kube.now.pods.values();
        let informed = pods.filter(|pod| pod.node == Some(node) && pod.kubelet_knows_from <= self.now);
        for pod in informed.cloned().collect::<Vec<_>>() {
            if let Some(known) = self.known.get_mut(&pod.id) {
                *known = pod;
            }
        }
        self.nodes[node].cut_from_api = true;
        self.node_unavailable(node);
    }

    /// A kubelet changes the status of a pod. While it is cut off, the API does not show it.
    pub(crate) fn kubelet_says(&mut self, id: Id, change: impl Fn(&mut PodObject)) {
        if let Some(known) = self.known.get_mut(&id) {
            change(Rc::make_mut(known));
        }
        if self.kube.pod(id).is_some_and(|pod| self.obeys(pod)) {
            self.kube.change_pod(id, change);
        }
    }

    /// A kubelet that is back reports what happened meanwhile.
    pub(crate) fn catch_up(&mut self, id: Id) {
        let Some(known) = self.known.get(&id).map(|known| known.shown.clone()) else {
            return;
        };
        self.kube.change_pod(id, |pod| {
            let Facts {
                running,
                ever_ran,
                ready,
                ready_since,
                restarts,
                last_exit,
                blocked,
                address,
                ..
            } = known.facts;
            pod.shown.facts = Facts {
                running,
                ever_ran,
                ready,
                ready_since,
                restarts,
                last_exit,
                blocked,
                address,
                ..pod.shown.facts.clone()
            };
        });
    }

    /// A kubelet that is back stops what is not to run any more.
    pub(crate) fn end_orphans(&mut self, node: usize) {
        let ended: Vec<Id> = self
            .known
            .iter()
            .filter(|(id, known)| known.node == Some(node) && self.kube.pod(**id).is_none())
            .map(|(id, _)| *id)
            .collect();
        for id in ended {
            self.end_orphan(id);
        }
        self.show_attachments();
    }

    fn end_orphan(&mut self, id: Id) {
        self.processes.remove(&id);
        if let Some(known) = self.known.remove(&id)
            && let Some(volume) = known.volume
        {
            let mut claims = self.kube.now.claims.values();
            if !claims.any(|claim| claim.volume == Some(volume)) {
                self.lose_volume(volume, false);
            }
        }
    }

    /// A kubelet that is cut off still uses the volume, for a pod whose object is deleted.
    pub(crate) fn is_held(&self, id: Id, volume: Id) -> bool {
        self.orphans()
            .any(|(other, known)| other != id && known.volume == Some(volume))
    }

    fn orphans(&self) -> impl Iterator<Item = (Id, &Rc<PodObject>)> {
        self.known
            .iter()
            .filter(|(id, known)| {
                let cut_off = known.node.is_some_and(|node| self.nodes[node].cut_from_api);
                cut_off && self.kube.pod(**id).is_none()
            })
            .map(|(id, known)| (*id, known))
    }

    /// A network volume is detached from a node that does not respond: processes that use it end.
    pub(crate) fn detach(&mut self, id: Id) {
        let on_network = |volume: Id| self.volumes.get(&volume).is_some_and(|volume| volume.node.is_none());
        let name = self
            .orphans()
            .find(|(orphan, known)| *orphan == id && known.volume.is_some_and(on_network))
            .map(|(_, known)| known.name.clone());
        if let Some(name) = name {
            self.log(|| format!("kubernetes: the volume of {name} is detached"));
            self.end_orphan(id);
            self.show_attachments();
        }
    }

    /// Which volumes are attached to which nodes: network volumes that a process uses or a pod is to use.
    pub(crate) fn show_attachments(&mut self) {
        let on_network = |volume: Id| self.volumes.get(&volume).is_some_and(|volume| volume.node.is_none());
        let used = self.processes.values().map(|process| (process.volume, process.node));
        let held = self
            .orphans()
            .filter_map(|(_, known)| Some((known.volume?, known.node?)));
        let held: Vec<(Id, usize)> = held.collect();
        let pods = self.kube.now.pods.values();
        let bound = pods.filter_map(|pod| Some((pod.volume?, pod.node?)));
        let all: BTreeSet<(String, String)> = used
            .chain(bound)
            .chain(held)
            .filter(|(volume, _)| on_network(*volume))
            .map(|(volume, node)| (volume_name(volume), node_name(node)))
            .collect();
        if *self.kube.now.attachments != all {
            self.kube.now.attachments = Rc::new(all);
            self.kube.changed = true;
        }
    }
}
