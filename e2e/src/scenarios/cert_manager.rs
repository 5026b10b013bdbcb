//! `TLS.certManager` with a real cert-manager.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use stateward_etcd::api::names;
use stateward_etcd_driver::client::Tls;

use super::tls::{apply_secret, member_pods, secrets, static_tls, with_fresh_certificates};
use crate::cert_manager::{self, Controller};
use crate::certificates::Ca;
use crate::definitions::{self, CERT_MANAGER};
use crate::test::Test;
use crate::wait::until;
use crate::writer::{Endpoint, Written};

/// One cert-manager serves the whole cluster, so scenarios that start one run one at a time.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

const CERTIFICATES: [&str; 3] = ["c-peer-cert", "c-server-cert", "c-client-cert"];

fn objects(test: &Test, kind: &str) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("cert-manager.io", "v1", kind));
    Api::namespaced_with(test.client.clone(), &test.namespace, &kind)
}

/// An issuer with a CA that the test knows.
async fn issuer(test: &Test, name: &str, ca: &Ca) -> Result<()> {
    issue_from(test, name, ca).await?;
    let object = json!({
        "apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": {"name": name},
        "spec": {"ca": {"secretName": format!("{name}-ca")}},
    });
    let issuers = objects(test, "Issuer");
    issuers
        .create(&PostParams::default(), &serde_json::from_value(object)?)
        .await
        .context("cannot make an Issuer")?;
    Ok(())
}

/// Makes the issuer sign with this CA from now on.
async fn issue_from(test: &Test, issuer: &str, ca: &Ca) -> Result<()> {
    apply_secret(test, &ca.secret(&format!("{issuer}-ca"))).await
}

/// A file of a Secret as text, with normalized white space.
async fn file(test: &Test, secret: &str, key: &str) -> Result<String> {
    let data = secrets(test).get(secret).await?.data.unwrap_or_default();
    let file = data.get(key).with_context(|| format!("{secret} has no {key}"))?;
    Ok(String::from_utf8_lossy(&file.0).trim().replace('\r', ""))
}

/// Waits until peers trust only the first CA and clients only the second, and no rotation is in progress.
async fn trusted(test: &Test, peers: &Ca, clients: &Ca) -> Result<()> {
    until("only the current CAs to be trusted", 400, async || {
        let cluster = test.get("c").await?;
        let stage = cluster.status.unwrap_or_default().tls.unwrap_or_default().stage;
        for (secret, key, ca) in [
            ("c-peer-tls", "peer-ca.crt", peers),
            ("c-server-tls", "server-ca.crt", clients),
            ("c-client-tls", "etcd-client-ca.crt", clients),
        ] {
            let trusted = file(test, secret, key).await?;
            let alone = trusted == ca.pem.trim().replace('\r', "");
            ensure!(alone, "{secret} trusts another CA; stage {stage}");
        }
        ensure!(stage.is_empty(), "stage {stage}");
        Ok(Some(()))
    })
    .await
}

/// Ends a scenario: deletes everything that cert-manager made.
async fn finished(test: &Test, controller: Controller, written: Written) -> Result<String> {
    drop(controller);
    definitions::uninstall(test, CERT_MANAGER).await?;
    Ok(written.to_string())
}

/// Requests a new certificate from cert-manager, as its command line does.
async fn renew(test: &Test, name: &str) -> Result<()> {
    let certificates = objects(test, "Certificate");
    let certificate = certificates.get(name).await?;
    let mut conditions: Vec<Value> = serde_json::from_value(certificate.data["status"]["conditions"].clone())?;
    conditions.retain(|condition| condition["type"] != "Issuing");
    conditions.push(json!({
        "type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "by the test",
        "lastTransitionTime": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    }));
    let patch = json!({"status": {"conditions": conditions}});
    certificates
        .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

/// The certificates that members and clients were given, by Secret.
async fn handed_out(test: &Test) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for (secret, key) in [
        ("c-peer-tls", "peer.crt"),
        ("c-server-tls", "server.crt"),
        ("c-client-tls", "etcd-client.crt"),
    ] {
        all.insert(secret.to_owned(), file(test, secret, key).await?);
    }
    Ok(all)
}

