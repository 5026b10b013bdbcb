//! Faults on demand: what goes wrong in real clusters, done on purpose.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kube::ResourceExt;
use nix::sys::signal::Signal;

use super::container::Running;
use super::kubelet::Kubelet;
use super::sources::{SourceError, claim_folder};

/// Why a fault could not be brought about. Nothing was changed then, unless the text says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FaultError {
    /// There is no such pod on a node.
    #[error("pod {0}/{1} does not exist")]
    NoPod(String, String),
    /// The pod exists but nothing of it runs now.
    #[error("pod {0}/{1} has no running container{2}")]
    NotRunning(String, String, String),
    /// There is no such node.
    #[error("node {0} does not exist; these do: {1}")]
    NoNode(String, String),
    /// The signal has no such number.
    #[error("{0} is not the number of a signal")]
    NoSignal(i32),
    /// The claim has no folder.
    #[error("{0}")]
    NoVolume(String),
    /// No file of the volume has a name like this.
    #[error("no file of the volume matches {0}")]
    NoFile(String),
    /// Files or rules could not be changed; some files may have been.
    #[error("cannot do it on this machine: {0}")]
    Machine(#[from] io::Error),
    /// The API server refused.
    #[error("{0}")]
    Api(String),
}

/// Brings about faults in one instance.
#[derive(Clone)]
pub struct Faults {
    kubelet: Arc<Kubelet>,
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faults").finish_non_exhaustive()
    }
}

impl Faults {
    pub(crate) fn new(kubelet: Arc<Kubelet>) -> Self {
        Self { kubelet }
    }

    fn running(&self, namespace: &str, pod: &str, container: Option<&str>) -> Result<Vec<Running>, FaultError> {
        let object = self.kubelet.pod_named(namespace, pod);
        let object = object.ok_or_else(|| FaultError::NoPod(namespace.to_string(), pod.to_string()))?;
        let containers = self.kubelet.running(&object.uid().unwrap_or_default());
        let running = match (containers, container) {
            (None, _) => Vec::new(),
            (Some(containers), None) => containers.all(),
            (Some(containers), Some(name)) => containers.get(name).into_iter().collect(),
        };
        if running.is_empty() {
            let which = container.map(|name| format!(" named {name}")).unwrap_or_default();
            return Err(FaultError::NotRunning(namespace.to_string(), pod.to_string(), which));
        }
        Ok(running)
    }

    /// Sends a signal to the first process of a pod's containers, or of one of them.
    pub async fn kill(
        &self,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
        signal: i32,
    ) -> Result<(), FaultError> {
        let signal = Signal::try_from(signal).map_err(|_| FaultError::NoSignal(signal))?;
        for running in self.running(namespace, pod, container)? {
            running.process.signal_main(signal).await;
        }
        Ok(())
    }

    /// Stops every process of a pod where it stands: it keeps its connections and answers nobody.
    pub async fn freeze(&self, namespace: &str, pod: &str) -> Result<(), FaultError> {
        for running in self.running(namespace, pod, None)? {
            running.process.signal_all(Signal::SIGSTOP).await;
        }
        Ok(())
    }

    /// Lets a frozen pod go on.
    pub async fn unfreeze(&self, namespace: &str, pod: &str) -> Result<(), FaultError> {
        for running in self.running(namespace, pod, None)? {
            running.process.signal_all(Signal::SIGCONT).await;
        }
        Ok(())
    }

    /// Lets nothing pass between two addresses of the cluster's network, until [`Faults::heal`].
    pub async fn cut(&self, one: Ipv4Addr, other: Ipv4Addr) -> Result<(), FaultError> {
        Ok(self.kubelet.machine.filter.cut(one, other).await?)
    }

    /// Undoes all cuts between addresses.
    pub async fn heal(&self) -> Result<(), FaultError> {
        Ok(self.kubelet.machine.filter.heal().await?)
    }

    /// A pod's address.
    pub fn address(&self, namespace: &str, pod: &str) -> Result<Ipv4Addr, FaultError> {
        let object = self.kubelet.pod_named(namespace, pod);
        let address = object.and_then(|object| self.kubelet.machine.addresses.of(&object.uid()?));
        address.ok_or_else(|| FaultError::NoPod(namespace.to_string(), pod.to_string()))
    }

    async fn folder(&self, namespace: &str, claim: &str) -> Result<PathBuf, FaultError> {
        let found = claim_folder(&self.kubelet.machine.client, namespace, claim).await;
        found.map_err(|error| match error {
            SourceError::Api(error) => FaultError::Api(error.to_string()),
            other => FaultError::NoVolume(other.to_string()),
        })
    }

