//! Real kubectl against streams that lead to processes and ports of this machine, without any node.

use std::io::Write;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{AttachParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

use crate::Cluster;
use crate::streams::{DuplexStream, ExecOptions, ExecSession, LogOptions, PodRef, PodStreams, StreamError};

/// Runs every command on this machine; every port is this machine's.
struct Host;

impl PodStreams for Host {
    fn logs(
        &self,
        _: PodRef,
        _: LogOptions,
    ) -> BoxFuture<'_, Result<BoxStream<'static, std::io::Result<Bytes>>, StreamError>> {
        async { Err(StreamError::BadRequest("no logs".to_owned())) }.boxed()
    }

    fn exec(&self, _: PodRef, options: ExecOptions) -> BoxFuture<'_, Result<ExecSession, StreamError>> {
        async move {
            let (program, arguments) = options.command.split_first().unwrap();
            let mut child = Command::new(program)
                .args(arguments)
                .stdin(if options.stdin { Stdio::piped() } else { Stdio::null() })
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .map_err(|error| StreamError::Internal(format!("cannot start {program}: {error}")))?;
            Ok(ExecSession {
                stdin: child.stdin.take().map(|pipe| Box::new(pipe) as _),
                stdout: child.stdout.take().map(|pipe| Box::new(pipe) as _),
                stderr: child.stderr.take().map(|pipe| Box::new(pipe) as _),
                resize: None,
                exit: async move { Ok(child.wait().await?.code().unwrap_or(-1)) }.boxed(),
            })
        }
        .boxed()
    }

    fn attach(&self, _: PodRef, _: ExecOptions) -> BoxFuture<'_, Result<ExecSession, StreamError>> {
        async { Err(StreamError::BadRequest("nothing to attach to".to_owned())) }.boxed()
    }

    fn port_forward(&self, _: PodRef, port: u16) -> BoxFuture<'_, Result<Box<dyn DuplexStream>, StreamError>> {
        async move {
            let stream = TcpStream::connect(("127.0.0.1", port)).await?;
            Ok(Box::new(stream) as Box<dyn DuplexStream>)
        }
        .boxed()
    }
}

async fn cluster() -> Cluster {
    let cluster = Cluster::start().await.unwrap();
    assert!(cluster.server().streams.set(Arc::new(Host)).is_ok());
    let pod: Pod = serde_json::from_value(
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}),
    )
    .unwrap();
    let pods: Api<Pod> = Api::default_namespaced(cluster.client());
    pods.create(&PostParams::default(), &pod).await.unwrap();
    // kubectl forwards only to pods that run.
    let running = Patch::Merge(json!({"status": {"phase": "Running"}}));
    pods.patch_status("p", &PatchParams::default(), &running).await.unwrap();
    cluster
}

/// The kubectls to try: those of the variable KUBECTLS (separated by `:`), else the one in the PATH.
fn kubectls() -> Vec<String> {
    let listed = std::env::var("KUBECTLS").unwrap_or_default();
    let listed: Vec<String> = listed
        .split(':')
        .filter(|path| !path.is_empty())
        .map(str::to_owned)
        .collect();
    let found = std::process::Command::new("kubectl").arg("help").output().is_ok();
    assert!(
        found || !listed.is_empty(),
        "no kubectl to test with: set KUBECTLS, or run ./x test, which does"
    );
    if listed.is_empty() {
        vec!["kubectl".to_owned()]
    } else {
        listed
    }
}

/// Runs kubectl with this input; its exit code, output and errors.
async fn run(kubectl: &str, config: &std::path::Path, arguments: &[&str], input: &str) -> (i32, String, String) {
    let mut child = Command::new(kubectl)
        .arg("--kubeconfig")
        .arg(config)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    drop(stdin);
    let output = tokio::time::timeout(Duration::from_secs(60), child.wait_with_output())
        .await
        .unwrap()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (
        output.status.code().unwrap_or(-1),
        text(output.stdout),
        text(output.stderr),
    )
}

