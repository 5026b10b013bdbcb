//! Nodes that run pods as ordinary processes: kubelet, name server and service proxy of an instance in one.
//!
//! They speak to the API server through a client like anybody else, and give it [`PodStreams`](crate::streams::PodStreams)
//! for logs, exec and port-forward. On the machine they touch: their state folder, a folder in `/dev/shm` for volumes in
//! memory, the network that they are given, and the processes they start.

#[cfg(test)]
mod tests;

mod addresses;
mod container;
mod directory;
mod dns;
mod environment;
mod events;
mod exec;
mod faults;
mod images;
mod kubelet;
mod logs;
mod machine;
mod node_object;
mod pod_state;
mod pod_worker;
mod probes;
mod process;
mod sandbox;
mod services;
mod sources;
mod status;
mod terminal;
mod volumes;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use sha2::{Digest, Sha256};
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

pub use faults::{FaultError, Faults};
pub use images::{Image, ImageSource, Root};

use crate::network::{Filter, Guest, Outbound, Outside, Plane};
use crate::streams::PodStreams;

pub(crate) use directory::DOMAIN;
pub(crate) use sandbox::{find as find_program, tool as program};

/// How the nodes of an instance are set up.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Where pods' folders, logs and process records are kept.
    pub(crate) folder: PathBuf,
    /// The network of the instance.
    pub(crate) plane: Arc<Plane>,
    /// How many nodes: `node-0`, `node-1`…
    pub(crate) nodes: u8,
    /// Over how many zones they are spread.
    pub(crate) zones: u8,
    pub(crate) images: Vec<ImageSource>,
    /// Answer for a missing tag with the nearest version.
    pub(crate) nearest_images: bool,
    /// Where programs in pods reach the API server.
    pub(crate) api: Option<SocketAddr>,
    /// The machine's network, where pods may reach it.
    pub(crate) outside: Option<Outside>,
    /// The wait after the second crash in a row; Kubernetes' is 10 s.
    pub(crate) back_off: Duration,
}

impl Options {
    pub(crate) fn new(folder: PathBuf, plane: Arc<Plane>) -> Self {
        Self {
            folder,
            plane,
            nodes: 3,
            zones: 3,
            images: ImageSource::host_programs(),
            nearest_images: false,
            api: None,
            outside: None,
            back_off: Duration::from_secs(10),
        }
    }
}

/// Why nodes could not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    #[error("cannot use the folder {0}: {1}")]
    Folder(PathBuf, io::Error),
    #[error("nodes need the program `{0}`: install the package {1}")]
    Program(&'static str, &'static str),
    #[error("cannot start the name server of the pods: {0}")]
    Names(io::Error),
    #[error("cannot lead pods to the machine's network: {0}")]
    Outbound(io::Error),
    #[error("cannot register the nodes: {0}")]
    Api(#[from] kube::Error),
}

/// The running nodes of an instance.
pub(crate) struct Nodes {
    kubelet: Arc<kubelet::Kubelet>,
}

