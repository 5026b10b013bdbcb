//! Starts one image in a pod and runs a command in it until it succeeds and prints what is expected:
//! `cargo run -p embedded-kube --example try_image -- --images FOLDER --image REFERENCE --test '{"check": […], "expect": "…"}'`.
//! The test may give the pod's `command` and `args`, too.

use std::time::{Duration, Instant};

use embedded_kube::{Cluster, ImageSource};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{AttachParams, LogParams, PostParams};
use serde::Deserialize;
use tokio::io::AsyncReadExt;

/// Large programs take their time to start, on a busy machine most of all.
const PATIENCE: Duration = Duration::from_secs(180);

#[derive(Deserialize)]
struct Test {
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    args: Vec<String>,
    check: Vec<String>,
    expect: String,
}

fn main() -> std::process::ExitCode {
    // Pods need it, and it must come before any thread.
    let entered = embedded_kube::enter_network().map_err(Into::into);
    let outcome: Result<(), Box<dyn std::error::Error>> =
        entered.and_then(|()| tokio::runtime::Runtime::new()?.block_on(run()));
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| {
        let place = words.iter().position(|word| word == name);
        place
            .and_then(|place| words.get(place + 1))
            .ok_or(format!("{name} is missing"))
    };
    let (folder, image) = (option("--images")?, option("--image")?);
    let test: Test = serde_json::from_str(option("--test")?)?;
    let cluster = Cluster::builder()
        .nodes(1)
        .images(ImageSource::Folder(folder.into()))
        .start()
        .await?;
    let outcome = try_image(&cluster, image, &test).await;
    cluster.stop().await;
    outcome
}

async fn try_image(cluster: &Cluster, image: &str, test: &Test) -> Result<(), Box<dyn std::error::Error>> {
    let pods: Api<Pod> = Api::namespaced(cluster.https_client().await?, "default");
    let pod = serde_json::from_value(serde_json::json!({"metadata": {"name": "try"}, "spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": image, "command": test.command, "args": test.args}],
    }}))?;
    let began = Instant::now();
    pods.create(&PostParams::default(), &pod).await?;
    let mut last = String::from("the pod did not start");
    while began.elapsed() < PATIENCE {
        match exec(&pods, &test.check).await {
            Ok(said) if said.contains(&test.expect) => {
                println!(
                    "{image} answers after {:.1} s: {}",
                    began.elapsed().as_secs_f64(),
                    said.trim()
                );
                return Ok(());
            }
            Ok(said) => last = format!("the check printed: {}", said.trim()),
            Err(error) => last = error.to_string(),
        }
        let status = pods.get("try").await?.status.unwrap_or_default();
        let states = status.container_statuses.unwrap_or_default();
        if states.iter().any(|state| state.restart_count > 0) {
            last = format!("the container ended by itself; {last}");
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let previous = LogParams {
        previous: true,
        ..LogParams::default()
    };
    let log = match pods.logs("try", &previous).await {
        Ok(log) => log,
        Err(_) => pods.logs("try", &LogParams::default()).await.unwrap_or_default(),
    };
    Err(format!("{image} does not answer: {last}\nits log ends with:\n{}", tail(&log)).into())
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// What a command in the pod prints, both streams, if it succeeds.
async fn exec(pods: &Api<Pod>, command: &[String]) -> Result<String, Box<dyn std::error::Error>> {
    let mut process = pods.exec("try", command, &AttachParams::default()).await?;
    let mut said = String::new();
    let (mut out, mut err) = (process.stdout(), process.stderr());
    if let Some(out) = &mut out {
        out.read_to_string(&mut said).await?;
    }
    if let Some(err) = &mut err {
        err.read_to_string(&mut said).await?;
    }
    let status = process.take_status().ok_or("no status")?.await.unwrap_or_default();
    match status.status.as_deref() {
        Some("Success") => Ok(said),
        _ => Err(format!(
            "the check failed: {} {}",
            status.message.unwrap_or_default(),
            said.trim()
        )
        .into()),
    }
}
