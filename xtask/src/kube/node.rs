//! A node: containerd, kubelet, kube-proxy. Each pod has its own routed point-to-point link, so that every packet
//! between two pods passes the node's rules, even on the same node: kube-proxy's, and the cuts of [`super::fault`].

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use super::build::Parts;
use super::guest::{Daemon, api_ready};
use super::layout::{CONTROL, Guest, PODS, Run};
use super::pki::kubeconfig;
use super::store;
use crate::image::PAUSE;
use crate::paths::Paths;
use crate::shell::output;

pub(crate) fn daemons(paths: &Paths, run: &Run, parts: &Parts, node: &Guest) -> Result<Vec<Daemon>> {
    let folder = run.guest(node);
    fs::create_dir_all(folder.join("cni"))?;
    fs::create_dir_all(run.volumes(&node.to_string()))?;
    fs::write(folder.join("containerd.toml"), containerd_config(parts, &folder))?;
    fs::write(folder.join("cni/10-pods.conflist"), cni_config(node)?)?;
    fs::write(folder.join("kubelet.json"), kubelet_config(run, &folder)?)?;
    fs::write(folder.join("proxy.json"), proxy_config(run, &node.to_string())?)?;
    store::copy(paths, parts, &folder.join("containerd"))?;
    let socket = folder.join("containerd.sock");
    let _ = fs::remove_file(&socket); // left by an earlier run of this node
    let config = |file: &str| format!("--config={}", folder.join(file).display());
    let kubelet = [
        config("kubelet.json"),
        format!("--kubeconfig={}", kubeconfig(run, &node.to_string()).display()),
        format!("--hostname-override={node}"),
        format!("--node-ip={}", node.address()),
        format!("--root-dir={}", folder.join("kubelet").display()),
        format!("--cert-dir={}", folder.join("kubelet-pki").display()),
        format!(
            "--node-labels=topology.kubernetes.io/zone={}",
            node.to_string().replace("node", "zone")
        ),
    ];
    let mut containerd = Daemon::new(
        format!("{node}-containerd"),
        parts.containerd("containerd"),
        &[config("containerd.toml")],
    );
    containerd.command.env("PATH", parts.search_path());
    Ok(vec![
        containerd,
        Daemon::new(format!("{node}-kubelet"), parts.program("kubelet"), &kubelet)
            .after(api_ready(run))
            .after(socket),
        Daemon::new(
            format!("{node}-proxy"),
            parts.program("kube-proxy"),
            &[config("proxy.json")],
        )
        .after(api_ready(run)),
    ])
}

/// `./x kube load`: imports archives on every node.
pub(crate) fn load(paths: &Paths, run: &Run, archives: &[PathBuf]) -> Result<()> {
    let facts = run.facts()?;
    let parts = Parts::new(paths, &facts.version);
    on_all_nodes(facts.nodes, |node| import(&parts, run, node, archives))
}

/// Runs a function for every node in parallel.
pub(crate) fn on_all_nodes(nodes: usize, act: impl Fn(&Guest) -> Result<()> + Sync) -> Result<()> {
    let act = &act;
    std::thread::scope(|scope| {
        let threads: Vec<_> = Guest::all(nodes)
            .skip(1)
            .map(|node| scope.spawn(move || act(&node).context(node.to_string())))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("a thread ended badly")))
    })
}

/// Layers stay packed until a pod needs them (`--no-unpack`), because most of what is loaded is never started on most
/// nodes.
fn import(parts: &Parts, run: &Run, node: &Guest, archives: &[PathBuf]) -> Result<()> {
    let socket = run.guest(node).join("containerd.sock");
    for archive in archives {
        output(
            parts
                .ctr(&socket)
                .args(["images", "import", "--no-unpack"])
                .arg(archive),
        )
        .with_context(|| format!("cannot import {}", archive.display()))?;
    }
    Ok(())
}

/// Its state is in the node's own /run, which disappears with the node, as when a machine loses power.
fn containerd_config(parts: &Parts, folder: &Path) -> String {
    format!(
        r#"version = 2
root = "{folder}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true # this may run where CAP_SYS_RESOURCE is missing
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{folder}/cni"
"#,
        folder = folder.display(),
        cni = parts.cni().display(),
    )
}

fn cni_config(node: &Guest) -> Result<String> {
    let range = node.pods().context("only nodes have pods")?;
    let config = json!({
        "cniVersion": "0.4.0", "name": "pods", "plugins": [{
            "type": "ptp", "ipMasq": false,
            "ipam": {
                "type": "host-local", "dataDir": "/run/cni-addresses",
                "ranges": [[{ "subnet": range }]], "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    });
    Ok(serde_json::to_string_pretty(&config)?)
}

fn kubelet_config(run: &Run, folder: &Path) -> Result<String> {
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": { "enabled": false }, "webhook": { "enabled": true },
            "x509": { "clientCAFile": run.folder.join("pki/ca.crt") },
        },
        "authorization": { "mode": "Webhook" },
        "clusterDNS": [CONTROL], "clusterDomain": "cluster.local",
        "resolvConf": run.folder.join("node-resolv.conf"),
        "containerRuntimeEndpoint": format!("unix://{}", folder.join("containerd.sock").display()),
        "podLogsDir": folder.join("logs"),
        // Supports cgroup v1 and v2, also where this process may not manage them.
        "cgroupDriver": "cgroupfs", "cgroupsPerQOS": false, "enforceNodeAllocatable": [], "failCgroupV1": false,
        "failSwapOn": false, "makeIPTablesUtilChains": false, "localStorageCapacityIsolation": false,
        // The machine's disk is shared, so only a full disk counts.
        "evictionHard": {
            "memory.available": "1Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "maxPods": 200, "serializeImagePulls": false,
        "nodeStatusUpdateFrequency": "4s", "nodeLeaseDurationSeconds": 8,
    });
    Ok(serde_json::to_string_pretty(&config)?)
}

pub(crate) fn proxy_config(run: &Run, node: &str) -> Result<String> {
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "clientConnection": { "kubeconfig": kubeconfig(run, "proxy") },
        "clusterCIDR": PODS, "mode": "nftables", "hostnameOverride": node,
        "conntrack": { "maxPerCore": 0 }, // a setting of the whole machine, which is not changed
        "nftables": { "minSyncPeriod": "0.1s", "syncPeriod": "30s" },
    });
    Ok(serde_json::to_string_pretty(&config)?)
}
