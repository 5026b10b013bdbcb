//! Backups in real object stores, and what happens when they fail. `./x store test` builds the servers and runs these.

#[path = "../../store/tests/servers/mod.rs"]
mod servers;
mod support;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use servers::proxy::{Fault, Proxy};
use servers::{AZURE_KEY, PASSWORD, Server, USER, aws_files};
use stateward_agent::{Stop, run};
use stateward_api::agent::{BackupTask, DeleteTask, InspectTask, Outcome, Task};
use stateward_api::store::{AbsStore, OssStore, S3Store, StoreBlocks};
use support::*;

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// About 40 MB: several parts of an upload.
async fn filled(program: &Program) -> Etcd {
    let etcd = Etcd::first(program, &[]);
    fill(&etcd, 10).await;
    let client = etcd.client();
    for index in 0..40_u8 {
        let value: Vec<u8> = (0..1_000_000_u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8 ^ index)
            .collect();
        client.put(format!("large-{index}"), value).await.expect("put");
    }
    etcd
}

fn s3(endpoint: String, path: &str) -> StoreBlocks {
    StoreBlocks {
        s3: Some(S3Store {
            path: path.into(),
            aws_secret: Some("aws".into()),
            endpoint: Some(endpoint),
            force_path_style: true,
        }),
        ..StoreBlocks::default()
    }
}

/// Backs up twice, finds, restores and deletes.
async fn round_trip(ground: &Ground, program: &Program, etcd: &Etcd, keys: i64) {
    let one = ground.back_up(etcd, BackupTask::default()).await;
    assert_eq!(one.record.keys, Some(keys));
    let periodic = BackupTask {
        periodic: true,
        max_backups: Some(1),
        ..BackupTask::default()
    };
    let first = ground.back_up(etcd, periodic.clone()).await;
    fill(etcd, 1).await;
    let second = ground.back_up(etcd, periodic).await;
    assert_eq!(second.deleted, [first.record.location]);
    let latest = InspectTask {
        latest: true,
        ..InspectTask::default()
    };
    assert_eq!(
        ground.inspect(latest.clone()).await.expect("the newest").location,
        second.record.location
    );
    let found = ground.inspect(InspectTask::default()).await.expect("the one-shot");
    assert_eq!(found.sha256, one.record.sha256);
    let data = ground.restore(program, &found, 1_000).await;
    let again = Etcd::on(program, data);
    let client = again.client();
    let (found, revision) = until("the restored member", async || count(&client).await).await;
    assert_eq!(found, keys);
    assert!(revision > 1_000);
    let delete = Task::Delete(DeleteTask {
        place: ground.place(),
        locations: vec![one.record.location],
        all_of_path: true,
    });
    assert_eq!(ground.run(delete).await, Outcome::Deleted);
    assert_eq!(
        ground.inspect(latest).await.expect_err("all gone").reason,
        "BackupMissing"
    );
    assert_eq!(
        ground.inspect(InspectTask::default()).await.expect_err("gone").reason,
        "BackupMissing"
    );
}

#[tokio::test]
#[ignore = "./x store test"]
async fn s3_and_oss() {
    let program = newest();
    let etcd = filled(&program).await;
    let minio = Server::minio(LOCAL, &["bucket"]);
    let mut ground = Ground::new(&program);
    aws_files(&ground.folders().store, USER, PASSWORD);
    ground.set_store(s3(minio.url(), "bucket/a/etcd.backup"));
    round_trip(&ground, &program, &etcd, 50).await;
    let folder = ground.folders().store.clone();
    std::fs::write(folder.join("accessKeyID"), USER).expect("written");
    std::fs::write(folder.join("accessKeySecret"), format!("{PASSWORD}\n")).expect("written");
    let mut ground = Ground::new(&program).with_secrets_of(&ground);
    ground.set_store(StoreBlocks {
        oss: Some(OssStore {
            path: "bucket/etcd.backup".into(),
            oss_secret: Some("oss".into()),
            endpoint: Some(minio.url()),
        }),
        ..StoreBlocks::default()
    });
    round_trip(&ground, &program, &etcd, 50).await;
}

