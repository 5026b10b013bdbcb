//! Processes that outlive this program. They are recorded with their start time, and killed only if they are still the
//! same: the process ID alone may belong to another process by then.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::layout::Run;
use crate::shell::cmd;

pub(crate) struct Process {
    pub(crate) pid: i32,
    started: String,
}

impl Process {
    /// Starts `command` detached from this terminal, with its output in the log of that name, and records it.
    pub(crate) fn start(run: &Run, name: &str, command: &Command) -> Result<Self> {
        fs::create_dir_all(run.folder.join("log"))?;
        fs::create_dir_all(run.folder.join("processes"))?;
        let log = fs::File::options().create(true).append(true).open(run.log(name))?;
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let mut detached = cmd("setsid", words);
        detached.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = detached.spawn().with_context(|| format!("cannot start {name}"))?;
        let pid = i32::try_from(child.id())?;
        let process = Self {
            pid,
            started: start_time(pid).with_context(|| format!("{name} ended at once"))?,
        };
        fs::write(record(run, name), format!("{} {}", process.pid, process.started))?;
        Ok(process)
    }

    /// The recorded process of that name, if it is still running.
    pub(crate) fn find(run: &Run, name: &str) -> Option<Self> {
        let text = fs::read_to_string(record(run, name)).ok()?;
        let (pid, started) = text.split_once(' ')?;
        let process = Self {
            pid: pid.parse().ok()?,
            started: started.to_owned(),
        };
        process.runs().then_some(process)
    }

    /// The names of all recorded processes.
    pub(crate) fn recorded(run: &Run) -> Vec<String> {
        let entries = fs::read_dir(run.folder.join("processes"))
            .into_iter()
            .flatten()
            .flatten();
        let mut names: Vec<_> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    pub(crate) fn runs(&self) -> bool {
        start_time(self.pid).is_some_and(|started| started == self.started)
    }

    /// Kills it and waits until it is gone.
    pub(crate) fn end(&self) -> Result<()> {
        let begun = Instant::now();
        while self.runs() {
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL); // if it has ended meanwhile, that is fine
            // If it is a child of this program, it stays a zombie until it is waited for.
            let _ = nix::sys::wait::waitpid(Pid::from_raw(self.pid), Some(nix::sys::wait::WaitPidFlag::WNOHANG));
            if begun.elapsed() > Duration::from_secs(20) {
                bail!("process {} does not end", self.pid);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

fn record(run: &Run, name: &str) -> PathBuf {
    run.folder.join("processes").join(name)
}

/// When a process started, in ticks since boot: field 22 of its `stat`, counted after the name, which may contain
/// anything. None if there is no such process, or only its zombie.
fn start_time(pid: i32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if fields.first() == Some(&"Z") {
        return None;
    }
    fields.get(19).map(|&ticks| ticks.to_owned())
}

/// Polls until there is a result. On timeout, the error contains what was waited for and the last failure.
pub(crate) fn wait_for<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let begun = Instant::now();
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(refusal) if begun.elapsed() > limit => {
                return Err(refusal.context(format!("waited {} s for {what}", limit.as_secs())));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
