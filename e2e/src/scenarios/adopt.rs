//! Adoption: clusters that something else created are adopted without losing a write.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::{Value, json};
use stateward_etcd_driver::client::{Tls, shown_certificate};

use super::tls::{apply_secret, static_tls};
use crate::certificates::Ca;
use crate::environment::Need;
use crate::test::Test;
use crate::wait::until;
use crate::writer::{Endpoint, Writer};

/// A plain etcd StatefulSet, as many people run it, optionally with certificates from the Secrets that `TLS.static`
/// names.
fn stateful_set(version: &str, tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    let host = |name: &str| format!("{name}.old.$(NAMESPACE).svc");
    let peers: Vec<_> = ["old-0", "old-1", "old-2"]
        .iter()
        .map(|name| format!("{name}={scheme}://{}:2380", host(name)))
        .collect();
    let mut arguments = vec![
        "--name=$(POD)".to_owned(),
        "--data-dir=/data/etcd".to_owned(),
        format!("--listen-client-urls={scheme}://0.0.0.0:2379"),
        format!("--advertise-client-urls={scheme}://{}:2379", host("$(POD)")),
        format!("--listen-peer-urls={scheme}://0.0.0.0:2380"),
        format!("--initial-advertise-peer-urls={scheme}://{}:2380", host("$(POD)")),
        format!("--initial-cluster={}", peers.join(",")),
        "--initial-cluster-token=old".to_owned(),
    ];
    let mut mounts = vec![json!({"name": "data", "mountPath": "/data"})];
    let mut volumes = Vec::new();
    if tls {
        for (what, flag) in [("server", ""), ("peer", "peer-")] {
            let folder = format!("/certificates/{what}");
            arguments.extend([
                format!("--{flag}cert-file={folder}/{what}.crt"),
                format!("--{flag}key-file={folder}/{what}.key"),
                format!("--{flag}trusted-ca-file={folder}/{what}-ca.crt"),
                format!("--{flag}client-cert-auth"),
            ]);
            mounts.push(json!({"name": what, "mountPath": folder}));
            volumes.push(json!({"name": what, "secret": {"secretName": format!("etcd-{what}-tls")}}));
        }
    }
    let container = json!({
        "name": "etcd", "image": format!("quay.io/coreos/etcd:v{version}"),
        "command": ["/usr/local/bin/etcd"],
        "args": arguments,
        "env": [
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        ],
        "readinessProbe": {"tcpSocket": {"port": 2379}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": mounts,
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
                    "volumes": volumes,
                    "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
                },
            },
            "volumeClaimTemplates": [claim],
        },
    });
    json!({"apiVersion": "v1", "kind": "List", "items": [service("old", true), service("old-client", false), set]})
        .to_string()
}

pub(crate) async fn a_stateful_set_is_adopted(test: &Test) -> Result<String> {
    adopted(test, None).await
}

pub(crate) async fn a_stateful_set_with_tls_is_adopted(test: &Test) -> Result<String> {
    adopted(test, Some(&Ca::new("theirs")?)).await
}

/// Starts the StatefulSet, and returns the URLs of its members and the endpoint of its client service.
async fn old_cluster(test: &Test, ca: Option<&Ca>) -> Result<(Vec<String>, Endpoint)> {
    let hosts = [
        format!("*.old.{}.svc", test.namespace),
        format!("*.old.{}.svc.cluster.local", test.namespace),
        format!("old-client.{}.svc", test.namespace),
    ];
    if let Some(ca) = ca {
        for secret in ca.secrets_also("c", &test.namespace, &[ca], &hosts)? {
            apply_secret(test, &secret).await?;
        }
    }
    test.apply(&stateful_set(&test.usual, ca.is_some())).await?;
    test.kubectl(&["rollout", "status", "statefulset/old", "--timeout=120s"])
        .await?;
    let scheme = if ca.is_some() { "https" } else { "http" };
    let members: Vec<String> = if test.environment.lacks(Need::OperatorPod).is_none() {
        (0..3)
            .map(|number| format!("old-{number}.old.{}.svc", test.namespace))
            .collect()
    } else {
        // An operator that runs outside the cluster cannot resolve the names of pods.
        let addresses = addresses(test).await?;
        if let Some(ca) = ca {
            renamed(test, ca, &[&hosts[..], &addresses].concat(), &addresses).await?;
        }
        addresses
    };
    let address = test
        .kubectl(&["get", "service/old-client", "-o", "jsonpath={.spec.clusterIP}"])
        .await?;
    let tls = match ca {
        Some(ca) => {
            let [.., client] = ca.secrets("c", &test.namespace, &[ca])?;
            let file = |key: &str| {
                client["stringData"][key]
                    .as_str()
                    .unwrap_or_default()
                    .as_bytes()
                    .to_vec()
            };
            let identity = (file("etcd-client.crt"), file("etcd-client.key"));
            let tls = Tls::new(ca.pem.as_bytes(), Some((&identity.0, &identity.1)))?;
            Some((tls, format!("old-client.{}.svc", test.namespace)))
        }
        None => None,
    };
    let service = Endpoint {
        address: SocketAddr::new(address.trim().parse()?, 2379),
        tls,
    };
    let members = members.iter().map(|host| format!("{scheme}://{host}:2379")).collect();
    Ok((members, service))
}

