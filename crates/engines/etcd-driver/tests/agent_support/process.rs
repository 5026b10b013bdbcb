//! The agent as a process of its own, as a pod runs it, to measure what it takes; and a database that is worth measuring.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use stateward_etcd::api::agent::{OUTCOME, Outcome, TASK, Task};
use stateward_etcd_driver::agent::{Folders, Stop};

use super::{Etcd, Ground, Program, fill};

/// An etcd that takes large databases.
pub(crate) fn roomy(program: &Program) -> Etcd {
    let flags = ["--quota-backend-bytes=17179869184", "--snapshot-count=1000"];
    Etcd::first(program, &flags)
}

/// Whether this process is to be the agent.
pub(crate) fn is_agent() -> bool {
    std::env::var_os(TASK).is_some()
}

fn peak_file(outcome: &Path) -> PathBuf {
    outcome.with_extension("peak")
}

/// Is the agent: does its task, and leaves its last words and its peak memory in KiB.
pub(crate) async fn agent() {
    let task = serde_json::from_str(&std::env::var(TASK).expect("a task")).expect("a task");
    let folders = Folders {
        claim: std::env::var_os("CLAIM").expect("a claim").into(),
        store: std::env::var_os("STORE").expect("a secret").into(),
        ..Folders::default()
    };
    let outcome = PathBuf::from(std::env::var_os(OUTCOME).expect("a file"));
    let said = stateward_etcd_driver::agent::run(task, &folders, &Stop::default()).await;
    stateward_etcd_driver::agent::write(&said, &outcome).expect("written");
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.unwrap_or("0").trim().trim_end_matches(" kB");
    std::fs::write(peak_file(&outcome), peak).expect("written");
}

/// This program once more, with a command line that leads to [`agent`].
pub(crate) fn this(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(arguments);
    command
}

/// Lets [`this`] do a task. Returns its peak memory in KiB and what it said.
pub(crate) fn child(mut this: Command, task: &Task, ground: &Ground, tools: &Path) -> (u64, Outcome) {
    let outcome = ground.root().join("outcome");
    let done = this
        .env(TASK, serde_json::to_string(task).expect("a task"))
        .env(OUTCOME, &outcome)
        .env("CLAIM", ground.claim())
        .env("STORE", &ground.folders().store)
        .env("PATH", tools)
        .output()
        .expect("the agent runs");
    assert!(
        done.status.success(),
        "the agent: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    let said: Outcome = serde_json::from_slice(&std::fs::read(&outcome).expect("last words")).expect("an outcome");
    assert!(!matches!(said, Outcome::Failed(_)), "{said:?}");
    let peak = std::fs::read_to_string(peak_file(&outcome)).expect("its memory");
    (peak.trim().parse().expect("a number"), said)
}

/// Values of 64 KiB that do not compress, written by several writers at once.
pub(crate) async fn fill_mib(etcd: &Etcd, mib: usize) {
    const VALUE: usize = 64 << 10;
    fill(etcd, 1).await;
    let mut seed = 1_u64;
    let noise: Vec<u8> = (0..VALUE / 8)
        .flat_map(|_| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            seed.to_le_bytes()
        })
        .collect();
    let count = mib * (1 << 20) / VALUE;
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let client = etcd.client().with_request_timeout(Duration::from_secs(60));
            let noise = noise.clone();
            tokio::spawn(async move {
                for index in (writer..count).step_by(8) {
                    let mut value = noise.clone();
                    value.rotate_left(index % VALUE);
                    client.put(format!("bench-{index}"), value).await.expect("put");
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.expect("a writer");
    }
}
