//! The Kubernetes API as the operator sees it: objects with UIDs and a resource version, and their past, which a stale
//! cache still returns.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use jiff::Timestamp;
use stateward_etcd::api::etcd_cluster::EtcdClusterStatus;
use stateward_etcd::cluster::{Claim, Intent, Launch, MemberName, NodeEnd, Pod, Record, Report, Services, Uid};

use crate::queue::{Id, Ms};
use crate::restores::RestoreObject;

/// The custom resource.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) id: Id,
    pub(crate) version: u64,
    pub(crate) intent: Intent,
    pub(crate) status: Rc<EtcdClusterStatus>,
    /// The record, read from the status.
    pub(crate) record: Record,
    /// The report that the status was last written from, for logs.
    pub(crate) report: Option<Report>,
}

#[derive(Clone)]
pub(crate) struct PodObject {
    pub(crate) id: Id,
    pub(crate) name: MemberName,
    /// The cluster object that owns it.
    pub(crate) owner: Id,
    /// The object in the API.
    pub(crate) shown: Pod,
    pub(crate) launch: Launch,
    pub(crate) durable: bool,
    pub(crate) volume: Option<Id>,
    pub(crate) node: Option<usize>,
    /// The operator, not the user or Kubernetes, requested its deletion.
    pub(crate) by_operator: bool,
    /// From then on its kubelet knows the last change of its annotations.
    pub(crate) kubelet_knows_from: Ms,
}

#[derive(Clone)]
pub(crate) struct ClaimObject {
    pub(crate) owner: Id,
    pub(crate) shown: Claim,
    pub(crate) volume: Option<Id>,
}

pub(crate) type Pods = BTreeMap<MemberName, Rc<PodObject>>;
pub(crate) type Claims = BTreeMap<MemberName, Rc<ClaimObject>>;
pub(crate) type Restores = Vec<Rc<RestoreObject>>;
pub(crate) type DeadNodes = BTreeMap<String, Timestamp>;
pub(crate) type EndedNodes = BTreeMap<String, NodeEnd>;

/// The state of the API at one moment; cheap to keep.
#[derive(Clone, Default)]
pub(crate) struct Shown {
    pub(crate) cluster: Option<Rc<Cluster>>,
    pub(crate) pods: Rc<Pods>,
    pub(crate) claims: Rc<Claims>,
    pub(crate) dead_nodes: Rc<DeadNodes>,
    pub(crate) ended_nodes: Rc<EndedNodes>,
    /// The attached volumes and their nodes.
    pub(crate) attachments: Rc<BTreeSet<(String, String)>>,
    pub(crate) restores: Rc<Restores>,
    /// With TLS.
    pub(crate) secrets: Option<Rc<crate::trust::Secrets>>,
}

/// An EtcdBackup of a certain name.
#[derive(Clone, Copy)]
pub(crate) struct BackupObject {
    pub(crate) id: Id,
    /// The cluster object that owns it; `None`: a user created it.
    pub(crate) owner: Option<Id>,
}

/// How many past states a restarted operator may still read.
const PAST: usize = 24;

#[derive(Default)]
pub(crate) struct Kube {
    pub(crate) now: Shown,
    /// The owner of the services and the budget, and their content.
    pub(crate) services: Option<(Id, Services)>,
    /// The EtcdBackup with the name that `spec.backup` uses.
    pub(crate) kept_backup: Option<BackupObject>,
    pub(crate) past: VecDeque<Shown>,
    /// Something changed since the operators were last notified.
    pub(crate) changed: bool,
    last_id: Id,
    last_version: u64,
}

pub(crate) fn uid(id: Id) -> Uid {
    Uid(format!("u{id}"))
}

impl Kube {
    pub(crate) fn new_id(&mut self) -> Id {
        self.last_id += 1;
        self.last_id
    }

    pub(crate) fn new_version(&mut self) -> u64 {
        self.last_version += 1;
        self.last_version
    }

