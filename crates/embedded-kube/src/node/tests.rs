//! Whole nodes against a real API server, with pods that are real processes. Pods name their node themselves: no scheduler
//! is needed here.

mod etcd;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use super::{ImageSource, Nodes, Options};
use crate::Cluster;
use crate::network::Plane;
use crate::streams::{ExecOptions, LogOptions, PodRef};

const PATIENCE: Duration = Duration::from_secs(30);

struct Ground {
    cluster: Cluster,
    nodes: Nodes,
    client: Client,
    stop: CancellationToken,
    plane: Arc<Plane>,
    _folder: tempfile::TempDir,
}

impl Ground {
    async fn start() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut Options)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let plane = Arc::new(Plane::claim(None).unwrap());
        let api = folder.path().join("api");
        // Services get addresses of the same network.
        std::fs::create_dir(&api).unwrap();
        std::fs::write(api.join("network"), plane.range().number().to_string()).unwrap();
        let cluster = Cluster::builder().folder(api).start().await.unwrap();
        let stop = CancellationToken::new();
        let mut options = Options::new(folder.path().join("nodes"), plane.clone());
        options.back_off = Duration::from_millis(200);
        change(&mut options);
        let client = cluster.client();
        let nodes = Nodes::start(client.clone(), options, stop.clone()).await.unwrap();
        Self {
            cluster,
            nodes,
            client,
            stop,
            plane,
            _folder: folder,
        }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn create(&self, pod: Value) -> Pod {
        create(&self.client, pod).await
    }

    async fn until(&self, name: &str, what: &str, wanted: impl Fn(&Pod) -> bool) -> Pod {
        let api = self.pods();
        let mut last = None;
        let met = tokio::time::timeout(PATIENCE, async {
            loop {
                if let Some(pod) = api.get_opt(name).await.unwrap() {
                    if wanted(&pod) {
                        return pod;
                    }
                    last = Some(pod);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        met.unwrap_or_else(|_| {
            panic!(
                "{name} is not {what}: {}",
                serde_json::to_string_pretty(&last.map(|pod| pod.status)).unwrap()
            )
        })
    }

    async fn gone(&self, name: &str) {
        let api = self.pods();
        tokio::time::timeout(PATIENCE, async {
            while api.get_opt(name).await.unwrap().is_some() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .expect("the pod goes");
    }

    async fn logs(&self, pod: &Pod, options: LogOptions) -> String {
        use futures::TryStreamExt;
        let stream = self.nodes.streams().logs(reference(pod), options).await.unwrap();
        let chunks: Vec<_> = stream.try_collect().await.unwrap();
        String::from_utf8(chunks.concat()).unwrap()
    }

    async fn exec(&self, pod: &Pod, command: &[&str]) -> (i32, String) {
        let options = ExecOptions {
            command: command.iter().map(ToString::to_string).collect(),
            stdout: true,
            stderr: true,
            ..ExecOptions::default()
        };
        let mut session = self.nodes.streams().exec(reference(pod), options).await.unwrap();
        let mut text = String::new();
        session.stdout.take().unwrap().read_to_string(&mut text).await.unwrap();
        session.stderr.take().unwrap().read_to_string(&mut text).await.unwrap();
        (session.exit.await.unwrap(), text)
    }

    /// Waits until the pod's file `/data/x` has this text: a container that has started need not have come far.
    async fn reads(&self, pod: &Pod, text: &str) {
        let read = async { while self.exec(pod, &["cat", "/data/x"]).await.1 != text {} };
        tokio::time::timeout(PATIENCE, read).await.expect("the text is there");
    }

    async fn reasons(&self) -> Vec<String> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let list = events.list(&ListParams::default()).await.unwrap();
        list.items.into_iter().filter_map(|event| event.reason).collect()
    }

    async fn stop(self) {
        self.nodes.shut_down().await;
        self.stop.cancel();
        self.cluster.stop().await;
    }
}

async fn create(client: &Client, pod: Value) -> Pod {
    let api: Api<Pod> = Api::namespaced(client.clone(), "default");
    api.create(&PostParams::default(), &serde_json::from_value(pod).unwrap())
        .await
        .unwrap()
}

fn reference(pod: &Pod) -> PodRef {
    PodRef {
        namespace: "default".into(),
        name: pod.name_any(),
        uid: pod.uid().unwrap(),
    }
}

fn pod(name: &str, container: Value) -> Value {
    let mut container = container;
    container["name"] = json!("c");
    container["image"] = container.get("image").cloned().unwrap_or(json!("busybox"));
    json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": {
        "nodeName": "node-0", "terminationGracePeriodSeconds": 2, "automountServiceAccountToken": false, "containers": [container]}})
}

fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

fn ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn container(pod: &Pod) -> k8s_openapi::api::core::v1::ContainerStatus {
    pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].clone()
}