async fn settled(test: &Test, controller: &mut Controller, seconds: u64) -> Result<()> {
    let settled = test.settled("c", seconds).await;
    controller.must_run()?;
    settled
        .map(drop)
        .with_context(|| format!("cert-manager said: {}", controller.last_words()))
}

pub(crate) async fn tls_by_cert_manager(test: &Test) -> Result<String> {
    let _turn = TURN.lock().await;
    // given no cert-manager
    definitions::uninstall(test, CERT_MANAGER).await?;
    let tls =
        json!({"certManager": {"issuerRef": {"name": "ours"}, "dnsNames": ["etcd.example.com"], "overlapSeconds": 2}});
    test.create("c", json!({"size": 3, "TLS": tls})).await?;
    let message = test.condition("c", "Degraded", "CannotCarryOut", 60).await?;
    ensure!(
        message.contains("cert-manager is not installed"),
        "the message is: {message}"
    );
    // when cert-manager runs, but its issuer is missing
    definitions::install(test, CERT_MANAGER).await?;
    let mut controller = cert_manager::start(test)?;
    until("a message about the issuer", 120, async || {
        let waiting = test.get("c").await?.status.unwrap_or_default().waiting;
        ensure!(waiting.contains("c-peer-cert"), "the message is: {waiting}");
        Ok(Some(()))
    })
    .await
    .with_context(|| controller.last_words())?;
    ensure!(
        test.pods_of("c").await?.is_empty(),
        "a pod was made without certificates"
    );
    // and when the issuer exists
    let ca = Ca::new("ours")?;
    issuer(test, "ours", &ca).await?;
    settled(test, &mut controller, 180).await?;
    let writer = test.writer("c").await?;
    let before = member_pods(test).await?;
    let old = handed_out(test).await?;
    // when certificates are renewed
    with_fresh_certificates(test, &writer, async {
        for name in CERTIFICATES {
            renew(test, name).await?;
        }
        until("the renewed certificates to be handed out", 120, async || {
            let now = handed_out(test).await?;
            Ok(now
                .iter()
                .all(|(name, certificate)| old[name] != *certificate)
                .then_some(()))
        })
        .await?;
        writer.writes_more(100, 60).await
    })
    .await
    .with_context(|| controller.last_words())?;
    // then no pod was restarted for it, and the objects are deleted with the cluster
    ensure!(member_pods(test).await? == before, "a renewal restarted a pod");
    test.writer("c").await?.finish().await?;
    let written = writer.finish().await?;
    test.clusters().delete("c", &kube::api::DeleteParams::default()).await?;
    until("the Certificates and their Secrets to be deleted", 60, async || {
        let certificates = objects(test, "Certificate").list(&ListParams::default()).await?.items;
        let secrets: Vec<Secret> = secrets(test).list(&ListParams::default()).await?.items;
        let left = secrets
            .iter()
            .filter(|secret| secret.name_any().starts_with("c-"))
            .count();
        ensure!(
            certificates.is_empty() && left == 0,
            "{} Certificates, {left} Secrets",
            certificates.len()
        );
        Ok(Some(()))
    })
    .await?;
    finished(test, controller, written).await
}

