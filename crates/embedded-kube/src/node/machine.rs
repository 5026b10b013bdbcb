//! What all nodes of an instance share: the machine they run on.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube::Client;
use tokio::sync::{broadcast, watch};

use super::addresses::Addresses;
use super::directory::{DOMAIN, Directory};
use super::events::Recorder;
use super::images::Images;
use super::process::Spawner;
use super::sources::Kind;
use crate::network::{Filter, Plane};

/// A ConfigMap or Secret that changed: kind, namespace, name.
pub(crate) type ConfigChange = (Kind, String, String);

/// The machine.
pub(crate) struct Machine {
    pub(crate) client: Client,
    pub(crate) spawner: Spawner,
    pub(crate) images: Arc<Images>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) addresses: Addresses,
    pub(crate) plane: Arc<Plane>,
    /// The packet filter rules.
    pub(crate) filter: Arc<Filter>,
    pub(crate) events: Recorder,
    /// Where pods' folders are.
    pub(crate) folder: PathBuf,
    /// Where volumes in memory are.
    pub(crate) memory: PathBuf,
    pub(crate) api: Option<SocketAddr>,
    /// The wait after the second crash in a row; it doubles with every further one.
    pub(crate) back_off: Duration,
    pub(crate) config_changes: broadcast::Sender<ConfigChange>,
    /// Nodes that are cut off from the API server.
    pub(crate) cut_off: watch::Sender<BTreeSet<String>>,
    /// The instance ends: what ends now is no crash, and nothing is started or recorded any more.
    pub(crate) shutting_down: AtomicBool,
}

impl Machine {
    pub(crate) fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::SeqCst)
    }

    /// Waits while a node is cut off from the API server.
    pub(crate) async fn in_touch(&self, node: &str) {
        let mut cut_off = self.cut_off.subscribe();
        // the sender lives as long as the machine, so this cannot fail
        let _ = cut_off.wait_for(|nodes| !nodes.contains(node)).await;
    }

    pub(crate) fn pod_folder(&self, uid: &str) -> PathBuf {
        self.folder.join("pods").join(uid)
    }

    /// Writes the files of `/etc` that all containers of a pod share.
    pub(crate) fn write_etc(&self, folder: &Path, pod: &PodNames, users: &[u32]) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let mut passwd = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n".to_string();
        let mut group = "root:x:0:\nnogroup:x:65534:\n".to_string();
        for user in users.iter().filter(|user| !matches!(user, 0 | 65534)) {
            passwd.push_str(&format!("user{user}:x:{user}:{user}::/:/bin/sh\n"));
            group.push_str(&format!("user{user}:x:{user}:\n"));
        }
        let resolv = format!(
            "nameserver {}\nsearch {ns}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}\noptions ndots:5\n",
            self.plane.range().dns(),
            ns = pod.namespace,
        );
        fs::write(folder.join("passwd"), passwd)?;
        fs::write(folder.join("group"), group)?;
        fs::write(folder.join("resolv.conf"), resolv)?;
        fs::write(folder.join("hostname"), format!("{}\n", pod.hostname))?;
        fs::write(
            folder.join("nsswitch.conf"),
            "passwd: files\ngroup: files\nhosts: files dns\n",
        )?;
        fs::write(folder.join("hosts"), hosts(pod))
    }
}

/// A pod's own names.
#[derive(Clone, Debug)]
pub(crate) struct PodNames {
    pub(crate) namespace: String,
    pub(crate) hostname: String,
    pub(crate) subdomain: Option<String>,
    pub(crate) address: std::net::Ipv4Addr,
    /// The pod's own lines (`spec.hostAliases`).
    pub(crate) aliases: Vec<(String, Vec<String>)>,
}

/// The text of a hosts file: the pod itself. All other names come from the name server.
fn hosts(pod: &PodNames) -> String {
    let mut text =
        "# Managed by the node.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n".to_string();
    text.push_str(&format!("{}\t", pod.address));
    if let Some(subdomain) = &pod.subdomain {
        text.push_str(&format!("{}.{subdomain}.{}.svc.{DOMAIN} ", pod.hostname, pod.namespace));
    }
    text.push_str(&format!("{}\n", pod.hostname));
    for (address, names) in &pod.aliases {
        text.push_str(&format!("{address}\t{}\n", names.join(" ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_files_name_the_pod_itself() {
        let pod = PodNames {
            namespace: "db".into(),
            hostname: "etcd-1".into(),
            subdomain: Some("etcd".into()),
            address: [10, 7, 64, 1].into(),
            aliases: vec![("127.0.0.9".into(), vec!["x".into(), "y".into()])],
        };
        let text = hosts(&pod);
        for line in [
            "127.0.0.1\tlocalhost",
            "10.7.64.1\tetcd-1.etcd.db.svc.cluster.local etcd-1",
            "127.0.0.9\tx y",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in {text}");
        }
    }
}
