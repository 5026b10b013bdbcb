//! Memory use of agents. In both environments, the processes of pods are processes of this machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The sampling interval. The kernel keeps each process's peak, so only the last moment of a process can be missed.
const LOOK: Duration = Duration::from_millis(20);

/// Watches the agents whose task contains a text, until it is dropped.
pub(crate) struct Agents {
    most: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Agents {
    pub(crate) fn that_name(what: &str) -> Self {
        let (most, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (what, seen, over) = (what.to_owned(), most.clone(), ended.clone());
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                seen.fetch_max(now(&what), Ordering::Relaxed);
                std::thread::sleep(LOOK);
            }
        });
        Self {
            most,
            ended,
            thread: Some(thread),
        }
    }

    /// The highest peak of any of them so far, in MiB; 0 if none was seen.
    pub(crate) fn peak(&self) -> u64 {
        self.most.load(Ordering::Relaxed).div_ceil(1024)
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

/// The highest peak of the running ones, in KiB.
fn now(what: &str) -> u64 {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let peaks = processes.filter_map(|process| {
        let read = |name: &str| std::fs::read(process.path().join(name)).ok();
        let holds =
            |name: &str, text: &[u8]| read(name).is_some_and(|all| all.windows(text.len()).any(|at| at == text));
        if !holds("cmdline", b"\0agent\0run\0") || !holds("environ", what.as_bytes()) {
            return None;
        }
        let status = String::from_utf8(read("status")?).ok()?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        peak.split_whitespace().next()?.parse().ok()
    });
    peaks.max().unwrap_or(0)
}
