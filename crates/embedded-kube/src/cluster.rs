//! One embedded Kubernetes: starts the API server, the controllers and the nodes, and stops them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kube::config::{AuthInfo, Cluster as ClusterEntry, Context, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::network::{API_PORT, Network};
use crate::api::pki::{Pki, PkiError};
use crate::api::server::Server;
use crate::api::store::{OpenError, Store};
use crate::api::{self, Authenticator, User};
use crate::controllers;
use crate::network::{self, Guest, Plane, Range};
use crate::node::{self, Faults, ImageSource, Nodes};

/// Why a cluster could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The folder for the state cannot be used.
    #[error("cannot use the folder {0}: {1}")]
    Folder(PathBuf, std::io::Error),
    /// The stored objects cannot be read.
    #[error("{0}")]
    Store(String),
    /// Keys or certificates cannot be made.
    #[error("{0}")]
    Keys(String),
    /// No address to listen on.
    #[error("cannot listen on {0}: {1}")]
    Listen(String, std::io::Error),
    /// There is no network for pods.
    #[error("{0}")]
    Network(String),
    /// The nodes could not start.
    #[error("{0}")]
    Nodes(String),
    /// The objects that every cluster has could not be created.
    #[error("cannot set up the cluster: {0}")]
    Bootstrap(String),
}

impl From<OpenError> for StartError {
    fn from(e: OpenError) -> Self {
        Self::Store(e.to_string())
    }
}

impl From<PkiError> for StartError {
    fn from(e: PkiError) -> Self {
        Self::Keys(e.to_string())
    }
}

/// How to start a [`Cluster`].
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Builder {
    folder: Option<PathBuf>,
    port: Option<u16>,
    node_grace: Option<Duration>,
    nodes: u8,
    images: Vec<ImageSource>,
    nearest_images: bool,
    back_off: Option<Duration>,
    outbound: bool,
}

impl Builder {
    /// Keeps all state in this folder; without it, state is temporary and goes when the cluster is dropped.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Listens on this port of 127.0.0.1, also in the machine's network where this process left that; without it, on the port
    /// of the last run of this folder, or any free one.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// A node that gives no sign of life for so long is unreachable; without it, 40 seconds as in Kubernetes.
    pub fn node_grace(mut self, grace: Duration) -> Self {
        self.node_grace = Some(grace);
        self
    }

    /// Runs so many nodes, `node-0` and on, each in a zone of its own. Without it there is none: the API and the
    /// controllers work, and pods stay pending.
    pub fn nodes(mut self, nodes: u8) -> Self {
        self.nodes = nodes;
        self
    }

    /// Adds images, beside those that are the host's own programs (`busybox` and the like).
    pub fn images(mut self, source: ImageSource) -> Self {
        self.images.push(source);
        self
    }

    /// A tag that is not there is answered with the nearest version, and an event says so.
    pub fn nearest_images(mut self, nearest: bool) -> Self {
        self.nearest_images = nearest;
        self
    }

    /// The wait before a container that crashed is started again, doubling each time; without it, 10 seconds as in
    /// Kubernetes.
    pub fn back_off(mut self, wait: Duration) -> Self {
        self.back_off = Some(wait);
        self
    }

    /// Pods reach what the machine reaches: TCP connections to foreign addresses are relayed, and foreign names mean what they
    /// mean to the machine. `host.cluster.internal` is the machine's own 127.0.0.1. Without it, pods reach only the cluster.
    ///
    /// It needs a process that called [`enter_network`](crate::enter_network).
    pub fn outbound(mut self, outbound: bool) -> Self {
        self.outbound = outbound;
        self
    }

    /// Starts the cluster; it serves when this returns.
    pub async fn start(self) -> Result<Cluster, StartError> {
        Cluster::start_with(self).await
    }
}

/// A running embedded Kubernetes. Dropping it stops it; [`Cluster::stop`] also waits until it has stopped.
pub struct Cluster {
    server: Arc<Server>,
    pki: Arc<Pki>,
    address: SocketAddr,
    folder: PathBuf,
    stop: CancellationToken,
    tasks: TaskTracker,
    nodes: Option<Nodes>,
    plane: Option<Arc<Plane>>,
    _temporary: Option<tempfile::TempDir>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("address", &self.address)
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

impl Cluster {
    /// Starts a cluster with temporary state.
    pub async fn start() -> Result<Self, StartError> {
        Self::builder().start().await
    }

    /// Chooses how to start.
    pub fn builder() -> Builder {
        Builder::default()
    }

