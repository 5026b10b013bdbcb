//! Backups to a real S3 server: the walk-through that users of the old operator know, and a store that refuses or is away.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::backup::{create, status, succeeded};
use crate::servers::proxy::{Fault, Proxy};
use crate::servers::{PASSWORD, Server, USER, aws_files};
use crate::test::Test;
use crate::wait::until;

/// MinIO on a loopback address that is nobody else's: pods' own is written in place of 127.0.0.1.
fn minio() -> Server {
    let ip = Ipv4Addr::new(127, 77, rand::random_range(1..250), rand::random_range(1..250));
    Server::minio(IpAddr::V4(ip), &["mybucket"])
}

/// The secret as users make it: from the two files of the AWS command line.
async fn secret(test: &Test, name: &str, password: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    aws_files(folder.path(), USER, password);
    let file = |name: &str| format!("--from-file={}", folder.path().join(name).display());
    test.kubectl(&[
        "create",
        "secret",
        "generic",
        name,
        &file("credentials"),
        &file("config"),
    ])
    .await?;
    Ok(())
}

fn s3(endpoint: &str, path: &str, secret: &str) -> Value {
    json!({"path": path, "awsSecret": secret, "endpoint": endpoint, "forcePathStyle": true})
}

pub(crate) async fn backup_to_s3_step_by_step(test: &Test) -> Result<String> {
    let server = minio();
    test.created("example-etcd-cluster", json!({"size": 3})).await?;
    secret(test, "aws", PASSWORD).await?;
    let began = Instant::now();
    test.apply(&format!(
        "apiVersion: etcd.database.coreos.com/v1beta2
kind: EtcdBackup
metadata:
  name: example-etcd-cluster-backup
spec:
  etcdEndpoints: [\"http://example-etcd-cluster-client:2379\"]
  storageType: S3
  s3:
    path: mybucket/etcd.backup
    awsSecret: aws
    endpoint: {}
    forcePathStyle: true
",
        server.url()
    ))
    .await?;
    let done = succeeded(test, "example-etcd-cluster-backup", 60).await?;
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(20), "it took {took:?}");
    ensure!(done.backups[0].location == "mybucket/etcd.backup", "{:?}", done.backups);
    ensure!(
        server.data().join("mybucket/etcd.backup").exists(),
        "no file in the bucket"
    );
    Ok(format!("succeeded {:.1} s after kubectl apply", took.as_secs_f64()))
}

pub(crate) async fn backup_when_s3_refuses_or_is_away(test: &Test) -> Result<String> {
    let server = minio();
    test.created("c", json!({"size": 1})).await?;
    // wrong credentials are told, and right ones are tried at once
    secret(test, "aws", "wrong-secret").await?;
    let to = |path: &str, url: &str| json!({"clusterRef": {"name": "c"}, "s3": s3(url, path, "aws")});
    create(test, "refused", to("mybucket/a.backup", &server.url())).await?;
    let failing = async |name: &'static str| {
        until(&format!("{name} to fail"), 120, async || {
            let status = status(test, name).await?;
            Ok((status.consecutive_failures > 0).then_some(status))
        })
        .await
    };
    let refused = failing("refused").await?;
    ensure!(refused.reason.contains("credentials"), "{}", refused.reason);
    test.kubectl(&["delete", "secret", "aws"]).await?;
    secret(test, "aws", PASSWORD).await?;
    succeeded(test, "refused", 60).await?;
    // a bucket that is not there
    create(test, "nowhere", to("nobucket/a.backup", &server.url())).await?;
    let nowhere = failing("nowhere").await?;
    // a store that is full, then cuts every connection, comes back
    let proxy = Proxy::before(server.address, Fault::Full);
    create(
        test,
        "away",
        to("mybucket/b.backup", &format!("http://{}", proxy.address)),
    )
    .await?;
    let full = failing("away").await?;
    proxy.set(Fault::CutAfter(0));
    let away = until("the cut to be told", 120, async || {
        let status = status(test, "away").await?;
        Ok((status.consecutive_failures > full.consecutive_failures).then_some(status))
    })
    .await?;
    proxy.set(Fault::None);
    succeeded(test, "away", 120).await?;
    ensure!(
        status(test, "away").await?.consecutive_failures == 0,
        "it succeeded and counts failures"
    );
    let told = [refused, nowhere, full, away].map(|status| status.reason.chars().take(80).collect::<String>());
    Ok(told.join(" | "))
}
