//! Streaming changes and restoring to a point between two snapshots, with real servers.

#[path = "agent_support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stateward_etcd::api::agent::{
    BackupTask, FollowTask, InspectTask, Outcome, Progress, ProveTask, RestoreTask, Task,
};
use stateward_etcd::api::etcd_restore::RestoreTo;
use stateward_etcd_driver::agent::{Stop, run};
use stateward_etcd_driver::client::Client;
use stateward_etcd_driver::client::messages::{DeleteRangeRequest, Operation, PutRequest, RangeRequest, RequestOp};
use support::*;

/// Everything at a revision.
async fn content(client: &Client, revision: i64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let all = RangeRequest {
        key: vec![0],
        range_end: vec![0],
        revision,
        ..RangeRequest::default()
    };
    let reply = client.range(all).await.expect("all keys");
    reply.kvs.into_iter().map(|kv| (kv.key, kv.value)).collect()
}

async fn progress(address: SocketAddr) -> Option<Progress> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.ok()?;
    let request = format!("GET /progress HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.ok()?;
    serde_json::from_str(reply.split("\r\n\r\n").nth(1)?).ok()
}

fn put(key: &str, value: &str) -> RequestOp {
    RequestOp {
        operation: Some(Operation::Put(PutRequest {
            key: key.into(),
            value: value.into(),
        })),
    }
}

fn gone(key: &str, end: &str) -> DeleteRangeRequest {
    DeleteRangeRequest {
        key: key.into(),
        range_end: end.into(),
    }
}

/// Many kinds of changes. Returns the revision behind the last.
async fn change(client: &Client, round: usize) -> i64 {
    for index in 0..40 {
        client
            .put(format!("key-{index:03}"), format!("{round}-{index}"))
            .await
            .expect("put");
    }
    let many = (0..120)
        .map(|index| put(&format!("txn-{index}"), &format!("{round}")))
        .collect();
    client.transaction(many).await.expect("a transaction");
    client.delete_range(gone("key-01", "key-02")).await.expect("deleted");
    client
        .put(format!("large-{round}"), vec![7; 1_000_000])
        .await
        .expect("put");
    let reply = client.put("round", format!("{round}")).await.expect("put");
    reply.header.expect("a header").revision
}

#[tokio::test]
async fn a_point_between_snapshots_is_restored_as_it_was() {
    for program in programs()
        .into_iter()
        .filter(|program| program.version.at_least(3, 4, 0))
    {
        let mut ground = Ground::new(&program);
        ground.pack_with(&[1; 32]);
        let address = ground.listen();
        let etcd = Etcd::first(&program, &[]);
        fill(&etcd, 5).await;
        let client = etcd.client();
        // given a snapshot, and a follower after it
        let periodic = BackupTask {
            periodic: true,
            ..BackupTask::default()
        };
        let first = ground.back_up(&etcd, periodic.clone()).await.record;
        let follow = Task::Follow(FollowTask {
            endpoints: vec![url(&etcd)],
            place: ground.place(),
            after_revision: first.revision,
        });
        let stop = Stop::default();
        let follower = start(&ground, follow.clone(), &stop);
        let wanted = change(&client, 1).await;
        let expected = content(&client, wanted).await;
        until("the first changes in the store", async || {
            let latest = progress(address).await?.latest?;
            (latest.revision >= wanted).then_some(())
        })
        .await;
        // when it is stopped, changes go on, and it starts again
        stop.interrupt();
        assert_eq!(
            failed(follower.await.expect("an outcome")).reason.as_str(),
            "Interrupted"
        );
        let later = change(&client, 2).await;
        let stop = Stop::default();
        let follower = start(&ground, follow, &stop);
        let reached = until("the later changes in the store", async || {
            progress(address)
                .await?
                .latest
                .filter(|latest| latest.revision >= later)
        })
        .await;
        ground.back_up(&etcd, periodic).await;
        // then a point between the two snapshots is reached, by revision
        let to = RestoreTo {
            revision: Some(wanted),
            time: None,
        };
        let restored = restore_to(&ground, &program, to, Some(&first.location), wanted, "a").await;
        assert_eq!(content(&restored.client(), 0).await, expected, "{}", program.version);
        // and by time
        let to = RestoreTo {
            revision: None,
            time: reached.time.clone(),
        };
        // (the second snapshot may have been begun in the same second)
        let restored = restore_to(&ground, &program, to, None, later, "b").await;
        assert_eq!(content(&restored.client(), 0).await, content(&client, later).await);
        // and a point that nobody knows yet is refused
        let beyond = InspectTask {
            restore_to: Some(RestoreTo {
                revision: Some(later + 1_000),
                time: None,
            }),
            ..InspectTask::default()
        };
        assert_eq!(
            ground.inspect(beyond).await.expect_err("refused").reason.as_str(),
            "PointMissing"
        );
        stop.interrupt();
        follower.await.expect("an outcome");
    }
}

