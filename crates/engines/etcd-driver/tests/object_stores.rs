//! Backups in real object stores, and what happens when they fail. `./x store test` builds the servers and runs these.

#[path = "../../../backup/tests/servers/mod.rs"]
mod servers;
#[path = "agent_support/mod.rs"]
mod support;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::PrivatePkcs8KeyDer;
use servers::proxy::{Fault, Proxy, bearer};
use servers::{AZURE_KEY, PASSWORD, Server, USER, aws_files};
use stateward_core::store::{AbsStore, GcsStore, OssStore, S3Store, StoreBlocks};
use stateward_etcd::api::agent::{BackupTask, DeleteTask, InspectTask, Outcome, Place, Task};
use stateward_etcd::api::etcd_backup::Compression;
use stateward_etcd_driver::agent::{Stop, run};
use support::process::{agent, child, fill_mib, is_agent, roomy, this};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

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
        retention: keep(1),
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
        ..DeleteTask::default()
    });
    assert_eq!(ground.run(delete).await, Outcome::Deleted);
    assert_eq!(
        ground.inspect(latest).await.expect_err("all gone").reason.as_str(),
        "BackupMissing"
    );
    assert_eq!(
        ground
            .inspect(InspectTask::default())
            .await
            .expect_err("gone")
            .reason
            .as_str(),
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
async fn google() {
    let program = newest();
    let etcd = filled(&program).await;
    let minio = Server::minio_for_google("bucket");
    let mut ground = Ground::new(&program);
    ground.set_store(StoreBlocks {
        gcs: Some(GcsStore {
            path: "bucket/a/etcd.backup".into(),
            gcp_secret: Some("gcp".into()),
            endpoint: Some(format!("http://{}", bearer(minio.address, "a token"))),
        }),
        ..StoreBlocks::default()
    });
    let token = ground.folders().store.join("access-token");
    // given a token that is not known, then it is told
    std::fs::write(&token, "another").expect("written");
    let task = Task::Backup(BackupTask {
        endpoints: vec![url(&etcd)],
        place: ground.place(),
        ..BackupTask::default()
    });
    assert_eq!(failed(ground.run(task).await).reason.as_str(), "AccessDenied");
    // and with the right one everything can be done
    std::fs::write(&token, "a token\n").expect("written");
    round_trip(&ground, &program, &etcd, 50).await;
}

#[tokio::test]
#[ignore = "./x store test"]
async fn s3_over_tls_with_a_ca_of_its_own() {
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
    assert_eq!(unknown.reason.as_str(), "StoreUnreachable", "{}", unknown.message);
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
    assert_eq!(failed(ground.run(task(&ground)).await).reason.as_str(), "BucketMissing");
    std::fs::write(secret.join("storage-key"), "d3Jvbmc=").expect("written");
    assert_eq!(failed(ground.run(task(&ground)).await).reason.as_str(), "AccessDenied");
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
    assert_eq!(missing.reason.as_str(), "BucketMissing", "{}", missing.message);
    // wrong credentials
    ground.set_store(s3(minio.url(), "bucket/etcd.backup"));
    aws_files(&ground.folders().store, USER, "wrong-secret");
    let denied = failed(ground.run(Task::Backup(task(&ground))).await);
    assert_eq!(denied.reason.as_str(), "AccessDenied", "{}", denied.message);
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
    assert_eq!(cut.reason.as_str(), "StoreUnreachable", "{}", cut.message);
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

#[tokio::test]
#[ignore = "./x store test"]
async fn a_good_backup_stays_until_another_is_proven() {
    let program = newest();
    let etcd = filled(&program).await;
    let minio = Server::minio(LOCAL, &["bucket"]);
    let mut ground = Ground::new(&program);
    aws_files(&ground.folders().store, USER, PASSWORD);
    ground.set_store(s3(minio.url(), "bucket/etcd.backup"));
    // given a good backup
    let first = ground.back_up(&etcd, BackupTask::default()).await.record;
    fill(&etcd, 11).await;
    // when others are sent and cannot be read back, or are told to end while they are
    let proxy = Proxy::before(minio.address, Fault::NoReads);
    let task = |ground: &Ground, number: i64| {
        Task::Backup(BackupTask {
            endpoints: vec![url(&etcd)],
            place: ground.place(),
            attempt: format!("1a2b3c4d-{number}"),
            ..BackupTask::default()
        })
    };
    ground.set_store(s3(format!("http://{}", proxy.address), "bucket/etcd.backup"));
    let unread = failed(ground.run(task(&ground, 1)).await);
    assert_eq!(unread.reason.as_str(), "StoreUnreachable", "{}", unread.message);
    // then the good one is there, and nothing else
    ground.set_store(s3(minio.url(), "bucket/etcd.backup"));
    let found = ground.inspect(InspectTask::default()).await.expect("the good one");
    assert_eq!(found.sha256, first.sha256);
    assert_eq!(files(&minio.data().join("bucket")), ["etcd.backup"]);
    // and one that is proven takes its place
    let second = match ground.run(task(&ground, 2)).await {
        Outcome::BackedUp(done) => done.record,
        other => panic!("{other:?}"),
    };
    let found = ground.inspect(InspectTask::default()).await.expect("the new one");
    assert_eq!((&found.sha256, found.revision), (&second.sha256, second.revision));
    assert_eq!(files(&minio.data().join("bucket")), ["etcd.backup"]);
}

/// The command line that leads to [`as_the_agent`].
const AS_THE_AGENT: [&str; 3] = ["--exact", "as_the_agent", "--ignored"];

/// The agent of other tests, in a process of its own.
#[tokio::test]
#[ignore = "./x store test"]
async fn as_the_agent() {
    if is_agent() {
        agent().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "./x store test"]
async fn a_gibibyte_takes_less_than_100_mib() {
    const LIMIT: u64 = 100 << 10;
    let program = newest();
    let tools = program.path.parent().expect("a folder").to_owned();
    let etcd = roomy(&program);
    fill_mib(&etcd, 1024).await;
    let minio = Server::minio(LOCAL, &["bucket"]);
    let mut ground = Ground::new(&program);
    aws_files(&ground.folders().store, USER, PASSWORD);
    let plain = ground.place();
    let sent = Place {
        store: s3(minio.url(), "bucket/etcd.backup"),
        ..Place::default()
    };
    let compressed = Place {
        compression: Compression::Zstd,
        ..plain.clone()
    };
    let run = |task: &Task, ground: &Ground| {
        let (peak, said) = child(this(&AS_THE_AGENT), task, ground, &tools);
        assert!(peak < LIMIT, "{peak} KiB for {task:?}");
        (peak, said)
    };
    let mut peaks = Vec::new();
    for place in [&compressed, &plain, &sent] {
        let task = Task::Backup(BackupTask {
            endpoints: vec![url(&etcd)],
            place: place.clone(),
            ..BackupTask::default()
        });
        let (peak, said) = run(&task, &ground);
        assert!(
            matches!(&said, Outcome::BackedUp(done) if done.record.size_bytes > 1 << 30),
            "{said:?}"
        );
        peaks.push(peak);
    }
    ground.set_store(sent.store);
    let found = ground.inspect(InspectTask::default()).await.expect("a good backup");
    let task = Task::Restore(ground.restore_task(&found, 1_000, &ground.root().join("volume/data")));
    peaks.push(run(&task, &ground).0);
    println!("peak memory in KiB: zstd, plain, S3, fetched and restored: {peaks:?}");
}

/// A service that gives everybody the keys of the store, over TLS, as AWS does for a web identity; what it is asked is told.
async fn token_service(certificate: &rcgen::Certificate, key: &rcgen::KeyPair) -> (String, mpsc::Receiver<String>) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        )
        .expect("a server");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind((LOCAL, 0)).await.expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("its address"));
    let (tell, asked) = mpsc::channel(8);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let (mut head, mut piece) = (Vec::new(), [0; 4096]);
            while let Ok(length @ 1..) = stream.read(&mut piece).await {
                head.extend_from_slice(&piece[..length]);
                if head.windows(4).any(|end| end == b"\r\n\r\n") {
                    break;
                }
            }
            let keys = format!(
                "<AccessKeyId>{USER}</AccessKeyId><SecretAccessKey>{PASSWORD}</SecretAccessKey><SessionToken></SessionToken>\
                 <Expiration>2099-01-01T00:00:00Z</Expiration>"
            );
            let action = "AssumeRoleWithWebIdentity";
            let body = format!(
                "<{action}Response><{action}Result><Credentials>{keys}</Credentials></{action}Result></{action}Response>"
            );
            let reply = format!(
                "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/xml\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            let _gone = (stream.write_all(reply.as_bytes()).await, stream.shutdown().await);
            let line = String::from_utf8_lossy(&head)
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned();
            let _unheard = tell.try_send(line);
        }
    });
    (url, asked)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "./x store test"]