    async fn start_with(builder: Builder) -> Result<Self, StartError> {
        let (folder, temporary) = match builder.folder {
            Some(folder) => (folder, None),
            None => {
                let made = tempfile::Builder::new().prefix("embedded-kube-").tempdir();
                let made = made.map_err(|e| StartError::Folder(std::env::temp_dir(), e))?;
                (made.path().to_owned(), Some(made))
            }
        };
        let failed = |e| StartError::Folder(folder.clone(), e);
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let store = Store::open(&folder.join("state.redb"))?;
        let pki = Arc::new(Pki::open(&folder.join("pki"))?);
        let remembered = |name: &str| -> Option<String> { std::fs::read_to_string(folder.join(name)).ok() };
        let wanted = remembered("network").and_then(|text| text.trim().parse().ok());
        let outside = match builder.outbound {
            false => None,
            true => Some(network::outside().cloned().ok_or_else(|| {
                let why =
                    "pods reach the machine's network only where this process called `embedded_kube::enter_network()`";
                StartError::Network(why.to_owned())
            })?),
        };
        // Without nodes nothing is in the network, and its addresses are names only.
        let plane = match builder.nodes {
            0 => None,
            _ => Some(Plane::claim(wanted).map_err(|e| StartError::Network(e.to_string()))?),
        };
        let plane = plane.map(Arc::new);
        let range = plane.as_ref().map(|plane| plane.range());
        let range = range.or_else(|| wanted.and_then(Range::new)).unwrap_or_else(Range::any);
        let network = Arc::new(Network::new(range));
        let last_port = remembered("port").and_then(|text| text.trim().parse().ok());
        let mut listeners = listen(builder.port, last_port).await?;
        let address = listeners[0].local_addr().map_err(failed)?;
        std::fs::write(folder.join("network"), range.number().to_string()).map_err(failed)?;
        std::fs::write(folder.join("port"), address.port().to_string()).map_err(failed)?;
        // Pods reach the API server at its service address.
        let service = SocketAddr::from((range.api_service(), API_PORT));
        if plane.is_some() {
            let listener = TcpListener::bind(service).await;
            listeners.push(listener.map_err(|e| StartError::Listen(service.to_string(), e))?);
        }
        network.set_api(address);
        network::write_resolv(&folder, range).map_err(failed)?;

        let tls = pki.server(&server_names(&network))?;
        let tls = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let authenticator = Authenticator::new(pki.ca.clone(), pki.admin_token.clone(), pki.token_key.clone());
        let server = Server::new(store, authenticator, network, stop.clone(), tasks.clone());
        api::bootstrap(&server)
            .await
            .map_err(|e| StartError::Bootstrap(e.to_string()))?;
        server.resume();
        for listener in listeners {
            tasks.spawn(api::listen::run(server.clone(), listener, tls.clone(), tasks.clone()));
        }
        let mut options = controllers::Options {
            ca_pem: pki.ca.clone(),
            volumes_dir: folder.join("volumes"),
            ..controllers::Options::default()
        };
        if let Some(grace) = builder.node_grace {
            options.node_grace = grace;
        }
        let client = api::client::in_memory(server.clone(), User::admin());
        tasks.spawn(controllers::run(client.clone(), options, stop.clone()));
        let nodes = match plane.clone() {
            None => None,
            Some(plane) => {
                let mut options = node::Options::new(folder.join("nodes"), plane);
                (options.nodes, options.zones) = (builder.nodes, builder.nodes);
                options.images.extend(builder.images);
                options.nearest_images = builder.nearest_images;
                options.api = Some(service);
                options.outside = outside;
                options.back_off = builder.back_off.unwrap_or(options.back_off);
                let nodes = Nodes::start(client, options, stop.clone()).await;
                let nodes = nodes.map_err(|e| StartError::Nodes(e.to_string()))?;
                // Set once: nothing else sets it.
                let _ = server.streams.set(nodes.streams());
                Some(nodes)
            }
        };
        Ok(Self {
            server,
            pki,
            address,
            folder,
            stop,
            tasks,
            nodes,
            plane,
            _temporary: temporary,
        })
    }

    /// An administrator's client that talks to the server in memory: no sockets, no TLS.
    ///
    /// It cannot upgrade connections: for `exec`, `attach` and `port-forward` use [`Cluster::https_client`].
    pub fn client(&self) -> kube::Client {
        api::client::in_memory(self.server.clone(), User::admin())
    }

    /// An in-memory client that acts as this user in these groups, with exactly the rights RBAC gives them.
    pub fn client_as(&self, user: &str, groups: &[&str]) -> kube::Client {
        api::client::in_memory(self.server.clone(), User::new(user, groups))
    }

    /// An administrator's client over TLS.
    pub async fn https_client(&self) -> Result<kube::Client, kube::Error> {
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(self.kubeconfig(), &options)
            .await
            .map_err(|e| kube::Error::Service(Box::new(e)))?;
        kube::Client::try_from(config)
    }

    #[cfg(test)]
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Faults on demand; absent without nodes.
    pub fn faults(&self) -> Option<Faults> {
        self.nodes.as_ref().map(Nodes::faults)
    }

