//! Starting, watching and signalling the processes of sandboxes. Touches only processes it started itself, or that a
//! former run of the same instance recorded in the state folder.
//!
//! Linux ties "die with your parent" to the parent *thread*, so all children are started by one thread that lives as
//! long as the instance does: when the instance ends in any way, SIGKILL too, the kernel ends every sandbox.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use tokio::sync::{mpsc, oneshot, watch};

use crate::network::Namespace;

/// The thread that starts processes, and the folder where it records them.
#[derive(Clone)]
pub(crate) struct Spawner {
    jobs: mpsc::UnboundedSender<Job>,
    records: PathBuf,
}

struct Job {
    command: std::process::Command,
    started: oneshot::Sender<io::Result<Process>>,
    record_in: Option<PathBuf>,
    namespace: Namespace,
}

/// A process that was started, and later how it ended. Clones speak of the same process.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    /// The process ID on the host.
    pub(crate) pid: u32,
    ended: watch::Receiver<Option<i32>>,
}

impl Spawner {
    /// Ends what a former run of this instance left behind, and starts the thread.
    pub(crate) fn start(records: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&records)?;
        end_strays(&records);
        let (jobs, queue) = mpsc::unbounded_channel();
        let home = Namespace::current()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new()
            .name("pod-processes".to_string())
            .spawn(move || runtime.block_on(serve(queue, home)))?;
        Ok(Self { jobs, records })
    }

    /// Starts a sandbox in a network. It is recorded, so that the next run of the instance can end it should this one fail to.
    pub(crate) async fn spawn(&self, command: std::process::Command, namespace: &Namespace) -> io::Result<Process> {
        self.submit(command, namespace, Some(self.records.clone())).await
    }

    /// Starts a helper inside a running sandbox; it ends with that sandbox.
    pub(crate) async fn spawn_helper(
        &self,
        command: std::process::Command,
        namespace: &Namespace,
    ) -> io::Result<Process> {
        self.submit(command, namespace, None).await
    }

    async fn submit(
        &self,
        command: std::process::Command,
        namespace: &Namespace,
        record_in: Option<PathBuf>,
    ) -> io::Result<Process> {
        let (started, answer) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts processes has ended");
        self.jobs
            .send(Job {
                command,
                started,
                record_in,
                namespace: namespace.clone(),
            })
            .map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

async fn serve(mut queue: mpsc::UnboundedReceiver<Job>, home: Namespace) {
    while let Some(Job {
        mut command,
        started,
        record_in,
        namespace,
    }) = queue.recv().await
    {
        // Its own process group: Ctrl-C in the terminal of the instance must not reach pods.
        command.process_group(0);
        let mut command = tokio::process::Command::from(command);
        // A child begins in the network of the thread that starts it.
        let spawned = namespace.visit(&home, || command.kill_on_drop(true).spawn());
        // Dropping the command closes our copies of the pipe ends that the child writes to.
        drop(command);
        let answer = spawned.and_then(|child| supervise(child, record_in));
        // The asker may have gone away; the process then ends by `kill_on_drop` no earlier than the instance does.
        let _ = started.send(answer);
    }
}

fn supervise(mut child: tokio::process::Child, record_in: Option<PathBuf>) -> io::Result<Process> {
    let pid = child
        .id()
        .ok_or_else(|| io::Error::other("the process ended before it was seen"))?;
    let record = record_in.map(|folder| folder.join(pid.to_string()));
    if let Some(record) = &record {
        fs::write(record, start_time(pid).unwrap_or_default())?;
    }
    let (report, ended) = watch::channel(None);
    tokio::spawn(async move {
        let code = match child.wait().await {
            Ok(status) => status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
            Err(error) => {
                tracing::warn!(pid, %error, "waiting for a process failed");
                255
            }
        };
        if let Some(record) = record {
            let _ = fs::remove_file(record);
        }
        let _ = report.send(Some(code));
    });
    Ok(Process { pid, ended })
}

impl Process {
    /// The exit code; 128 + signal number where a signal ended it.
    pub(crate) async fn wait(&self) -> i32 {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(code) => code.unwrap_or(255),
            Err(_) => 255,
        }
    }

    /// The exit code, if it has ended.
    pub(crate) fn exit_code(&self) -> Option<i32> {
        *self.ended.borrow()
    }

    /// Sends a signal to the process itself.
    pub(crate) fn signal(&self, signal: Signal) {
        if self.exit_code().is_none() {
            send(self.pid, signal);
        }
    }

    /// Sends a signal to the process and all it started.
    pub(crate) fn signal_tree(&self, signal: Signal) {
        if self.exit_code().is_none() {
            for pid in descendants(self.pid) {
                send(pid, signal);
            }
            send(self.pid, signal);
        }
    }

    /// The first process of the sandbox's PID namespace: bubblewrap's reaper. Ending it ends the whole sandbox.
    pub(crate) fn sandbox_init(&self) -> Option<u32> {
        if self.exit_code().is_some() {
            return None;
        }
        children(self.pid).first().copied()
    }

    /// The reaper of a sandbox that is completely set up, so that it can be entered: its program has taken the place of
    /// the tool that made it. None when it ended, or does not get that far.
    pub(crate) async fn ready_sandbox(&self) -> Option<u32> {
        let comm = |pid: u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        for _ in 0..500 {
            let init = self.sandbox_init();
            if init.is_none() && self.exit_code().is_some() {
                return None;
            }
            if let (Some(init), Some(main)) = (init, self.sandbox_main())
                && comm(main) != comm(init)
            {
                return Some(init);
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        self.sandbox_init()
    }

    /// The container's own first process.
    pub(crate) fn sandbox_main(&self) -> Option<u32> {
        children(self.sandbox_init()?).first().copied()
    }

    /// Signals the container's own first process, once there is one.
    pub(crate) async fn signal_main(&self, signal: Signal) {
        self.ready_sandbox().await;
        if let Some(pid) = self.sandbox_main() {
            send(pid, signal);
        }
    }

    /// Signals every process in the sandbox but the reaper.
    pub(crate) async fn signal_all(&self, signal: Signal) {
        let Some(init) = self.ready_sandbox().await else { return };
        // Twice, since a process may have been forked by one that was not yet stopped.
        for _ in 0..2 {
            for pid in descendants(init) {
                send(pid, signal);
            }
        }
    }

    /// Ends the sandbox with everything in it, at once.
    pub(crate) fn kill_sandbox(&self) {
        match self.sandbox_init() {
            Some(init) => send(init, Signal::SIGKILL),
            None => self.signal(Signal::SIGKILL),
        }
    }
}

fn send(pid: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(pid) {
        // A process that has just ended is what the caller wanted anyway.
        let _ = signal::kill(Pid::from_raw(pid), signal);
    }
}

fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn descendants(root: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut queue = VecDeque::from([root]);
    while let Some(pid) = queue.pop_front() {
        // Children of every thread of the process, not only of its first.
        let threads = fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten();
        for thread in threads {
            let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            for child in text.split_whitespace().filter_map(|pid| pid.parse().ok()) {
                found.push(child);
                queue.push_back(child);
            }
        }
    }
    found
}

/// The kernel's start time of a process (field 22 of `stat`): with the PID it names one process for good.
fn start_time(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.rsplit_once(')')?.1;
    after_name.split_whitespace().nth(19).map(str::to_string)
}

fn end_strays(records: &Path) {
    for entry in fs::read_dir(records).into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let recorded = fs::read_to_string(entry.path()).unwrap_or_default();
        if let Some(pid) = pid
            && !recorded.is_empty()
            && start_time(pid).as_deref() == Some(recorded.as_str())
        {
            tracing::info!(pid, "ending a process that a former run left behind");
            for child in descendants(pid) {
                send(child, Signal::SIGKILL);
            }
            send(pid, Signal::SIGKILL);
        }
        let _ = fs::remove_file(entry.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn exit_codes_and_signals_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let spawner = Spawner::start(folder.path().join("run")).unwrap();
        let here = Namespace::current().unwrap();

        let mut command = std::process::Command::new("sh");
        command.args(["-c", "exit 7"]);
        assert_eq!(spawner.spawn(command, &here).await.unwrap().wait().await, 7);

        let mut command = std::process::Command::new("sleep");
        command.arg("60");
        let process = spawner.spawn(command, &here).await.unwrap();
        assert!(folder.path().join("run").join(process.pid.to_string()).exists());
        process.signal(Signal::SIGKILL);
        assert_eq!(process.wait().await, 128 + 9);
        assert_eq!(fs::read_dir(folder.path().join("run")).unwrap().count(), 0);

        assert!(
            spawner
                .spawn(std::process::Command::new("/no/such/program"), &here)
                .await
                .is_err()
        );
    }

    #[tokio::test]
    async fn strays_are_ended_and_strangers_left_alone() {
        // Given two processes of which only one is recorded with its true start time
        let folder = tempfile::tempdir().unwrap();
        let mut stray = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut stranger = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        fs::write(
            folder.path().join(stray.id().to_string()),
            start_time(stray.id()).unwrap(),
        )
        .unwrap();
        fs::write(folder.path().join(stranger.id().to_string()), "1").unwrap();
        // When the next run begins
        end_strays(folder.path());
        // Then
        assert_eq!(stray.wait().unwrap().signal(), Some(9));
        assert!(stranger.try_wait().unwrap().is_none());
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }
}
