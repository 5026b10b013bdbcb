//! At home on Kubernetes: installing, upgrading and removing the operator, draining nodes, losing the API server.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::definitions::{self, PROMETHEUS};
use crate::ground::Fault;
use crate::test::Test;
use crate::wait::until;

/// Where the shipped manifests put the operator.
const HOME: &str = "stateward-system";

/// What must not change when only the operator does: each pod's name, UID and how often its containers were restarted.
async fn pods(test: &Test, name: &str) -> Result<Vec<(String, Option<String>, i32)>> {
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

/// Takes the shipped operator out of the way; the suite brings it back afterwards.
async fn without_the_shipped_operator(test: &Test) -> Result<()> {
    let scale = ["--namespace", HOME, "scale", "deployment/stateward", "--replicas=0"];
    test.kubectl(&scale).await?;
    no_operator(test).await
}

async fn no_operator(test: &Test) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(test.client.clone(), HOME);
    until("the operator's pods to go", 60, async || {
        Ok(pods.list(&ListParams::default()).await?.items.is_empty().then_some(()))
    })
    .await
}

/// One request, as a probe sends it; the whole answer.
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
        "/metrics does not say that it leads"
    );
    // In the middle of work it ends within its grace period, and its successor need not wait for the lease to run out.
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
    test.ground.start_operator().await?;
    test.settled("c", 90).await?;
    Ok(format!("ended after {:.1} s", time.as_secs_f64()))
}

pub(crate) async fn kustomize(test: &Test) -> Result<String> {
    let made = test.kubectl(&["kustomize", "deploy"]).await?;
    let count = made.lines().filter(|line| line.starts_with("kind: ")).count();
    ensure!(count >= 9, "only {count} objects come of it");
    let apply = ["--namespace", HOME, "apply", "--server-side", "--force-conflicts"];
    test.kubectl(&[&apply[..], &["--dry-run=server", "-k", "deploy"]].concat())
        .await?;
    Ok(format!("{count} objects"))
}

const CHART: &str = "charts/stateward";

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

    // It sees its own namespace's Secrets and no other's.
    let account = format!("--as=system:serviceaccount:{}:mine-stateward", test.namespace);
    test.kubectl(&["get", "secrets", &account]).await?;
    for namespace in ["default", HOME] {
        let refused = test
            .kubectl(&["get", "secrets", "--namespace", namespace, &account])
            .await;
        let refused = refused.err().context("it can read Secrets of another namespace")?;
        ensure!(refused.to_string().contains("forbidden"), "{refused:#}");
    }

    // An upgrade brings a definition that was changed back, and touches no database pod.
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
    ensure!(kept >= 1, "the member that stayed all along was made anew");

    // Uninstalled, the cluster goes on, and its definition stays.
    let before = pods(test, "c").await?;
    test.helm(&["uninstall", "mine", "--wait"]).await?;
    writer.goes_on(100, 30).await?;
    test.kubectl(&["get", crd]).await?;
    ensure!(pods(test, "c").await? == before, "uninstalling touched a pod");
    let written = writer.finish().await?;
    Ok(format!("{} writes", written.acknowledged))
}

/// Values that turn on what the Prometheus operator reads.
const MONITORING: &str = "--set=serviceMonitor.enabled=true,prometheusRule.enabled=true";

