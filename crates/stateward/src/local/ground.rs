//! An embedded Kubernetes with the operator beside it, in this process.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use embedded_kube::{Cluster, Faults, Guest, ImageSource};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use stateward::Config;
use stateward_etcd::api::EtcdCluster;
use tokio_util::sync::CancellationToken;

/// How to start.
pub(crate) struct Start {
    /// Where state is kept; temporary unless given.
    pub(crate) folder: Option<PathBuf>,
    /// How many nodes.
    pub(crate) nodes: u8,
    /// With the operator.
    pub(crate) operator: bool,
    /// Answer with the nearest image.
    pub(crate) nearest_images: bool,
    /// Pods reach what the machine reaches.
    pub(crate) outbound: bool,
}

impl Start {
    /// For a demo: three nodes, whatever etcd is there, nothing kept.
    pub(crate) fn temporary(outbound: bool) -> Self {
        Self {
            folder: None,
            nodes: 3,
            operator: true,
            nearest_images: true,
            outbound,
        }
    }
}

/// What runs.
pub(crate) struct Ground {
    cluster: Cluster,
    _program: tempfile::TempDir,
    stop: CancellationToken,
    operator: Option<tokio::task::JoinHandle<()>>,
    /// Where the operator runs in the cluster's network.
    guest: Guest,
    folder: PathBuf,
}

/// Where `./x setup` puts etcd, one folder a version.
pub(crate) fn etcd_folder() -> PathBuf {
    std::env::var_os("STATEWARD_ETCD_DIR").map_or_else(|| cache().join("etcd"), PathBuf::from)
}

/// The folder of images, as `./x images` fills it.
fn images_folder() -> PathBuf {
    std::env::var_os("STATEWARD_IMAGES").map_or_else(|| cache().join("images"), PathBuf::from)
}

fn cache() -> PathBuf {
    let cache = std::env::var_os("STATEWARD_CACHE").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::var_os("XDG_CACHE_HOME").map(|home| PathBuf::from(home).join("stateward")));
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/stateward")));
    cache.unwrap_or_else(|| ".".into())
}

/// The folder with the newest etcd at hand.
pub(super) fn newest_etcd() -> Option<PathBuf> {
    let entries = std::fs::read_dir(etcd_folder()).into_iter().flatten().flatten();
    let folders = entries
        .map(|entry| entry.path())
        .filter(|path| path.join("etcdctl").is_file());
    folders.max_by_key(|folder| version(folder))
}

/// The folder of a kubectl in the cache, where the PATH has none: the newest of those that `./x setup` and `./x kube` put there.
pub(crate) fn kubectl_off_path() -> Option<PathBuf> {
    kubectl_beside(&std::env::var_os("PATH").unwrap_or_default(), &cache())
}

fn kubectl_beside(path: &OsStr, cache: &Path) -> Option<PathBuf> {
    let has_one = |folder: &PathBuf| folder.join("kubectl").is_file();
    if std::env::split_paths(path).any(|folder| has_one(&folder)) {
        return None;
    }
    let folders = ["kube", "kubectl"].map(|name| std::fs::read_dir(cache.join(name)));
    let folders = folders
        .into_iter()
        .flatten()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    folders.filter(has_one).max_by_key(|folder| version(folder))
}

/// The version that a folder is named after.
fn version(folder: &Path) -> Vec<u32> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').map(|part| part.parse().unwrap_or_default()).collect()
}

/// This very program as the image that pods which take and restore backups run.
fn own_image(folder: &Path) -> Result<ImageSource> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    ImageSource::program(
        stateward_runtime::operator::AGENT_IMAGE,
        ("stateward", &program),
        folder,
    )
    .context("cannot copy this program")
}

impl Ground {
    pub(crate) async fn start(start: Start) -> Result<Self> {
        let mut builder = Cluster::builder()
            .nodes(start.nodes)
            .images(ImageSource::Folder(images_folder()))
            .nearest_images(start.nearest_images)
            .outbound(start.outbound);
        if let Some(folder) = &start.folder {
            builder = builder.folder(folder);
        }
        let program = tempfile::tempdir().context("cannot make a folder")?;
        builder = builder.images(own_image(program.path())?);
        let cluster = builder.start().await.context("cannot start the embedded Kubernetes")?;
        let folder = cluster.folder().to_owned();
        crate::logging::to_file(&folder.join("log"))?;
        std::fs::write(folder.join("pid"), std::process::id().to_string())?;
        let guest = cluster.guest().await.context("cannot give the operator an address")?;
        let kubeconfig = embedded_kube::kubeconfig_yaml(&cluster.kubeconfig());
        std::fs::write(folder.join("kubeconfig"), kubeconfig).context("cannot write the kubeconfig")?;
        let stop = CancellationToken::new();
        let mut ground = Self {
            cluster,
            _program: program,
            stop,
            operator: None,
            guest,
            folder,
        };
        if start.operator {
            ground.start_operator();
            ground.knows_clusters().await?;
        }
        Ok(ground)
    }

    fn start_operator(&mut self) {
        let (client, stop) = (self.cluster.client(), self.stop.clone());
        self.operator = Some(self.guest.spawn(async move {
            if let Err(error) = stateward::run(Config::default(), client, stop).await {
                tracing::error!("the operator ended: {error:#}");
            }
        }));
    }

    /// Waits until the API server serves the kinds that the operator brings.
    async fn knows_clusters(&self) -> Result<()> {
        let clusters: Api<EtcdCluster> = Api::all(self.client());
        let served = async {
            while clusters.list(&ListParams::default().limit(1)).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), served)
            .await
            .context("the operator did not start within 30 s")
    }

    pub(crate) fn client(&self) -> Client {
        self.cluster.client()
    }

    pub(crate) fn faults(&self) -> Result<Faults> {
        self.cluster.faults().context("it was started without nodes")
    }

    /// The operator's address.
    pub(crate) fn operator_address(&self) -> Ipv4Addr {
        self.guest.address()
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Ends a pod's processes as a crash does.
    pub(crate) async fn kill_pod(&self, pods: &Api<Pod>, name: &str) -> Result<()> {
        let namespace = pods.get(name).await?.namespace().unwrap_or_default();
        self.faults()?
            .kill(&namespace, name, None, nix::libc::SIGKILL)
            .await
            .with_context(|| format!("cannot kill {name}"))
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        if let Some(operator) = self.operator {
            let _ended = operator.await;
        }
        self.cluster.stop().await;
        let _gone = std::fs::remove_file(self.folder.join("pid"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kubectl_of_the_cache_is_found_where_the_path_has_none() {
        let cache = tempfile::tempdir().unwrap();
        let on_path = cache.path().join("bin");
        assert_eq!(kubectl_beside(on_path.as_os_str(), cache.path()), None);
        for folder in ["kubectl/1.9", "kubectl/1.32", "kubectl/1.40", "bin"] {
            std::fs::create_dir_all(cache.path().join(folder)).unwrap();
        }
        for folder in ["kubectl/1.9", "kubectl/1.32"] {
            std::fs::write(cache.path().join(folder).join("kubectl"), "").unwrap();
        }
        let found = kubectl_beside(on_path.as_os_str(), cache.path());
        assert_eq!(found, Some(cache.path().join("kubectl/1.32")));
        std::fs::write(on_path.join("kubectl"), "").unwrap();
        assert_eq!(kubectl_beside(on_path.as_os_str(), cache.path()), None);
    }
}
