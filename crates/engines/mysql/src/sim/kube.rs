//! Kubernetes: the objects as the API server has them, the controller of StatefulSets, and the kubelets.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use jiff::Timestamp;
use stateward_core::Uid;

use super::server::{Data, Ms, Volume};
use super::state::Sim;
use crate::api::{MySQLCluster, MySQLVersion};
use crate::world::{Blocked, Claim, Exit, Object, Ordinal, Pod as Shown, Secrets, StatefulSet, Tls, UpgradeBackup};

/// A pod: its object, and what its kubelet knows.
#[derive(Clone, Debug)]
pub(super) struct Pod {
    pub(super) id: u32,
    pub(super) shown: Shown,
    pub(super) version: Option<MySQLVersion>,
    pub(super) node: Option<usize>,
    pub(super) claim: u32,
    /// Its container is started then.
    starts: Ms,
    /// Its kubelet ends it then.
    stops: Option<Ms>,
    /// The process that its kubelet told of last.
    boot: u32,
}

/// A claim.
#[derive(Clone, Debug)]
pub(super) struct ClaimObject {
    pub(super) id: u32,
    pub(super) volume: usize,
    /// It goes with the cluster.
    pub(super) owned: bool,
    pub(super) shown: Claim,
}

/// The StatefulSet, and the version that its template names.
#[derive(Clone, Debug)]
pub(super) struct SetObject {
    pub(super) shown: StatefulSet,
    pub(super) version: MySQLVersion,
}

/// What the API server has; a copy is what a cache shows.
#[derive(Clone)]
pub(super) struct Kube {
    pub(super) cluster: Rc<MySQLCluster>,
    pub(super) pods: Rc<BTreeMap<Ordinal, Pod>>,
    pub(super) claims: Rc<BTreeMap<Ordinal, ClaimObject>>,
    pub(super) set: Option<Rc<SetObject>>,
    pub(super) objects: Rc<BTreeMap<Object, String>>,
    pub(super) ended_nodes: Rc<BTreeSet<usize>>,
    pub(super) secrets: Secrets,
    pub(super) tls: Tls,
    /// The certificate in the Secret.
    pub(super) certificate: u32,
    pub(super) backup: Option<UpgradeBackup>,
    /// `max_connections` in my.cnf.
    pub(super) setting: u64,
}

/// A node.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Its processes run.
    pub(super) up: bool,
    /// Its kubelet does not reach the API server.
    pub(super) cut: bool,
    /// Its object was deleted, which a cloud does after the machine ended.
    pub(super) gone: bool,
    /// When its kubelet last reached the API server.
    heard: Ms,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            up: true,
            cut: false,
            gone: false,
            heard: 0,
        }
    }
}

pub(super) fn uid(letter: char, id: u32) -> Uid {
    Uid(format!("{letter}{id}"))
}

pub(super) fn stamp(ms: Ms) -> Timestamp {
    i64::try_from(ms)
        .ok()
        .and_then(|ms| Timestamp::from_millisecond(1_700_000_000_000 + ms).ok())
        .unwrap_or_default()
}

/// After so long without a word of its node, a pod counts as not ready.
const SILENT_NODE: Ms = 10_000;

impl Kube {
    pub(super) fn pods_mut(&mut self) -> &mut BTreeMap<Ordinal, Pod> {
        Rc::make_mut(&mut self.pods)
    }

    pub(super) fn claims_mut(&mut self) -> &mut BTreeMap<Ordinal, ClaimObject> {
        Rc::make_mut(&mut self.claims)
    }

    /// The API server stores another version of the cluster.
    pub(super) fn change_cluster(&mut self, change: impl FnOnce(&mut MySQLCluster)) {
        let cluster = Rc::make_mut(&mut self.cluster);
        change(cluster);
        let version: u64 = cluster
            .metadata
            .resource_version
            .as_deref()
            .and_then(|version| version.parse().ok())
            .unwrap_or(0);
        cluster.metadata.resource_version = Some((version + 1).to_string());
    }

    /// The API server stores another spec or other annotations.
    pub(super) fn edit(&mut self, change: impl FnOnce(&mut MySQLCluster)) {
        self.change_cluster(|cluster| {
            change(cluster);
            cluster.metadata.generation = cluster.metadata.generation.map(|generation| generation + 1);
        });
    }
}

