//! The parts of a real Kubernetes, and their places in the cache: programs from the Go module proxy, the container
//! runtime from Debian's packages (unpacked, because installing containerd would start a service), and our own images.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use super::root;
use crate::paths::Paths;
use crate::shell::{cmd, output, run};
use crate::{debian, golang, image, pins};

/// The places of the parts.
pub(crate) struct Parts {
    /// The programs of Kubernetes, including kubectl.
    pub(crate) kubernetes: PathBuf,
    pub(crate) etcd: PathBuf,
    pub(crate) coredns: PathBuf,
    helm: PathBuf,
    /// A root folder with containerd, runc and the CNI plugins.
    runtime: PathBuf,
}

impl Parts {
    pub(crate) fn new(paths: &Paths, version: &str) -> Self {
        Self {
            kubernetes: paths.cache.join("kube").join(version),
            etcd: paths.etcd(pins::KUBERNETES_ETCD),
            coredns: paths.cache.join("coredns").join(pins::COREDNS),
            helm: paths.helm(),
            runtime: paths.cache.join("runtime"),
        }
    }

    /// Builds and fetches what is missing. The first time, this takes minutes.
    pub(crate) fn ensure(&self, paths: &Paths, version: &str) -> Result<()> {
        if !pins::KUBERNETES.contains(&version) {
            bail!(
                "Kubernetes {version} is not pinned here; choose one of {}",
                pins::KUBERNETES.join(", ")
            );
        }
        golang::build(paths, &pins::kubernetes(version), &self.kubernetes)?;
        golang::build(paths, &pins::coredns(), &self.coredns)?;
        golang::build(paths, &pins::helm(), &self.helm)?;
        crate::prometheus::definitions(paths)?;
        etcds(paths)?;
        let packages = ["containerd", "runc", "containernetworking-plugins"];
        debian::tree(paths, "bookworm", &packages, &self.runtime)?;
        image::pause(paths)?;
        image::etcds(paths).map(drop)
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.kubernetes.join(name)
    }

    pub(crate) fn containerd(&self, name: &str) -> PathBuf {
        self.runtime.join("usr/bin").join(name)
    }

    /// containerd's namespace in which the kubelet looks for images.
    pub(crate) fn ctr(&self, socket: &Path) -> Command {
        let mut command = cmd(self.containerd("ctr"), ["--namespace", "k8s.io", "--address"]);
        command.arg(socket);
        command
    }

    pub(crate) fn cni(&self) -> PathBuf {
        self.runtime.join("usr/lib/cni")
    }

    /// The folder of kubectl and Helm.
    pub(crate) fn tools(&self) -> String {
        format!("{}:{}", self.kubernetes.display(), self.helm.display())
    }

    /// The search path for containerd, which looks up its shim and runc by name.
    pub(crate) fn search_path(&self) -> String {
        let system = std::env::var("PATH").unwrap_or_else(|_| "/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
        format!("{0}/usr/bin:{0}/usr/sbin:{system}", self.runtime.display())
    }
}

/// Every etcd that is built with Go, in addition to those from Debian's packages.
pub(crate) fn etcds(paths: &Paths) -> Result<()> {
    for version in pins::ETCDS {
        golang::build(paths, &pins::etcd(version), &paths.etcd(version))?;
    }
    // The old versions have no client that compiles; the client of 3.5 works with them.
    for version in pins::ETCDS
        .iter()
        .filter(|version| version.starts_with("3.2.") || version.starts_with("3.3."))
    {
        let client = paths.etcd(version).join("etcdctl");
        if !client.exists() {
            std::fs::copy(paths.etcd("3.5.35").join("etcdctl"), client)?;
        }
    }
    crate::setup::ensure(paths)
}

/// Reports everything that is missing to run a real Kubernetes here; installs what root may install.
pub(crate) fn check_machine(paths: &Paths) -> Result<()> {
    let tools = [
        ("ip", "iproute2"),
        ("nft", "nftables"),
        ("nsenter", "util-linux"),
        ("setsid", "util-linux"),
    ];
    let mut packages: Vec<_> = tools
        .iter()
        .filter(|(tool, _)| output(&mut cmd(tool, ["-V"])).is_err())
        .map(|(_, package)| *package)
        .collect();
    packages.dedup();
    let root = root::is_root();
    if root && !packages.is_empty() {
        eprintln!("installing {}", packages.join(" "));
        let install = || run(cmd("apt-get", ["install", "-qq", "-y", "--no-install-recommends"]).args(&packages));
        install().or_else(|_| run(&mut cmd("apt-get", ["update", "-qq"])).and_then(|()| install()))?;
        packages.clear();
    }
    let mut lacks = Vec::new();
    if !root {
        let command = root::as_root(paths)?.join(" ");
        lacks.push(format!(
            "root, for network namespaces, mounts and containers: sudo {command}"
        ));
    }
    if !packages.is_empty() {
        lacks.push(format!("packages: sudo apt-get install -y {}", packages.join(" ")));
    }
    for hidden in ["/run", "/var/lib", "/var/log"] {
        if paths.cache.starts_with(hidden) {
            lacks.push(format!(
                "a cache folder outside {hidden}, which is private to each node: set STATEWARD_CACHE"
            ));
        }
    }
    if !lacks.is_empty() {
        bail!(
            "a real Kubernetes cannot run here yet. Missing:\n  {}",
            lacks.join("\n  ")
        );
    }
    Ok(())
}
