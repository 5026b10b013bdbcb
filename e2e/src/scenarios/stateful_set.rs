//! The walk-through of StatefulSets with a web server: ordered start and stop, stable names, claims that come back, updates
//! and their reversal. No part of Stateward is involved: these scenarios show that the environments are alike.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{ListParams, PostParams};
use kube::runtime::watcher::{self, Event};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::test::{SERVER, Test, is_ready};
use crate::wait::until;

const WEB: &str = include_str!("../../../examples/stateful-set/web.yaml");

/// What happens to pods, in the order in which the API server reports it.
pub(super) struct Story {
    seen: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Story {
    /// Begins now, with the pods that this selector will match.
    pub(super) fn begin(test: &Test, selector: &str) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let events = watcher::watcher(test.pods(), watcher::Config::default().labels(selector));
        let told = seen.clone();
        let task = tokio::spawn(async move {
            let mut states: BTreeSet<(String, &str)> = BTreeSet::new();
            pin_mut!(events);
            while let Some(event) = events.next().await {
                let (pod, gone) = match event {
                    Ok(Event::Apply(pod) | Event::InitApply(pod)) => (pod, false),
                    Ok(Event::Delete(pod)) => (pod, true),
                    Ok(Event::Init | Event::InitDone) | Err(_) => continue,
                };
                let now = [
                    ("created", true),
                    ("ready", is_ready(&pod) && pod.metadata.deletion_timestamp.is_none()),
                    ("stopping", pod.metadata.deletion_timestamp.is_some()),
                    ("gone", gone),
                ];
                for (what, _) in now.into_iter().filter(|(_, is)| *is) {
                    // Each of these happens once in the life of a pod.
                    if states.insert((pod.uid().unwrap_or_default(), what)) {
                        let mut told = told.lock().expect("no panic while held");
                        told.push(format!("{} {what}", pod.name_any()));
                    }
                }
            }
        });
        Self { seen, task }
    }

    /// Waits until exactly this has happened since the last call. Events of other kinds (`created`, `ready`, `stopping`, `gone`)
    /// than those that are expected do not count.
    pub(super) async fn tells(&self, seconds: u64, expected: &[&str]) -> Result<()> {
        let kind = |event: &str| event.rsplit(' ').next().unwrap_or_default().to_owned();
        let kinds: BTreeSet<String> = expected.iter().map(|event| kind(event)).collect();
        let what = format!("{expected:?}");
        let order = until(&what, seconds, async || {
            let seen = self.seen.lock().expect("no panic while held").clone();
            let seen: Vec<String> = seen.into_iter().filter(|event| kinds.contains(&kind(event))).collect();
            if seen.len() < expected.len() && seen.iter().zip(expected).all(|(seen, expected)| seen == expected) {
                bail!("seen so far: {seen:?}");
            }
            Ok(Some(seen))
        });
        let order = order.await?;
        ensure!(order == expected, "expected {expected:?}, but this happened: {order:?}");
        self.seen.lock().expect("no panic while held").clear();
        Ok(())
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts a pod that does nothing, to run clients in.
pub(super) async fn client(test: &Test, image: &str, user: i64) -> Result<()> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "client", "labels": {SERVER: "client"}},
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": true, "runAsUser": user, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "client", "image": image, "command": ["sleep", "infinity"],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    }))?;
    test.pods().create(&PostParams::default(), &pod).await?;
    until("the client's pod to be ready", 90, async || {
        Ok(is_ready(&test.pods().get("client").await?).then_some(()))
    })
    .await
}

/// Runs a line of shell in the client's pod.
pub(super) async fn ask(test: &Test, line: &str) -> Result<String> {
    let answer = test.kubectl(&["exec", "client", "--", "sh", "-c", line]).await?;
    Ok(answer.trim().to_owned())
}

/// Waits until a StatefulSet has this many ready pods of its newest revision.
pub(super) async fn rolled_out(test: &Test, name: &str) -> Result<()> {
    let set = format!("statefulset/{name}");
    test.kubectl(&["rollout", "status", &set, "--timeout=240s"])
        .await
        .map(drop)
}

/// A field of an object, by JSONPath.
pub(super) async fn field(test: &Test, object: &[&str], path: &str) -> Result<String> {
    let path = format!("-o=jsonpath={path}");
    test.kubectl(&[&["get"], object, &[path.as_str()]].concat()).await
}

pub(super) async fn claim_uid(test: &Test, name: &str) -> Result<String> {
    test.claims().get(name).await?.uid().context("a claim without a UID")
}

async fn write_page(test: &Test, pod: &str) -> Result<()> {
    let line = "echo hello $(hostname) > /usr/share/nginx/html/index.html";
    test.kubectl(&["exec", pod, "--", "sh", "-c", line]).await.map(drop)
}

