//! `stateward agent mysql-run`: the first process of the container that runs mysqld.
//!
//! Every start of mysqld is sealed and has a name of its own, the boot, after which `pid_file` is named. mysqld asks for a new start
//! by its exit code, after a clone for example, and gets it in the same container. Any other end of mysqld ends the container.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use stateward_mysql::agent::{Ended, Mysqld};
use stateward_mysql::layout;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;

use super::control::{self, Order};
use super::launch::{self, Settings, SettingsError};
use super::local::{self, Seal};
use super::{data, reap};

/// `MYSQLD_RESTART_EXIT` in MySQL's source: mysqld asks whoever started it for a new start.
const RESTART: i32 = 16;
/// How long a primary that is told to stop waits until another one takes its place.
const HANDOVER: Duration = Duration::from_secs(20);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(100);
/// How long replies may take to be written at the end.
const LAST_REPLIES: Duration = Duration::from_secs(1);

/// Why mysqld could not be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The environment is not that of a member.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// my.cnf cannot be written.
    #[error("cannot write my.cnf: {0}")]
    Config(#[source] io::Error),
    /// The volume cannot be read.
    #[error("cannot read the data directory: {0}")]
    Data(#[source] io::Error),
    /// mysqld cannot be started.
    #[error("cannot start mysqld: {0}")]
    Start(#[source] io::Error),
    /// It is not known what became of it.
    #[error("cannot wait for mysqld: {0}")]
    Wait(#[source] io::Error),
    /// Signals cannot be received.
    #[error("cannot receive signals: {0}")]
    Signals(#[source] io::Error),
}

/// How mysqld is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// With SIGTERM: it ends its sessions and writes everything back.
    Gracefully,
    /// With SIGKILL, as a crash.
    AtOnce,
}

/// Runs mysqld until it ends, and returns the exit code for the container.
///
/// # Being told to stop
/// A primary that receives SIGTERM while commits wait for acknowledgements tells their clients that they succeeded. So SIGTERM
/// is passed on only once the server says that it is read-only, which the operator sees to by a switchover. A server that
/// is still writable after 20 seconds is killed: its waiting clients lose their connections, which promises nothing.
pub async fn run() -> Result<i32, RunError> {
    let settings = Settings::from_environment()?;
    if !data::has_entries(Path::new(layout::DATA)).map_err(RunError::Data)? {
        tracing::error!("the volume has no data directory any more: its content is lost");
        return Ok(layout::NO_DATA);
    }
    let (state, states) = watch::channel(Mysqld::Absent);
    let (orders, mut received) = mpsc::channel::<Order>(8);
    let replies = TaskTracker::new();
    let tracker = replies.clone();
    let listener = tokio::spawn(async move {
        if let Err(error) = control::listen(Path::new(layout::CONTROL), states, orders, tracker).await {
            tracing::error!(%error, "cannot serve the agent");
        }
    });
    let mut signals = Signals::new().map_err(RunError::Signals)?;
    let code = loop {
        let boot = uuid::Uuid::new_v4().simple().to_string();
        let mut child = start(&settings, &boot)?;
        tracing::info!(boot, "started mysqld, sealed");
        state.send_replace(Mysqld::Running {
            boot: boot.clone(),
            ready: false,
        });
        let end = follow(&mut child, &boot, &mut received, &mut signals).await?;
        let code = exit_code(end.status);
        tracing::info!(boot, code, "mysqld ended");
        state.send_replace(Mysqld::Exited {
            boot: boot.clone(),
            code,
        });
        for waiting in end.waiting {
            let _gone = waiting.send(Ended::Killed { boot: boot.clone() });
        }
        if code != RESTART || end.stopping {
            break code;
        }
    };
    listener.abort();
    replies.close();
    drop(received);
    let _slow = timeout(LAST_REPLIES, replies.wait()).await;
    Ok(code)
}

fn start(settings: &Settings, boot: &str) -> Result<Child, RunError> {
    let my_cnf = launch::write_my_cnf(Path::new(layout::RUN)).map_err(RunError::Config)?;
    let mut command = Command::new("mysqld");
    command
        .args(settings.sealed(&my_cnf, boot))
        // Whoever this names is asked for a new start; without it, a clone ends with an error.
        .env("MYSQLD_PARENT_PID", std::process::id().to_string())
        .current_dir(layout::TEMPORARY)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command.spawn().map_err(RunError::Start)
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    child: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            child: signal(SignalKind::child())?,
        })
    }
}

/// How one process ended.
struct End {
    status: ExitStatus,
    /// The container was told to stop.
    stopping: bool,
    /// Who asked for this end.
    waiting: Vec<oneshot::Sender<Ended>>,
}

async fn follow(
    child: &mut Child,
    boot: &str,
    orders: &mut mpsc::Receiver<Order>,
    signals: &mut Signals,
) -> Result<End, RunError> {
    let id = child.id();
    let mut waiting = Vec::new();
    let mut stop: Option<JoinHandle<Stop>> = None;
    let mut stopping = false;
    loop {
        tokio::select! {
            status = child.wait() => {
                let status = status.map_err(RunError::Wait)?;
                return Ok(End { status, stopping, waiting });
            }
            Some((end, reply)) = orders.recv() => {
                if end.boot.as_deref().is_some_and(|meant| meant != boot) {
                    let _gone = reply.send(Ended::Other { boot: boot.to_owned() });
                    continue;
                }
                tracing::warn!(boot, "ending mysqld at once, as the operator asked");
                child.start_kill().map_err(RunError::Wait)?;
                waiting.push(reply);
            }
            _ = signals.terminate.recv(), if !stopping => {
                stopping = true;
                stop = Some(tokio::spawn(how_to_stop()));
            }
            _ = signals.interrupt.recv(), if !stopping => {
                stopping = true;
                stop = Some(tokio::spawn(how_to_stop()));
            }
            Some(how) = decided(&mut stop) => {
                stop = None;
                tracing::info!(boot, ?how, "stopping mysqld");
                send(id, if how == Stop::Gracefully { Signal::SIGTERM } else { Signal::SIGKILL });
            }
            _ = signals.child.recv() => reap::orphans(id),
        }
    }
}

/// What was decided, once it is. A decision that failed is the safe one.
async fn decided(stop: &mut Option<JoinHandle<Stop>>) -> Option<Stop> {
    match stop {
        Some(stop) => Some(stop.await.unwrap_or(Stop::AtOnce)),
        None => std::future::pending().await,
    }
}

/// Waits until the server can be stopped gracefully, or has had its time.
async fn how_to_stop() -> Stop {
    let (socket, secrets) = (Path::new(layout::SOCKET), local::secrets());
    let sealed = async {
        while local::seal(socket, secrets).await != Seal::Sealed {
            sleep(LOOK).await;
        }
    };
    match timeout(HANDOVER, sealed).await {
        Ok(()) => Stop::Gracefully,
        Err(_) => Stop::AtOnce,
    }
}

/// Sends a signal to a child that has not been collected.
fn send(id: Option<u32>, signal: Signal) {
    let Some(pid) = id.and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw) else {
        return;
    };
    if let Err(error) = kill(pid, signal) {
        tracing::warn!(%error, %signal, "cannot signal mysqld");
    }
}

/// As a shell tells it.
fn exit_code(status: ExitStatus) -> i32 {
    let by_signal = status.signal().map(|signal| 128 + signal);
    status.code().or(by_signal).unwrap_or(1)
}
