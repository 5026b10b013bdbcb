//! A backup and a restore beside what etcd's own tools do, in the same run on the same member, and the memory that the agent
//! takes: `./x bench backup`. `STATEWARD_BENCH_MIB` is the size of the database (1024). It fails when a goal is missed.

#[path = "../../../backup/tests/servers/mod.rs"]
mod servers;
#[path = "../tests/agent_support/mod.rs"]
mod support;

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use servers::{PASSWORD, Server, USER, aws_files, is_built};
use stateward_backup::Store;
use stateward_core::store::{S3Store, StoreBlocks};
use stateward_etcd::api::agent::{BackupTask, InspectTask, Outcome, Place, Task};
use support::process::{agent, child, fill_mib, is_agent, roomy, this};
use support::*;
use tokio::io::AsyncWriteExt;

/// Rounds of each, in turn. The quickest of each are compared: whatever else the machine does only adds to it.
const ROUNDS: usize = 5;
/// Of what etcd's own tool reaches, in percent.
const GOAL: f64 = 80.0;
/// Of the agent, in MiB.
const MEMORY: f64 = 100.0;

#[tokio::main]
async fn main() -> ExitCode {
    if is_agent() {
        agent().await;
        return ExitCode::SUCCESS;
    }
    let mib: usize = std::env::var("STATEWARD_BENCH_MIB")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1024);
    let program = newest();
    let tools = program.path.parent().expect("a folder").to_owned();
    let etcd = roomy(&program);
    fill_mib(&etcd, mib).await;
    let ground = Ground::new(&program);
    // In a folder a backup is restored where it is; from a server, here on the same disk, it has to be fetched.
    let mut places = vec![("in a folder", ground.place())];
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let minio = is_built("minio").then(|| Server::minio(local, &["bucket"]));
    aws_files(&ground.folders().store, USER, PASSWORD);
    if let Some(minio) = &minio {
        let s3 = S3Store {
            path: "bucket/etcd.backup".into(),
            aws_secret: Some("aws".into()),
            endpoint: Some(minio.url()),
            force_path_style: true,
        };
        let store = StoreBlocks {
            s3: Some(s3),
            ..StoreBlocks::default()
        };
        let place = Place {
            store,
            ..Place::default()
        };
        places.push(("in S3", place));
    }
    let size = until("a status", async || etcd.client().status().await.ok())
        .await
        .db_size;
    println!(
        "etcd {}, database of {} MiB, quickest of {ROUNDS} rounds",
        program.version,
        size >> 20
    );
    let mut bench = Bench {
        tools,
        etcd,
        ground,
        size,
        apart: false,
        peak: 0,
        missed: Vec::new(),
    };
    bench.backups(&places).await;
    bench.restores(&places).await;
    if let (Some(minio), Some(s3)) = (&minio, places.get(1..).filter(|s3| !s3.is_empty()))
        && apart::is_possible()
    {
        println!(
            "\nThe S3 server has a processor of its own, as if it were a machine of its own; the rest has the others:"
        );
        apart::keep(minio.id(), bench.etcd.id());
        bench.apart = true;
        bench.backups(s3).await;
        bench.restores(s3).await;
    }
    let peak = bench.peak as f64 / 1024.0;
    println!(
        "\n{:<40} {peak:>8.1} MiB   goal {MEMORY:.0} MiB",
        "peak memory of the agent"
    );
    if peak >= MEMORY {
        bench.missed.push("peak memory of the agent".into());
    }
    if bench.missed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("missed: {}", bench.missed.join(", "));
    ExitCode::FAILURE
}

/// What is measured, and what with.
struct Bench {
    tools: PathBuf,
    etcd: Etcd,
    ground: Ground,
    /// Of the database.
    size: i64,
    /// Whether the store's server has a processor of its own.
    apart: bool,
    /// The most memory that the agent took, in KiB.
    peak: u64,
    /// What did not reach its goal.
    missed: Vec<String>,
}

