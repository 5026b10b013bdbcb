//! `TLS.certManager` with a real cert-manager.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use stateward_api::names;
use stateward_etcd::Tls;

use super::tls::{apply_secret, member_pods, secrets, static_tls, with_fresh_certificates};
use crate::cert_manager::{self, Controller};
use crate::certificates::Authority;
use crate::definitions::{self, CERT_MANAGER};
use crate::test::Test;
use crate::wait::until;
use crate::writer::{Endpoint, Written};

/// One cert-manager serves the whole cluster: scenarios that start one wait for each other, and for nobody else.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

const CERTIFICATES: [&str; 3] = ["c-peer-cert", "c-server-cert", "c-client-cert"];

fn objects(test: &Test, kind: &str) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("cert-manager.io", "v1", kind));
    Api::namespaced_with(test.client.clone(), &test.namespace, &kind)
}

/// An issuer with an authority that the test knows.
async fn issuer(test: &Test, name: &str, authority: &Authority) -> Result<()> {
    issue_from(test, name, authority).await?;
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

/// From now on the issuer signs with this authority.
async fn issue_from(test: &Test, issuer: &str, authority: &Authority) -> Result<()> {
    apply_secret(test, &authority.secret(&format!("{issuer}-ca"))).await
}

/// A file of a Secret, as text without what editors differ in.
async fn file(test: &Test, secret: &str, key: &str) -> Result<String> {
    let data = secrets(test).get(secret).await?.data.unwrap_or_default();
    let file = data.get(key).with_context(|| format!("{secret} has no {key}"))?;
    Ok(String::from_utf8_lossy(&file.0).trim().replace('\r', ""))
}

/// Waits until peers trust this authority alone and clients that one, and no rotation is under way.
async fn trusted(test: &Test, peers: &Authority, clients: &Authority) -> Result<()> {
    until("the authorities to be trusted alone", 400, async || {
        let cluster = test.get("c").await?;
        let stage = cluster.status.unwrap_or_default().tls.unwrap_or_default().stage;
        for (secret, key, authority) in [
            ("c-peer-tls", "peer-ca.crt", peers),
            ("c-server-tls", "server-ca.crt", clients),
            ("c-client-tls", "etcd-client-ca.crt", clients),
        ] {
            let trusted = file(test, secret, key).await?;
            let alone = trusted == authority.pem.trim().replace('\r', "");
            ensure!(alone, "{secret} trusts another; stage {stage}");
        }
        ensure!(stage.is_empty(), "stage {stage}");
        Ok(Some(()))
    })
    .await
}

/// The end of a scenario: nothing of cert-manager is left.
async fn finished(test: &Test, controller: Controller, written: Written) -> Result<String> {
    drop(controller);
    definitions::uninstall(test, CERT_MANAGER).await?;
    Ok(written.to_string())
}

/// Asks cert-manager for a new certificate now, as its own command line does.
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

/// The certificates that members and clients have been given, by Secret.
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
    // given no cert-manager at all
    definitions::uninstall(test, CERT_MANAGER).await?;
    let tls =
        json!({"certManager": {"issuerRef": {"name": "ours"}, "dnsNames": ["etcd.example.com"], "overlapSeconds": 2}});
    test.create("c", json!({"size": 3, "TLS": tls})).await?;
    let words = test.condition("c", "Degraded", "CannotCarryOut", 60).await?;
    ensure!(words.contains("cert-manager is not installed"), "it says: {words}");
    // when there is one, but not its issuer
    definitions::install(test, CERT_MANAGER).await?;
    let mut controller = cert_manager::start(test)?;
    until("words about the issuer", 120, async || {
        let waiting = test.get("c").await?.status.unwrap_or_default().waiting;
        ensure!(waiting.contains("c-peer-cert"), "it says: {waiting}");
        Ok(Some(()))
    })
    .await
    .with_context(|| controller.last_words())?;
    ensure!(
        test.pods_of("c").await?.is_empty(),
        "a pod was made without certificates"
    );
    // and then the issuer
    let authority = Authority::new("ours")?;
    issuer(test, "ours", &authority).await?;
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
        writer.goes_on(100, 60).await
    })
    .await
    .with_context(|| controller.last_words())?;
    // then no pod was restarted for it, and what was made goes with the cluster
    ensure!(member_pods(test).await? == before, "a renewal restarted a pod");
    test.writer("c").await?.finish().await?;
    let written = writer.finish().await?;
    test.clusters().delete("c", &kube::api::DeleteParams::default()).await?;
    until("the Certificates and their Secrets to go", 60, async || {
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

pub(crate) async fn authority_of_the_issuer_rotated(test: &Test) -> Result<String> {
    let _turn = TURN.lock().await;
    // given a cluster with certificates of an issuer
    definitions::install(test, CERT_MANAGER).await?;
    let mut controller = cert_manager::start(test)?;
    issuer(test, "ours", &Authority::new("old")?).await?;
    let tls = json!({"certManager": {"issuerRef": {"name": "ours"}, "overlapSeconds": 2}});
    test.create("c", json!({"size": 3, "TLS": tls})).await?;
    settled(test, &mut controller, 180).await?;
    let writer = test.writer("c").await?;
    let id = test.cluster_id("c").await?;
    writer.measure_from_here();
    // when the issuer gets another authority and all is issued anew, all at once
    let authority = Authority::new("new")?;
    with_fresh_certificates(test, &writer, async {
        issue_from(test, "ours", &authority).await?;
        for name in CERTIFICATES {
            renew(test, name).await?;
        }
        trusted(test, &authority, &authority).await?;
        test.settled("c", 180).await?;
        writer.goes_on(100, 60).await
    })
    .await
    .with_context(|| controller.last_words())?;
    // and when one edit asks for the user's own certificates instead
    let own = Authority::new("own")?;
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
        writer.goes_on(50, 60).await
    })
    .await?;
    // then it was a rotation like any other
    ensure!(test.cluster_id("c").await? == id, "it is another cluster");
    let written = writer.finish().await?.without_a_wait()?;
    finished(test, controller, written).await
}