/// Waits until the name of a pod leads to its address and its own page: names follow a new address with a delay.
async fn served_by_name(test: &Test, pod: &str) -> Result<()> {
    let names = [
        format!("{pod}.nginx"),
        format!("{pod}.nginx.{}.svc.cluster.local", test.namespace),
    ];
    for name in &names {
        until(&format!("{name} to serve"), 60, async || {
            let address = field(test, &["pod", pod], "{.status.podIP}").await?;
            let found = ask(test, &format!("getent hosts {name}")).await?;
            ensure!(
                found.split_whitespace().next() == Some(address.as_str()),
                "{name} is at {found}, the pod at {address}"
            );
            let page = ask(test, &format!("curl --silent --fail --max-time 3 http://{name}/")).await?;
            ensure!(page == format!("hello {pod}"), "the page is {page}");
            Ok(Some(()))
        })
        .await?;
    }
    Ok(())
}

/// Pods start and stop in order; each has a name in DNS and a claim, and both outlive the pod.
pub(crate) async fn web_in_order(test: &Test) -> Result<String> {
    let story = Story::begin(test, "app=nginx");
    // Given the StatefulSet of the walk-through
    test.apply(WEB).await?;
    story
        .tells(120, &["web-0 created", "web-0 ready", "web-1 created", "web-1 ready"])
        .await?;
    rolled_out(test, "web").await?;
    client(test, "stateward.local/nginx:1.22", 101).await?;
    // Then each pod has its name, its address in DNS, and a claim of its own
    for pod in ["web-0", "web-1"] {
        let hostname = test.kubectl(&["exec", pod, "--", "hostname"]).await?;
        ensure!(hostname.trim() == pod, "{pod} says that it is {hostname}");
        write_page(test, pod).await?;
        served_by_name(test, pod).await?;
    }
    let all: BTreeSet<String> = ask(test, "getent ahostsv4 nginx | cut -d' ' -f1 | sort -u")
        .await?
        .lines()
        .map(str::to_owned)
        .collect();
    let pods = test.pods().list(&ListParams::default().labels("app=nginx")).await?;
    let addresses: BTreeSet<String> = pods.into_iter().filter_map(|pod| pod.status?.pod_ip).collect();
    ensure!(
        all == addresses,
        "the headless Service leads to {all:?}, not {addresses:?}"
    );
    let phases = field(test, &["pvc", "www-web-0", "www-web-1"], "{.items[*].status.phase}").await?;
    ensure!(phases == "Bound Bound", "the claims are {phases}");
    // When both are deleted, then they come back in order with names and data
    test.kubectl(&["delete", "pod", "-l", "app=nginx"]).await?;
    story
        .tells(120, &["web-0 created", "web-0 ready", "web-1 created", "web-1 ready"])
        .await?;
    for pod in ["web-0", "web-1"] {
        served_by_name(test, pod).await?;
    }
    // When it grows and shrinks, then in order, and what was taken away comes back with its claim
    test.kubectl(&["scale", "statefulset/web", "--replicas=3"]).await?;
    story.tells(120, &["web-2 created", "web-2 ready"]).await?;
    write_page(test, "web-2").await?;
    let claim = claim_uid(test, "www-web-2").await?;
    test.kubectl(&["scale", "statefulset/web", "--replicas=1"]).await?;
    story
        .tells(120, &["web-2 stopping", "web-2 gone", "web-1 stopping", "web-1 gone"])
        .await?;
    until("the names of stopped pods to be gone", 60, async || {
        let found = ask(test, "getent hosts web-1.nginx || echo none").await?;
        ensure!(found == "none", "web-1.nginx is still at {found}");
        Ok(Some(()))
    })
    .await?;
    test.kubectl(&["scale", "statefulset/web", "--replicas=3"]).await?;
    story
        .tells(120, &["web-1 created", "web-1 ready", "web-2 created", "web-2 ready"])
        .await?;
    ensure!(claim_uid(test, "www-web-2").await? == claim, "web-2 has another claim");
    for pod in ["web-0", "web-1", "web-2"] {
        served_by_name(test, pod).await?;
    }
    // When it is deleted, then its pods go and the claims stay
    test.kubectl(&["delete", "statefulset", "web"]).await?;
    until("the pods to be gone", 90, async || {
        let left = test.pods().list(&ListParams::default().labels("app=nginx")).await?;
        Ok(left.items.is_empty().then_some(()))
    })
    .await?;
    let claims = test.claims().list(&ListParams::default()).await?.items.len();
    ensure!(claims == 3, "{claims} claims are left");
    Ok("3 pods, 3 claims that came back".into())
}

async fn set_image(test: &Test, tag: &str) -> Result<()> {
    let patch = json!([{
        "op": "replace", "path": "/spec/template/spec/containers/0/image", "value": format!("stateward.local/nginx:{tag}"),
    }]);
    let patch = format!("-p={patch}");
    test.kubectl(&["patch", "statefulset", "web", "--type=json", &patch])
        .await
        .map(drop)
}

