//! The names, addresses and folders of one cluster. Addresses are the same in every cluster, because each has its own
//! network.

use std::fs::File;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::paths::Paths;

/// The address of the control plane and the API server.
pub(crate) const CONTROL: &str = "10.200.0.1";
pub(crate) const API_PORT: u16 = 6443;
/// The network of the nodes and the control plane.
pub(crate) const PREFIX: u8 = 24;
pub(crate) const SERVICES: &str = "10.201.0.0/16";
/// The first address of [`SERVICES`], which the API server takes for itself.
pub(crate) const API_SERVICE: &str = "10.201.0.1";
pub(crate) const PODS: &str = "10.202.0.0/16";

/// One cluster's folder and names.
pub(crate) struct Run {
    pub(crate) name: String,
    /// All state; removed by `down`.
    pub(crate) folder: PathBuf,
}

/// The decisions of `up`, for every later verb.
#[derive(Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) version: String,
    pub(crate) nodes: usize,
    /// The relay's port on the loopback address.
    pub(crate) port: u16,
}

impl Run {
    pub(crate) fn new(paths: &Paths, name: &str) -> Result<Self> {
        // Part of interface names, which the kernel limits to 15 characters.
        if name.is_empty() || name.len() > 8 || !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) {
            bail!("the cluster's name {name:?} must be 1 to 8 lower-case letters or digits");
        }
        Ok(Self {
            name: name.to_owned(),
            folder: paths.cache.join("kube").join(format!("run-{name}")),
        })
    }

    /// Held while the cluster is started or stopped, because two of these at once would undo each other's work.
    pub(crate) fn lock(&self) -> Result<File> {
        if let Some(parent) = self.folder.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let file = File::create(self.folder.with_extension("lock"))?;
        file.lock()?;
        Ok(file)
    }

    pub(crate) fn facts(&self) -> Result<Facts> {
        let file = self.folder.join("facts.json");
        let bytes = std::fs::read(&file)
            .with_context(|| format!("cluster {:?} is not up; start it with: ./x kube up", self.name))?;
        serde_json::from_slice(&bytes).with_context(|| format!("cannot read {}", file.display()))
    }

    pub(crate) fn write_facts(&self, facts: &Facts) -> Result<()> {
        Ok(std::fs::write(
            self.folder.join("facts.json"),
            serde_json::to_vec(facts)?,
        )?)
    }

    /// The admin's kubeconfig. It works on the machine and, because every guest relays the same port, also inside.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// This program as it was when the cluster started: long-running processes must not change when it is compiled
    /// again.
    pub(crate) fn program(&self) -> PathBuf {
        self.folder.join("xtask")
    }

    pub(crate) fn log(&self, program: &str) -> PathBuf {
        self.folder.join("log").join(program)
    }

    /// The network namespace of a guest.
    pub(crate) fn netns(&self, guest: &Guest) -> String {
        match guest {
            Guest::Control => format!("stateward-{}", self.name),
            Guest::Node(number) => format!("stateward-{}-{number}", self.name),
        }
    }

    pub(crate) fn netns_file(&self, guest: &Guest) -> PathBuf {
        PathBuf::from("/run/netns").join(self.netns(guest))
    }

    pub(crate) fn guest(&self, guest: &Guest) -> PathBuf {
        self.folder.join(guest.to_string())
    }

    /// The folder with a node's volumes.
    pub(crate) fn volumes(&self, node: &str) -> PathBuf {
        self.folder.join(node).join("volumes")
    }
}

/// The control plane or one node; written `control`, `node-1`, `node-2`, …
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Guest {
    Control,
    Node(usize),
}

impl Guest {
    pub(crate) fn all(nodes: usize) -> impl Iterator<Item = Self> {
        std::iter::once(Self::Control).chain((1..=nodes).map(Self::Node))
    }

    pub(crate) fn address(&self) -> String {
        match self {
            Self::Control => CONTROL.to_owned(),
            Self::Node(number) => format!("10.200.0.{}", 10 + number),
        }
    }

    /// The addresses of a node's pods.
    pub(crate) fn pods(&self) -> Option<String> {
        match self {
            Self::Control => None,
            Self::Node(number) => Some(format!("10.202.{number}.0/24")),
        }
    }
}

impl std::fmt::Display for Guest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Control => f.write_str("control"),
            Self::Node(number) => write!(f, "node-{number}"),
        }
    }
}

impl std::str::FromStr for Guest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "control" {
            return Ok(Self::Control);
        }
        let number = text.strip_prefix("node-").and_then(|number| number.parse().ok());
        number
            .map(Self::Node)
            .ok_or_else(|| format!("{text:?} is neither control nor node-1, node-2, …"))
    }
}
