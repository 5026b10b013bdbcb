//! Backups in a folder, with real servers and tools of every version at hand.

#[path = "agent_support/mod.rs"]
mod support;

use stateward_etcd::api::agent::{
    BackedUp, BackupTask, DeleteTask, InspectTask, Inspected, Outcome, ProveTask, RestoreTask, Retention, Task,
};
use stateward_etcd_driver::agent::{Folders, Stop, run};
use support::*;

#[tokio::test]
async fn a_backup_is_restored_with_every_key_and_a_higher_revision() {
    for program in programs() {
        // given an etcd with keys
        let ground = Ground::new(&program);
        let etcd = Etcd::first(&program, &[]);
        fill(&etcd, 50).await;
        // when it is backed up
        let done = ground.back_up(&etcd, BackupTask::default()).await;
        // then the file is where it should be and etcdutl agrees
        let record = &done.record;
        assert_eq!(record.location, "dir/etcd.backup");
        assert_eq!((record.revision, record.keys), (51, Some(50)), "{}", program.version);
        assert_eq!(record.etcd_version, program.version.to_string());
        let file = ground.claim().join("dir/etcd.backup");
        assert_eq!(
            std::fs::metadata(&file).expect("the file").len() as i64,
            record.size_bytes
        );
        // when it is found and restored by a tool that can raise the revision
        let found = ground.inspect(InspectTask::default()).await.expect("a good backup");
        assert_eq!((found.revision, &found.sha256), (51, &record.sha256));
        let tool = tool_for(&program);
        let restored = ground.restore(&tool, &found, 1_000).await;
        // then a server of the old version serves it, and no revision comes twice
        let again = Etcd::on(&program, restored);
        let client = again.client();
        let (count, revision) = until("the restored member", async || count(&client).await).await;
        assert_eq!(count, 50, "{}", program.version);
        assert!(revision >= 1_051, "{revision} with {}", program.version);
        assert_eq!(client.get("key-007").await.expect("a value"), Some(b"value 7".to_vec()));
    }
}

#[tokio::test]
async fn restoring_twice_changes_nothing() {
    let program = newest();
    let ground = Ground::new(&program);
    let etcd = Etcd::first(&program, &[]);
    fill(&etcd, 3).await;
    ground.back_up(&etcd, BackupTask::default()).await;
    let found = ground.inspect(InspectTask::default()).await.expect("a good backup");
    let data = ground.restore(&program, &found, 0).await;
    std::fs::write(data.join("mark"), "mine").expect("written");
    let again = ground
        .restore_into(&program, &found, 0, &ground.root().join("volume"))
        .await;
    assert!(
        matches!(&again, Outcome::Restored(said) if said.revision == found.revision),
        "{again:?}"
    );
    assert!(data.join("mark").exists());
    // and another content is refused
    another_content_is_refused(&ground, &program, found.clone()).await;
    // and so is what was harmed since
    let file = ground.claim().join("dir/etcd.backup");
    let mut content = std::fs::read(&file).expect("read");
    let middle = content.len() / 2;
    content[middle] ^= 1;
    std::fs::write(&file, content).expect("written");
    refused(&ground, &program, &found).await;
}

async fn another_content_is_refused(ground: &Ground, program: &Program, found: Inspected) {
    let other = Inspected {
        sha256: "00".repeat(32),
        ..found
    };
    refused(ground, program, &other).await;
}

/// With nothing left behind.
async fn refused(ground: &Ground, program: &Program, found: &Inspected) {
    let target = ground.root().join("elsewhere");
    let outcome = ground.restore_into(program, found, 0, &target).await;
    assert_eq!(failed(outcome).reason.as_str(), "BackupCorrupt");
    assert_eq!(std::fs::read_dir(&target).expect("the folder").count(), 0);
}