#[tokio::test]
async fn every_kubectl_runs_commands_with_input_output_errors_and_exit_codes() {
    let cluster = cluster().await;
    let mut config = tempfile::NamedTempFile::new().unwrap();
    config.write_all(cluster.kubeconfig_yaml().as_bytes()).unwrap();
    for kubectl in kubectls() {
        let exec = async |arguments: &[&str], input: &str| {
            let all = [&["exec"][..], arguments].concat();
            run(&kubectl, config.path(), &all, input).await
        };
        let (code, out, err) = exec(&["p", "--", "sh", "-c", "echo out; echo err >&2"], "").await;
        assert_eq!((code, out.as_str(), err.as_str()), (0, "out\n", "err\n"), "{kubectl}");
        let (code, _, err) = exec(&["p", "--", "sh", "-c", "exit 7"], "").await;
        assert_eq!(code, 7, "{kubectl}: {err}");
        assert!(err.contains("command terminated with exit code 7"), "{kubectl}: {err}");
        let (code, out, err) = exec(&["-i", "p", "--", "cat"], "typed").await;
        assert_eq!((code, out.as_str()), (0, "typed"), "{kubectl}: {err}");
        let (code, out, err) = exec(&["p", "--", "sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"], "").await;
        assert_eq!((code, out.len()), (0, 3_000_000), "{kubectl}: {err}");
        let (code, _, err) = exec(&["p", "--", "/no/such/program"], "").await;
        assert!(
            code != 0 && err.contains("cannot start /no/such/program"),
            "{kubectl}: {code} {err}"
        );
        let (code, _, err) = exec(&["p", "-c", "other", "--", "true"], "").await;
        assert!(
            code != 0 && err.contains("container other is not valid for pod p"),
            "{kubectl}: {code} {err}"
        );
    }
    cluster.stop().await;
}

#[tokio::test]
async fn every_kubectl_forwards_ports_several_times() {
    let cluster = cluster().await;
    let mut config = tempfile::NamedTempFile::new().unwrap();
    config.write_all(cluster.kubeconfig_yaml().as_bytes()).unwrap();
    let (echo, port) = echo().await;
    for kubectl in kubectls() {
        let mut child = Command::new(&kubectl)
            .arg("--kubeconfig")
            .arg(config.path())
            .args(["port-forward", "pod/p", &format!(":{port}")])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut line = vec![0; 200];
        let count = tokio::time::timeout(Duration::from_secs(30), child.stdout.as_mut().unwrap().read(&mut line)).await;
        let line = String::from_utf8_lossy(&line[..count.unwrap().unwrap()]).into_owned();
        let local = line
            .split(" -> ")
            .next()
            .and_then(|text| text.rsplit(':').next())
            .unwrap_or_default()
            .to_owned();
        let local: u16 = local.parse().unwrap_or_else(|_| panic!("{kubectl}: {line}"));
        for round in 0..3 {
            let mut stream = TcpStream::connect(("127.0.0.1", local)).await.unwrap();
            let text = format!("round {round} {}", "x".repeat(100_000));
            let (mut from, mut to) = stream.split();
            let mut back = vec![0; text.len()];
            let (sent, received) = tokio::join!(to.write_all(text.as_bytes()), from.read_exact(&mut back));
            sent.unwrap();
            received.unwrap();
            assert!(back == text.as_bytes(), "{kubectl}");
        }
        child.kill().await.unwrap();
    }
    echo.abort();
    cluster.stop().await;
}

/// kube-rs speaks the WebSocket forms that kubectl does not.
#[tokio::test]
async fn a_rust_client_runs_commands_and_forwards_ports() {
    let cluster = cluster().await;
    let api: Api<Pod> = Api::default_namespaced(cluster.https_client().await.unwrap());
    let mut process = api
        .exec("p", ["cat"], &AttachParams::default().stdin(true).stderr(false))
        .await
        .unwrap();
    let mut stdin = process.stdin().unwrap();
    stdin.write_all(b"hello").await.unwrap();
    stdin.shutdown().await.unwrap();
    drop(stdin);
    let mut out = [0; 5];
    process.stdout().unwrap().read_exact(&mut out).await.unwrap();
    assert_eq!(&out, b"hello");
    let (echo, port) = echo().await;
    let mut forward = api.portforward("p", &[port]).await.unwrap();
    let mut stream = forward.take_stream(port).unwrap();
    stream.write_all(b"ping").await.unwrap();
    let mut back = [0; 4];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"ping");
    drop(stream);
    echo.abort();
    cluster.stop().await;
}

async fn echo() -> (tokio::task::JoinHandle<()>, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    (task, port)
}