async fn addresses(test: &Test) -> Result<Vec<String>> {
    let pods = test.pods().list(&ListParams::default().labels("run=old")).await?;
    let addresses = pods.into_iter().map(|pod| pod.status.and_then(|status| status.pod_ip));
    addresses.collect::<Option<_>>().context("a pod has no address")
}

/// Adds these names to the certificates, and waits until all members present them.
async fn renamed(test: &Test, ca: &Ca, also: &[String], members: &[String]) -> Result<()> {
    let shown = async || -> Result<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        for address in members {
            let address = SocketAddr::new(address.parse()?, 2379);
            let seen = shown_certificate(address, Duration::from_secs(2)).await;
            all.push(seen.context("a member shows no certificate")?);
        }
        Ok(all)
    };
    let before = shown().await?;
    for secret in ca.secrets_also("c", &test.namespace, &[ca], also)? {
        apply_secret(test, &secret).await?;
    }
    until("the certificates with addresses to be shown", 180, async || {
        let now = shown().await?;
        Ok(now.iter().all(|one| !before.contains(one)).then_some(()))
    })
    .await
}

/// Creates the EtcdCluster that adopts another cluster.
async fn start_adoption(test: &Test, endpoints: &[String], tls: Option<Value>) -> Result<()> {
    let mut cluster = json!({
        "apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdCluster",
        "metadata": {"name": "c", "annotations": {"stateward.dev/adopt-endpoints": endpoints.join(",")}},
        "spec": {"size": 3, "version": test.usual},
    });
    if let Some(tls) = tls {
        cluster["spec"]["TLS"] = tls;
    }
    test.apply(&cluster.to_string()).await
}

async fn adopted(test: &Test, ca: Option<&Ca>) -> Result<String> {
    // given a StatefulSet of etcd with a client
    let (endpoints, old) = old_cluster(test, ca).await?;
    let writer = Writer::start(old);
    writer.writes_more(50, 60).await?;

    // when an EtcdCluster adopts it
    start_adoption(test, &endpoints, ca.map(|_| static_tls())).await?;
    test.condition("c", "Progressing", "WaitingForRelease", 180).await?;
    let list = test.list("c").await?;
    ensure!(
        list.iter().filter(|member| !member.learner).count() == 6,
        "not six voters: {list:?}"
    );

    // and the client moves to the new service and the old members are released
    writer.writes_more(50, 60).await?;
    writer.redirect(test.endpoint("c").await?);
    writer.writes_more(50, 60).await?;
    test.kubectl(&["annotate", "etcdcluster/c", "stateward.dev/release-adopted=true"])
        .await?;

    // then they leave, and no write is lost
    let done = test.settled("c", 180).await?;
    ensure!(
        done.status.unwrap_or_default().members.ready.len() == 3,
        "not three members"
    );
    test.kubectl(&["delete", "statefulset/old", "service/old", "service/old-client"])
        .await?;
    writer.writes_more(50, 60).await?;
    // and it is a cluster like any other
    test.edit("c", json!({"size": 5})).await?;
    test.settled("c", 120).await?;
    let written = writer.finish().await?;
    Ok(written.to_string())
}

pub(crate) async fn what_cannot_be_adopted_is_reported(test: &Test) -> Result<String> {
    // given a cluster without TLS
    let (endpoints, old) = old_cluster(test, None).await?;
    let writer = Writer::start(old);
    writer.writes_more(20, 60).await?;
    // when an EtcdCluster with certificates is to adopt it
    start_adoption(test, &endpoints, Some(json!({"auto": {}}))).await?;
    let message = test.condition("c", "Degraded", "AdoptedTlsDiffers", 90).await?;
    ensure!(message.contains("spec.TLS"), "the message is: {message}");
    ensure!(test.pods_of("c").await?.is_empty(), "a pod was made");
    // then nothing joins, and it is adopted when the spec says so
    test.edit("c", json!({"TLS": null})).await?;
    test.condition("c", "Progressing", "WaitingForRelease", 180).await?;
    writer.writes_more(20, 60).await?;
    writer.redirect(test.endpoint("c").await?);
    test.kubectl(&["annotate", "etcdcluster/c", "stateward.dev/release-adopted=true"])
        .await?;
    test.settled("c", 180).await?;
    test.kubectl(&["delete", "statefulset/old", "service/old", "service/old-client"])
        .await?;
    let written = writer.finish().await?;
    Ok(format!("{message}; {} writes", written.acknowledged))
}

/// A member's pod as the CoreOS operator created it: without a claim, owned by the EtcdCluster.
fn old_pod(
    test: &Test,
    cluster: &stateward_etcd::api::EtcdCluster,
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

pub(crate) async fn a_cluster_of_the_old_operator_is_adopted(test: &Test) -> Result<String> {
    // given what the CoreOS operator leaves, with the object paused until everything exists
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
    writer.writes_more(50, 90).await?;

    // when Stateward starts to manage it
    test.edit("c", json!({"paused": false})).await?;

    // then its own pods replace the old ones, and no write is lost
    let done = test.settled("c", 240).await.context("it was not adopted")?;
    let status = done.status.unwrap_or_default();
    writer.writes_more(50, 60).await?;
    let pods = test.pods_of("c").await?;
    let stayed = pods
        .iter()
        .filter(|pod| names.contains(&pod.name_any().as_str()))
        .count();
    let written = writer.finish().await?;
    Ok(format!(
        "{} members, {stayed} of the old pods left, {written}",
        status.members.ready.len(),
    ))
}