pub(crate) async fn issuer_ca_rotated(test: &Test) -> Result<String> {
    let _turn = TURN.lock().await;
    // given a cluster with certificates of an issuer
    definitions::install(test, CERT_MANAGER).await?;
    let mut controller = cert_manager::start(test)?;
    issuer(test, "ours", &Ca::new("old")?).await?;
    let tls = json!({"certManager": {"issuerRef": {"name": "ours"}, "overlapSeconds": 2}});
    test.create("c", json!({"size": 3, "TLS": tls})).await?;
    settled(test, &mut controller, 180).await?;
    let writer = test.writer("c").await?;
    let id = test.cluster_id("c").await?;
    writer.measure_from_here();
    // when the issuer gets another CA and everything is issued again at once
    let ca = Ca::new("new")?;
    with_fresh_certificates(test, &writer, async {
        issue_from(test, "ours", &ca).await?;
        for name in CERTIFICATES {
            renew(test, name).await?;
        }
        trusted(test, &ca, &ca).await?;
        test.settled("c", 180).await?;
        writer.writes_more(100, 60).await
    })
    .await
    .with_context(|| controller.last_words())?;
    // and when one edit switches to the user's own certificates instead
    let own = Ca::new("own")?;
    for secret in own.secrets("c", &test.namespace, &[&own])? {
        apply_secret(test, &secret).await?;
    }
    let mut tls = static_tls();
    tls["static"]["overlapSeconds"] = json!(2);
    tls["certManager"] = Value::Null;
    with_fresh_certificates(test, &writer, async {
        test.edit("c", json!({ "TLS": tls })).await?;
        trusted(test, &own, &own).await?;
        test.settled("c", 180).await?;
        writer.writes_more(50, 60).await
    })
    .await?;
    // then it was an ordinary rotation
    ensure!(test.cluster_id("c").await? == id, "it is another cluster");
    let written = writer.finish().await?.without_a_wait()?;
    finished(test, controller, written).await
}

pub(crate) async fn peers_have_their_own_issuer(test: &Test) -> Result<String> {
    let _turn = TURN.lock().await;
    // given a cluster whose peers trust one CA and whose clients trust another
    definitions::install(test, CERT_MANAGER).await?;
    let mut controller = cert_manager::start(test)?;
    let [ours, inner, next] = [Ca::new("ours")?, Ca::new("inner")?, Ca::new("next")?];
    for (name, ca) in [("ours", &ours), ("inner", &inner), ("next", &next)] {
        issuer(test, name, ca).await?;
    }
    let tls = |peers: Value| json!({"certManager": {"issuerRef": {"name": "ours"}, "peerIssuerRef": peers, "overlapSeconds": 2}});
    test.create("c", json!({"size": 3, "TLS": tls(json!({"name": "inner"}))}))
        .await?;
    settled(test, &mut controller, 180).await?;
    trusted(test, &inner, &ours).await?;
    let id = test.cluster_id("c").await?;
    let writer = test.writer("c").await?;
    let with_peers = Endpoint {
        tls: Some((
            peer_certificate(test, &ours).await?,
            names::client_host("c", &test.namespace, ""),
        )),
        ..test.endpoint("c").await?
    };
    ensure!(
        with_peers.client()?.get("x").await.is_err(),
        "a client with the certificate of a peer was served"
    );
    writer.measure_from_here();
    // when peers get another issuer, and later use the common one again
    with_fresh_certificates(test, &writer, async {
        for (peers, ca) in [(json!({"name": "next"}), &next), (Value::Null, &ours)] {
            test.edit("c", json!({ "TLS": tls(peers) })).await?;
            trusted(test, ca, &ours).await?;
            test.settled("c", 180).await?;
            writer.writes_more(50, 60).await?;
        }
        Ok(())
    })
    .await
    .with_context(|| controller.last_words())?;
    // then it was an ordinary rotation
    ensure!(test.cluster_id("c").await? == id, "it is another cluster");
    let written = writer.finish().await?.without_a_wait()?;
    finished(test, controller, written).await
}

/// The certificate that a peer could present on the client port.
async fn peer_certificate(test: &Test, trusted: &Ca) -> Result<Tls> {
    let certificate = file(test, "c-peer-tls", "peer.crt").await?;
    let key = file(test, "c-peer-tls", "peer.key").await?;
    Ok(Tls::new(
        trusted.pem.as_bytes(),
        Some((certificate.as_bytes(), key.as_bytes())),
    )?)
}