fn start(ground: &Ground, task: Task, stop: &Stop) -> tokio::task::JoinHandle<Outcome> {
    let (folders, stop) = (ground.folders().clone(), stop.clone());
    tokio::spawn(async move { run(task, &folders, &stop).await })
}

async fn restore_to(
    ground: &Ground,
    program: &Program,
    to: RestoreTo,
    snapshot: Option<&str>,
    revision: i64,
    name: &str,
) -> Etcd {
    let task = InspectTask {
        restore_to: Some(to.clone()),
        ..InspectTask::default()
    };
    let found = ground.inspect(task).await.expect("a way");
    assert_eq!(found.revision, revision);
    assert!(
        snapshot.is_none_or(|snapshot| found.location == snapshot),
        "{}",
        found.location
    );
    let tools = tool_for(program);
    let data = ground.root().join(name).join("data");
    let task = RestoreTask {
        restore_to: Some(to),
        ..ground.restore_task(&found, 1_000, &data)
    };
    let outcome = ground.with_tools(&tools).run(Task::Restore(task)).await;
    assert!(matches!(outcome, Outcome::Restored(_)), "{outcome:?}");
    assert_eq!(files(&ground.root().join(name)), ["data"]);
    let etcd = Etcd::on(program, data);
    let client = etcd.client();
    let (_, now) = until("the restored member", async || count(&client).await).await;
    assert!(now >= revision + 1_000);
    etcd
}

#[tokio::test]
async fn a_gap_is_said_until_a_snapshot_covers_it() {
    let program = newest();
    let mut ground = Ground::new(&program);
    let address = ground.listen();
    let etcd = Etcd::first(&program, &[]);
    fill(&etcd, 5).await;
    let client = etcd.client();
    let revision = count(&client).await.expect("an answer").1;
    client.compact(revision, true).await.expect("compacted");
    let follow = Task::Follow(FollowTask {
        endpoints: vec![url(&etcd)],
        place: ground.place(),
        after_revision: 2,
    });
    let stop = Stop::default();
    let follower = start(&ground, follow, &stop);
    let said = until("a word about the gap", async || {
        progress(address).await.filter(|said| !said.problem.is_empty())
    })
    .await;
    assert!(
        said.problem.contains("a new snapshot is needed") && said.latest.is_none(),
        "{said:?}"
    );
    let periodic = BackupTask {
        periodic: true,
        ..BackupTask::default()
    };
    ground.back_up(&etcd, periodic).await;
    fill(&etcd, 1).await;
    until("a restorable point again", async || {
        progress(address)
            .await
            .filter(|said| said.latest.is_some() && said.problem.is_empty())
    })
    .await;
    stop.interrupt();
    follower.await.expect("an outcome");
}

