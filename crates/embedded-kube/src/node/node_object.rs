//! A node as the API shows it: its Node object, written once and when something changes, and its Lease, renewed as the
//! only sign of life.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::pod_worker::NodeFacts;
use crate::network::Range;

/// Kubernetes' own figures.
const LEASE_SECONDS: i32 = 40;
const RENEW_EVERY: Duration = Duration::from_secs(10);
const LEASES: &str = "kube-node-lease";
/// The Kubernetes release whose kubelet these nodes act like.
const VERSION: &str = "v1.37.0";

/// What a node is.
#[derive(Clone, Debug)]
pub(crate) struct NodeSpec {
    pub(crate) name: String,
    pub(crate) zone: String,
    pub(crate) address: Ipv4Addr,
    resources: BTreeMap<String, Quantity>,
}

impl NodeSpec {
    pub(crate) fn new(name: String, number: u8, zones: u8, range: Range) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let memory = memory_kib().unwrap_or(4 * 1024 * 1024);
        let resources = [
            ("cpu", cores.to_string()),
            ("memory", format!("{memory}Ki")),
            ("pods", "110".to_string()),
            ("ephemeral-storage", "100Gi".to_string()),
        ];
        Self {
            name,
            zone: format!("zone-{}", char::from(b'a' + number % zones.max(1))),
            address: range.node(number),
            resources: resources
                .into_iter()
                .map(|(name, amount)| (name.to_string(), Quantity(amount)))
                .collect(),
        }
    }

    pub(crate) fn facts(&self) -> NodeFacts {
        NodeFacts {
            address: IpAddr::V4(self.address),
            allocatable: self.resources.clone(),
        }
    }

    fn labels(&self) -> Value {
        json!({
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": architecture(),
            "beta.kubernetes.io/os": "linux",
            "beta.kubernetes.io/arch": architecture(),
            "topology.kubernetes.io/region": "local",
            "topology.kubernetes.io/zone": self.zone,
        })
    }

    fn status(&self, boot_id: &str) -> Value {
        let now = jiff::Timestamp::now();
        let now = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now);
        let condition = |kind: &str, status: &str, reason: &str, message: &str| {
            json!({"type": kind, "status": status, "reason": reason, "message": message,
                "lastHeartbeatTime": now, "lastTransitionTime": now})
        };
        json!({
            "capacity": self.resources,
            "allocatable": self.resources,
            "addresses": [
                {"type": "InternalIP", "address": self.address.to_string()},
                {"type": "Hostname", "address": self.name},
            ],
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
                condition("Ready", "True", "KubeletReady", "the node runs pods as processes of this machine"),
            ],
            "nodeInfo": {
                "architecture": architecture(),
                "bootID": boot_id,
                "containerRuntimeVersion": "embedded://1",
                "kernelVersion": read("/proc/sys/kernel/osrelease"),
                "kubeProxyVersion": "",
                "kubeletVersion": VERSION,
                "machineID": read("/etc/machine-id"),
                "operatingSystem": "linux",
                "osImage": os_image(),
                "systemUUID": read("/etc/machine-id"),
            },
        })
    }
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

fn memory_kib() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

fn os_image() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or("Linux").trim_matches('"').to_string()
}

/// Creates the Node or brings it up to date, and says that it is ready.
pub(crate) async fn register(client: &Client, spec: &NodeSpec, boot_id: &str) -> Result<Node, kube::Error> {
    let api: Api<Node> = Api::all(client.clone());
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": spec.name, "labels": spec.labels()}});
    let node: Node = serde_json::from_value(object.clone()).map_err(kube::Error::SerdeError)?;
    match api.create(&PostParams::default(), &node).await {
        Ok(_) => {}
        Err(kube::Error::Api(answer)) if answer.code == 409 => {
            let labels = json!({"metadata": {"labels": spec.labels()}});
            api.patch(&spec.name, &PatchParams::default(), &Patch::Merge(labels))
                .await?;
        }
        Err(error) => return Err(error),
    }
    let status = json!({"status": spec.status(boot_id)});
    api.patch_status(&spec.name, &PatchParams::default(), &Patch::Strategic(status))
        .await
}

/// Renews the node's Lease until it stops. Whatever the API server answers, the next attempt comes.
pub(crate) async fn keep_lease(client: Client, node: Node, stop: CancellationToken) {
    let api: Api<Lease> = Api::namespaced(client, LEASES);
    let name = node.metadata.name.clone().unwrap_or_default();
    loop {
        let renewed = renew(&api, &name, &node).await;
        if let Err(error) = &renewed {
            tracing::warn!(%error, node = name, "the lease could not be renewed");
        }
        let pause = if renewed.is_ok() {
            RENEW_EVERY
        } else {
            Duration::from_secs(1)
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn renew(api: &Api<Lease>, name: &str, node: &Node) -> Result<(), kube::Error> {
    let spec = json!({
        "holderIdentity": name,
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": MicroTime(jiff::Timestamp::now()),
    });
    let change = json!({"spec": spec});
    match api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await {
        Ok(_) => return Ok(()),
        Err(kube::Error::Api(answer)) if answer.code == 404 => {}
        Err(error) => return Err(error),
    }
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.metadata.uid});
    let lease = json!({"metadata": {"name": name, "ownerReferences": [owner]}, "spec": spec});
    let lease: Lease = serde_json::from_value(lease).map_err(kube::Error::SerdeError)?;
    api.create(&PostParams::default(), &lease).await.map(drop)
}