#[tokio::test]
async fn periodic_backups_are_kept_by_count_and_the_newest_good_one_is_found() {
    let program = newest();
    let ground = Ground::new(&program);
    let etcd = Etcd::first(&program, &[]);
    let periodic = BackupTask {
        periodic: true,
        retention: keep(2),
        ..BackupTask::default()
    };
    let mut last = BackedUp::default();
    for round in 1..=4 {
        fill(&etcd, round).await;
        last = ground.back_up(&etcd, periodic.clone()).await;
    }
    assert_eq!(last.deleted.len(), 1);
    assert_eq!(files(&ground.claim().join("dir")).len(), 2);
    let latest = InspectTask {
        latest: true,
        ..InspectTask::default()
    };
    let found = ground.inspect(latest.clone()).await.expect("a good one");
    assert_eq!(found.location, last.record.location);
    // given the newest is harmed, then the one before is taken
    let newest = ground.claim().join(&last.record.location);
    let mut content = std::fs::read(&newest).expect("the file");
    content[5000] ^= 1;
    std::fs::write(&newest, &content).expect("written");
    let found = ground.inspect(latest.clone()).await.expect("the one before");
    assert_ne!(found.location, last.record.location);
    // and naming the harmed one is refused
    let exact = InspectTask {
        location: Some(last.record.location.clone()),
        ..InspectTask::default()
    };
    assert_eq!(
        ground.inspect(exact).await.expect_err("harmed").reason.as_str(),
        "BackupCorrupt"
    );
    // and a path without a file says what there is
    let missing = ground.inspect(InspectTask::default()).await.expect_err("missing");
    assert_eq!(missing.reason.as_str(), "BackupMissing");
    assert!(missing.message.contains("latest: true"), "{}", missing.message);
    // when everything is deleted, a neighbour's file stays
    std::fs::write(ground.claim().join("dir/etcd.backup_version"), "mine").expect("written");
    let delete = Task::Delete(DeleteTask {
        place: ground.place(),
        all_of_path: true,
        ..DeleteTask::default()
    });
    assert_eq!(ground.run(delete).await, Outcome::Deleted);
    assert_eq!(files(&ground.claim().join("dir")), ["etcd.backup_version"]);
}

#[tokio::test]
async fn packed_backups_come_back_and_the_wrong_key_is_said() {
    let program = newest();
    let mut ground = Ground::new(&program);
    let etcd = Etcd::first(&program, &[]);
    fill(&etcd, 20).await;
    ground.pack_with(&[7; 32]);
    let done = ground.back_up(&etcd, BackupTask::default()).await;
    assert!(done.record.stored_bytes < done.record.size_bytes);
    let found = ground.inspect(InspectTask::default()).await.expect("a good backup");
    assert_eq!(found.sha256, done.record.sha256);
    let data = ground.restore(&program, &found, 10).await;
    assert!(data.join("member/snap/db").exists());
    // What is packed has to be unpacked into a file first; another content is refused all the same.
    another_content_is_refused(&ground, &program, found).await;
    ground.pack_with(&[8; 32]);
    assert_eq!(
        ground
            .inspect(InspectTask::default())
            .await
            .expect_err("wrong")
            .reason
            .as_str(),
        "WrongKey"
    );
}

#[tokio::test]
async fn failures_say_what_to_do_and_leave_nothing() {
    let program = newest();
    let ground = Ground::new(&program);
    let nobody = BackupTask {
        endpoints: vec![format!("http://127.0.0.1:{}", free_port())],
        place: ground.place(),
        ..BackupTask::default()
    };
    let down = failed(ground.run(Task::Backup(nobody)).await);
    assert_eq!((down.reason.as_str(), down.retry), ("EtcdUnreachable", true));
    assert_eq!(files(&ground.claim()).len(), 0);
    let stop = Stop::default();
    stop.interrupt();
    let etcd = Etcd::first(&program, &[]);
    fill(&etcd, 1).await;
    let task = Task::Backup(BackupTask {
        endpoints: vec![url(&etcd)],
        place: ground.place(),
        ..BackupTask::default()
    });
    let stopped = failed(run(task, ground.folders(), &stop).await);
    assert_eq!((stopped.reason.as_str(), stopped.retry), ("Interrupted", true));
    assert_eq!(files(&ground.claim()).len(), 0);
    let unmounted = Folders {
        claim: ground.root().join("nowhere"),
        ..ground.folders().clone()
    };
    let task = Task::Inspect(InspectTask {
        place: ground.place(),
        ..InspectTask::default()
    });
    assert_eq!(
        failed(run(task, &unmounted, &Stop::default()).await).reason.as_str(),
        "BucketMissing"
    );
    let task = RestoreTask {
        place: ground.place(),
        location: "dir/none".into(),
        data_dir: ground.root().join("x/data").display().to_string(),
        ..RestoreTask::default()
    };
    let missing = failed(ground.run(Task::Restore(task)).await);
    assert_eq!((missing.reason.as_str(), missing.retry), ("BackupMissing", false));
}