fn restarts(pod: &Pod) -> i32 {
    pod.status
        .as_ref()
        .and_then(|s| s.container_statuses.as_ref())
        .map_or(0, |all| all[0].restart_count)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_lives_and_goes() {
    let ground = Ground::start().await;
    // Given a pod that prints and stays
    let begun = std::time::Instant::now();
    ground
        .create(pod(
            "a",
            json!({"command": ["sh", "-c", "echo hello $(uname -n); exec sleep 1000"]}),
        ))
        .await;
    let running = ground.until("a", "ready", ready).await;
    println!("ready after {:?}", begun.elapsed());
    assert_eq!(phase(&running), "Running");
    let status = container(&running);
    assert!(status.ready && status.started == Some(true) && status.restart_count == 0);
    assert!(status.container_id.unwrap().starts_with("embedded://"));
    // Then its output is there, it can be entered, and it has its own name
    let mut log = String::new();
    for _ in 0..500 {
        log = ground.logs(&running, LogOptions::default()).await;
        if !log.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(log, "hello a\n");
    assert_eq!(
        ground
            .exec(&running, &["sh", "-c", "uname -n; echo oops >&2; exit 3"])
            .await,
        (3, "a\noops\n".into())
    );
    // When deleted, then it is gone, with its process and folder
    let folder = ground.nodes.kubelet.machine.pod_folder(&running.uid().unwrap());
    assert!(folder.exists());
    ground.pods().delete("a", &DeleteParams::default()).await.unwrap();
    ground.gone("a").await;
    assert!(!folder.exists());
    let reasons = ground.reasons().await;
    for reason in ["Pulled", "Created", "Started", "Killing"] {
        assert!(reasons.iter().any(|have| have == reason), "{reason} in {reasons:?}");
    }
    ground.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_registered_and_ready() {
    let ground = Ground::start().await;
    let nodes: Api<Node> = Api::all(ground.client.clone());
    let list = nodes.list(&ListParams::default()).await.unwrap().items;
    let names: Vec<String> = list.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["node-0", "node-1", "node-2"]);
    for node in &list {
        let status = node.status.clone().unwrap();
        assert!(
            status
                .conditions
                .unwrap()
                .iter()
                .any(|c| c.type_ == "Ready" && c.status == "True")
        );
        assert!(status.allocatable.unwrap().contains_key("cpu"));
        assert_eq!(node.labels()["kubernetes.io/hostname"], node.name_any());
    }
    let zones: std::collections::BTreeSet<&String> = list
        .iter()
        .map(|node| &node.labels()["topology.kubernetes.io/zone"])
        .collect();
    assert_eq!(zones.len(), 3);
    ground.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crashes_are_restarted_with_back_off() {
    let ground = Ground::start().await;
    let command = json!(["sh", "-c", "echo run; echo last words > /dev/termination-log; exit 5"]);
    ground.create(pod("crash", json!({"command": command}))).await;
    let backing = |pod: &Pod| {
        let waiting = container_state(pod).and_then(|state| state.waiting);
        waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some("CrashLoopBackOff"))
    };
    let seen = ground
        .until("crash", "in back-off", |pod| backing(pod) && restarts(pod) >= 2)
        .await;
    assert_eq!(phase(&seen), "Running");
    let last = container(&seen).last_state.unwrap().terminated.unwrap();
    assert_eq!(
        (last.exit_code, last.reason.as_deref(), last.message.as_deref()),
        (5, Some("Error"), Some("last words\n"))
    );
    let previous = ground
        .logs(
            &seen,
            LogOptions {
                previous: true,
                ..LogOptions::default()
            },
        )
        .await;
    assert_eq!(previous, "run\n");
    assert!(ground.reasons().await.contains(&"BackOff".to_string()));
    ground.stop().await;
}

fn container_state(pod: &Pod) -> Option<k8s_openapi::api::core::v1::ContainerState> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()?.state.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_end_and_init_containers_come_first() {
    let ground = Ground::start().await;
    let mut done = pod(
        "done",
        json!({"command": ["sh", "-c", "cat /shared/x; exit 0"],
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}),
    );
    done["spec"]["restartPolicy"] = json!("Never");
    done["spec"]["volumes"] = json!([{"name": "shared", "emptyDir": {"medium": "Memory"}}]);
    done["spec"]["initContainers"] = json!([{"name": "first", "image": "busybox", "command": ["sh", "-c", "echo made > /shared/x"],
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}]);
    ground.create(done).await;
    let ended = ground.until("done", "succeeded", |pod| phase(pod) == "Succeeded").await;
    assert_eq!(ground.logs(&ended, LogOptions::default()).await, "made\n");
    let mut failed = pod("failed", json!({"command": ["no-such-program"]}));
    failed["spec"]["restartPolicy"] = json!("Never");
    ground.create(failed).await;
    let failed = ground.until("failed", "failed", |pod| phase(pod) == "Failed").await;
    let end = container_state(&failed).unwrap().terminated.unwrap();
    assert_eq!(
        (end.exit_code, end.reason.as_deref()),
        (128, Some("StartError")),
        "{:?}",
        end.message
    );
    ground.pods().delete("failed", &DeleteParams::default()).await.unwrap();
    ground.gone("failed").await;
    ground.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_decide_over_readiness_and_life() {
    let ground = Ground::start().await;
    ground
        .create(pod("probed", json!({
            "command": ["sh", "-c", "touch /tmp/live; exec sleep 1000"],
            "readinessProbe": {"exec": {"command": ["cat", "/tmp/ready"]}, "periodSeconds": 1, "failureThreshold": 1},
            "livenessProbe": {"exec": {"command": ["cat", "/tmp/live"]}, "periodSeconds": 1, "failureThreshold": 1, "initialDelaySeconds": 1},
        })))
        .await;
    let running = ground.until("probed", "running", |pod| phase(pod) == "Running").await;
    assert!(!ready(&running));
    ground.exec(&running, &["touch", "/tmp/ready"]).await;
    ground.until("probed", "ready", ready).await;
    ground.exec(&running, &["rm", "/tmp/ready"]).await;
    ground.until("probed", "unready", |pod| !ready(pod)).await;
    ground.exec(&running, &["rm", "/tmp/live"]).await;
    ground.until("probed", "restarted", |pod| restarts(pod) == 1).await;
    assert!(ground.reasons().await.contains(&"Unhealthy".to_string()));
    ground.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_images_are_waited_for() {
    let ground = Ground::start().await;
    ground
        .create(pod("late", json!({"image": "web:2", "command": ["sleep", "1000"]})))
        .await;
    let waits = |pod: &Pod| {
        let waiting = container_state(pod).and_then(|state| state.waiting);
        waiting.is_some_and(|waiting| {
            waiting.reason.as_deref() == Some("ImagePullBackOff") && waiting.message.unwrap().contains("busybox")
        })
    };
    ground.until("late", "waiting for its image", waits).await;
    ground.nodes.add_images(&ImageSource::One {
        reference: "web:2".into(),
        image: super::Image::host(),
    });
    ground.until("late", "running", ready).await;
    ground.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn config_reaches_running_pods() {
    let ground = Ground::start().await;
    let maps: Api<ConfigMap> = Api::namespaced(ground.client.clone(), "default");
    let map = |value: &str| json!({"metadata": {"name": "m"}, "data": {"k": value}});
    maps.create(&PostParams::default(), &serde_json::from_value(map("1")).unwrap())
        .await
        .unwrap();
    let mut reader = pod(
        "reader",
        json!({"command": ["sleep", "1000"], "env": [
        {"name": "K", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}],
        "volumeMounts": [{"name": "m", "mountPath": "/etc/m"}]}),
    );
    reader["spec"]["volumes"] = json!([{"name": "m", "configMap": {"name": "m"}}]);
    ground.create(reader).await;
    let running = ground.until("reader", "ready", ready).await;
    assert_eq!(
        ground.exec(&running, &["sh", "-c", "echo $K; cat /etc/m/k"]).await,
        (0, "1\n1".into())
    );
    maps.patch("m", &PatchParams::default(), &Patch::Merge(map("2")))
        .await
        .unwrap();
    tokio::time::timeout(PATIENCE, async {
        while ground.exec(&running, &["cat", "/etc/m/k"]).await.1 != "2" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    ground.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn terminals_and_input_work() {
    let ground = Ground::start().await;
    ground.create(pod("shell", json!({"command": ["sleep", "1000"]}))).await;
    let running = ground.until("shell", "ready", ready).await;
    // Input through a pipe, ended by its end
    let command = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<String>>();
    let options = ExecOptions {
        command: command(&["cat"]),
        stdin: true,
        stdout: true,
        ..ExecOptions::default()
    };
    let mut session = ground.nodes.streams().exec(reference(&running), options).await.unwrap();
    session.stdin.as_mut().unwrap().write_all(b"hi").await.unwrap();
    session.stdin = None;
    let mut text = String::new();
    session.stdout.take().unwrap().read_to_string(&mut text).await.unwrap();
    assert_eq!((text.as_str(), session.exit.await.unwrap()), ("hi", 0));
    // A terminal with a size
    let options = ExecOptions {
        command: command(&["sh", "-c", "read x; stty size; tty >/dev/null && echo $x"]),
        stdin: true,
        stdout: true,
        tty: true,
        ..ExecOptions::default()
    };
    let mut session = ground.nodes.streams().exec(reference(&running), options).await.unwrap();
    let size = crate::streams::TerminalSize { width: 81, height: 25 };
    session.resize.as_ref().unwrap().send(size).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    session.stdin.as_mut().unwrap().write_all(b"typed\n").await.unwrap();
    let mut text = String::new();
    session.stdout.take().unwrap().read_to_string(&mut text).await.unwrap();
    assert!(text.contains("25 81") && text.matches("typed").count() == 2, "{text:?}");
    assert_eq!(session.exit.await.unwrap(), 0);
    // An abandoned session leaves nothing behind
    let options = ExecOptions {
        command: command(&["sleep", "4711"]),
        stdout: true,
        ..ExecOptions::default()
    };
    let session = ground.nodes.streams().exec(reference(&running), options).await.unwrap();
    drop(session);
    tokio::time::timeout(PATIENCE, async {
        while ground
            .exec(&running, &["sh", "-c", "cat /proc/[0-9]*/cmdline"])
            .await
            .1
            .contains("4711")
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    ground.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_happen_on_demand() {
    let ground = Ground::start().await;
    let faults = ground.nodes.faults();
    assert!(faults.kill("default", "none", None, 9).await.is_err());
    assert!(faults.stop_node("node-9").await.is_err());
    ground
        .create(pod(
            "victim",
            json!({"command": ["sh", "-c", "while true; do date +%s%N > /tmp/now; sleep 0.01; done"]}),
        ))
        .await;
    let running = ground.until("victim", "ready", ready).await;
    // Kill
    faults.kill("default", "victim", None, 9).await.unwrap();
    let killed = ground
        .until("victim", "restarted", |pod| restarts(pod) == 1 && ready(pod))
        .await;
    assert_eq!(
        container(&killed).last_state.unwrap().terminated.unwrap().exit_code,
        137
    );
    // Freeze
    let clock = async || ground.exec(&running, &["cat", "/tmp/now"]).await.1;
    faults.freeze("default", "victim").await.unwrap();
    let frozen = clock().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(clock().await, frozen);
    faults.unfreeze("default", "victim").await.unwrap();
    tokio::time::timeout(PATIENCE, async { while clock().await == frozen {} })
        .await
        .unwrap();
    // Stop the node: the API is told nothing, and deletion waits for the node
    faults.stop_node("node-0").await.unwrap();
    let silent = ground.pods().get("victim").await.unwrap();
    assert!(ready(&silent) && restarts(&silent) == 1);
    // Start it again: as after a reboot
    faults.start_node("node-0").await.unwrap();
    let back = ground
        .until("victim", "restarted after the reboot", |pod| {
            restarts(pod) == 2 && ready(pod)
        })
        .await;
    assert_eq!(container(&back).last_state.unwrap().terminated.unwrap().exit_code, 255);
    ground.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_come_back_with_their_data_after_a_restart() {
    let ground = Ground::start().await;
    let mut keeper = pod(
        "keeper",
        json!({"command": ["sh", "-c", "echo x >> /data/x; exec sleep 1000"],
        "volumeMounts": [{"name": "d", "mountPath": "/data"}]}),
    );
    keeper["spec"]["volumes"] = json!([{"name": "d", "emptyDir": {}}]);
    ground.create(keeper).await;
    let first = ground.until("keeper", "ready", ready).await;
    ground.reads(&first, "x\n").await;
    // When the nodes stop and others start on the same state
    ground.nodes.shut_down().await;
    ground.stop.cancel();
    let mut options = Options::new(ground._folder.path().join("nodes"), ground.plane.clone());
    options.back_off = Duration::from_millis(200);
    let nodes = Nodes::start(ground.client.clone(), options, CancellationToken::new())
        .await
        .unwrap();
    let ground = Ground {
        nodes,
        stop: CancellationToken::new(),
        ..ground
    };
    let back = ground
        .until("keeper", "ready again", |pod| ready(pod) && restarts(pod) == 1)
        .await;
    assert_eq!(back.uid(), first.uid());
    ground.reads(&back, "x\nx\n").await;
    ground.stop().await;
}
