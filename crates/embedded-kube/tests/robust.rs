//! Clients that misbehave, and processes that crash.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use embedded_kube::Cluster;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, PostParams, WatchParams};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn config(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": "v".repeat(100)}})).unwrap()
}

/// A raw TLS connection that verifies nothing.
async fn connect(cluster: &Cluster) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    use rustls_pki_types::pem::PemObject;
    roots
        .add(rustls_pki_types::CertificateDer::from_pem_slice(cluster.ca().as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tcp = tokio::net::TcpStream::connect(cluster.address()).await.unwrap();
    let name = rustls_pki_types::ServerName::try_from("localhost").unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, tcp)
        .await
        .unwrap()
}

/// Sends text and reads the first bytes of the response.
async fn say(cluster: &Cluster, text: &str) -> String {
    let mut stream = connect(cluster).await;
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut answer))
        .await
        .unwrap()
        .unwrap_or(0);
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

#[tokio::test]
async fn bad_clients_get_clear_errors_and_harm_no_other_client() {
    let cluster = Cluster::start().await.unwrap();
    let token = cluster.admin_token().to_owned();
    let post = |body: &str, length: usize| {
        format!(
            "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    };
    // Invalid and incomplete requests, kept open while others work.
    let mut half = connect(&cluster).await;
    half.write_all(post("{\"metadata\":", 500).as_bytes()).await.unwrap();
    let mut silent = connect(&cluster).await;
    silent.write_all(b"GET /api").await.unwrap();
    assert!(say(&cluster, "nonsense\r\n\r\n").await.starts_with("HTTP/1.1 400"));
    assert!(say(&cluster, &post("{", 1)).await.starts_with("HTTP/1.1 400"));
    assert!(say(&cluster, &post("\u{0}", 1)).await.starts_with("HTTP/1.1 400"));
    let deep = "[".repeat(100_000);
    assert!(
        say(&cluster, &post(&deep, deep.len()))
            .await
            .starts_with("HTTP/1.1 400")
    );
    let huge = say(&cluster, &post(&"x".repeat(100_000), 100 << 20)).await;
    assert!(huge.starts_with("HTTP/1.1 413"), "{huge}");
    // Tokens.
    for token in ["", "Bearer", "Bearer x", "Bearer a.b.c", "Basic eDp4", "\u{7f}"] {
        let text = format!("GET /api/v1/pods HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\n\r\n");
        let answer = say(&cluster, &text).await;
        assert!(
            answer.starts_with("HTTP/1.1 401") || answer.starts_with("HTTP/1.1 400"),
            "{token}: {answer}"
        );
    }
    // A body beyond the limit, sent in full.
    let client = cluster.https_client().await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let mut big = config("big");
    big.data.as_mut().unwrap().insert("big".into(), "x".repeat(4 << 20));
    let refused = api.create(&PostParams::default(), &big).await.unwrap_err();
    assert!(
        refused.to_string().contains("too large")
            || matches!(&refused, kube::Error::HyperError(_) | kube::Error::Service(_)),
        "{refused}"
    );
    // Other clients are served.
    api.create(&PostParams::default(), &config("fine")).await.unwrap();
    drop((half, silent));
}

#[tokio::test]
async fn a_watch_that_is_never_read_costs_nothing_and_is_cut_off_by_the_log() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.client();
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let start = api
        .list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    // given: a watch whose client does not read, while more changes come than the log keeps
    let mut forgotten = Box::pin(api.watch(&WatchParams::default(), &start).await.unwrap());
    let names = (0..2100).map(|i| format!("c{i}"));
    let made = names.map(|name| {
        let api = api.clone();
        async move { api.create(&PostParams::default(), &config(&name)).await.map(|_| ()) }
    });
    for result in futures::future::join_all(made).await {
        result.unwrap();
    }
    // then: it gets 410, and so does a new one from the old version
    use futures::TryStreamExt;
    let told = forgotten.try_next().await.unwrap().unwrap();
    assert!(
        matches!(&told, kube::api::WatchEvent::Error(e) if e.code == 410),
        "{told:?}"
    );
    let mut again = Box::pin(api.watch(&WatchParams::default(), &start).await.unwrap());
    let told = again.try_next().await.unwrap().unwrap();
    assert!(
        matches!(&told, kube::api::WatchEvent::Error(e) if e.code == 410 && e.reason == "Expired"),
        "{told:?}"
    );
}

/// The child of the next test: serves in a folder, writes as fast as it can, and prints each acknowledged name.
#[tokio::test]
async fn child_that_writes_until_it_is_killed() {
    let Ok(folder) = std::env::var("EMBEDDED_KUBE_CHILD_FOLDER") else {
        return;
    };
    let cluster = Cluster::builder().folder(folder).start().await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
    let writers = (0..8).map(|writer| {
        let api = api.clone();
        async move {
            for i in 0.. {
                let name = format!("c-{writer}-{i}");
                api.create(&PostParams::default(), &config(&name)).await.unwrap();
                println!("\nacknowledged {name}");
            }
        }
    });
    futures::future::join_all(writers).await;
}

#[tokio::test]
async fn a_killed_process_loses_no_acknowledged_write() {
    let folder = tempfile::tempdir().unwrap();
    // given: a process that is killed while it writes
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_writes_until_it_is_killed", "--nocapture"])
        .env("EMBEDDED_KUBE_CHILD_FOLDER", folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut acknowledged = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some(name) = line.strip_prefix("acknowledged ") {
            acknowledged.push(name.to_owned());
        }
        if acknowledged.len() == 300 {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(acknowledged.len() >= 300);
    // then: every acknowledged object exists
    let cluster = Cluster::builder().folder(folder.path()).start().await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
    let found: Vec<String> = api
        .list(&ListParams::default())
        .await
        .unwrap()
        .into_iter()
        .filter_map(|c| c.metadata.name)
        .collect();
    let lost: Vec<&String> = acknowledged.iter().filter(|name| !found.contains(name)).collect();
    assert!(lost.is_empty(), "{lost:?}");
}