pub(crate) async fn peers_have_an_issuer_of_their_own(test: &Test) -> Result<String> {
    let _turn = TURN.lock().await;
    // given a cluster whose peers trust one authority and whose clients another
    definitions::install(test, CERT_MANAGER).await?;
    let mut controller = cert_manager::start(test)?;
    let [ours, inner, next] = [
        Authority::new("ours")?,
        Authority::new("inner")?,
        Authority::new("next")?,
    ];
    for (name, authority) in [("ours", &ours), ("inner", &inner), ("next", &next)] {
        issuer(test, name, authority).await?;
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
    // when peers get another issuer, and then none of their own
    with_fresh_certificates(test, &writer, async {
        for (peers, authority) in [(json!({"name": "next"}), &next), (Value::Null, &ours)] {
            test.edit("c", json!({ "TLS": tls(peers) })).await?;
            trusted(test, authority, &ours).await?;
            test.settled("c", 180).await?;
            writer.goes_on(50, 60).await?;
        }
        Ok(())
    })
    .await
    .with_context(|| controller.last_words())?;
    // then it was a rotation like any other
    ensure!(test.cluster_id("c").await? == id, "it is another cluster");
    let written = writer.finish().await?.without_a_wait()?;
    finished(test, controller, written).await
}

/// What a peer could call clients' ports with.
async fn peer_certificate(test: &Test, trusted: &Authority) -> Result<Tls> {
    let certificate = file(test, "c-peer-tls", "peer.crt").await?;
    let key = file(test, "c-peer-tls", "peer.key").await?;
    Ok(Tls::new(
        trusted.pem.as_bytes(),
        Some((certificate.as_bytes(), key.as_bytes())),
    )?)
}
