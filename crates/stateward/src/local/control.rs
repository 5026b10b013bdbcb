//! How `stateward local fault` reaches the process that runs: one request and one answer as lines on a local socket that
//! only its owner can open.

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use embedded_kube::Faults;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use super::ground::Ground;

/// What can be broken and mended. Pods and claims are written NAMESPACE/NAME, or NAME in `default`.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum Fault {
    /// End a pod's processes, as a crash does
    Kill {
        /// The pod
        pod: String,
    },
    /// Stop a pod's processes without ending them
    Freeze {
        /// The pod
        pod: String,
    },
    /// Let them go on
    Thaw {
        /// The pod
        pod: String,
    },
    /// Empty a claim's volume
    LoseVolume {
        /// The claim
        claim: String,
    },
    /// Damage the files of a claim's volume
    CorruptVolume {
        /// The claim
        claim: String,
    },
    /// Let nothing pass between two pods
    Cut {
        /// One pod
        pod: String,
        /// The other
        other: String,
    },
    /// Cut the operator off from a pod; other pods still reach it
    CutOperator {
        /// The pod
        pod: String,
    },
    /// Undo all cuts
    Heal,
    /// Take a node's power
    StopNode {
        /// The node
        node: String,
    },
    /// Give it back
    StartNode {
        /// The node
        node: String,
    },
}

impl Fault {
    fn words(&self) -> (&'static str, String) {
        let (verb, name) = match self {
            Self::Cut { pod, other } => return ("cut", format!("{pod} {other}")),
            Self::Kill { pod } => ("kill", pod),
            Self::Freeze { pod } => ("freeze", pod),
            Self::Thaw { pod } => ("thaw", pod),
            Self::LoseVolume { claim } => ("lose-volume", claim),
            Self::CorruptVolume { claim } => ("corrupt-volume", claim),
            Self::CutOperator { pod } => ("cut-operator", pod),
            Self::Heal => return ("heal", String::new()),
            Self::StopNode { node } => ("stop-node", node),
            Self::StartNode { node } => ("start-node", node),
        };
        (verb, name.clone())
    }
}

/// What breaks things in the running process.
#[derive(Clone)]
pub(super) struct Means {
    faults: Faults,
    operator: Ipv4Addr,
}

impl Means {
    pub(super) fn of(ground: &Ground) -> Result<Self> {
        Ok(Self {
            faults: ground.faults()?,
            operator: ground.operator_address(),
        })
    }
}

/// Asks the running process.
pub(super) async fn send(socket: &Path, fault: &Fault) -> Result<()> {
    let mut stream = UnixStream::connect(socket)
        .await
        .context("nothing runs here; start it with `stateward local up`")?;
    let (verb, name) = fault.words();
    stream.write_all(format!("{verb} {name}\n").as_bytes()).await?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).await?;
    match answer.trim() {
        "ok" => Ok(()),
        "" => bail!("no answer"),
        error => bail!("{error}"),
    }
}

/// Answers such requests until the process ends.
pub(super) async fn serve(socket: PathBuf, means: Means) -> Result<()> {
    let _left_over = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600))?;
    loop {
        let (stream, _) = listener.accept().await?;
        let means = means.clone();
        tokio::spawn(async move {
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            if stream.read_line(&mut line).await.is_ok() {
                let answer = match carry_out(&means, line.trim()).await {
                    Ok(()) => "ok\n".to_owned(),
                    Err(error) => format!("{error:#}\n"),
                };
                let _sent = stream.write_all(answer.as_bytes()).await;
            }
        });
    }
}

async fn carry_out(means: &Means, line: &str) -> Result<()> {
    let faults = &means.faults;
    let (verb, name) = line.split_once(' ').unwrap_or((line, ""));
    let (namespace, object) = name.split_once('/').unwrap_or(("default", name));
    match verb {
        "kill" => faults.kill(namespace, object, None, nix::libc::SIGKILL).await?,
        "freeze" => faults.freeze(namespace, object).await?,
        "thaw" => faults.unfreeze(namespace, object).await?,
        "lose-volume" => faults.lose_volume(namespace, object).await?,
        "corrupt-volume" => drop(faults.corrupt_volume(namespace, object, "*").await?),
        "cut" => {
            let (one, other) = object.split_once(' ').context("two pods are needed")?;
            let (in_namespace, other) = other.split_once('/').unwrap_or(("default", other));
            let (one, other) = (faults.address(namespace, one)?, faults.address(in_namespace, other)?);
            faults.cut(one, other).await?;
        }
        "cut-operator" => faults.cut(means.operator, faults.address(namespace, object)?).await?,
        "heal" => faults.heal().await?,
        "stop-node" => faults.stop_node(name).await?,
        "start-node" => faults.start_node(name).await?,
        _ => bail!("no such fault"),
    }
    Ok(())
}