#[tokio::test]
async fn a_backup_is_proven_by_restoring_it() {
    for program in programs()
        .into_iter()
        .filter(|program| program.version.at_least(3, 4, 0))
    {
        let ground = Ground::new(&program);
        let etcd = Etcd::first(&program, &[]);
        fill(&etcd, 30).await;
        etcd.client()
            .delete_range(gone("key-00", "key-01"))
            .await
            .expect("deleted");
        let record = ground.back_up(&etcd, BackupTask::default()).await.record;
        assert_eq!(record.keys, Some(20));
        assert!(!record.key_hash.is_empty(), "{}", program.version);
        let task = |record| {
            Task::Prove(ProveTask {
                place: ground.place(),
                record,
                ..ProveTask::default()
            })
        };
        match ground.run(task(record.clone())).await {
            Outcome::Proven(proven) => assert_eq!((proven.keys, &proven.key_hash), (20, &record.key_hash)),
            other => panic!("not proven: {other:?}"),
        }
        assert_eq!(files(&ground.folders().scratch).len(), 0);
        let mut other = record.clone();
        other.key_hash = "00000000".into();
        assert_eq!(failed(ground.run(task(other)).await).reason.as_str(), "BackupCorrupt");
    }
}

/// Three members that know each other from the start.
fn three(program: &Program) -> Vec<Etcd> {
    let ports: Vec<u16> = (0..3).map(|_| free_port()).collect();
    let urls: Vec<String> = (1..)
        .zip(&ports)
        .map(|(n, port)| format!("m{n}=http://127.0.0.1:{port}"))
        .collect();
    let initial = urls.join(",");
    let members = (1..).zip(ports).map(|(n, peer_port)| {
        let start = Start {
            name: &format!("m{n}"),
            peer_port,
            state: "new",
            initial_cluster: &initial,
            extra: Vec::new(),
        };
        Etcd::start(program, start)
    });
    members.collect()
}

/// Freezes a member or lets it go on.
fn signal(etcd: &Etcd, signal: &str) {
    let sent = std::process::Command::new("kill")
        .args([signal, &etcd.id().to_string()])
        .status();
    assert!(sent.expect("kill").success());
}

/// Stops all threads of a process, and waits until the kernel has done so.
async fn suspend(etcd: &Etcd) {
    signal(etcd, "-STOP");
    let threads = format!("/proc/{}/task", etcd.id());
    until("all its threads to be stopped", async || {
        let mut threads = std::fs::read_dir(&threads).ok()?.flatten();
        let is_stopped = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'));
        let all = threads.all(|thread| std::fs::read_to_string(thread.path().join("stat")).is_ok_and(is_stopped));
        all.then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_member_without_its_quorum_certifies_no_time() {
    let program = newest();
    let mut ground = Ground::new(&program);
    let address = ground.listen();
    let members = three(&program);
    fill(&members[0], 5).await;
    let periodic = BackupTask {
        periodic: true,
        ..BackupTask::default()
    };
    let first = ground.back_up(&members[0], periodic).await.record;
    // given a follower of one of three members, and a quiet cluster whose restorable time moves on
    let follow = Task::Follow(FollowTask {
        endpoints: vec![url(&members[0])],
        place: ground.place(),
        after_revision: first.revision,
    });
    let stop = Stop::default();
    let follower = start(&ground, follow, &stop);
    let latest = async || progress(address).await?.latest?.time;
    let early = until("a certified time", latest).await;
    until("a later one", async || latest().await.filter(|time| time.0 > early.0)).await;
    // when the two others stand still, then that is told and the time stays
    for member in &members[1..] {
        suspend(member).await;
    }
    let stopped = Timestamp::now();
    until("a word about it", async || {
        progress(address).await.filter(|said| !said.problem.is_empty())
    })
    .await;
    let kept = latest().await.expect("a time");
    assert!(
        kept.0 <= stopped,
        "{} is certified, and the quorum was lost at {stopped}",
        kept.0
    );
    let beyond = InspectTask {
        restore_to: Some(RestoreTo {
            revision: None,
            time: Some(Time(Timestamp::now())),
        }),
        ..InspectTask::default()
    };
    assert_eq!(
        ground.inspect(beyond).await.expect_err("not certified").reason.as_str(),
        "PointMissing"
    );
    // and when they go on, it does
    members[1..].iter().for_each(|member| signal(member, "-CONT"));
    fill(&members[0], 1).await;
    until("a time after that", async || {
        latest().await.filter(|time| time.0 > stopped)
    })
    .await;
    stop.interrupt();
    follower.await.expect("an outcome");
}