    /// A part of this process with an address of its own in the cluster's network. It fails without nodes.
    pub async fn guest(&self) -> std::io::Result<Guest> {
        let nodes = self.nodes.as_ref();
        nodes
            .ok_or_else(|| std::io::Error::other("a cluster without nodes has no network"))?
            .guest()
            .await
    }

    /// The address at which pods reach what this process, and what it starts, listens on.
    pub fn gateway(&self) -> Ipv4Addr {
        self.server.network.range().gateway()
    }

    /// Adds images; pods that wait for them start at once.
    pub fn add_images(&self, source: &ImageSource) {
        if let Some(nodes) = &self.nodes {
            nodes.add_images(source);
        }
    }

    /// Where the API server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The folder with all state.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The administrator's bearer token.
    pub fn admin_token(&self) -> &str {
        &self.pki.admin_token
    }

    /// The certificate authority that clients must trust, PEM.
    pub fn ca(&self) -> &str {
        &self.pki.ca
    }

    /// A kubeconfig for the administrator.
    pub fn kubeconfig(&self) -> Kubeconfig {
        self.kubeconfig_with(&self.pki.admin)
    }

    /// A kubeconfig with a new client certificate for this user and these groups.
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<Kubeconfig, StartError> {
        Ok(self.kubeconfig_with(&self.pki.client(user, groups)?))
    }

    fn kubeconfig_with(&self, identity: &crate::api::pki::Identity) -> Kubeconfig {
        use base64::Engine;
        let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let name = "embedded-kube".to_owned();
        Kubeconfig {
            clusters: vec![NamedCluster {
                name: name.clone(),
                cluster: Some(ClusterEntry {
                    server: Some(format!("https://{}", self.address)),
                    certificate_authority_data: Some(encode(&self.pki.ca)),
                    ..ClusterEntry::default()
                }),
                other: Default::default(),
            }],
            auth_infos: vec![NamedAuthInfo {
                name: name.clone(),
                auth_info: Some(AuthInfo {
                    client_certificate_data: Some(encode(&identity.certificate)),
                    client_key_data: Some(encode(&identity.key).into()),
                    ..AuthInfo::default()
                }),
                other: Default::default(),
            }],
            contexts: vec![NamedContext {
                name: name.clone(),
                context: Some(Context {
                    cluster: name.clone(),
                    user: Some(name.clone()),
                    ..Context::default()
                }),
                other: Default::default(),
            }],
            current_context: Some(name),
            kind: Some("Config".into()),
            api_version: Some("v1".into()),
            ..Kubeconfig::default()
        }
    }

    /// The administrator's kubeconfig as text, for a file that kubectl reads.
    pub fn kubeconfig_yaml(&self) -> String {
        kubeconfig_yaml(&self.kubeconfig())
    }

    /// Stops everything and waits until it has stopped. The folder can then be opened again.
    pub async fn stop(mut self) {
        if let Some(nodes) = &self.nodes {
            nodes.shut_down().await;
        }
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        let server = self.server.clone();
        let _ = tokio::task::spawn_blocking(move || server.store.close()).await;
        // Whoever starts again gets the same network only when nobody holds it any more.
        let Self { nodes, plane, .. } = &mut self;
        drop(nodes.take());
        let Some(plane) = plane.take() else { return };
        for _ in 0..400 {
            if Arc::strong_count(&plane) == 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let _ = tokio::task::spawn_blocking(move || drop(plane)).await;
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A kubeconfig as the text of a file that kubectl reads.
pub fn kubeconfig_yaml(kubeconfig: &Kubeconfig) -> String {
    // Secret fields are skipped by the type's own serialization only when they are in memory-only form; key data is not.
    serde_yaml_ng::to_string(kubeconfig).unwrap_or_default()
}

/// On one port of the loopback address here and, where this process left it, in the machine's network.
async fn listen(wanted: Option<u16>, last: Option<u16>) -> Result<Vec<TcpListener>, StartError> {
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let both = |port| -> std::io::Result<Vec<TcpListener>> {
        let first = match network::outside() {
            Some(outside) => outside.listen(at(port))?,
            None => std::net::TcpListener::bind(at(port))?,
        };
        let mut listeners = vec![first];
        if network::outside().is_some() {
            listeners.push(std::net::TcpListener::bind(listeners[0].local_addr()?)?);
        }
        let served = listeners.into_iter().map(|listener| {
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        });
        served.collect()
    };
    if wanted.is_none()
        && let Some(port) = last
        && let Ok(listeners) = both(port)
    {
        return Ok(listeners);
    }
    let port = wanted.unwrap_or(0);
    both(port).map_err(|e| StartError::Listen(at(port).to_string(), e))
}

fn server_names(network: &Network) -> Vec<String> {
    let fixed = [
        "localhost",
        "127.0.0.1",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ];
    fixed
        .iter()
        .map(|n| n.to_string())
        .chain([network.range().api_service().to_string()])
        .collect()
}