impl Bench {
    async fn backups(&mut self, places: &[(&str, Place)]) {
        let (etcd, ground, size) = (&self.etcd, &self.ground, self.size);
        let saved = ground.root().join("saved");
        let mut save = Vec::new();
        let mut took = vec![(Vec::new(), Vec::new(), Vec::new()); places.len()];
        for _ in 0..ROUNDS {
            let _gone = std::fs::remove_file(&saved);
            let mut etcdctl = Command::new(self.tools.join("etcdctl"));
            etcdctl
                .env("ETCDCTL_API", "3")
                .args(["--endpoints", &url(etcd), "snapshot", "save"])
                .arg(&saved);
            save.push(timed(etcd, size, || output(&mut etcdctl)).0);
            for ((_, place), (uploads, sent, proven)) in places.iter().zip(&mut took) {
                if let Some(store) = opened(place, ground) {
                    uploads.push(upload(&store, &saved, size).await);
                }
                let task = Task::Backup(BackupTask {
                    endpoints: vec![url(etcd)],
                    place: place.clone(),
                    ..BackupTask::default()
                });
                let (cost, (memory, said)) = timed(etcd, size, || child(this(&[]), &task, ground, &self.tools));
                let Outcome::BackedUp(done) = said else {
                    panic!("{said:?}")
                };
                // The time of the process goes to both.
                let millis = |millis: i64| Duration::from_millis(millis.try_into().expect("a time"));
                let reading_back = millis(done.record.duration_millis).saturating_sub(millis(done.sent_millis));
                sent.push(Cost::of(cost.time.saturating_sub(reading_back)));
                proven.push(cost);
                self.peak = self.peak.max(memory);
            }
        }
        let save = quickest(save);
        self.report("etcdctl snapshot save", save, save, None);
        for ((name, _), (uploads, sent, proven)) in places.iter().zip(took) {
            // A file in a folder is on disk when it is proven, not before.
            let in_folder = uploads.is_empty();
            if !in_folder {
                let by_hand = Cost::of(save.time + quickest(uploads).time);
                self.report(&format!("save by hand, then upload, {name}"), by_hand, save, None);
                // What takes etcd's and the agent's processors away is not theirs to make good.
                let goal = self.apart.then_some(GOAL);
                self.report(&format!("backup {name}"), quickest(sent), save, goal);
            }
            let goal = in_folder.then_some(GOAL);
            self.report(&format!("proven backup {name}"), quickest(proven), save, goal);
        }
    }

    async fn restores(&mut self, places: &[(&str, Place)]) {
        let size = self.size;
        let saved = self.ground.root().join("saved");
        let mut tool = Vec::new();
        let mut took = vec![(Vec::new(), Vec::new()); places.len()];
        for round in 0..ROUNDS {
            let by_hand = self.ground.root().join(format!("by-hand-{round}"));
            let restore = |snapshot: &Path| {
                let mut etcdutl = Command::new(self.tools.join("etcdutl"));
                etcdutl
                    .args(["snapshot", "restore"])
                    .arg(snapshot)
                    .arg("--data-dir")
                    .arg(&by_hand);
                output(etcdutl.args(["--bump-revision", "1000000000", "--mark-compacted"]));
            };
            let clear = || std::fs::remove_dir_all(&by_hand).expect("removed");
            tool.push(timed(&self.etcd, size, || restore(&saved)).0);
            clear();
            for ((_, place), (fetches, took)) in places.iter().zip(&mut took) {
                if let Some(store) = opened(place, &self.ground) {
                    let fetched = self.ground.root().join("fetched-by-hand");
                    settle(size);
                    let started = Instant::now();
                    download(&store, &fetched).await;
                    restore(&fetched);
                    fetches.push(Cost::of(started.elapsed()));
                    std::fs::remove_file(&fetched).expect("removed");
                    clear();
                }
                self.ground.set_store(place.store.clone());
                let ground = &self.ground;
                let found = ground.inspect(InspectTask::default()).await.expect("a good backup");
                let data = ground.root().join(format!("restored-{round}/data"));
                let task = Task::Restore(ground.restore_task(&found, 1_000_000_000, &data));
                let (cost, (memory, _)) = timed(&self.etcd, size, || child(this(&[]), &task, ground, &self.tools));
                took.push(cost);
                self.peak = self.peak.max(memory);
                std::fs::remove_dir_all(&data).expect("removed");
            }
        }
        let tool = quickest(tool);
        self.report("etcdutl snapshot restore", tool, tool, None);
        for ((name, _), (fetches, took)) in places.iter().zip(took) {
            // etcdutl is given a file that is there already.
            let in_folder = fetches.is_empty();
            if !in_folder {
                let name = format!("fetch by hand, then etcdutl, {name}");
                self.report(&name, quickest(fetches), tool, None);
            }
            self.report(
                &format!("restore {name}"),
                quickest(took),
                tool,
                in_folder.then_some(GOAL),
            );
        }
    }

