//! Certificates: the user's own or issued ones; switched on and off, renewed and rotated while the cluster runs.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use stateward_etcd_driver::client::shown_certificate;

use crate::certificates::{Ca, one_for_all};
use crate::test::Test;
use crate::wait::until;
use crate::writer::Writer;

pub(super) fn secrets(test: &Test) -> Api<Secret> {
    Api::namespaced(test.client.clone(), &test.namespace)
}

/// Creates or replaces a Secret, as a user would.
pub(super) async fn apply_secret(test: &Test, secret: &Value) -> Result<()> {
    let name = secret["metadata"]["name"].as_str().context("a Secret has a name")?;
    let params = PatchParams::apply("e2e").force();
    secrets(test).patch(name, &params, &Patch::Apply(secret)).await?;
    Ok(())
}

/// Each member's pod. None of them may change when only certificates change.
pub(super) async fn member_pods(test: &Test) -> Result<BTreeSet<(String, Option<String>)>> {
    let pods = test.pods_of("c").await?;
    Ok(pods.into_iter().map(|pod| (pod.name_any(), pod.metadata.uid)).collect())
}

/// While `work` runs, the writing client reloads its Secret whenever it changes or is replaced, as a good client does.
pub(super) async fn with_fresh_certificates<T>(
    test: &Test,
    writer: &Writer,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let present = async || {
        let name = stateward_etcd::cluster::manifests::tls_secrets(&test.get("c").await.ok()?).client?;
        let secret = secrets(test).get_metadata_opt(&name).await.ok()??;
        Some((name, secret.metadata.resource_version?))
    };
    let follow = async {
        let mut known = None;
        loop {
            let now = present().await;
            if now.is_some()
                && now != known
                && let Ok(endpoint) = test.endpoint("c").await
            {
                writer.redirect(endpoint);
                known = now;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        done = work => done,
        never = follow => never,
    }
}

pub(crate) async fn tls_auto(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3, "TLS": {"auto": {}}})).await?;
    let endpoint = test.endpoint("c").await?;
    ensure!(endpoint.tls.is_some(), "the cluster has no client certificate");
    // Without a certificate, there is no response.
    let mut plain = endpoint.clone();
    plain.tls = None;
    ensure!(
        plain.client()?.get("x").await.is_err(),
        "a client without a certificate was served"
    );
    for member in test.get("c").await?.status.unwrap_or_default().member_statuses {
        ensure!(
            member.peer_url.starts_with("https://"),
            "peers reach {} at {}",
            member.name,
            member.peer_url
        );
    }
    // The expiry is reported: certificates are valid for 90 days.
    let left = certificates_end(test).await?.duration_since(jiff::Timestamp::now());
    ensure!((88..=90).contains(&(left.as_hours() / 24)), "they end in {left:#}");
    // The peer port accepts a certificate of the peers' CA, and not a client's.
    let ca = secrets(test).get("c-peer-ca-tls").await?.data.unwrap_or_default();
    let peer = Ca::from_pem(&ca["tls.crt"].0, &ca["tls.key"].0)?.sign_nameless()?;
    let answer = peers_port(test, (peer.0.as_bytes(), peer.1.as_bytes())).await?;
    ensure!(
        answer.is_ok(),
        "a certificate of the peers' CA is rejected: {:?}",
        answer.err()
    );
    let client = secrets(test).get("c-client-tls").await?.data.unwrap_or_default();
    let client = (&client["etcd-client.crt"].0[..], &client["etcd-client.key"].0[..]);
    ensure!(
        peers_port(test, client).await?.is_err(),
        "a client's certificate is accepted on the peer port"
    );
    let writer = test.writer("c").await?;
    writer.writes_more(30, 30).await?;
    let written = writer.finish().await?;
    Ok(format!("{} writes", written.acknowledged))
}

/// What a member responds on its peer port to a client with this certificate and key.
async fn peers_port(
    test: &Test,
    identity: (&[u8], &[u8]),
) -> Result<stateward_etcd_driver::client::Result<Option<stateward_etcd::api::EtcdVersion>>> {
    let peers = secrets(test).get("c-peer-tls").await?.data.unwrap_or_default();
    let tls = stateward_etcd_driver::client::Tls::new(&peers["peer-ca.crt"].0, Some(identity))?;
    let pod = test.pods_of("c").await?.pop().context("no pod")?;
    let name = format!("{}.c.{}.svc", pod.name_any(), test.namespace);
    let ip = pod.status.and_then(|status| status.pod_ip).context("no address")?;
    let address = SocketAddr::new(ip.parse()?, 2380);
    let client = stateward_etcd_driver::client::Client::new(
        address,
        Some((&tls, &name)),
        stateward_etcd_driver::client::Timeouts::default(),
    )?;
    Ok(client.cluster_version().await)
}