#[tokio::test]
async fn a_cluster_with_tls_is_backed_up_with_the_mounted_certificates() {
    let program = newest();
    let ground = Ground::new(&program);
    // given a member that wants certificates
    let (etcd, given) = Etcd::with_tls(&program, "127.0.0.1");
    let task = || {
        Task::Backup(BackupTask {
            // One endpoint that nobody serves does not matter.
            endpoints: vec![
                format!("https://127.0.0.1:{}", free_port()),
                format!("https://{}", etcd.client),
            ],
            place: ground.place(),
            ..BackupTask::default()
        })
    };
    // when none are mounted, then that is said
    let missing = failed(ground.run(task()).await);
    assert_eq!(missing.reason.as_str(), "SecretInvalid", "{}", missing.message);
    // when they are, it works
    let secret = &ground.folders().client_tls;
    for (name, text) in [
        ("etcd-client-ca.crt", &given.ca),
        ("etcd-client.crt", &given.user),
        ("etcd-client.key", &given.user_key),
    ] {
        std::fs::write(secret.join(name), text).expect("written");
    }
    let done = until("a backup", async || match ground.run(task()).await {
        Outcome::BackedUp(done) => Some(done),
        _ => None,
    })
    .await;
    assert_eq!(done.record.endpoint, format!("https://{}", etcd.client));
}

#[tokio::test]
async fn a_single_backup_replaces_the_one_before_it_when_it_is_proven() {
    let program = newest();
    let ground = Ground::new(&program);
    let etcd = Etcd::first(&program, &[]);
    fill(&etcd, 3).await;
    // given a good backup at the path
    let first = ground.back_up(&etcd, BackupTask::default()).await.record;
    // when others are taken that another pod is to prove
    let later = |number: i64| BackupTask {
        prove_later: true,
        attempt: format!("1a2b3c4d-{number}"),
        ..BackupTask::default()
    };
    fill(&etcd, 4).await;
    ground.back_up(&etcd, later(1)).await;
    let second = ground.back_up(&etcd, later(2)).await;
    // then the good one stands where it stood, and of the unproven ones only the last is left
    assert_eq!(second.record.unproven_at, "dir/etcd.backup.unproven-1a2b3c4d-2");
    assert_eq!(second.deleted, ["dir/etcd.backup.unproven-1a2b3c4d-1"]);
    let found = ground.inspect(InspectTask::default()).await.expect("a good backup");
    assert_eq!((found.revision, &found.sha256), (first.revision, &first.sha256));
    // when it cannot be proven, then that is so as well
    let prove = |record| {
        Task::Prove(ProveTask {
            place: ground.place(),
            record,
            ..ProveTask::default()
        })
    };
    let mut wrong = second.record.clone();
    wrong.keys = Some(99);
    assert_eq!(failed(ground.run(prove(wrong)).await).reason.as_str(), "BackupCorrupt");
    let found = ground.inspect(InspectTask::default()).await.expect("a good backup");
    assert_eq!(found.sha256, first.sha256);
    // and when it is proven, it takes the place
    let outcome = ground.run(prove(second.record.clone())).await;
    assert!(matches!(outcome, Outcome::Proven(_)), "{outcome:?}");
    let found = ground.inspect(InspectTask::default()).await.expect("a good backup");
    assert_eq!(found.sha256, second.record.sha256);
    assert_eq!(files(&ground.claim().join("dir")), ["etcd.backup"]);
}

#[tokio::test]
async fn backups_that_are_not_proven_push_out_none_that_is() {
    let program = newest();
    let ground = Ground::new(&program);
    let etcd = Etcd::first(&program, &[]);
    fill(&etcd, 1).await;
    let task = |prove_later: bool, proven: &[String], unproven: &[String]| BackupTask {
        periodic: true,
        prove_later,
        retention: Retention {
            proven: proven.to_vec(),
            unproven: unproven.to_vec(),
            ..keep(1)
        },
        ..BackupTask::default()
    };
    // given one that is proven, which is all that is to be kept
    let good = ground.back_up(&etcd, task(false, &[], &[])).await.record;
    let proven = [good.location.clone()];
    // when more are taken whose proofs fail
    let mut unproven = Vec::new();
    for round in 2..=4 {
        fill(&etcd, round).await;
        let done = ground.back_up(&etcd, task(true, &proven, &unproven)).await;
        unproven.retain(|location| !done.deleted.contains(location));
        unproven.push(done.record.location);
    }
    // then it is there, beside the last of them
    let left = files(&ground.claim().join("dir"));
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(ground.claim().join(&good.location).exists());
    // and when one is proven, it takes the place
    let last = ground.back_up(&etcd, task(true, &proven, &unproven)).await;
    let prove = Task::Prove(ProveTask {
        place: ground.place(),
        record: last.record,
        retention: Retention {
            proven: proven.to_vec(),
            unproven,
            ..keep(1)
        },
    });
    let Outcome::Proven(done) = ground.run(prove).await else {
        panic!("not proven")
    };
    assert!(done.deleted.contains(&good.location), "{done:?}");
}