#[tokio::test]
#[ignore = "./x store test"]
async fn s3_over_tls_with_an_authority_of_its_own() {
    let program = newest();
    let etcd = Etcd::first(&program, &[]);
    fill(&etcd, 10).await;
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("params");
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    let minio = Server::minio_tls(LOCAL, &["bucket"], &certificate, &key.serialize_pem());
    let mut ground = Ground::new(&program);
    let secret = ground.folders().store.clone();
    aws_files(&secret, USER, PASSWORD);
    ground.set_store(s3(format!("https://{}", minio.address), "bucket/etcd.backup"));
    // given nobody vouches for the certificate, then it is not believed
    let task = Task::Backup(BackupTask {
        endpoints: vec![url(&etcd)],
        place: ground.place(),
        ..BackupTask::default()
    });
    let unknown = failed(ground.run(task).await);
    assert_eq!(unknown.reason, "StoreUnreachable", "{}", unknown.message);
    // given the secret does, then it is
    std::fs::write(secret.join("ca.crt"), &certificate).expect("written");
    round_trip(&ground, &program, &etcd, 10).await;
}

#[tokio::test]
#[ignore = "./x store test"]
async fn azure() {
    let program = newest();
    let etcd = filled(&program).await;
    let server = Server::azurite("container");
    let mut ground = Ground::new(&program);
    let secret = ground.folders().store.clone();
    std::fs::write(secret.join("storage-account"), USER).expect("written");
    std::fs::write(secret.join("storage-key"), AZURE_KEY).expect("written");
    let blocks = |path: &str| StoreBlocks {
        abs: Some(AbsStore {
            path: path.into(),
            abs_secret: Some("abs".into()),
            endpoint: Some(format!("{}/{USER}", server.url())),
        }),
        ..StoreBlocks::default()
    };
    ground.set_store(blocks("container/a/etcd.backup"));
    round_trip(&ground, &program, &etcd, 50).await;
    let task = |ground: &Ground| {
        Task::Backup(BackupTask {
            endpoints: vec![url(&etcd)],
            place: ground.place(),
            ..BackupTask::default()
        })
    };
    ground.set_store(blocks("nowhere/etcd.backup"));
    assert_eq!(failed(ground.run(task(&ground)).await).reason, "BucketMissing");
    std::fs::write(secret.join("storage-key"), "d3Jvbmc=").expect("written");
    assert_eq!(failed(ground.run(task(&ground)).await).reason, "AccessDenied");
}