impl Nodes {
    /// Starts the nodes; they are registered and ready when this returns. Bound pods start at once.
    pub(crate) async fn start(client: Client, options: Options, stop: CancellationToken) -> Result<Self, NodeError> {
        for (program, package) in [
            ("bwrap", "bubblewrap"),
            ("nsenter", "util-linux"),
            ("setsid", "util-linux"),
        ] {
            if sandbox::find(program).is_none() {
                return Err(NodeError::Program(program, package));
            }
        }
        let failed = |error| NodeError::Folder(options.folder.clone(), error);
        fs::create_dir_all(options.folder.join("pods")).map_err(failed)?;
        let folder = options.folder.canonicalize().map_err(failed)?;
        let memory = memory_folder(&folder);
        let _ = fs::remove_dir_all(&memory);
        let plane = options.plane.clone();
        let range = plane.range();
        let directory = Arc::new(directory::Directory::new());
        let outbound = options.outside.map(|outside| Arc::new(Outbound::new(outside, range)));
        let names = dns::Names::new(directory.clone(), outbound.clone());
        let named = dns::serve(range.dns(), 53, names, stop.clone()).await;
        named.map_err(NodeError::Names)?;
        let relay = match outbound {
            None => None,
            Some(outbound) => {
                plane.lead_out().map_err(NodeError::Outbound)?;
                let port = outbound.relay(range, stop.clone()).await;
                Some(port.map_err(NodeError::Outbound)?)
            }
        };
        let filter = Arc::new(Filter::new(plane.clone(), relay));
        let addresses = (0..options.nodes).map(|number| range.node(number)).collect();
        tokio::spawn(services::run(
            directory.clone(),
            filter.clone(),
            addresses,
            stop.clone(),
        ));
        let machine = Arc::new(machine::Machine {
            spawner: process::Spawner::start(folder.join("processes")).map_err(failed)?,
            images: Arc::new(images::Images::new(&options.images, options.nearest_images)),
            directory,
            addresses: addresses::Addresses::new(range),
            plane,
            filter,
            events: events::Recorder::start(client.clone(), stop.clone()),
            client,
            folder,
            memory,
            api: options.api,
            back_off: options.back_off,
            config_changes: broadcast::channel(1024).0,
            cut_off: tokio::sync::watch::Sender::new(std::collections::BTreeSet::new()),
            shutting_down: std::sync::atomic::AtomicBool::new(false),
        });
        let specs = (0..options.nodes)
            .map(|number| node_object::NodeSpec::new(format!("node-{number}"), number, options.zones, range))
            .collect();
        let kubelet = kubelet::Kubelet::new(machine, specs, stop.clone());
        let (seen, listed) = watch::channel(false);
        tokio::spawn(kubelet.clone().follow(seen));
        tokio::spawn(forget_old_pods(kubelet.clone(), listed));
        let names = kubelet.node_names();
        let started = futures::future::join_all(names.iter().map(|name| kubelet.start_node(name))).await;
        started.into_iter().collect::<Result<(), _>>()?;
        Ok(Self { kubelet })
    }

    /// What the API server asks of pods.
    pub(crate) fn streams(&self) -> Arc<dyn PodStreams> {
        Arc::new(exec::Streams(self.kubelet.clone()))
    }

    /// A place in the network for a part of this process.
    pub(crate) async fn guest(&self) -> io::Result<Guest> {
        let machine = &self.kubelet.machine;
        let name = format!("guest-{}", uuid::Uuid::new_v4());
        let address = machine.addresses.assign(&name, None);
        let address = address.ok_or_else(|| io::Error::other("no address is left in this network"))?;
        let plane = machine.plane.clone();
        let place = tokio::task::spawn_blocking(move || plane.connect(address));
        Guest::new(address, place.await.map_err(io::Error::other)??)
    }

    pub(crate) fn faults(&self) -> Faults {
        Faults::new(self.kubelet.clone())
    }

    /// Adds images; pods that wait for them start at once.
    pub(crate) fn add_images(&self, source: &ImageSource) {
        self.kubelet.machine.images.add(source);
    }

    /// Ends all pods' processes as a machine's shutdown does: asked first, forced soon after. The API hears nothing of it.
    pub(crate) async fn shut_down(&self) {
        self.kubelet.shut_down(Duration::from_secs(3)).await;
        let _ = fs::remove_dir_all(&self.kubelet.machine.memory);
    }
}

/// A folder in memory of this instance alone, or below its own folder where the machine has none.
fn memory_folder(folder: &Path) -> PathBuf {
    let name = images::hex(&Sha256::digest(folder.as_os_str().as_encoded_bytes())[..6]);
    let shared = Path::new("/dev/shm");
    if nix::unistd::access(shared, nix::unistd::AccessFlags::W_OK).is_ok() {
        return shared.join(format!("embedded-kube-{name}"));
    }
    folder.join("memory")
}

/// Removes the folders of pods that went away while the nodes were down.
async fn forget_old_pods(kubelet: Arc<kubelet::Kubelet>, mut listed: watch::Receiver<bool>) {
    if listed.wait_for(|listed| *listed).await.is_err() {
        return;
    }
    for entry in fs::read_dir(kubelet.machine.folder.join("pods"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let known = entry.file_name().to_str().is_some_and(|uid| kubelet.pod(uid).is_some());
        if !known {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