impl Sim<'_> {
    pub(super) fn new_id(&mut self) -> u32 {
        self.ids += 1;
        self.ids
    }

    /// Controllers and kubelets go on for a moment.
    pub(super) fn tick_kube(&mut self) {
        if self.calm || self.rng.per_mille(600) {
            self.sync_set();
        }
        self.sync_claims();
        let pods: Vec<Ordinal> = self.kube.pods.keys().copied().collect();
        for node in self.nodes.iter_mut().filter(|node| node.up && !node.cut) {
            node.heard = self.now;
        }
        for member in pods {
            self.sync_pod(member);
        }
        self.sync_backup();
    }

    fn sync_set(&mut self) {
        let Some(set) = self.kube.set.clone() else { return };
        for member in (0..set.shown.replicas).map(Ordinal) {
            if !self.kube.pods.contains_key(&member) {
                self.create_pod(member, &set);
            }
        }
        let more = self.kube.pods.keys().copied();
        let more: Vec<Ordinal> = more.filter(|member| member.0 >= set.shown.replicas).collect();
        for member in more {
            self.terminate_pod(member);
        }
    }

    fn create_pod(&mut self, member: Ordinal, set: &SetObject) {
        let now = self.now;
        let claim = match self.kube.claims.get(&member) {
            Some(claim) if claim.shown.terminating => return,
            Some(claim) => claim.id,
            None => self.create_claim(member),
        };
        let id = self.new_id();
        let starts = now + self.rng.between(20, 500);
        let mut shown = Shown {
            template: set.shown.template.clone(),
            version: Some(set.version),
            ..Shown::default()
        };
        shown.facts.uid = uid('p', id);
        shown.facts.created = stamp(now);
        let pod = Pod {
            id,
            shown,
            version: Some(set.version),
            node: None,
            claim,
            starts,
            stops: None,
            boot: 0,
        };
        self.kube.pods_mut().insert(member, pod);
        self.changed = true;
        self.news = true;
    }

    fn create_claim(&mut self, member: Ordinal) -> u32 {
        let id = self.new_id();
        self.volumes.push(Volume {
            member,
            data: Data::default(),
            lost: false,
            bytes: 10 << 30,
            ballast: 0,
        });
        let claim = ClaimObject {
            id,
            volume: self.volumes.len() - 1,
            owned: false,
            shown: Claim {
                uid: uid('c', id),
                bound: true,
                terminating: false,
                problem: None,
                requested: 10 << 30,
                lost: false,
                volume: Some(format!("v{id}")),
                created: stamp(self.now),
            },
        };
        self.kube.claims_mut().insert(member, claim);
        id
    }

    /// A terminating claim goes when no pod uses it.
    fn sync_claims(&mut self) {
        let pods = &self.kube.pods;
        let unused = |claim: &ClaimObject| !pods.values().any(|pod| pod.claim == claim.id);
        let all = self.kube.claims.iter();
        let ended: Vec<Ordinal> = all
            .filter(|(_, claim)| claim.shown.terminating && unused(claim))
            .map(|(member, _)| *member)
            .collect();
        for member in ended {
            if let Some(claim) = self.kube.claims_mut().remove(&member)
                && let Some(volume) = self.volumes.get_mut(claim.volume)
            {
                volume.lost = true;
            }
            self.changed = true;
            self.news = true;
        }
    }

    /// Somebody asks the API server to delete a pod gracefully.
    pub(super) fn terminate_pod(&mut self, member: Ordinal) {
        let is_new = self
            .kube
            .pods
            .get(&member)
            .is_some_and(|pod| !pod.shown.facts.terminating);
        if is_new && let Some(pod) = self.kube.pods_mut().get_mut(&member) {
            pod.shown.facts.terminating = true;
            self.changed = true;
            self.news = true;
        }
    }

    /// The pod's object goes; its process, if there is one, ends.
    pub(super) fn remove_pod(&mut self, member: Ordinal) {
        if let Some(pod) = self.kube.pods_mut().remove(&member) {
            let boot = self.processes.iter().find(|process| process.pod == pod.id);
            if let Some(boot) = boot.map(|process| process.boot) {
                self.end_process(boot);
            }
            self.changed = true;
            self.news = true;
        }
    }

    fn sync_pod(&mut self, member: Ordinal) {
        let Some(pod) = self.kube.pods.get(&member).cloned() else {
            return;
        };
        let now = self.now;
        let Some(node) = pod.node else {
            if pod.shown.facts.terminating {
                self.remove_pod(member);
            } else {
                self.schedule(member);
            }
            return;
        };
        let Some(Node { up, cut, gone, heard }) = self.nodes.get(node).cloned() else {
            return;
        };
        if gone && self.rng.per_mille(100) {
            return self.remove_pod(member); // the garbage collector
        }
        if !up || cut {
            if now > heard + SILENT_NODE && pod.shown.facts.ready {
                if let Some(pod) = self.kube.pods_mut().get_mut(&member) {
                    pod.shown.facts.ready = false;
                }
                self.changed = true;
                self.news = true;
            }
            if up {
                self.run_container(member, &pod);
            }
            return;
        }
        if pod.shown.facts.terminating {
            match pod.stops {
                None => {
                    let stops = now + self.rng.between(0, self.profile.slowest_stop);
                    if let Some(pod) = self.kube.pods_mut().get_mut(&member) {
                        pod.stops = Some(stops);
                    }
                }
                Some(stops) if now >= stops => return self.remove_pod(member),
                Some(_) => {}
            }
        } else {
            self.run_container(member, &pod);
        }
        self.post(member);
    }

    fn schedule(&mut self, member: Ordinal) {
        let nodes = self.nodes.iter().enumerate();
        let nodes: Vec<usize> = nodes
            .filter(|(_, node)| node.up && !node.cut && !node.gone)
            .map(|(at, _)| at)
            .collect();
        // Members are spread, as the pods' anti-affinity asks.
        let used: BTreeSet<usize> = self.kube.pods.values().filter_map(|pod| pod.node).collect();
        let fresh: Vec<usize> = nodes.iter().copied().filter(|node| !used.contains(node)).collect();
        let choice = self.rng.pick(&fresh).or(self.rng.pick(&nodes)).copied();
        let Some(node) = choice else { return };
        if let Some(pod) = self.kube.pods_mut().get_mut(&member) {
            pod.node = Some(node);
            pod.shown.facts.node = Some(format!("node-{node}"));
            pod.shown.facts.address = Some(format!("10.0.{node}.{}", pod.id));
        }
        self.changed = true;
        self.news = true;
    }

    /// A kubelet starts the container of a pod again when it has ended.
    fn run_container(&mut self, member: Ordinal, pod: &Pod) {
        let (Some(node), now) = (pod.node, self.now) else {
            return;
        };
        if now < pod.starts || pod.stops.is_some() || self.processes.iter().any(|process| process.pod == pod.id) {
            return;
        }
        let claim = self.kube.claims.get(&member).filter(|claim| claim.id == pod.claim);
        let Some(volume) = claim.map(|claim| claim.volume) else {
            return;
        };
        let lost = self.volumes.get(volume).is_none_or(|volume| volume.lost);
        let busy = self.processes.iter().any(|process| process.volume == volume);
        if lost || busy || !pod.version.is_some_and(|version| self.image_exists(version)) {
            return;
        }
        self.start_process(member, pod.id, node, volume);
    }

    pub(super) fn image_exists(&self, version: MySQLVersion) -> bool {
        version.patch < 90
    }

    /// A kubelet tells the API server how its pod is.
    fn post(&mut self, member: Ordinal) {
        let now = self.now;
        let Some(pod) = self.kube.pods.get(&member) else { return };
        let process = self.processes.iter().find(|process| process.pod == pod.id);
        let ready = process.is_some_and(|process| process.replies(now));
        let boot = process.map(|process| process.boot);
        let running = boot.is_some();
        let facts = &pod.shown.facts;
        let no_image = !pod.version.is_some_and(|version| self.image_exists(version));
        let same = facts.running == running && facts.ready == ready && facts.blocked.is_some() == no_image;
        if same && boot.is_none_or(|boot| boot == pod.boot) {
            return;
        }
        let restart = now + self.rng.between(50, self.profile.slowest_start);
        let Some(pod) = self.kube.pods_mut().get_mut(&member) else {
            return;
        };
        let facts = &mut pod.shown.facts;
        let another = boot.is_some_and(|boot| boot != pod.boot);
        if facts.running && (!running || another) {
            facts.restarts += 1;
            facts.last_exit = Some(Exit {
                code: 137,
                message: String::new(),
                at: stamp(now),
            });
            pod.starts = restart;
        }
        if another {
            facts.running_since = Some(stamp(now));
            facts.ever_ran = true;
        }
        pod.boot = boot.unwrap_or(pod.boot);
        facts.running = running;
        if ready && !facts.ready {
            facts.ready_since = Some(stamp(now));
        }
        facts.ready = ready;
        facts.blocked = no_image.then(|| Blocked {
            reason: "ImagePullBackOff".into(),
            message: "the image does not exist".into(),
            since: Some(stamp(now)),
        });
        self.changed = true;
        self.news = true;
    }

    /// The server restarted within its container: nothing that Kubernetes counts.
    pub(super) fn restarted_inside(&mut self, member: Ordinal, boot: u32) {
        if let Some(pod) = self.kube.pods_mut().get_mut(&member) {
            pod.boot = boot;
        }
    }

    fn sync_backup(&mut self) {
        let calm = self.calm;
        let often = if calm { 200 } else { 50 };
        if self.kube.backup.as_ref().is_some_and(|backup| !backup.proven) && self.rng.per_mille(often) {
            if let Some(backup) = &mut self.kube.backup {
                backup.proven = true;
            }
            self.changed = true;
            self.news = true;
        }
    }
}