    /// Keeps the current state for stale caches.
    pub(crate) fn keep(&mut self) {
        if self.past.len() == PAST {
            self.past.pop_front();
        }
        self.past.push_back(self.now.clone());
    }

    pub(crate) fn cluster_mut(&mut self) -> Option<&mut Cluster> {
        self.changed = true;
        let version = self.new_version();
        let cluster = Rc::make_mut(self.now.cluster.as_mut()?);
        cluster.version = version;
        Some(cluster)
    }

    pub(crate) fn pod(&self, id: Id) -> Option<&Rc<PodObject>> {
        self.now.pods.values().find(|pod| pod.id == id)
    }

    pub(crate) fn change_pod(&mut self, id: Id, change: impl FnOnce(&mut PodObject)) {
        let found = Rc::make_mut(&mut self.now.pods).values_mut().find(|pod| pod.id == id);
        if let Some(pod) = found {
            change(Rc::make_mut(pod));
            self.changed = true;
        }
    }

    pub(crate) fn change_claim(&mut self, name: &MemberName, change: impl FnOnce(&mut ClaimObject)) {
        if let Some(claim) = Rc::make_mut(&mut self.now.claims).get_mut(name) {
            change(Rc::make_mut(claim));
            self.changed = true;
        }
    }

    pub(crate) fn pods_mut(&mut self) -> &mut Pods {
        self.changed = true;
        Rc::make_mut(&mut self.now.pods)
    }

    pub(crate) fn claims_mut(&mut self) -> &mut Claims {
        self.changed = true;
        Rc::make_mut(&mut self.now.claims)
    }

    pub(crate) fn restores_mut(&mut self) -> &mut Restores {
        self.changed = true;
        Rc::make_mut(&mut self.now.restores)
    }

    pub(crate) fn secrets_mut(&mut self) -> Option<&mut crate::trust::Secrets> {
        self.changed = true;
        self.now.secrets.as_mut().map(Rc::make_mut)
    }

    pub(crate) fn ended_nodes_mut(&mut self) -> &mut EndedNodes {
        self.changed = true;
        Rc::make_mut(&mut self.now.ended_nodes)
    }

    pub(crate) fn dead_nodes_mut(&mut self) -> &mut DeadNodes {
        self.changed = true;
        Rc::make_mut(&mut self.now.dead_nodes)
    }
}

/// A node, its kubelet and its network.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    /// It is powered off or broken.
    pub(crate) down: bool,
    /// It is lost for good.
    pub(crate) gone: bool,
    /// Its object is deleted too.
    pub(crate) removed: bool,
    /// Its object stays until the user deletes it.
    pub(crate) stays: bool,
    /// Its kubelet cannot reach the API.
    pub(crate) cut_from_api: bool,
    /// The operator cannot reach its pods.
    pub(crate) cut_from_operator: bool,
    /// Pods reach each other only on the same side.
    pub(crate) side: u8,
    /// Counts absences, so that a timer of an earlier absence has no effect.
    pub(crate) absence: u32,
    /// Until then, whatever runs on it is killed again and again.
    pub(crate) crashes_until: Ms,
    /// Until then images cannot be pulled.
    pub(crate) no_images_until: Ms,
    /// It was drained, and is schedulable again then.
    pub(crate) cordoned_until: Ms,
    /// Until then its processes can send but not receive; its kubelet is healthy.
    pub(crate) inbound_cut_until: Ms,
    /// Its zone was scaled to zero: its volumes are available again when the zone has a node.
    pub(crate) zone_sleeps: bool,
}

impl Node {
    /// Its kubelet follows the API server.
    pub(crate) fn obeys(&self) -> bool {
        !self.down && !self.cut_from_api
    }

    pub(crate) fn inbound_is_cut(&self, now: Ms) -> bool {
        self.inbound_cut_until > now
    }
}

pub(crate) fn node_name(index: usize) -> String {
    format!("node-{index}")
}
