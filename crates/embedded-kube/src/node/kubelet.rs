//! All nodes of an instance: follows the API's pods, and keeps a worker for each pod that is bound to a node that is up.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::container::RunningContainers;
use super::machine::Machine;
use super::node_object::{self, NodeSpec};
use super::pod_worker::Worker;
use super::sources::Kind;
use crate::network::Place;

struct WorkerHandle {
    pod: watch::Sender<Arc<Pod>>,
    gone: CancellationToken,
    ended: watch::Receiver<bool>,
    running: Arc<RunningContainers>,
    node: String,
}

struct NodeHandle {
    spec: NodeSpec,
    /// Present while the node is up.
    power: Option<CancellationToken>,
    /// Present while the node is up and in touch with the API server.
    touch: Option<CancellationToken>,
    /// While the node is cut off: the pods of it that changed or went meanwhile.
    missed: Option<HashMap<String, Option<Pod>>>,
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<String, NodeHandle>,
    pods: HashMap<String, Arc<Pod>>,
    workers: HashMap<String, WorkerHandle>,
}

/// The nodes.
pub(crate) struct Kubelet {
    pub(crate) machine: Arc<Machine>,
    state: Mutex<State>,
    stop: CancellationToken,
    boot_id: String,
}

impl Kubelet {
    pub(crate) fn new(machine: Arc<Machine>, nodes: Vec<NodeSpec>, stop: CancellationToken) -> Arc<Self> {
        let nodes = nodes
            .into_iter()
            .map(|spec| {
                let handle = NodeHandle {
                    spec,
                    power: None,
                    touch: None,
                    missed: None,
                };
                (handle.spec.name.clone(), handle)
            })
            .collect();
        let state = Mutex::new(State {
            nodes,
            ..State::default()
        });
        Arc::new(Self {
            machine,
            state,
            stop,
            boot_id: uuid::Uuid::new_v4().to_string(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn node_names(&self) -> Vec<String> {
        self.state().nodes.keys().cloned().collect()
    }

    pub(crate) fn is_up(&self, node: &str) -> Option<bool> {
        self.state().nodes.get(node).map(|node| node.power.is_some())
    }

    /// A pod's containers, by its UID.
    pub(crate) fn running(&self, uid: &str) -> Option<Arc<RunningContainers>> {
        self.state().workers.get(uid).map(|worker| worker.running.clone())
    }

    /// The pod as last seen, by its UID.
    pub(crate) fn pod(&self, uid: &str) -> Option<Arc<Pod>> {
        self.state().pods.get(uid).cloned()
    }

    /// The pod as last seen, by its name.
    pub(crate) fn pod_named(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let state = self.state();
        let wanted = |pod: &&Arc<Pod>| pod.namespace().as_deref() == Some(namespace) && pod.name_any() == name;
        state.pods.values().find(wanted).cloned()
    }

    /// Brings a node up: it tells the API that it is ready, and starts the pods that are bound to it.
    pub(crate) async fn start_node(self: &Arc<Self>, name: &str) -> Result<(), kube::Error> {
        self.catch_up(name);
        let spec = {
            let mut state = self.state();
            let Some(node) = state.nodes.get_mut(name).filter(|node| node.power.is_none()) else {
                return Ok(());
            };
            node.power = Some(self.stop.child_token());
            node.spec.clone()
        };
        let registered = node_object::register(&self.machine.client, &spec, &self.boot_id).await;
        let mut state = self.state();
        let Some(node) = state.nodes.get_mut(name) else {
            return Ok(());
        };
        let node_object = match registered {
            Ok(object) => object,
            Err(error) => {
                node.power = None;
                return Err(error);
            }
        };
        let Some(power) = node.power.clone() else { return Ok(()) };
        let touch = power.child_token();
        node.touch = Some(touch.clone());
        self.machine
            .events
            .node(&node_object, "Starting", "Starting kubelet.".to_string());
        tokio::spawn(node_object::keep_lease(self.machine.client.clone(), node_object, touch));
        let bound: Vec<Arc<Pod>> = state
            .pods
            .values()
            .filter(|pod| node_of(pod) == name)
            .cloned()
            .collect();
        for pod in bound {
            self.ensure_worker(&mut state, pod);
        }
        Ok(())
    }

    /// Cuts a node off from the API server, and from nothing else: what runs there goes on as its kubelet knows it.
    pub(crate) fn cut_node(&self, name: &str) {
        let mut state = self.state();
        let Some(node) = state.nodes.get_mut(name).filter(|node| node.power.is_some()) else {
            return;
        };
        if let Some(touch) = node.touch.take() {
            touch.cancel();
        }
        node.missed.get_or_insert_default();
        self.machine
            .cut_off
            .send_if_modified(|nodes| nodes.insert(name.to_owned()));
    }

    /// Lets a node that was cut off hear of what happened meanwhile, and tell that it is there.
    pub(crate) async fn reconnect_node(self: &Arc<Self>, name: &str) -> Result<(), kube::Error> {
        if !self.catch_up(name) {
            return Ok(());
        }
        let spec = self.state().nodes.get(name).map(|node| node.spec.clone());
        let Some(spec) = spec else { return Ok(()) };
        let node_object = node_object::register(&self.machine.client, &spec, &self.boot_id).await?;
        let mut state = self.state();
        let node = state.nodes.get_mut(name).filter(|node| node.touch.is_none());
        if let Some(node) = node
            && let Some(power) = &node.power
        {
            let touch = power.child_token();
            node.touch = Some(touch.clone());
            tokio::spawn(node_object::keep_lease(self.machine.client.clone(), node_object, touch));
        }
        Ok(())
    }

    /// Takes in what a node missed. False: it was not cut off.
    fn catch_up(self: &Arc<Self>, name: &str) -> bool {
        let missed = self.state().nodes.get_mut(name).and_then(|node| node.missed.take());
        let Some(missed) = missed else { return false };
        self.machine.cut_off.send_if_modified(|nodes| nodes.remove(name));
        for (uid, pod) in missed {
            match pod {
                Some(pod) => self.take_pod(pod),
                None => self.forget_pod(&uid),
            }
        }
        true
    }

    /// Takes a node's power away: its processes end at once, and the API hears nothing of it.
    pub(crate) async fn stop_node(&self, name: &str) {
        if !self.machine.is_shutting_down() {
            self.unplug(name).await;
        }
        let workers: Vec<watch::Receiver<bool>> = {
            let mut state = self.state();
            let Some(power) = state.nodes.get_mut(name).and_then(|node| node.power.take()) else {
                return;
            };
            power.cancel();
            state
                .workers
                .values()
                .filter(|worker| worker.node == name)
                .map(|worker| worker.ended.clone())
                .collect()
        };
        for mut ended in workers {
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }

    /// Nobody hears of the pods of a node any more, not even that their connections end.
    async fn unplug(&self, name: &str) {
        let places: Vec<Place> = {
            let state = self.state();
            let workers = state.workers.values().filter(|worker| worker.node == name);
            workers
                .filter_map(|worker| worker.running.place.get().cloned())
                .collect()
        };
        let plane = self.machine.plane.clone();
        let unplugging = tokio::task::spawn_blocking(move || places.iter().for_each(|place| plane.disconnect(place)));
        let _ = unplugging.await;
    }

    /// Ends all pods' processes, first asking them to, and waits until they are gone. The API hears nothing of it.
    pub(crate) async fn shut_down(&self, patience: Duration) {
        let (running, workers): (Vec<_>, Vec<_>) = {
            let state = self.state();
            let all = state.workers.values();
            (
                all.clone().flat_map(|w| w.running.all()).collect(),
                all.map(|w| w.ended.clone()).collect(),
            )
        };
        self.machine
            .shutting_down
            .store(true, std::sync::atomic::Ordering::SeqCst);
        let term = nix::sys::signal::Signal::SIGTERM;
        futures::future::join_all(running.iter().map(|container| container.process.signal_main(term))).await;
        // As at a machine's shutdown: nothing that ends now is a crash.
        let asked = futures::future::join_all(running.iter().map(|container| container.process.wait()));
        let _ = tokio::time::timeout(patience, asked).await;
        for name in self.node_names() {
            self.stop_node(&name).await;
        }
        for mut ended in workers {
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }

    fn take_pod(self: &Arc<Self>, pod: Pod) {
        self.machine.directory.pod(&pod);
        let uid = pod.uid().unwrap_or_default();
        let mut state = self.state();
        let node = state.nodes.get_mut(node_of(&pod));
        if let Some(missed) = node.and_then(|node| node.missed.as_mut()) {
            missed.insert(uid, Some(pod));
            return;
        }
        let pod = Arc::new(pod);
        state.pods.insert(uid, pod.clone());
        self.ensure_worker(&mut state, pod);
    }

    fn forget_pod(&self, uid: &str) {
        self.machine.directory.pod_gone(uid);
        let mut state = self.state();
        let known = state.pods.get(uid).cloned();
        let node = known.and_then(|pod| state.nodes.get_mut(node_of(&pod)));
        if let Some(missed) = node.and_then(|node| node.missed.as_mut()) {
            missed.insert(uid.to_owned(), None);
            return;
        }
        state.pods.remove(uid);
        if let Some(worker) = state.workers.get(uid) {
            worker.gone.cancel();
        }
    }

    fn ensure_worker(self: &Arc<Self>, state: &mut State, pod: Arc<Pod>) {
        let uid = pod.uid().unwrap_or_default();
        if let Some(worker) = state.workers.get(&uid) {
            worker.pod.send_replace(pod);
            return;
        }
        let name = node_of(&pod).to_string();
        let Some(node) = state.nodes.get(&name) else { return };
        let Some(power_off) = node.power.clone() else { return };
        let same_name = |worker: &&WorkerHandle| {
            let other = worker.pod.borrow();
            other.name_any() == pod.name_any() && other.namespace() == pod.namespace()
        };
        let predecessor = state
            .workers
            .values()
            .find(same_name)
            .map(|worker| worker.ended.clone());
        let (pods, pod) = watch::channel(pod);
        let (end, ended) = watch::channel(false);
        let gone = CancellationToken::new();
        let running = Arc::new(RunningContainers::default());
        let worker = Worker {
            machine: self.machine.clone(),
            pod,
            running: running.clone(),
            node: node.spec.facts(),
            gone: gone.clone(),
            power_off,
        };
        state.workers.insert(
            uid.clone(),
            WorkerHandle {
                pod: pods,
                gone,
                ended,
                running,
                node: name,
            },
        );
        let kubelet = self.clone();
        tokio::spawn(async move {
            worker.run(predecessor).await;
            kubelet.worker_ended(&uid);
            end.send_replace(true);
        });
    }

    fn worker_ended(self: &Arc<Self>, uid: &str) {
        self.state().workers.remove(uid);
    }

    /// Follows the API until told to stop. Tells through `seen` when the first list of pods was taken in.
    pub(crate) async fn follow(self: Arc<Self>, seen: watch::Sender<bool>) {
        let client = &self.machine.client;
        let configuration = watcher::Config::default;
        let pods = watcher(Api::<Pod>::all(client.clone()), configuration());
        let services = watcher(Api::<Service>::all(client.clone()), configuration());
        let slices = watcher(Api::<EndpointSlice>::all(client.clone()), configuration());
        let maps = watcher(Api::<ConfigMap>::all(client.clone()), configuration());
        let secrets = watcher(Api::<Secret>::all(client.clone()), configuration());
        let directory = &self.machine.directory;
        let following = async {
            tokio::join!(
                each(pods, |change| match change {
                    Change::Is(pod) => self.take_pod(pod),
                    Change::Gone(pod) => self.forget_pod(&pod.uid().unwrap_or_default()),
                    Change::Only(pods) => {
                        let uids: HashSet<String> = pods.iter().filter_map(|pod| pod.uid()).collect();
                        directory.retain_pods(&uids);
                        let lost: Vec<String> = self
                            .state()
                            .pods
                            .keys()
                            .filter(|uid| !uids.contains(*uid))
                            .cloned()
                            .collect();
                        lost.iter().for_each(|uid| self.forget_pod(uid));
                        pods.into_iter().for_each(|pod| self.take_pod(pod));
                        seen.send_replace(true);
                    }
                }),
                each(services, |change| match change {
                    Change::Is(service) => directory.service(&service),
                    Change::Gone(s) => directory.service_gone(&s.namespace().unwrap_or_default(), &s.name_any()),
                    Change::Only(services) => {
                        let name = |s: &Service| (s.namespace().unwrap_or_default(), s.name_any());
                        directory.retain_services(&services.iter().map(name).collect());
                        services.iter().for_each(|service| directory.service(service));
                    }
                }),
                each(slices, |change| match change {
                    Change::Is(slice) => directory.slice(&slice),
                    Change::Gone(slice) => directory.slice_gone(&slice.uid().unwrap_or_default()),
                    Change::Only(slices) => {
                        directory.retain_slices(&slices.iter().filter_map(ResourceExt::uid).collect());
                        slices.iter().for_each(|slice| directory.slice(slice));
                    }
                }),
                each(maps, |change| self.config_changed(Kind::ConfigMap, change)),
                each(secrets, |change| self.config_changed(Kind::Secret, change)),
            )
        };
        tokio::select! { () = self.stop.cancelled() => {}, _ = following => {} }
    }

    fn config_changed<K: ResourceExt>(&self, kind: Kind, change: Change<K>) {
        let tell = |object: &K| {
            let change = (kind, object.namespace().unwrap_or_default(), object.name_any());
            // Nobody listens when no pod runs.
            let _ = self.machine.config_changes.send(change);
        };
        match change {
            Change::Is(object) => tell(&object),
            Change::Gone(_) => {}
            Change::Only(objects) => objects.iter().for_each(tell),
        }
    }
}

fn node_of(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}

enum Change<K> {
    Is(K),
    Gone(K),
    /// These are all there are.
    Only(Vec<K>),
}

async fn each<K>(events: impl Stream<Item = watcher::Result<watcher::Event<K>>>, mut take: impl FnMut(Change<K>)) {
    let mut list = Vec::new();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Apply(object)) => take(Change::Is(object)),
            Ok(watcher::Event::Delete(object)) => take(Change::Gone(object)),
            Ok(watcher::Event::Init) => list.clear(),
            Ok(watcher::Event::InitApply(object)) => list.push(object),
            Ok(watcher::Event::InitDone) => take(Change::Only(std::mem::take(&mut list))),
            Err(error) => {
                tracing::debug!(%error, "a watch was interrupted");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}