pub(crate) async fn tls_secret_of_the_user_is_left_alone(test: &Test) -> Result<String> {
    // given a user's Secret under a name that the cluster would write
    let theirs = Ca::new("theirs")?;
    apply_secret(test, &theirs.secret("c-server-tls")).await?;
    let before = secrets(test).get("c-server-tls").await?;
    test.create("c", json!({"size": 3, "TLS": {"auto": {}}})).await?;
    // then it is reported, and nothing is created
    let message = test.condition("c", "Degraded", "NameTaken", 60).await?;
    ensure!(
        message.contains("c-server-tls") && message.contains("delete it"),
        "the message is: {message}"
    );
    ensure!(test.pods_of("c").await?.is_empty(), "a pod was made");
    ensure!(secrets(test).get("c-server-tls").await? == before, "it was touched");
    // when it is gone, the cluster starts
    let gone = kube::api::DeleteParams::default();
    secrets(test).delete("c-server-tls", &gone).await?;
    test.settled("c", 180).await?;
    let writer = test.writer("c").await?;
    writer.writes_more(30, 30).await?;
    // and when the user takes over the CA's Secret, the cluster keeps serving, and a rotation does not write it
    let pods = member_pods(test).await?;
    let mut theirs = theirs.secret("c-ca-tls");
    theirs["metadata"] = json!({"labels": null, "annotations": null, "ownerReferences": null});
    let params = PatchParams::default();
    let before = secrets(test).patch("c-ca-tls", &params, &Patch::Merge(&theirs)).await?;
    let message = test.condition("c", "Degraded", "NameTaken", 60).await?;
    ensure!(message.contains("c-ca-tls"), "the message is: {message}");
    let rotate = json!({"metadata": {"annotations": {"stateward.dev/rotate-ca": "now"}}});
    test.clusters().patch("c", &params, &Patch::Merge(&rotate)).await?;
    writer.writes_more(50, 60).await?;
    ensure!(secrets(test).get("c-ca-tls").await? == before, "it was touched");
    ensure!(member_pods(test).await? == pods, "a pod was touched");
    let written = writer.finish().await?;
    // and it is not deleted with the cluster
    test.clusters().delete("c", &gone).await?;
    until("the cluster's own Secrets to be deleted", 120, async || {
        let left = secrets(test).get_opt("c-client-tls").await?;
        Ok(left.is_none().then_some(()))
    })
    .await?;
    ensure!(
        secrets(test).get("c-ca-tls").await? == before,
        "it was deleted with the cluster"
    );
    Ok(written.to_string())
}

/// When the first certificate expires, according to the status.
async fn certificates_end(test: &Test) -> Result<jiff::Timestamp> {
    let status = test.get("c").await?.status.unwrap_or_default();
    let end = status.tls.and_then(|tls| tls.not_after);
    Ok(end.context("the status does not say when certificates end")?.0)
}

pub(crate) async fn tls_switched_on_and_off(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let id = test.cluster_id("c").await?;
    let writer = test.writer("c").await?;
    writer.writes_more(50, 30).await?;
    let written = writer.finish().await?;
    for (tls, scheme) in [(json!({"auto": {}}), "https://"), (Value::Null, "http://")] {
        test.edit("c", json!({ "TLS": tls })).await?;
        test.settled("c", 150).await?;
        ensure!(test.cluster_id("c").await? == id, "it is another cluster");
        for member in test.get("c").await?.status.unwrap_or_default().member_statuses {
            ensure!(
                member.peer_url.starts_with(scheme),
                "peers reach {} at {}",
                member.name,
                member.peer_url
            );
        }
        let found = test
            .endpoint("c")
            .await?
            .client()?
            .get(format!("e2e/{:010}", 0))
            .await?;
        ensure!(found.is_some(), "what was written before is gone");
    }
    Ok(format!("{} writes kept", written.acknowledged))
}

/// The certificate that each member presents to clients.
pub(super) async fn shown(test: &Test) -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for pod in test.pods_of("c").await? {
        let ip = pod.status.and_then(|status| status.pod_ip).context("no address")?;
        let address = SocketAddr::new(ip.parse()?, 2379);
        let certificate = shown_certificate(address, Duration::from_secs(2)).await;
        all.push(certificate.context("a member shows no certificate")?);
    }
    Ok(all)
}

/// The Secrets that [`Ca::secrets`] creates.
pub(super) fn static_tls() -> Value {
    json!({"static": {
        "member": {"peerSecret": "etcd-peer-tls", "serverSecret": "etcd-server-tls"},
        "operatorSecret": "etcd-client-tls",
    }})
}

