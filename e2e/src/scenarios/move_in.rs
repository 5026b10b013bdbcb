//! Moving in: clusters that somebody else made are taken over without losing a write.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use serde_json::json;

use crate::test::Test;
use crate::writer::{Endpoint, Writer};

/// A plain StatefulSet of etcd, as many people run it.
fn stateful_set(version: &str) -> String {
    let container = json!({
        "name": "etcd", "image": format!("quay.io/coreos/etcd:v{version}"),
        "command": ["/usr/local/bin/etcd"],
        "args": [
            "--name=$(POD)", "--data-dir=/data/etcd",
            "--listen-client-urls=http://0.0.0.0:2379", "--advertise-client-urls=http://$(POD).old.$(NAMESPACE).svc:2379",
            "--listen-peer-urls=http://0.0.0.0:2380", "--initial-advertise-peer-urls=http://$(POD).old.$(NAMESPACE).svc:2380",
            "--initial-cluster=old-0=http://old-0.old.$(NAMESPACE).svc:2380,old-1=http://old-1.old.$(NAMESPACE).svc:2380,old-2=http://old-2.old.$(NAMESPACE).svc:2380",
            "--initial-cluster-token=old",
        ],
        "env": [
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        ],
        "readinessProbe": {"tcpSocket": {"port": 2379}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    });
    let claim = json!({
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let labels = json!({"run": "old"});
    let service = |name: &str, headless: bool| {
        let mut service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"selector": labels, "publishNotReadyAddresses": headless, "ports": [{"name": "client", "port": 2379}, {"name": "peer", "port": 2380}]},
        });
        if headless {
            service["spec"]["clusterIP"] = json!("None");
        }
        service
    };
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "old"},
        "spec": {
            "serviceName": "old", "replicas": 3, "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [container],
                    "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
                },
            },
            "volumeClaimTemplates": [claim],
        },
    });
    json!({"apiVersion": "v1", "kind": "List", "items": [service("old", true), service("old-client", false), set]})
        .to_string()
}

pub(crate) async fn a_stateful_set_is_taken_over(test: &Test) -> Result<String> {
    // given a StatefulSet of etcd with a client
    test.apply(&stateful_set(&test.usual)).await?;
    test.kubectl(&["rollout", "status", "statefulset/old", "--timeout=120s"])
        .await?;
    let address = test
        .kubectl(&["get", "service/old-client", "-o", "jsonpath={.spec.clusterIP}"])
        .await?;
    let old = Endpoint {
        address: SocketAddr::new(address.trim().parse()?, 2379),
        tls: None,
    };
    let writer = Writer::start(old);
    writer.goes_on(50, 60).await?;

    // when a cluster is told to take it over
    let endpoints: Vec<_> = (0..3)
        .map(|number| format!("http://old-{number}.old.{}.svc:2379", test.namespace))
        .collect();
    let cluster = json!({
        "apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdCluster",
        "metadata": {"name": "c", "annotations": {"stateward.dev/adopt-endpoints": endpoints.join(",")}},
        "spec": {"size": 3, "version": test.usual},
    });
    test.apply(&cluster.to_string()).await?;
    test.condition("c", "Progressing", "WaitingForRelease", 180).await?;
    let list = test.list("c").await?;
    ensure!(
        list.iter().filter(|member| !member.learner).count() == 6,
        "not six voters: {list:?}"
    );

    // and the client is led to it and the old members are let go
    writer.goes_on(50, 60).await?;
    writer.redirect(test.endpoint("c").await?);
    writer.goes_on(50, 60).await?;
    test.kubectl(&["annotate", "etcdcluster/c", "stateward.dev/release-adopted=true"])
        .await?;

    // then they leave, and nothing that was written is lost
    let done = test.settled("c", 180).await?;
    ensure!(
        done.status.unwrap_or_default().members.ready.len() == 3,
        "not three members"
    );
    test.kubectl(&["delete", "statefulset/old", "service/old", "service/old-client"])
        .await?;
    writer.goes_on(50, 60).await?;
    // and it is a cluster like any other
    test.edit("c", json!({"size": 5})).await?;
    test.settled("c", 120).await?;
    let written = writer.finish().await?;
    Ok(format!(
        "{} writes, longest gap {:.1} s",
        written.acknowledged,
        written.longest_gap.as_secs_f64()
    ))
}