async fn without_a_secret_the_identity_of_the_pod_is_used() {
    let program = newest();
    let tools = program.path.parent().expect("a folder").to_owned();
    let etcd = Etcd::first(&program, &[]);
    fill(&etcd, 5).await;
    let minio = Server::minio(LOCAL, &["bucket"]);
    let ground = Ground::new(&program);
    // given what Amazon's clusters put into pods of a service account, and a service that knows the token
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("params");
    let certificate = params.self_signed(&key).expect("a certificate");
    std::fs::write(ground.folders().store.join("ca.crt"), certificate.pem()).expect("written");
    let (service, mut asked) = token_service(&certificate, &key).await;
    let token = ground.root().join("token");
    std::fs::write(&token, "who-i-am").expect("written");
    let mut command = this(&AS_THE_AGENT);
    command
        .env("AWS_WEB_IDENTITY_TOKEN_FILE", &token)
        .env("AWS_ROLE_ARN", "arn:aws:iam::1:role/backup")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ENDPOINT_URL_STS", &service);
    // when a backup names no secret
    let mut store = s3(minio.url(), "bucket/etcd.backup");
    store.s3 = store.s3.map(|store| S3Store {
        aws_secret: None,
        ..store
    });
    let task = Task::Backup(BackupTask {
        endpoints: vec![url(&etcd)],
        place: Place {
            store,
            ..Place::default()
        },
        ..BackupTask::default()
    });
    let (_, said) = tokio::task::spawn_blocking(move || child(command, &task, &ground, &tools))
        .await
        .expect("the agent");
    // then the token was changed for keys, and those were used
    assert!(matches!(said, Outcome::BackedUp(_)), "{said:?}");
    assert!(visible(&minio));
    let line = asked.recv().await.expect("a question");
    assert!(
        line.contains("AssumeRoleWithWebIdentity") && line.contains("who-i-am") && line.contains("role%2Fbackup"),
        "{line}"
    );
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
            .reason
            .as_str(),
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
        let opened = stateward_backup::Store::open(&blocks, folder.path(), folder.path());
        assert_eq!(opened.is_ok(), good, "{cloud}");
    }
}