pub(crate) async fn tls_static(test: &Test) -> Result<String> {
    // given Secrets that do not exist, or lack a key
    let ca = Ca::new("static")?;
    let made = ca.secrets("c", &test.namespace, &[&ca])?;
    test.create("c", json!({"size": 3, "TLS": static_tls()})).await?;
    let message = test.condition("c", "Degraded", "SecretMissing", 60).await?;
    ensure!(message.contains("etcd-peer-tls"), "the message is: {message}");
    let [peer, server, client] = &made;
    let mut lacking = server.clone();
    lacking["stringData"]
        .as_object_mut()
        .context("a Secret has data")?
        .remove("server-ca.crt");
    for secret in [peer, &lacking, client] {
        apply_secret(test, secret).await?;
    }
    let named = |message: &str| message.contains("etcd-server-tls") && message.contains("server-ca.crt");
    until("the Secret and its key to be named", 60, async || {
        let message = test.condition("c", "Degraded", "SecretMissing", 5).await?;
        ensure!(named(&message), "the message is: {message}");
        Ok(Some(()))
    })
    .await?;
    ensure!(
        test.pods_of("c").await?.is_empty(),
        "a pod was made without certificates"
    );
    // when they are complete
    apply_secret(test, server).await?;
    test.settled("c", 120).await?;
    let writer = test.writer("c").await?;
    let end = certificates_end(test).await?;
    ensure!(end.to_string() == "4096-01-01T00:00:00Z", "they end at {end}");
    let before = member_pods(test).await?;
    let old = shown(test).await?;
    // and when the user replaces them with new certificates of the same CA
    with_fresh_certificates(test, &writer, async {
        for secret in ca.secrets("c", &test.namespace, &[&ca])? {
            apply_secret(test, &secret).await?;
        }
        until("every member to present a new certificate", 180, async || {
            let now = shown(test).await?;
            Ok(now.iter().all(|certificate| !old.contains(certificate)).then_some(()))
        })
        .await?;
        writer.writes_more(50, 60).await
    })
    .await?;
    // and when a key disappears from a running cluster's Secret
    let patch = json!({"data": {"server-ca.crt": null}});
    secrets(test)
        .patch("etcd-server-tls", &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    let message = test.condition("c", "Degraded", "SecretMissing", 60).await?;
    ensure!(named(&message), "the message is: {message}");
    writer.writes_more(50, 60).await?;
    ensure!(member_pods(test).await? == before, "a pod was touched");
    for secret in ca.secrets("c", &test.namespace, &[&ca])? {
        apply_secret(test, &secret).await?;
    }
    test.settled("c", 60).await?;
    ensure!(
        member_pods(test).await? == before,
        "a pod was restarted for certificates of the same ca"
    );
    writer.redirect(test.endpoint("c").await?);
    writer.writes_more(20, 60).await?;
    let written = writer.finish().await?;
    Ok(written.to_string())
}

pub(crate) async fn tls_static_with_one_self_signed_certificate(test: &Test) -> Result<String> {
    // given Secrets with one certificate that is CA and leaf (CA:TRUE), as users of the old operator have them
    for secret in one_for_all("c", &test.namespace)? {
        apply_secret(test, &secret).await?;
    }
    // when a cluster is created with them
    test.created("c", json!({"size": 3, "TLS": static_tls()})).await?;
    // then it serves, and can be backed up
    let writer = test.writer("c").await?;
    writer.writes_more(50, 30).await?;
    super::backup::claim(test, "backups").await?;
    super::backup::create(test, "b", super::backup::to_file("a.backup")).await?;
    super::backup::succeeded(test, "b", 120).await?;
    let written = writer.finish().await?;
    Ok(written.to_string())
}

pub(crate) async fn tls_static_ca_changed_by_the_user(test: &Test) -> Result<String> {
    let (old, new) = (Ca::new("old")?, Ca::new("new")?);
    let apply = async |of: &Ca, trusted: &[&Ca]| -> Result<()> {
        for secret in of.secrets("c", &test.namespace, trusted)? {
            apply_secret(test, &secret).await?;
        }
        Ok(())
    };
    apply(&old, &[&old]).await?;
    test.created("c", json!({"size": 3, "TLS": static_tls()})).await?;
    let writer = test.writer("c").await?;
    writer.measure_from_here();
    // when the user goes through a CA file with both CAs
    with_fresh_certificates(test, &writer, async {
        for (of, trusted) in [(&old, vec![&old, &new]), (&new, vec![&old, &new]), (&new, vec![&new])] {
            let (before, shows) = (member_pods(test).await?, shown(test).await?);
            let restarts = std::ptr::eq(of, &old) || trusted.len() == 1;
            apply(of, &trusted).await?;
            // then every member is restarted where it has to trust another CA, and presents the new certificate
            until("the members to follow", 240, async || {
                let now = member_pods(test).await?;
                let follows = if restarts {
                    now.is_disjoint(&before)
                } else {
                    now == before
                };
                ensure!(follows, "pods {now:?}");
                let seen = shown(test).await?;
                ensure!(
                    seen.iter().all(|one| !shows.contains(one)),
                    "old certificates are presented"
                );
                Ok(Some(()))
            })
            .await?;
            test.settled("c", 120).await?;
            writer.writes_more(50, 60).await?;
        }
        Ok(())
    })
    .await?;
    let written = writer.finish().await?.without_a_wait()?;
    // but when another CA replaces the old one at once, nothing is restarted and it is reported
    let before = member_pods(test).await?;
    apply(&old, &[&old]).await?;
    let message = test.condition("c", "Degraded", "AuthorityReplaced", 60).await?;
    ensure!(message.contains("beside"), "the message is: {message}");
    ensure!(member_pods(test).await? == before, "a pod was touched");
    apply(&new, &[&new]).await?;
    test.settled("c", 120).await?;
    Ok(written.to_string())
}
