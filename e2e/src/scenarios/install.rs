//! Installing, upgrading and removing the operator, in every supported way.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::definitions::{self, PROMETHEUS};
use crate::environment::Fault;
use crate::test::Test;
use crate::wait::until;

/// The namespace of the shipped manifests.
pub(super) const HOME: &str = "stateward-system";

/// What must not change when only the operator changes: the name, UID and restart count of each pod.
pub(super) async fn pods(test: &Test, name: &str) -> Result<Vec<(String, Option<String>, i32)>> {
    let mut facts: Vec<_> = test
        .pods_of(name)
        .await?
        .iter()
        .map(|pod| {
            let statuses = pod
                .status
                .as_ref()
                .and_then(|status| status.container_statuses.as_ref());
            let restarts = statuses
                .into_iter()
                .flatten()
                .map(|container| container.restart_count)
                .sum();
            (pod.name_any(), pod.uid(), restarts)
        })
        .collect();
    facts.sort();
    Ok(facts)
}

/// Removes the shipped operator; the suite starts it again afterwards.
pub(super) async fn without_the_shipped_operator(test: &Test) -> Result<()> {
    let scale = ["--namespace", HOME, "scale", "deployment/stateward", "--replicas=0"];
    test.kubectl(&scale).await?;
    no_operator(test).await
}

async fn no_operator(test: &Test) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(test.client.clone(), HOME);
    until("the operator's pods to be deleted", 60, async || {
        Ok(pods.list(&ListParams::default()).await?.items.is_empty().then_some(()))
    })
    .await
}