    fn report(&mut self, what: &str, took: Cost, base: Cost, goal: Option<f64>) {
        let seconds = took.time.as_secs_f64();
        let rate = self.size as f64 / f64::from(1 << 20) / seconds;
        let ratio = 100.0 * base.time.as_secs_f64() / seconds;
        let processors = took.processors.map(|seconds| format!("{seconds:.1} s of processors"));
        let processors = processors.unwrap_or_default();
        let shown = goal.map_or(String::new(), |goal| format!("goal {goal:.0} %"));
        println!("{what:<40} {seconds:>8.2} s {rate:>8.0} MiB/s {ratio:>6.0} %   {processors:<20} {shown}");
        if goal.is_some_and(|goal| ratio < goal) {
            self.missed.push(what.to_owned());
        }
    }
}

/// One processor for the store's server, the others for everybody else.
mod apart {
    use std::process::Command;

    fn processors() -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    pub(crate) fn is_possible() -> bool {
        processors() > 1 && Command::new("taskset").arg("--version").output().is_ok()
    }

    /// For good: what this process starts from now on inherits it.
    pub(crate) fn keep(server: u32, etcd: u32) {
        let last = processors() - 1;
        bind(server, &last.to_string());
        for process in [etcd, std::process::id()] {
            bind(process, &format!("0-{}", last - 1));
        }
    }

    fn bind(process: u32, to: &str) {
        let process = process.to_string();
        let bound = Command::new("taskset").args(["-a", "-p", "-c", to, &process]).output();
        let bound = bound.expect("taskset runs");
        assert!(bound.status.success(), "{}", String::from_utf8_lossy(&bound.stderr));
    }
}

/// What something took.
#[derive(Clone, Copy)]
struct Cost {
    time: Duration,
    /// Seconds of processors that the program and etcd took together: those of a store's server are not in it, which is another
    /// machine's in real life. None where nobody counted.
    processors: Option<f64>,
}

impl Cost {
    fn of(time: Duration) -> Self {
        Self { time, processors: None }
    }
}

/// Nobody is to wait for what the one before has written, nor for memory: a virtual machine gives back what is free and waits
/// for its host when it is next touched, which may take longer than all the work. So more than a round needs is touched first.
fn settle(size: i64) {
    let _best_effort = Command::new("sync").status();
    let needed = usize::try_from(size).expect("a size") * 3;
    drop(std::hint::black_box(vec![1_u8; needed.min(free_memory() / 2)]));
}

/// In bytes.
fn free_memory() -> usize {
    let all = std::fs::read_to_string("/proc/meminfo").expect("the kernel says");
    let line = all.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    kib.expect("a number") << 10
}

/// How long a program that is started and waited for takes.
fn timed<T>(etcd: &Etcd, size: i64, work: impl FnOnce() -> T) -> (Cost, T) {
    settle(size);
    let (before, started) = (processors(etcd), Instant::now());
    let done = work();
    let cost = Cost {
        time: started.elapsed(),
        processors: Some(processors(etcd) - before),
    };
    (cost, done)
}

/// Seconds that etcd and every program that was waited for have taken so far, in the kernel's ticks of 10 ms.
fn processors(etcd: &Etcd) -> f64 {
    let ticks = |process: &str, fields: [usize; 2]| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("a process");
        // The name of the program, in brackets, may hold anything.
        let fixed: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = fields
            .iter()
            .map(|field| fixed[field - 3].parse::<f64>().expect("a number"));
        ticks.sum::<f64>()
    };
    (ticks("self", [16, 17]) + ticks(&etcd.id().to_string(), [14, 15])) / 100.0
}

/// The store of a place that is not a folder.
fn opened(place: &Place, ground: &Ground) -> Option<Store> {
    place.store.s3.as_ref()?;
    let folder = &ground.folders().store;
    Some(Store::open(&place.store, folder, folder).expect("a store"))
}

/// What a person does after a save: copies the file to the store, and proves nothing.
async fn upload(store: &Store, saved: &Path, size: i64) -> Cost {
    settle(size);
    let started = Instant::now();
    let file = tokio::fs::File::open(saved).await.expect("a file");
    let pieces = tokio_util::io::ReaderStream::with_capacity(file, 1 << 20);
    let stop = tokio_util::sync::CancellationToken::new();
    store.put(store.key(), pieces, &stop).await.expect("uploaded");
    Cost::of(started.elapsed())
}

/// And before a restore.
async fn download(store: &Store, into: &Path) {
    let mut pieces = store.get(store.key()).await.expect("a stream");
    let mut file = tokio::fs::File::create(into).await.expect("a file");
    while let Some(piece) = pieces.try_next().await.expect("a piece") {
        file.write_all(&piece).await.expect("written");
    }
    file.flush().await.expect("written");
}

fn output(command: &mut Command) {
    let done = command.stdin(Stdio::null()).output().expect("the tool runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn quickest(all: Vec<Cost>) -> Cost {
    all.into_iter().min_by_key(|cost| cost.time).expect("some rounds")
}
