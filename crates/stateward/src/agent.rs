//! `stateward agent`: the program of Stateward's own pods. Its input is the environment, its result the termination message.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use stateward_etcd::api::agent::{LISTEN, Mounts, OUTCOME, Outcome, TASK, TERMINATION_LOG, Task};
use stateward_etcd_driver::agent::{Folders, Stop};
use tokio::signal::unix::{SignalKind, signal};

use crate::logging;

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Execute the task in the environment variable STATEWARD_TASK
    Run,
    /// Unpack a compressed or encrypted backup from standard input to standard output
    Unpack {
        /// The file with the encryption key
        #[arg(long)]
        key: Option<PathBuf>,
    },
    /// Copy this program into a folder for a container of another image
    Install {
        /// The folder
        #[arg(default_value = Mounts::TOOLS)]
        folder: PathBuf,
    },
    /// Make the data directory of a MySQL server where there is none
    MysqlInit,
    /// Run a MySQL server
    MysqlRun,
    /// Reply to the operator about the MySQL server of this pod
    MysqlServe,
}

pub(crate) async fn run(verb: Verb) -> Result<()> {
    logging::to_stderr("info");
    match verb {
        Verb::Install { folder } => stateward_etcd_driver::agent::install(&folder)
            .with_context(|| format!("cannot install into {}", folder.display())),
        Verb::Unpack { key } => {
            let key = key.map(std::fs::read).transpose().context("cannot read the key")?;
            stateward_etcd_driver::agent::unpack(key.as_deref())
                .await
                .map_err(anyhow::Error::msg)
        }
        Verb::Run => execute().await,
        Verb::MysqlInit => Ok(stateward_mysql_driver::agent::init().await?),
        Verb::MysqlRun => std::process::exit(stateward_mysql_driver::agent::run().await?),
        Verb::MysqlServe => Ok(stateward_mysql_driver::agent::serve().await?),
    }
}

async fn execute() -> Result<()> {
    let text =
        std::env::var(TASK).with_context(|| format!("{TASK} is not set: this command is for Stateward's own pods"))?;
    if text.is_empty() {
        return Ok(()); // the member is sealed: its data is restored only once
    }
    let task: Task = serde_json::from_str(&text).with_context(|| format!("{TASK} is not a task"))?;
    let stop = Stop::default();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stopped = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stopped.interrupt();
    });
    let mut folders = Folders::default();
    if let Ok(listen) = std::env::var(LISTEN) {
        folders.listen = listen
            .parse()
            .with_context(|| format!("{LISTEN} is not an address with a port"))?;
    }
    let outcome = stateward_etcd_driver::agent::run(task, &folders, &stop).await;
    let file = std::env::var_os(OUTCOME).map_or_else(|| TERMINATION_LOG.into(), PathBuf::from);
    stateward_etcd_driver::agent::write(&outcome, &file).with_context(|| format!("cannot write {}", file.display()))?;
    match outcome {
        Outcome::Failed(failure) => bail!("{}: {}", failure.reason, failure.message),
        _ => Ok(()),
    }
}