/// Waits until the pods' web servers are of these versions, in the order of their ordinals.
async fn serve_versions(test: &Test, versions: &[&str]) -> Result<()> {
    for (ordinal, version) in versions.iter().enumerate() {
        let line = format!("curl --silent --head --max-time 3 http://web-{ordinal}.nginx/");
        until(&format!("web-{ordinal} to be nginx {version}"), 60, async || {
            let server = ask(test, &line).await?;
            ensure!(
                server.contains(&format!("Server: nginx/{version}.")),
                "web-{ordinal} says {server}"
            );
            Ok(Some(()))
        })
        .await?;
    }
    Ok(())
}

/// Updates go from the highest ordinal down, one pod at a time; they can be undone; a broken one stops at the first pod.
pub(crate) async fn web_updated_and_undone(test: &Test) -> Result<String> {
    const ROLL: [&str; 12] = [
        "web-2 stopping",
        "web-2 gone",
        "web-2 created",
        "web-2 ready",
        "web-1 stopping",
        "web-1 gone",
        "web-1 created",
        "web-1 ready",
        "web-0 stopping",
        "web-0 gone",
        "web-0 created",
        "web-0 ready",
    ];
    let story = Story::begin(test, "app=nginx");
    // Given three pods
    test.apply(&WEB.replace("replicas: 2", "replicas: 3")).await?;
    story.tells(120, &["web-0 ready", "web-1 ready", "web-2 ready"]).await?;
    client(test, "stateward.local/nginx:1.22", 101).await?;
    for pod in ["web-0", "web-1", "web-2"] {
        write_page(test, pod).await?;
    }
    serve_versions(test, &["1.22", "1.22", "1.22"]).await?;
    // When the image changes, then pods are replaced one by one, and keep their pages
    set_image(test, "1.26").await?;
    story.tells(180, &ROLL).await?;
    rolled_out(test, "web").await?;
    serve_versions(test, &["1.26", "1.26", "1.26"]).await?;
    served_by_name(test, "web-1").await?;
    // When that is undone, then the same happens with the old image
    let history = test.kubectl(&["rollout", "history", "statefulset/web"]).await?;
    ensure!(
        history.contains('1') && history.contains('2'),
        "the history is\n{history}"
    );
    test.kubectl(&["rollout", "undo", "statefulset/web"]).await?;
    story.tells(180, &ROLL).await?;
    serve_versions(test, &["1.22", "1.22", "1.22"]).await?;
    let revisions = test.kubectl(&["get", "controllerrevisions", "-o=name"]).await?;
    ensure!(
        revisions.lines().count() == 2,
        "an undone update needs no third revision:\n{revisions}"
    );
    // When only a part is updated, then pods below the partition keep their revision even if they are replaced
    let partition = |partition: u8| {
        format!(
            r#"-p={{"spec":{{"updateStrategy":{{"type":"RollingUpdate","rollingUpdate":{{"partition":{partition}}}}}}}}}"#
        )
    };
    test.kubectl(&["patch", "statefulset", "web", &partition(2)]).await?;
    set_image(test, "1.26").await?;
    story.tells(120, &ROLL[..4]).await?;
    test.kubectl(&["delete", "pod", "web-1"]).await?;
    story.tells(120, &ROLL[4..8]).await?;
    serve_versions(test, &["1.22", "1.22", "1.26"]).await?;
    test.kubectl(&["patch", "statefulset", "web", &partition(0)]).await?;
    story.tells(180, &ROLL[4..]).await?;
    serve_versions(test, &["1.26", "1.26", "1.26"]).await?;
    // When an update is broken, then it stops at the first pod
    set_image(test, "no-such-tag").await?;
    until("web-2 to wait for its image", 120, async || {
        let reason = "{.status.containerStatuses[0].state.waiting.reason}";
        let reason = field(test, &["pod", "web-2"], reason).await?;
        ensure!(
            ["ErrImagePull", "ImagePullBackOff"].contains(&reason.as_str()),
            "it waits for {reason}"
        );
        Ok(Some(()))
    })
    .await?;
    story.tells(10, &ROLL[..3]).await?;
    serve_versions(test, &["1.26", "1.26"]).await?;
    // When it is undone, then the broken pod must be deleted by hand: Kubernetes documents it so
    test.kubectl(&["rollout", "undo", "statefulset/web"]).await?;
    test.kubectl(&["delete", "pod", "web-2"]).await?;
    story.tells(120, &ROLL[..4]).await?;
    rolled_out(test, "web").await?;
    serve_versions(test, &["1.26", "1.26", "1.26"]).await?;
    Ok("updated, undone, by partition, and stopped at an error".into())
}
