//! A scratch member: etcd's own server on a data directory that was just restored, reached by nobody but us. It ends with
//! its handle.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::client::{Client, Timeouts};
use stateward_etcd::api::agent::{Failure, FailureReason};
use tokio::process::{Child, Command};

use crate::agent::failure::{failure, of_io};
use crate::agent::tool::{self, Restoring};

/// For an answer: a scratch member works on a machine that may be busy.
const PATIENCE: Duration = Duration::from_secs(60);
const NAME: &str = "scratch";

/// A running scratch member.
pub(crate) struct Scratch {
    child: Child,
    pub(crate) client: Client,
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

impl Scratch {
    /// Restores a snapshot without raising its revision into `folder` and starts a member on it.
    pub(crate) async fn from_snapshot(
        snapshot: &Path,
        folder: &Path,
        path: Option<&OsString>,
    ) -> Result<Self, Failure> {
        let ports = (free_port(), free_port());
        let (Ok(client_port), Ok(peer_port)) = ports else {
            return Err(failure(
                FailureReason::ScratchFailed,
                "no port is free on loopback",
                true,
            ));
        };
        let data = folder.join("data");
        let peer_url = format!("http://127.0.0.1:{peer_port}");
        let restoring = Restoring {
            snapshot,
            data_dir: &data,
            member: NAME,
            peer_url: &peer_url,
            token: "scratch",
            revision_bump: 0,
        };
        tool::restore(&restoring, path).await?;
        let program = tool::find("etcd", path).ok_or_else(|| {
            failure(
                FailureReason::ToolMissing,
                "etcd is not in this image: use an image of etcd",
                false,
            )
        })?;
        let log = folder.join("log");
        let child = start(&program, &data, client_port, &peer_url, &log)
            .map_err(|error| of_io(&error, "starting the scratch member"))?;
        let timeouts = Timeouts {
            request: PATIENCE,
            ..Timeouts::default()
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, client_port));
        let client = Client::new(address, None, timeouts)
            .map_err(|error| failure(FailureReason::ScratchFailed, error.to_string(), true))?;
        let mut scratch = Self { child, client };
        scratch.serves(&log).await?;
        Ok(scratch)
    }

    /// Waits until it has a leader, which is itself. A large database takes its time; an end of the process does not.
    async fn serves(&mut self, log: &Path) -> Result<(), Failure> {
        let asking = self.client.with_request_timeout(Duration::from_secs(2));
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                let said = std::fs::read_to_string(log).unwrap_or_default();
                let last = said.lines().rev().take(2).collect::<Vec<_>>().join(" | ");
                let message = format!("the scratch member ended with {status}: {last}");
                return Err(failure(FailureReason::ScratchFailed, message, true));
            }
            if asking.status().await.is_ok_and(|status| status.leader != 0) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Ends it and waits until it has ended.
    pub(crate) async fn end(mut self) {
        let _already = self.child.kill().await;
    }
}

fn start(program: &PathBuf, data: &Path, port: u16, peer_url: &str, log: &Path) -> std::io::Result<Child> {
    let client_url = format!("http://127.0.0.1:{port}");
    let log = std::fs::File::create(log)?;
    Command::new(program)
        // Settings of the image or the pod are for members that serve.
        .env_clear()
        .args(["--name", NAME, "--data-dir"])
        .arg(data)
        .args([
            "--listen-client-urls",
            &client_url,
            "--advertise-client-urls",
            &client_url,
        ])
        .args([
            "--listen-peer-urls",
            peer_url,
            "--initial-advertise-peer-urls",
            peer_url,
        ])
        .args(["--initial-cluster", &format!("{NAME}={peer_url}")])
        // A change is put back as one transaction, however many keys it touched.
        .args(["--max-txn-ops", "1000000", "--max-request-bytes", "536870912"])
        .args(["--quota-backend-bytes", "68719476736"])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
}
