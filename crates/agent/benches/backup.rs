//! A backup and a restore beside what etcd's own tools do, in the same run on the same member, and the memory that the agent
//! takes: `./x bench backup`. `STATEWARD_BENCH_MIB` is the size of the database (1024).

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use stateward_agent::{Folders, Stop};
use stateward_api::agent::{BackupTask, OUTCOME, Outcome, Place, RestoreTask, TASK, Task};
use support::*;

/// Rounds of each; the best counts, as the machine may be busy with something else.
const ROUNDS: usize = 3;

#[tokio::main]
async fn main() {
    if std::env::var_os(TASK).is_some() {
        return agent().await;
    }
    let mib: usize = std::env::var("STATEWARD_BENCH_MIB")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1024);
    let program = newest();
    let tools = program.path.parent().expect("a folder").to_owned();
    let etcd = Etcd::first(
        &program,
        &["--quota-backend-bytes=17179869184", "--snapshot-count=1000"],
    );
    fill_mib(&etcd, mib).await;
    let ground = Ground::new(&program);
    let size = until("a status", async || etcd.client().status().await.ok())
        .await
        .db_size;
    println!(
        "etcd {}, database of {} MiB, best of {ROUNDS} rounds",
        program.version,
        size >> 20
    );

    let saved = ground.root().join("saved");
    let (mut save, mut sent, mut proven, mut peak) = (Duration::MAX, Duration::MAX, Duration::MAX, 0);
    for _ in 0..ROUNDS {
        let _gone = std::fs::remove_file(&saved);
        let mut etcdctl = Command::new(tools.join("etcdctl"));
        etcdctl
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &url(&etcd), "snapshot", "save"])
            .arg(&saved);
        save = save.min(timed(&mut etcdctl));
        let task = Task::Backup(BackupTask {
            endpoints: vec![url(&etcd)],
            place: ground.place(),
            ..BackupTask::default()
        });
        let (took, first, memory) = child(&task, &ground, &tools);
        (sent, proven, peak) = (sent.min(first), proven.min(took), peak.max(memory));
    }
    report("etcdctl snapshot save", size, save, save);
    report("agent, until it is in the folder", size, sent, save);
    report("agent, until it is proven", size, proven, save);

    let found = ground
        .inspect(stateward_api::agent::InspectTask::default())
        .await
        .expect("a good backup");
    let (mut tool, mut agent) = (Duration::MAX, Duration::MAX);
    for round in 0..ROUNDS {
        let by_hand = ground.root().join(format!("by-hand-{round}"));
        let mut etcdutl = Command::new(tools.join("etcdutl"));
        etcdutl
            .args(["snapshot", "restore"])
            .arg(&saved)
            .arg("--data-dir")
            .arg(&by_hand);
        etcdutl.args(["--bump-revision", "1000000000", "--mark-compacted"]);
        tool = tool.min(timed(&mut etcdutl));
        std::fs::remove_dir_all(&by_hand).expect("removed");
        let data = ground.root().join(format!("restored-{round}/data"));
        let task = Task::Restore(RestoreTask {
            place: ground.place(),
            location: found.location.clone(),
            sha256: found.sha256.clone(),
            restore_to: None,
            revision_bump: 1_000_000_000,
            data_dir: data.display().to_string(),
            member: "m1".into(),
            peer_url: "http://127.0.0.1:2380".into(),
            token: "bench".into(),
        });
        let (took, _, memory) = child(&task, &ground, &tools);
        (agent, peak) = (agent.min(took), peak.max(memory));
        std::fs::remove_dir_all(&data).expect("removed");
    }
    report("etcdutl snapshot restore", size, tool, tool);
    report("agent restore", size, agent, tool);
    println!("{:<36} {:>8.1} MiB", "agent, peak memory", peak as f64 / 1024.0);
}

fn report(what: &str, size: i64, took: Duration, base: Duration) {
    let rate = size as f64 / f64::from(1 << 20) / took.as_secs_f64();
    let ratio = 100.0 * base.as_secs_f64() / took.as_secs_f64();
    println!(
        "{what:<36} {:>8.2} s {rate:>8.0} MiB/s {ratio:>6.0} %",
        took.as_secs_f64()
    );
}

fn timed(command: &mut Command) -> Duration {
    let started = Instant::now();
    let done = command.stdin(Stdio::null()).output().expect("the tool runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    started.elapsed()
}

/// Runs this program as the agent. Returns how long it took, when the upload was done, and its peak memory in KiB.
fn child(task: &Task, ground: &Ground, tools: &Path) -> (Duration, Duration, u64) {
    let outcome = ground.root().join("outcome");
    let started = Instant::now();
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .env(TASK, serde_json::to_string(task).expect("a task"))
        .env(OUTCOME, &outcome)
        .env("CLAIM", ground.claim())
        .env("PATH", tools)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the agent starts");
    let mut sent = Duration::ZERO;
    let mut place = ground.claim();
    if let Place { store, .. } = ground.place()
        && let Some(file) = store.file
    {
        place.push(file.path);
    }
    let before = std::fs::metadata(&place).and_then(|meta| meta.modified()).ok();
    while child.try_wait().expect("the agent").is_none() {
        if sent.is_zero() && std::fs::metadata(&place).and_then(|meta| meta.modified()).ok() != before {
            sent = started.elapsed();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let took = started.elapsed();
    let done = child.wait_with_output().expect("the agent");
    let said: Outcome = serde_json::from_slice(&std::fs::read(&outcome).expect("last words")).expect("an outcome");
    assert!(!matches!(said, Outcome::Failed(_)), "{said:?}");
    let peak = String::from_utf8_lossy(&done.stdout)
        .trim()
        .parse()
        .expect("its memory");
    (took, sent.max(Duration::from_millis(1)), peak)
}

async fn agent() {
    let task = serde_json::from_str(&std::env::var(TASK).expect("a task")).expect("a task");
    let folders = Folders {
        claim: std::env::var_os("CLAIM").expect("a claim").into(),
        ..Folders::default()
    };
    let outcome = stateward_agent::run(task, &folders, &Stop::default()).await;
    stateward_agent::write(&outcome, Path::new(&std::env::var_os(OUTCOME).expect("a file"))).expect("written");
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    println!("{}", peak.unwrap_or("0").trim().trim_end_matches(" kB"));
}

/// Random values of 64 KiB, written by several writers at once.
async fn fill_mib(etcd: &Etcd, mib: usize) {
    const VALUE: usize = 64 << 10;
    fill(etcd, 1).await;
    let count = mib * (1 << 20) / VALUE;
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let client = etcd.client().with_request_timeout(Duration::from_secs(60));
            tokio::spawn(async move {
                let mut seed = writer as u64 + 1;
                for index in (writer..count).step_by(8) {
                    let value: Vec<u8> = (0..VALUE / 8)
                        .flat_map(|_| {
                            seed = seed
                                .wrapping_mul(6_364_136_223_846_793_005)
                                .wrapping_add(1_442_695_040_888_963_407);
                            seed.to_le_bytes()
                        })
                        .collect();
                    client.put(format!("bench-{index}"), value).await.expect("put");
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.expect("a writer");
    }
}