pub(crate) async fn monitoring_objects_are_taken(test: &Test) -> Result<String> {
    definitions::install(test, PROMETHEUS).await?;
    let template = [
        "template",
        "mine",
        CHART,
        MONITORING,
        "--show-only=templates/monitoring.yaml",
    ];
    let objects = test.helm(&template).await?;
    // A field that the definitions do not know is refused, not dropped.
    let apply = ["apply", "--server-side", "--validate=strict", "-f", "-"];
    test.tool("kubectl", &apply, Some(&objects)).await?;
    for kind in ["servicemonitor", "prometheusrule"] {
        test.kubectl(&["get", &format!("{kind}.monitoring.coreos.com/mine-stateward")])
            .await?;
    }
    // And they do look: neither a time that is none nor an unknown field gets by.
    for (right, wrong) in [
        ("interval: 30s", "interval: often"),
        ("endpoints:", "endpoint: []\n  endpoints:"),
    ] {
        let broken = objects.replacen(right, wrong, 1);
        ensure!(broken != objects, "there is no {right} in it");
        let refused = test.tool("kubectl", &apply, Some(&broken)).await;
        ensure!(refused.is_err(), "{wrong} was taken");
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
    // The one that leads is lost; the other goes on with what it was doing.
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

/// The pod that acts: the holder of the lease.
async fn acting(test: &Test, namespace: &str) -> Result<String> {
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

/// The node of a pod.
async fn node_of(test: &Test, namespace: &str, pod: &str) -> Result<String> {
    let pods: Api<Pod> = Api::namespaced(test.client.clone(), namespace);
    let spec = pods.get(pod).await?.spec;
    spec.and_then(|spec| spec.node_name).context("the pod has no node")
}

/// One replica, as in the shipped manifests: its pod is given up 30 s after its node, and another one is made elsewhere.
pub(crate) async fn node_of_the_operator_lost(test: &Test) -> Result<String> {
    let acts = acting(test, HOME).await?;
    let node = node_of(test, HOME, &acts).await?;
    let (took, healed) = lose_the_node(test, HOME, &acts, &node).await?;
    test.ground.start_operator().await?;
    Ok(format!(
        "another acts after {took} s, the member is replaced after {healed} s"
    ))
}

/// Two replicas, as the chart makes them: the other one is there already, and needs only the lease.
pub(crate) async fn node_of_one_of_two_operators_lost(test: &Test) -> Result<String> {
    without_the_shipped_operator(test).await?;
    let install = [
        "install",
        "stateward",
        CHART,
        "--take-ownership",
        "--force-conflicts",
        "--wait",
        "--timeout=90s",
    ];
    test.helm(&install).await?;
    let acts = acting(test, &test.namespace).await?;
    let node = node_of(test, &test.namespace, &acts).await?;
    let (took, healed) = lose_the_node(test, &test.namespace, &acts, &node).await?;
    ensure!(took < 60, "the other replica took {took} s");
    test.helm(&["uninstall", "stateward", "--wait"]).await?;
    Ok(format!(
        "the other acts after {took} s, the member is replaced after {healed} s"
    ))
}

/// Stops the node of the operator that acts, with a member of a cluster on it. Tells after how many seconds another operator acts, and the
/// member is replaced.
async fn lose_the_node(test: &Test, home: &str, acts: &str, node: &str) -> Result<(u64, u64)> {
    test.created("c", json!({"size": 3, "recovery": {"nodeLossSeconds": 10}}))
        .await?;
    let writer = test.writer("c").await?;
    let mut there = Vec::new();
    for pod in test.pods_of("c").await? {
        if pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node) {
            there.push(pod.name_any());
        }
    }
    let [member] = there.as_slice() else {
        bail!("{} members on {node}, where one was expected", there.len());
    };
    let started = std::time::Instant::now();
    test.fault(Fault::StopNode(node.to_owned())).await?;
    let lost = async {
        until("another operator to act", 240, async || {
            let now = acting(test, home).await?;
            Ok((!now.is_empty() && now != acts).then_some(()))
        })
        .await?;
        let took = started.elapsed().as_secs();
        until("the member to be replaced", 240, async || {
            let ready = test.get("c").await?.status.unwrap_or_default().members.ready;
            Ok((ready.len() == 3 && !ready.contains(member)).then_some(()))
        })
        .await?;
        anyhow::Ok((took, started.elapsed().as_secs()))
    };
    let lost = lost.await;
    test.fault(Fault::StartNode(node.to_owned())).await?;
    let lost = lost?;
    test.settled("c", 180).await?;
    writer.finish().await?;
    Ok(lost)
}

/// What an installation beside the shipped one calls what is in no namespace.
const BESIDE: &str = "stateward-previous";

/// Installs the release before: in place of the shipped operator, or beside it in another namespace.
async fn previous(test: &Test, namespace: &str) -> Result<()> {
    let file = std::env::var("STATEWARD_PREVIOUS").context("no release before this one")?;
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
    let words = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    crate::tool::run("kubectl", &test.ground.kubeconfig(), &words, Some(&list)).await?;
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
    previous(test, HOME).await?;
    test.created("c", json!({"size": 3})).await?;
    test.created("t", json!({"size": 1, "TLS": {"auto": {}}})).await?;
    let writer = test.writer("c").await?;
    let before = (pods(test, "c").await?, pods(test, "t").await?);
    test.ground.start_operator().await?; // puts this release in its place
    writer.goes_on(200, 60).await?;
    test.settled("c", 60).await?;
    test.settled("t", 60).await?;
    let after = (pods(test, "c").await?, pods(test, "t").await?);
    ensure!(
        after == before,
        "the upgrade touched a pod: {before:?} became {after:?}"
    );
    // and it works with what the other one left
    test.edit("c", json!({"size": 5})).await?;
    test.settled("c", 120).await?;
    let written = writer.finish().await?;
    Ok(format!("{} writes", written.acknowledged))
}

pub(crate) async fn two_operators_of_different_versions(test: &Test) -> Result<String> {
    // Two installations, each with a lease of its own: both act, on the same clusters.
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
    crate::tool::run("kubectl", &test.ground.kubeconfig(), &apply, None).await?;
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
    Ok(format!(
        "{} writes, longest gap {:.1} s",
        written.acknowledged,
        written.longest_gap.as_secs_f64()
    ))
}

pub(crate) async fn drain_every_node(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let writer = test.writer("c").await?;
    let mut slowest = Duration::ZERO;
    let nodes: Api<Node> = Api::all(test.client.clone());
    for node in nodes
        .list(&ListParams::default())
        .await?
        .iter()
        .map(ResourceExt::name_any)
    {
        let node = node.as_str();
        let started = std::time::Instant::now();
        let drain = [
            "drain",
            node,
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            "--timeout=120s",
        ];
        let drained = test.kubectl(&drain).await;
        let goes_on = writer.goes_on(50, 60).await;
        test.kubectl(&["uncordon", node]).await?;
        drained?;
        goes_on?;
        slowest = slowest.max(started.elapsed());
        test.settled("c", 120).await?;
    }
    let written = writer.finish().await?;
    Ok(format!(
        "slowest node {:.1} s; {} writes, longest gap {:.1} s",
        slowest.as_secs_f64(),
        written.acknowledged,
        written.longest_gap.as_secs_f64()
    ))
}

/// Where volumes live on one node only, the first of two members there cannot come back while the node is closed, and the
/// budget holds the second one. The drain ends all the same: the first is replaced elsewhere, then the second.
pub(crate) async fn drain_a_node_with_two_members(test: &Test) -> Result<String> {
    let nodes: Api<Node> = Api::all(test.client.clone());
    let nodes: Vec<String> = nodes
        .list(&ListParams::default())
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    let [crowded, second, third] = nodes.as_slice() else {
        bail!("{} nodes, three are needed", nodes.len());
    };
    // given two members on one node, since another was closed
    test.kubectl(&["cordon", second]).await?;
    let created = test
        .created("c", json!({"size": 3, "recovery": {"nodeLossSeconds": 10}}))
        .await;
    test.kubectl(&["uncordon", second]).await?;
    created?;
    let on = async |node: &str| -> Result<usize> {
        let pods = test.pods_of("c").await?;
        let there = |pod: &&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
        Ok(pods.iter().filter(there).count())
    };
    let crowded = if on(crowded).await? == 2 { crowded } else { third };
    ensure!(on(crowded).await? == 2, "no node has two members");
    let writer = test.writer("c").await?;
    // when it is drained
    let started = std::time::Instant::now();
    let drain = [
        "drain",
        crowded,
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--timeout=240s",
    ];
    let drained = test.kubectl(&drain).await;
    let took = started.elapsed();
    // then both come to live elsewhere, and no write is lost
    let settled = match drained {
        Ok(_) => test.settled("c", 120).await.map(drop),
        Err(error) => Err(error),
    };
    let left = on(crowded).await;
    test.kubectl(&["uncordon", crowded]).await?;
    settled?;
    ensure!(left? == 0, "members are left on {crowded}");
    let written = writer.finish().await?;
    Ok(format!(
        "drained after {:.1} s; {} writes, longest gap {:.1} s",
        took.as_secs_f64(),
        written.acknowledged,
        written.longest_gap.as_secs_f64()
    ))
}

pub(crate) async fn namespace_deleted_with_a_cluster(test: &Test) -> Result<String> {
    let name = format!("{}-x", test.namespace);
    let namespaces: Api<Namespace> = Api::all(test.client.clone());
    let object = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    namespaces.create(&PostParams::default(), &object).await?;
    let inner = Test {
        ground: test.ground.clone(),
        namespace: name.clone(),
        client: test.client.clone(),
        usual: test.usual.clone(),
    };
    inner.created("c", json!({"size": 3})).await?;
    let started = std::time::Instant::now();
    namespaces.delete(&name, &DeleteParams::default()).await?;
    until("the namespace to be gone", 120, async || {
        Ok(namespaces.get_opt(&name).await?.is_none().then_some(()))
    })
    .await?;
    Ok(format!("gone after {:.1} s", started.elapsed().as_secs_f64()))
}

pub(crate) async fn api_server_down_for_a_minute(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let writer = test.writer("c").await?;
    let before = pods(test, "c").await?;
    test.fault(Fault::StopApi).await?;
    let down = async {
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while std::time::Instant::now() < until {
            writer.goes_on(20, 60).await?; // the load is steady, so that this is also the clock
        }
        anyhow::Ok(())
    };
    let down = down.await;
    test.fault(Fault::StartApi).await?;
    down?;
    test.settled("c", 120).await?;
    ensure!(pods(test, "c").await? == before, "a pod was touched");
    // and the operator acts again
    test.edit("c", json!({"size": 4})).await?;
    test.settled("c", 120).await?;
    let written = writer.finish().await?;
    Ok(format!(
        "{} writes, longest gap {:.1} s",
        written.acknowledged,
        written.longest_gap.as_secs_f64()
    ))
}

pub(crate) async fn uninstalled_clusters_go_on(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    test.created("gone", json!({"size": 1})).await?;
    let writer = test.writer("c").await?;
    let before = pods(test, "c").await?;
    // as docs/install.md says
    test.kubectl(&["delete", "namespace", HOME, "--timeout=90s"]).await?;
    test.kubectl(&[
        "delete",
        "clusterrole,clusterrolebinding",
        "-l",
        "app.kubernetes.io/part-of=stateward",
    ])
    .await?;
    writer.goes_on(100, 60).await?;
    ensure!(pods(test, "c").await? == before, "uninstalling touched a pod");
    // a crash is mended without an operator
    let leader = test.leader("c").await?;
    test.fault(Fault::Kill(test.namespace.clone(), leader)).await?;
    writer.goes_on(50, 60).await?;
    // and nothing hangs that is deleted now
    test.kubectl(&["delete", "etcdcluster/gone", "--timeout=30s"]).await?;
    until("its pods to go", 60, async || {
        Ok(test.pods_of("gone").await?.is_empty().then_some(()))
    })
    .await?;
    // installed again, it takes up its work
    test.ground.start_operator().await?;
    test.edit("c", json!({"size": 4})).await?;
    test.settled("c", 120).await?;
    let written = writer.finish().await?;
    Ok(format!("{} writes", written.acknowledged))
}

pub(crate) async fn certificates_are_renewed(test: &Test) -> Result<String> {
    const RENEW_AFTER: &str = "stateward.dev/renew-after";
    test.created("c", json!({"size": 3, "TLS": {"auto": {}}})).await?;
    let writer = test.writer("c").await?;
    let before = pods(test, "c").await?;
    let secrets: Api<Secret> = Api::namespaced(test.client.clone(), &test.namespace);
    let due = async || -> Result<Vec<Secret>> {
        let all = secrets.list(&ListParams::default()).await?.items;
        Ok(all
            .into_iter()
            .filter(|secret| secret.annotations().contains_key("stateward.dev/certificate-names"))
            .collect())
    };
    // when their time has come
    let old = due().await?;
    ensure!(!old.is_empty(), "no Secret says when it is to be renewed");
    let patch = json!({"metadata": {"annotations": {RENEW_AFTER: "2020-01-01T00:00:00Z"}}});
    for secret in &old {
        secrets
            .patch(&secret.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
    }
    // then there are new ones, and no pod is restarted for them
    until("all certificates to be new", 60, async || {
        let now = due().await?;
        let renewed = now.len() == old.len() && now.iter().zip(&old).all(|(now, old)| now.data != old.data);
        Ok(renewed.then_some(()))
    })
    .await?;
    writer.goes_on(50, 60).await?;
    test.writer("c").await?.finish().await?; // a client with the new one
    ensure!(pods(test, "c").await? == before, "a renewal restarted a pod");
    let written = writer.finish().await?;
    Ok(format!("{} certificates, {} writes", old.len(), written.acknowledged))
}