/// Sends one request, as a probe does, and returns the whole response.
async fn get(address: &str, path: &str) -> Result<String> {
    let mut stream = tokio::net::TcpStream::connect((address, 8080)).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

pub(crate) async fn operator_pod_is_well_behaved(test: &Test) -> Result<String> {
    let namespaces: Api<Namespace> = Api::all(test.client.clone());
    let enforced = namespaces
        .get(HOME)
        .await?
        .labels()
        .get("pod-security.kubernetes.io/enforce")
        .cloned();
    ensure!(
        enforced.as_deref() == Some("restricted"),
        "pod security is not enforced: {enforced:?}"
    );
    let pods: Api<Pod> = Api::namespaced(test.client.clone(), HOME);
    let pod = pods
        .list(&ListParams::default())
        .await?
        .items
        .pop()
        .context("no operator")?;
    let address = pod
        .status
        .as_ref()
        .and_then(|status| status.pod_ip.clone())
        .context("no address")?;
    let version = get(&address, "/version").await?;
    ensure!(
        version.contains(env!("CARGO_PKG_VERSION")),
        "/version answers {version}"
    );
    ensure!(get(&address, "/healthz").await?.starts_with("HTTP/1.1 200"), "/healthz");
    ensure!(
        get(&address, "/metrics").await?.contains("stateward_leads 1"),
        "/metrics does not report leadership"
    );
    // In the middle of work, it stops within its grace period, and its successor does not wait for the lease to expire.
    test.create("c", json!({"size": 3})).await?;
    until("the first pod", 60, async || {
        Ok((!test.pods_of("c").await?.is_empty()).then_some(()))
    })
    .await?;
    let started = std::time::Instant::now();
    pods.delete(&pod.name_any(), &DeleteParams::default()).await?;
    until("the operator's pod to end", 40, async || {
        let there = pods.get_opt(&pod.name_any()).await?;
        Ok(there.is_none_or(|there| there.uid() != pod.uid()).then_some(()))
    })
    .await?;
    let time = started.elapsed();
    ensure!(
        time < Duration::from_secs(30),
        "killed after its grace period: {time:?}"
    );
    test.environment.start_operator().await?;
    test.settled("c", 90).await?;
    Ok(format!("ended after {:.1} s", time.as_secs_f64()))
}

pub(crate) async fn kustomize(test: &Test) -> Result<String> {
    let made = test.kubectl(&["kustomize", "deploy"]).await?;
    let count = made.lines().filter(|line| line.starts_with("kind: ")).count();
    ensure!(count >= 9, "it renders only {count} objects");
    let apply = ["--namespace", HOME, "apply", "--server-side", "--force-conflicts"];
    test.kubectl(&[&apply[..], &["--dry-run=server", "-k", "deploy"]].concat())
        .await?;
    Ok(format!("{count} objects"))
}

pub(super) const CHART: &str = "charts/stateward";

pub(crate) async fn helm_namespaced(test: &Test) -> Result<String> {
    without_the_shipped_operator(test).await?;
    let install = [
        "install",
        "mine",
        CHART,
        "--set=scope=namespace",
        "--take-ownership",
        "--force-conflicts",
    ];
    test.helm(&install).await?;
    let deployment = ["rollout", "status", "deployment/mine-stateward", "--timeout=90s"];
    test.kubectl(&deployment).await?;
    test.created("c", json!({"size": 3})).await?;
    let writer = test.writer("c").await?;
    let before = pods(test, "c").await?;

    // It can read the Secrets of its own namespace and of no other.
    let account = format!("--as=system:serviceaccount:{}:mine-stateward", test.namespace);
    test.kubectl(&["get", "secrets", &account]).await?;
    for namespace in ["default", HOME] {
        let refused = test
            .kubectl(&["get", "secrets", "--namespace", namespace, &account])
            .await;
        let refused = refused.err().context("it can read Secrets of another namespace")?;
        ensure!(refused.to_string().contains("forbidden"), "{refused:#}");
    }

    // An upgrade restores a definition that was changed, and does not touch database pods.
    let crd = "customresourcedefinition/etcdclusters.etcd.database.coreos.com";
    let short = "jsonpath={.spec.names.shortNames}";
    let names = test.kubectl(&["get", crd, "-o", short]).await?;
    let patch = r#"{"spec":{"names":{"shortNames":["other"]}}}"#;
    test.kubectl(&["patch", crd, "--type=merge", "-p", patch]).await?;
    let upgrade = [
        "upgrade",
        "mine",
        CHART,
        "--reuse-values",
        "--set=replicas=1,logLevel=debug",
        "--force-conflicts",
    ];
    test.helm(&upgrade).await?;
    test.kubectl(&deployment).await?;
    ensure!(
        test.kubectl(&["get", crd, "-o", short]).await? == names,
        "helm upgrade left the definition as it was"
    );
    test.edit("c", json!({"size": 1})).await?;
    test.settled("c", 120).await?;
    test.edit("c", json!({"size": 3})).await?;
    test.settled("c", 120).await?;
    let kept = pods(test, "c").await?.iter().filter(|pod| before.contains(pod)).count();
    ensure!(kept >= 1, "the member that stayed was created again");

    // After the operator is uninstalled, the cluster keeps running and its definition stays.
    let before = pods(test, "c").await?;
    test.helm(&["uninstall", "mine", "--wait"]).await?;
    writer.writes_more(100, 30).await?;
    test.kubectl(&["get", crd]).await?;
    ensure!(pods(test, "c").await? == before, "uninstalling touched a pod");
    let written = writer.finish().await?;
    Ok(format!("{} writes", written.acknowledged))
}

/// Values that enable what the Prometheus operator reads.
const MONITORING: &str = "--set=serviceMonitor.enabled=true,prometheusRule.enabled=true";

pub(crate) async fn monitoring_objects_are_accepted(test: &Test) -> Result<String> {
    definitions::install(test, PROMETHEUS).await?;
    let template = [
        "template",
        "mine",
        CHART,
        MONITORING,
        "--show-only=templates/monitoring.yaml",
    ];
    let objects = test.helm(&template).await?;
    // A field that the definitions do not know is rejected, not dropped.
    let apply = ["apply", "--server-side", "--validate=strict", "-f", "-"];
    test.tool("kubectl", &apply, Some(&objects)).await?;
    for kind in ["servicemonitor", "prometheusrule"] {
        test.kubectl(&["get", &format!("{kind}.monitoring.coreos.com/mine-stateward")])
            .await?;
    }
    // The validation really happens: an invalid duration and an unknown field are both rejected.
    for (right, wrong) in [
        ("interval: 30s", "interval: often"),
        ("endpoints:", "endpoint: []\n  endpoints:"),
    ] {
        let broken = objects.replacen(right, wrong, 1);
        ensure!(broken != objects, "it does not contain {right}");
        let refused = test.tool("kubectl", &apply, Some(&broken)).await;
        ensure!(refused.is_err(), "{wrong} was accepted");
    }
    definitions::uninstall(test, PROMETHEUS).await?;
    Ok(format!("{} lines", objects.lines().count()))
}

pub(crate) async fn helm_cluster_wide(test: &Test) -> Result<String> {
    without_the_shipped_operator(test).await?;
    definitions::install(test, PROMETHEUS).await?;
    let extras = "--set=dashboard.enabled=true,networkPolicy.enabled=true";
    let install = [
        "install",
        "stateward",
        CHART,
        extras,
        MONITORING,
        "--take-ownership",
        "--force-conflicts",
        "--wait",
        "--timeout=90s",
    ];
    test.helm(&install).await?;
    test.created("c", json!({"size": 3})).await?;
    let writer = test.writer("c").await?;
    let before = pods(test, "c").await?;
    // The leader is lost; the other replica continues its work.
    test.edit("c", json!({"size": 4})).await?;
    let leader = acting(test, &test.namespace).await?;
    test.fault(Fault::Kill(test.namespace.clone(), leader.clone())).await?;
    test.settled("c", 120).await?;
    let after = pods(test, "c").await?;
    ensure!(
        before.iter().all(|pod| after.contains(pod)),
        "a change of leaders touched a pod"
    );
    test.helm(&["uninstall", "stateward", "--wait"]).await?;
    definitions::uninstall(test, PROMETHEUS).await?;
    let written = writer.finish().await?;
    Ok(format!("{leader} led and was killed; {} writes", written.acknowledged))
}

/// The active pod: the holder of the lease.
pub(super) async fn acting(test: &Test, namespace: &str) -> Result<String> {
    let lease = [
        "--namespace",
        namespace,
        "get",
        "lease",
        "stateward",
        "-o",
        "jsonpath={.spec.holderIdentity}",
    ];
    test.kubectl(&lease).await
}

/// The name of cluster-scoped objects of an installation beside the shipped one.
const BESIDE: &str = "stateward-previous";

/// Installs the previous release: in place of the shipped operator, or beside it in another namespace.
async fn previous(test: &Test, namespace: &str) -> Result<()> {
    let file = std::env::var("STATEWARD_PREVIOUS").context("there is no previous release")?;
    let manifests = std::fs::read_to_string(&file).with_context(|| file.clone())?;
    let mut objects = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(&manifests.replace(HOME, namespace)) {
        let mut object = Value::deserialize(document)?;
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        if namespace != HOME && kind.starts_with("ClusterRole") {
            object["metadata"]["name"] = json!(BESIDE);
            if kind == "ClusterRoleBinding" {
                object["roleRef"]["name"] = json!(BESIDE);
            }
        }
        objects.push(object);
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    let arguments = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    crate::tool::run("kubectl", &test.environment.kubeconfig(), &arguments, Some(&list)).await?;
    let wait = [
        "--namespace",
        namespace,
        "rollout",
        "status",
        "deployment/stateward",
        "--timeout=90s",
    ];
    test.kubectl(&wait).await.map(drop)
}

pub(crate) async fn operator_upgrade(test: &Test) -> Result<String> {
    // The shipped one is removed first, because the API server rejects roles with more permissions than the installer
    // has.
    let away = [
        "--namespace",
        HOME,
        "delete",
        "deployment/stateward",
        "--cascade=foreground",
    ];
    test.kubectl(&away).await?;
    previous(test, HOME).await?;
    test.created("c", json!({"size": 3})).await?;
    test.created("t", json!({"size": 1, "TLS": {"auto": {}}})).await?;
    let writer = test.writer("c").await?;
    let before = (pods(test, "c").await?, pods(test, "t").await?);
    test.environment.start_operator().await?; // replaces it with this release
    writer.writes_more(200, 60).await?;
    test.settled("c", 60).await?;
    test.settled("t", 60).await?;
    let after = (pods(test, "c").await?, pods(test, "t").await?);
    ensure!(
        after == before,
        "the upgrade touched a pod: {before:?} became {after:?}"
    );
    // and it works with what the previous one left
    test.edit("c", json!({"size": 5})).await?;
    test.settled("c", 120).await?;
    let written = writer.finish().await?;
    Ok(format!("{} writes", written.acknowledged))
}

pub(crate) async fn two_operators_of_different_versions(test: &Test) -> Result<String> {
    // Two installations with a lease each: both are active, for the same clusters.
    previous(test, &test.namespace).await?;
    let result = two_at_once(test).await;
    test.kubectl(&["delete", "deployment/stateward"]).await?;
    test.kubectl(&["delete", "clusterrole,clusterrolebinding", BESIDE])
        .await?;
    let apply = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "-f",
        "deploy/install.yaml",
    ];
    crate::tool::run("kubectl", &test.environment.kubeconfig(), &apply, None).await?;
    result
}

async fn two_at_once(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let writer = test.writer("c").await?;
    test.edit("c", json!({"size": 5})).await?;
    test.settled("c", 180).await?;
    let victim = test.pods_of("c").await?[0].name_any();
    test.delete_pod(&victim).await?;
    test.settled("c", 120).await?;
    test.edit("c", json!({"size": 3})).await?;
    test.settled("c", 180).await?;
    ensure!(test.list("c").await?.len() == 3, "a member is stranded");
    let written = writer.finish().await?;
    Ok(written.to_string())
}

pub(crate) async fn clusters_keep_running_after_uninstall(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    test.created("gone", json!({"size": 1})).await?;
    let writer = test.writer("c").await?;
    let before = pods(test, "c").await?;
    // as docs/install.md describes
    test.kubectl(&["delete", "namespace", HOME, "--timeout=90s"]).await?;
    test.kubectl(&[
        "delete",
        "clusterrole,clusterrolebinding",
        "-l",
        "app.kubernetes.io/part-of=stateward",
    ])
    .await?;
    writer.writes_more(100, 60).await?;
    ensure!(pods(test, "c").await? == before, "uninstalling touched a pod");
    // a crash is repaired without an operator
    let leader = test.leader("c").await?;
    test.fault(Fault::Kill(test.namespace.clone(), leader)).await?;
    writer.writes_more(50, 60).await?;
    // and objects that are deleted now do not hang
    test.kubectl(&["delete", "etcdcluster/gone", "--timeout=30s"]).await?;
    until("its pods to be deleted", 60, async || {
        Ok(test.pods_of("gone").await?.is_empty().then_some(()))
    })
    .await?;
    // after another installation, it continues its work
    test.environment.start_operator().await?;
    test.edit("c", json!({"size": 4})).await?;
    test.settled("c", 120).await?;
    let written = writer.finish().await?;
    Ok(format!("{} writes", written.acknowledged))
}