#[tokio::test]
#[ignore = "./x store test"]
async fn stores_that_fail_say_why_and_keep_nothing() {
    let program = newest();
    let etcd = filled(&program).await;
    let minio = Server::minio(LOCAL, &["bucket"]);
    let mut ground = Ground::new(&program);
    aws_files(&ground.folders().store, USER, PASSWORD);
    let task = |ground: &Ground| BackupTask {
        endpoints: vec![url(&etcd)],
        place: ground.place(),
        ..BackupTask::default()
    };
    // down
    ground.set_store(s3(format!("http://127.0.0.1:{}", free_port()), "bucket/etcd.backup"));
    let down = failed(ground.run(Task::Backup(task(&ground))).await);
    assert_eq!(
        (down.reason.as_str(), down.retry),
        ("StoreUnreachable", true),
        "{}",
        down.message
    );
    // no such bucket
    ground.set_store(s3(minio.url(), "nowhere/etcd.backup"));
    let missing = failed(ground.run(Task::Backup(task(&ground))).await);
    assert_eq!(missing.reason, "BucketMissing", "{}", missing.message);
    // wrong credentials
    ground.set_store(s3(minio.url(), "bucket/etcd.backup"));
    aws_files(&ground.folders().store, USER, "wrong-secret");
    let denied = failed(ground.run(Task::Backup(task(&ground))).await);
    assert_eq!(denied.reason, "AccessDenied", "{}", denied.message);
    aws_files(&ground.folders().store, USER, PASSWORD);
    // full
    let proxy = Proxy::before(minio.address, Fault::Full);
    ground.set_store(s3(format!("http://{}", proxy.address), "bucket/etcd.backup"));
    let full = failed(ground.run(Task::Backup(task(&ground))).await);
    assert_eq!(
        (full.reason.as_str(), full.retry),
        ("StoreFull", true),
        "{}",
        full.message
    );
    proxy.set(Fault::None);
    nothing_left(&ground, &minio, 0).await;
    // cut half way
    let proxy = Proxy::before(minio.address, Fault::CutAfter(20 << 20));
    ground.set_store(s3(format!("http://{}", proxy.address), "bucket/etcd.backup"));
    let cut = failed(ground.run(Task::Backup(task(&ground))).await);
    assert_eq!(cut.reason, "StoreUnreachable", "{}", cut.message);
    assert!(!visible(&minio), "{:?}", minio.data());
    // Nobody can take parts back over a dead connection. They are no backup, and the store's own rules remove them.
    let stranded = uploads(&minio);
    // slow, with a limit of time
    let proxy = Proxy::before(minio.address, Fault::Slow(1 << 20));
    ground.set_store(s3(format!("http://{}", proxy.address), "bucket/etcd.backup"));
    let limited = BackupTask {
        timeout_seconds: Some(4),
        ..task(&ground)
    };
    let slow = failed(ground.run(Task::Backup(limited)).await);
    assert_eq!(
        (slow.reason.as_str(), slow.retry),
        ("TimedOut", true),
        "{}",
        slow.message
    );
    assert!(!visible(&minio));
    // told to end while sending
    let stop = Stop::default();
    let told = stop.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(2)).await;
        told.interrupt();
    });
    let ended = failed(run(Task::Backup(task(&ground)), ground.folders(), &stop).await);
    assert_eq!((ended.reason.as_str(), ended.retry), ("Interrupted", true));
    proxy.set(Fault::None);
    nothing_left(&ground, &minio, stranded).await;
    // and when all is well again, it works
    let done = ground.back_up(&etcd, BackupTask::default()).await;
    assert_eq!(done.record.keys, Some(50));
    assert!(visible(&minio));
}

fn visible(minio: &Server) -> bool {
    minio.data().join("bucket/etcd.backup").exists()
}

/// Neither a file, nor parts of one beyond those that were there.
async fn nothing_left(ground: &Ground, minio: &Server, parts_before: usize) {
    assert!(!visible(minio));
    assert_eq!(
        ground
            .inspect(InspectTask::default())
            .await
            .expect_err("nothing")
            .reason,
        "BackupMissing"
    );
    until("the parts to be taken back", async || {
        (uploads(minio) == parts_before).then_some(())
    })
    .await;
}

/// Uploads that were begun and neither ended nor taken back.
fn uploads(minio: &Server) -> usize {
    let parts = minio.data().join(".minio.sys/multipart");
    files(&parts)
        .into_iter()
        .map(|object| files(&parts.join(object)).len())
        .sum()
}

#[test]
fn an_azure_store_is_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("storage-account"), "account\n").expect("written");
    std::fs::write(folder.path().join("storage-key"), "a2V5").expect("written");
    for (cloud, good) in [("", true), ("AzureChinaCloud", true), ("Moon", false)] {
        std::fs::write(folder.path().join("cloud"), cloud).expect("written");
        let blocks = StoreBlocks {
            abs: Some(AbsStore {
                path: "container/etcd.backup".into(),
                abs_secret: Some("abs".into()),
                endpoint: None,
            }),
            ..StoreBlocks::default()
        };
        let opened = stateward_store::Store::open(&blocks, folder.path(), folder.path());
        assert_eq!(opened.is_ok(), good, "{cloud}");
    }
}