/// A member's pod as the CoreOS operator made it: without a claim, owned by the EtcdCluster.
fn old_pod(
    test: &Test,
    cluster: &stateward_api::EtcdCluster,
    name: &str,
    list: &[&str],
    state: &str,
    version: &str,
) -> serde_json::Value {
    let host = |name: &str| format!("{name}.c.{}.svc", test.namespace);
    let peers: Vec<_> = list
        .iter()
        .map(|name| format!("{name}=http://{}:2380", host(name)))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"app": "etcd", "etcd_cluster": "c", "etcd_node": name},
            "annotations": {"etcd.version": version},
            "ownerReferences": [{
                "apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdCluster", "name": "c", "controller": true,
                "uid": cluster.metadata.uid,
            }],
        },
        "spec": {
            "hostname": name, "subdomain": "c", "restartPolicy": "Never", "automountServiceAccountToken": false,
            "containers": [{
                "name": "etcd", "image": format!("quay.io/coreos/etcd:v{version}"),
                "command": [
                    "/usr/local/bin/etcd", "--data-dir=/var/etcd/data", format!("--name={name}"),
                    format!("--initial-advertise-peer-urls=http://{}:2380", host(name)), "--listen-peer-urls=http://0.0.0.0:2380",
                    "--listen-client-urls=http://0.0.0.0:2379", format!("--advertise-client-urls=http://{}:2379", host(name)),
                    format!("--initial-cluster={}", peers.join(",")), format!("--initial-cluster-state={state}"),
                    "--initial-cluster-token=5f2d9a30-6f0c-4a43",
                ],
                "ports": [{"name": "server", "containerPort": 2380}, {"name": "client", "containerPort": 2379}],
                "volumeMounts": [{"name": "etcd-data", "mountPath": "/var/etcd"}],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
            "securityContext": {"runAsNonRoot": true, "runAsUser": 9000, "fsGroup": 9000, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "etcd-data", "emptyDir": {}}],
        },
    })
}

pub(crate) async fn a_cluster_of_the_old_operator_is_taken_over(test: &Test) -> Result<String> {
    // given what the CoreOS operator leaves: an object that is paused for Stateward until all is there, pods, services
    let version = test.usual.clone();
    test.create("c", json!({"size": 3, "paused": true, "version": version}))
        .await?;
    let cluster = test.get("c").await?;
    let owner = json!([{
        "apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdCluster", "name": "c", "controller": true,
        "uid": cluster.metadata.uid,
    }]);
    let labels = json!({"app": "etcd", "etcd_cluster": "c"});
    for (name, address) in [("c", json!("None")), ("c-client", json!(null))] {
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "labels": labels, "ownerReferences": owner},
            "spec": {
                "clusterIP": address, "selector": labels, "publishNotReadyAddresses": true,
                "ports": [{"name": "client", "port": 2379}, {"name": "peer", "port": 2380}],
            },
        });
        test.apply(&service.to_string()).await?;
    }
    let names = ["c-4tmbxk9vqp", "c-8wz2nlr6dh", "c-jc5gsf7xtm"];
    for name in names {
        test.apply(&old_pod(test, &cluster, name, &names, "new", &version).to_string())
            .await?;
    }
    let writer = Writer::start(test.endpoint("c").await?);
    writer.goes_on(50, 90).await?;

    // when Stateward takes the work up
    test.edit("c", json!({"paused": false})).await?;

    // then it is a cluster of its own pods in the end, and nothing is lost
    let done = test.settled("c", 240).await.context("it was not taken over")?;
    let status = done.status.unwrap_or_default();
    writer.goes_on(50, 60).await?;
    let pods = test.pods_of("c").await?;
    let stayed = pods
        .iter()
        .filter(|pod| names.contains(&pod.name_any().as_str()))
        .count();
    let written = writer.finish().await?;
    Ok(format!(
        "{} members, {stayed} of the old pods left, {} writes, longest gap {:.1} s",
        status.members.ready.len(),
        written.acknowledged,
        written.longest_gap.as_secs_f64()
    ))
}