    /// Empties the volume of a claim.
    pub async fn lose_volume(&self, namespace: &str, claim: &str) -> Result<(), FaultError> {
        for entry in fs::read_dir(self.folder(namespace, claim).await?)?.flatten() {
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Damages the files of a claim's volume whose path below it matches a pattern, in which `*` stands for any text.
    /// Tells how many files were damaged.
    pub async fn corrupt_volume(&self, namespace: &str, claim: &str, pattern: &str) -> Result<usize, FaultError> {
        let folder = self.folder(namespace, claim).await?;
        let mut damaged = 0;
        for file in files(&folder)? {
            let below = file
                .strip_prefix(&folder)
                .unwrap_or(&file)
                .to_string_lossy()
                .into_owned();
            if matches(pattern, &below) && damage(&file)? {
                damaged += 1;
            }
        }
        if damaged == 0 {
            Err(FaultError::NoFile(pattern.to_string()))
        } else {
            Ok(damaged)
        }
    }

    /// Cuts every file of a claim's volume to half of its size, as a copy that broke off.
    pub async fn truncate_volume(&self, namespace: &str, claim: &str) -> Result<(), FaultError> {
        for path in files(&self.folder(namespace, claim).await?)? {
            let file = fs::OpenOptions::new().write(true).open(path)?;
            file.set_len(file.metadata()?.len() / 2)?;
            file.sync_all()?;
        }
        Ok(())
    }

    fn known(&self, node: &str) -> Result<(), FaultError> {
        let unknown = || FaultError::NoNode(node.to_string(), self.kubelet.node_names().join(", "));
        self.kubelet.is_up(node).map(drop).ok_or_else(unknown)
    }

    /// Takes a node's power away: all its processes end at once, and the API server hears no more from it.
    pub async fn stop_node(&self, node: &str) -> Result<(), FaultError> {
        self.known(node)?;
        self.kubelet.stop_node(node).await;
        Ok(())
    }

    /// Cuts a node off from the API server and from nothing else: its pods go on, and what becomes of their objects is not
    /// heard there until [`Faults::reconnect_nodes`].
    pub async fn cut_node(&self, node: &str) -> Result<(), FaultError> {
        self.known(node)?;
        self.kubelet.cut_node(node);
        Ok(())
    }

    /// Lets all nodes that are cut off be in touch again.
    pub async fn reconnect_nodes(&self) -> Result<(), FaultError> {
        for node in self.kubelet.node_names() {
            let back = self.kubelet.reconnect_node(&node).await;
            back.map_err(|error| FaultError::Api(error.to_string()))?;
        }
        Ok(())
    }

    /// Brings a stopped node back; its pods start again as after a reboot.
    pub async fn start_node(&self, node: &str) -> Result<(), FaultError> {
        self.known(node)?;
        self.kubelet
            .start_node(node)
            .await
            .map_err(|error| FaultError::Api(error.to_string()))
    }
}

fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(files(&entry.path())?);
        } else if entry.file_type()?.is_file() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Turns bytes over in every block of a file, as a failing disk would.
fn damage(path: &Path) -> io::Result<bool> {
    const BLOCK: u64 = 4096;
    let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
    let size = file.metadata()?.len();
    let mut bytes = [0; 64];
    for start in (0..size).step_by(usize::try_from(BLOCK).unwrap_or(4096)) {
        let at = if start + 192 < size { start + 128 } else { start };
        let count = file.read_at(&mut bytes, at)?;
        bytes[..count].iter_mut().for_each(|byte| *byte = !*byte);
        file.write_all_at(&bytes[..count], at)?;
    }
    file.sync_all()?;
    Ok(size > 0)
}

fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            text.char_indices()
                .map(|(at, _)| at)
                .chain([text.len()])
                .any(|at| matches(rest, &text[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_paths() {
        for (pattern, text, expected) in [
            ("*", "a/b", true),
            ("*.wal", "member/wal/0.wal", true),
            ("member/snap/db", "member/snap/db", true),
            ("db", "member/snap/db", false),
            ("*/db", "member/snap/db", true),
            ("m*r/*p/db", "member/snap/db", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn damage_reaches_every_block_and_keeps_the_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        fs::write(&path, vec![0; 10_000]).unwrap();
        assert!(damage(&path).unwrap());
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 10_000);
        assert!(bytes.chunks(4096).all(|block| block.contains(&0xff)));
        fs::write(&path, "").unwrap();
        assert!(!damage(&path).unwrap());
    }
}
