//! Certificates: the user's own, or issued; switched on and off, renewed and rotated while the cluster runs.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use stateward_api::names;
use stateward_etcd::messages::RangeRequest;
use stateward_etcd::shown_certificate;

use super::{backup, restore};
use crate::certificates::Authority;
use crate::test::Test;
use crate::wait::until;
use crate::writer::{Endpoint, Writer};

/// The Secrets of the namespace.
pub(super) fn secrets(test: &Test) -> Api<Secret> {
    Api::namespaced(test.client.clone(), &test.namespace)
}

/// Makes a Secret what a person wrote.
pub(super) async fn apply_secret(test: &Test, secret: &Value) -> Result<()> {
    let name = secret["metadata"]["name"].as_str().context("a Secret has a name")?;
    let params = PatchParams::apply("e2e").force();
    secrets(test).patch(name, &params, &Patch::Apply(secret)).await?;
    Ok(())
}

/// Each member's pod: none of them may change when only certificates do.
pub(super) async fn member_pods(test: &Test) -> Result<BTreeSet<(String, Option<String>)>> {
    let pods = test.pods_of("c").await?;
    Ok(pods.into_iter().map(|pod| (pod.name_any(), pod.metadata.uid)).collect())
}

/// While `work` is done, the writing client reads its Secret anew whenever that changes or is another one, as a good client
/// does.
pub(super) async fn with_fresh_certificates<T>(
    test: &Test,
    writer: &Writer,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let present = async || {
        let name = stateward_plan::etcd::manifests::tls_secrets(&test.get("c").await.ok()?).client?;
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
    // Without a certificate nothing is answered.
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
    // When they end is told: they are made for 90 days.
    let left = certificates_end(test).await?.duration_since(jiff::Timestamp::now());
    ensure!((88..=90).contains(&(left.as_hours() / 24)), "they end in {left:#}");
    let writer = test.writer("c").await?;
    writer.goes_on(30, 30).await?;
    let written = writer.finish().await?;
    Ok(format!("{} writes", written.acknowledged))
}

/// When the first certificate ends, as the status has it.
async fn certificates_end(test: &Test) -> Result<jiff::Timestamp> {
    let status = test.get("c").await?.status.unwrap_or_default();
    let end = status.tls.and_then(|tls| tls.not_after);
    Ok(end.context("the status does not say when certificates end")?.0)
}

pub(crate) async fn tls_switched_on_and_off(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let id = test.cluster_id("c").await?;
    let writer = test.writer("c").await?;
    writer.goes_on(50, 30).await?;
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

/// The certificate that each member shows to clients.
async fn shown(test: &Test) -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for pod in test.pods_of("c").await? {
        let ip = pod.status.and_then(|status| status.pod_ip).context("no address")?;
        let address = SocketAddr::new(ip.parse()?, 2379);
        let certificate = shown_certificate(address, Duration::from_secs(2)).await;
        all.push(certificate.context("a member shows no certificate")?);
    }
    Ok(all)
}

/// The Secrets that [`Authority::secrets`] makes.
pub(super) fn static_tls() -> Value {
    json!({"static": {
        "member": {"peerSecret": "etcd-peer-tls", "serverSecret": "etcd-server-tls"},
        "operatorSecret": "etcd-client-tls",
    }})
}

pub(crate) async fn tls_static(test: &Test) -> Result<String> {
    // given Secrets that are not there, or lack a key
    let authority = Authority::new("static")?;
    let made = authority.secrets("c", &test.namespace, &[&authority])?;
    test.create("c", json!({"size": 3, "TLS": static_tls()})).await?;
    let words = test.condition("c", "Degraded", "SecretMissing", 60).await?;
    ensure!(words.contains("etcd-peer-tls"), "it says: {words}");
    let [peer, server, client] = &made;
    let mut lacking = server.clone();
    lacking["stringData"]
        .as_object_mut()
        .context("a Secret has data")?
        .remove("server-ca.crt");
    for secret in [peer, &lacking, client] {
        apply_secret(test, secret).await?;
    }
    let named = |words: &str| words.contains("etcd-server-tls") && words.contains("server-ca.crt");
    until("the Secret and its key to be named", 60, async || {
        let words = test.condition("c", "Degraded", "SecretMissing", 5).await?;
        ensure!(named(&words), "it says: {words}");
        Ok(Some(()))
    })
    .await?;
    ensure!(
        test.pods_of("c").await?.is_empty(),
        "a pod was made without certificates"
    );
    // when they are whole
    apply_secret(test, server).await?;
    test.settled("c", 120).await?;
    let writer = test.writer("c").await?;
    let end = certificates_end(test).await?;
    ensure!(end.to_string() == "4096-01-01T00:00:00Z", "they end at {end}");
    let before = member_pods(test).await?;
    let old = shown(test).await?;
    // and when the user replaces them by new ones of the same authority
    with_fresh_certificates(test, &writer, async {
        for secret in authority.secrets("c", &test.namespace, &[&authority])? {
            apply_secret(test, &secret).await?;
        }
        until("every member to show a new certificate", 180, async || {
            let now = shown(test).await?;
            Ok(now.iter().all(|certificate| !old.contains(certificate)).then_some(()))
        })
        .await?;
        writer.goes_on(50, 60).await
    })
    .await?;
    // and when a key vanishes from a running cluster's Secret
    let patch = json!({"data": {"server-ca.crt": null}});
    secrets(test)
        .patch("etcd-server-tls", &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    let words = test.condition("c", "Degraded", "SecretMissing", 60).await?;
    ensure!(named(&words), "it says: {words}");
    writer.goes_on(50, 60).await?;
    ensure!(member_pods(test).await? == before, "a pod was touched");
    for secret in authority.secrets("c", &test.namespace, &[&authority])? {
        apply_secret(test, &secret).await?;
    }
    test.settled("c", 60).await?;
    ensure!(
        member_pods(test).await? == before,
        "a pod was restarted for certificates of the same authority"
    );
    writer.redirect(test.endpoint("c").await?);
    writer.goes_on(20, 60).await?;
    let written = writer.finish().await?;
    Ok(written.to_string())
}

pub(crate) async fn tls_static_authority_changed_by_the_user(test: &Test) -> Result<String> {
    let (old, new) = (Authority::new("old")?, Authority::new("new")?);
    let apply = async |of: &Authority, trusted: &[&Authority]| -> Result<()> {
        for secret in of.secrets("c", &test.namespace, trusted)? {
            apply_secret(test, &secret).await?;
        }
        Ok(())
    };
    apply(&old, &[&old]).await?;
    test.created("c", json!({"size": 3, "TLS": static_tls()})).await?;
    let writer = test.writer("c").await?;
    writer.measure_from_here();
    // when the user goes the way of both
    with_fresh_certificates(test, &writer, async {
        for (of, trusted) in [(&old, vec![&old, &new]), (&new, vec![&old, &new]), (&new, vec![&new])] {
            let (before, shows) = (member_pods(test).await?, shown(test).await?);
            let restarts = std::ptr::eq(of, &old) || trusted.len() == 1;
            apply(of, &trusted).await?;
            // then every member is restarted where others are to be trusted, and shows what is new
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
                    "old certificates are shown"
                );
                Ok(Some(()))
            })
            .await?;
            test.settled("c", 120).await?;
            writer.goes_on(50, 60).await?;
        }
        Ok(())
    })
    .await?;
    let written = writer.finish().await?.without_a_wait()?;
    // but when another authority comes at once, nothing is restarted and it is told
    let before = member_pods(test).await?;
    apply(&old, &[&old]).await?;
    let words = test.condition("c", "Degraded", "AuthorityReplaced", 60).await?;
    ensure!(words.contains("beside"), "it says: {words}");
    ensure!(member_pods(test).await? == before, "a pod was touched");
    apply(&new, &[&new]).await?;
    test.settled("c", 120).await?;
    Ok(written.to_string())
}

/// Asks for another certificate authority, as documented.
async fn ask_for_another_authority(test: &Test, why: &str) -> Result<()> {
    let patch = json!({"metadata": {"annotations": {"stateward.dev/rotate-ca": why}}});
    test.clusters()
        .patch("c", &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

/// How far a rotation is, as the status has it.
async fn stage_of(test: &Test, name: &str) -> Result<String> {
    let status = test.get(name).await?.status.unwrap_or_default();
    Ok(status.tls.unwrap_or_default().stage)
}

/// Waits until the authority in the Secret is another one and nobody trusts the old one; tells the stages that were seen.
async fn rotated(test: &Test, authority: &str, old: &[u8], seconds: u64) -> Result<Vec<String>> {
    let stages = std::cell::RefCell::new(Vec::<String>::new());
    until("the new authority alone to be trusted", seconds, async || {
        let stage = stage_of(test, "c").await?;
        {
            let mut stages = stages.borrow_mut();
            if !stage.is_empty() && stages.last() != Some(&stage) {
                stages.push(stage.clone());
            }
        }
        let file = async |secret: &str, key: &str| -> Result<Vec<u8>> {
            let data = secrets(test).get(secret).await?.data.unwrap_or_default();
            Ok(data
                .get(key)
                .with_context(|| format!("{secret} has no {key}"))?
                .0
                .clone())
        };
        let authority = file(authority, "tls.crt").await?;
        ensure!(authority != old, "the authority is the old one");
        for (secret, key) in [
            ("c-peer-tls", "peer-ca.crt"),
            ("c-server-tls", "server-ca.crt"),
            ("c-client-tls", "etcd-client-ca.crt"),
        ] {
            let trusted = file(secret, key).await?;
            let same = String::from_utf8_lossy(&trusted).trim().replace('\r', "")
                == String::from_utf8_lossy(&authority).trim().replace('\r', "");
            ensure!(same, "{secret} tells to trust another one; stage {stage}");
        }
        ensure!(stage.is_empty(), "stage {stage}");
        Ok(Some(()))
    })
    .await?;
    Ok(stages.into_inner())
}

/// Begins a rotation, follows it with the client to its end, and sees that no step was left out.
async fn rotated_step_by_step(
    test: &Test,
    writer: &Writer,
    begin: impl Future<Output = Result<()>>,
    secret: &str,
    old: &[u8],
) -> Result<()> {
    let stages = with_fresh_certificates(test, writer, async {
        begin.await?;
        let stages = rotated(test, secret, old, 400).await?;
        test.settled("c", 120).await?;
        writer.goes_on(100, 60).await?;
        Ok(stages)
    })
    .await?;
    ensure!(
        stages == ["TrustingBoth", "Reissuing", "DroppingOld"],
        "the stages were {stages:?}"
    );
    Ok(())
}

pub(crate) async fn tls_authority_rotated(test: &Test) -> Result<String> {
    // given a cluster with certificates of Stateward, and a client
    test.created("c", json!({"size": 3, "TLS": {"auto": {"overlapSeconds": 2}}}))
        .await?;
    let id = test.cluster_id("c").await?;
    let writer = test.writer("c").await?;
    let old_client = test.endpoint("c").await?;
    let before = member_pods(test).await?;
    let old = secrets(test).get("c-ca-tls").await?.data.unwrap_or_default()["tls.crt"]
        .0
        .clone();
    writer.goes_on(50, 30).await?;
    writer.measure_from_here();
    // when a person asks for another authority
    let ask = ask_for_another_authority(test, "the key may have leaked");
    rotated_step_by_step(test, &writer, ask, "c-ca-tls", &old).await?;
    // then every write is kept, and certificates of the old one open nothing any more
    ensure!(test.cluster_id("c").await? == id, "it is another cluster");
    ensure!(
        member_pods(test).await?.is_disjoint(&before),
        "a member was not restarted"
    );
    ensure!(
        old_client.client()?.get("x").await.is_err(),
        "a certificate of the old authority is served"
    );
    let after = member_pods(test).await?;
    let written = writer.finish().await?.without_a_wait()?;
    // and nothing more happens
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure!(member_pods(test).await? == after, "it goes on restarting members");
    Ok(written.to_string())
}

pub(crate) async fn tls_authority_of_the_user_replaced(test: &Test) -> Result<String> {
    // given a cluster that waits for the authority of the user, and then has certificates of it
    let (old, new) = (Authority::new("old")?, Authority::new("new")?);
    let tls = json!({"auto": {"caSecret": "mine", "overlapSeconds": 2}});
    test.create("c", json!({"size": 3, "TLS": tls})).await?;
    let words = test.condition("c", "Degraded", "CannotCarryOut", 60).await?;
    ensure!(words.contains("mine"), "it says: {words}");
    apply_secret(test, &old.secret("mine")).await?;
    test.settled("c", 180).await?;
    let writer = test.writer("c").await?;
    let (id, before, shows) = (
        test.cluster_id("c").await?,
        member_pods(test).await?,
        shown(test).await?,
    );
    // when the Secret has the certificate of one authority and the key of another, or is gone
    let mut torn = new.secret("mine");
    torn["stringData"]["tls.key"] = json!(old.key);
    apply_secret(test, &torn).await?;
    until("words about the key", 60, async || {
        let words = test.condition("c", "Degraded", "CannotCarryOut", 5).await?;
        ensure!(words.contains("not the key"), "it says: {words}");
        Ok(Some(()))
    })
    .await?;
    secrets(test)
        .delete("mine", &kube::api::DeleteParams::default())
        .await?;
    until("words about the Secret", 60, async || {
        let words = test.condition("c", "Degraded", "CannotCarryOut", 5).await?;
        ensure!(words.contains("is not there"), "it says: {words}");
        Ok(Some(()))
    })
    .await?;
    // then a member that is lost comes back all the same, and no certificate is another one
    let lost = test.pods_of("c").await?[0].name_any();
    test.delete_pod(&lost).await?;
    until("the member to be back", 120, async || {
        let ready = test.get("c").await?.status.unwrap_or_default().members.ready.len();
        let now = member_pods(test).await?;
        Ok((ready == 3 && now.len() == 3 && now != before).then_some(()))
    })
    .await?;
    writer.goes_on(30, 60).await?;
    ensure!(
        shown(test).await?.iter().all(|one| shows.contains(one)),
        "other certificates are shown"
    );
    // when it is wholly another one
    writer.measure_from_here();
    let secret = new.secret("mine");
    // then it is rotated as any authority is
    rotated_step_by_step(test, &writer, apply_secret(test, &secret), "mine", old.pem.as_bytes()).await?;
    ensure!(test.cluster_id("c").await? == id, "it is another cluster");
    let written = writer.finish().await?.without_a_wait()?;
    Ok(written.to_string())
}

pub(crate) async fn tls_authority_rotated_under_a_continuous_backup(test: &Test) -> Result<String> {
    // given a cluster whose every change is streamed to a store
    test.created("c", json!({"size": 3, "TLS": {"auto": {"overlapSeconds": 2}}}))
        .await?;
    backup::claim(test, "backups").await?;
    let to = json!({"clusterRef": {"name": "c"}, "file": {"claimName": "backups", "path": "c/backup"},
        "backupPolicy": {"backupIntervalInSecond": 3600}, "continuous": true});
    backup::create(test, "b", to).await?;
    backup::succeeded(test, "b", 60).await?;
    let before = restore::write(test, "c", "before").await?;
    backup::streamed(test, "b", before, 90).await?;
    let writer = test.writer("c").await?;
    let old = secrets(test).get("c-ca-tls").await?.data.unwrap_or_default()["tls.crt"]
        .0
        .clone();
    // when its authority is rotated, and a client writes all along
    with_fresh_certificates(test, &writer, async {
        ask_for_another_authority(test, "the key may have leaked").await?;
        rotated(test, "c-ca-tls", &old, 400).await?;
        test.settled("c", 120).await?;
        writer.goes_on(50, 60).await
    })
    .await?;
    let written = writer.finish().await?;
    // then what is written with the new certificates is streamed, too
    let last = restore::write(test, "c", "after").await?;
    let status = backup::streamed(test, "b", last, 240).await?;
    let healthy = until("no trouble to be told", 60, async || {
        let status = backup::status(test, "b").await?;
        ensure!(status.waiting.is_empty(), "it says: {}", status.waiting);
        Ok(Some(status))
    });
    healthy.await?;
    // and the changes lead from the only snapshot to the end without a hole
    ensure!(status.backups.len() == 1, "{} snapshots", status.backups.len());
    let to = json!({"backupRef": {"name": "b"}, "restoreTo": {"revision": last}});
    restore::create(test, to).await?;
    restore::succeeded(test, "c", 180).await?;
    test.settled("c", 120).await?;
    for prefix in ["before", "after"] {
        restore::has(test, "c", prefix, last).await?;
    }
    let found = written_keys(test).await?;
    ensure!(
        found >= written.acknowledged,
        "{found} of {} keys are in the backup",
        written.acknowledged
    );
    Ok(format!("{} writes, all in the backup", written.acknowledged))
}

/// How many keys of the writing client there are.
async fn written_keys(test: &Test) -> Result<usize> {
    let client = test.endpoint("c").await?.client()?;
    let request = RangeRequest {
        key: b"e2e/".to_vec(),
        range_end: b"e2e0".to_vec(),
        count_only: true,
        ..RangeRequest::default()
    };
    Ok(usize::try_from(client.range(request).await?.count)?)
}

pub(crate) async fn tls_authority_rotated_while_the_operator_dies(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3, "TLS": {"auto": {"overlapSeconds": 1}}}))
        .await?;
    let writer = test.writer("c").await?;
    let old = secrets(test).get("c-ca-tls").await?.data.unwrap_or_default()["tls.crt"]
        .0
        .clone();
    let mut deaths = 0;
    with_fresh_certificates(test, &writer, async {
        // its time has come
        let patch = json!({"metadata": {"annotations": {"stateward.dev/renew-after": "2020-01-01T00:00:00Z"}}});
        secrets(test)
            .patch("c-ca-tls", &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        // whenever a stage begins, and again in the middle of it
        for stage in ["TrustingBoth", "Reissuing", "DroppingOld"] {
            for pause in [0, 1500] {
                let there = until(&format!("stage {stage}"), 120, async || {
                    let now = stage_of(test, "c").await?;
                    Ok((now == stage).then_some(()))
                })
                .await;
                if there.is_err() {
                    break; // it was faster
                }
                tokio::time::sleep(Duration::from_millis(pause)).await;
                test.ground.kill_operator().await?;
                test.ground.start_operator().await?;
                deaths += 1;
                if pause > 0 {
                    break;
                }
            }
        }
        rotated(test, "c-ca-tls", &old, 400).await?;
        test.settled("c", 120).await?;
        writer.goes_on(50, 60).await
    })
    .await?;
    let written = writer.finish().await?;
    Ok(format!(
        "{deaths} deaths, {} writes, longest gap {:.1} s",
        written.acknowledged,
        written.longest_gap.as_secs_f64()
    ))
}

pub(crate) async fn tls_auto_becomes_static(test: &Test) -> Result<String> {
    // given a cluster with certificates of Stateward, a client, and Secrets of the user's own authority
    test.created("c", json!({"size": 3, "TLS": {"auto": {}}})).await?;
    let id = test.cluster_id("c").await?;
    let writer = test.writer("c").await?;
    let old_client = test.endpoint("c").await?;
    let authority = Authority::new("static")?;
    apply_secret(test, &authority.secret("theirs")).await?;
    let own = authority.secrets("c", &test.namespace, &[&authority])?;
    // one of them is missing at first
    for secret in &own[1..] {
        apply_secret(test, secret).await?;
    }
    writer.goes_on(50, 30).await?;
    writer.measure_from_here();
    // when one edit asks for those
    let mut tls = static_tls();
    tls["static"]["overlapSeconds"] = json!(2);
    tls["auto"] = Value::Null;
    test.edit("c", json!({ "TLS": tls })).await?;
    let words = test.condition("c", "Degraded", "CannotCarryOut", 60).await?;
    ensure!(
        words.contains("the Secret etcd-peer-tls is not there"),
        "it says: {words}"
    );
    let begin = apply_secret(test, &own[0]);
    rotated_step_by_step(test, &writer, begin, "theirs", &[]).await?;
    // then their authority alone counts: its clients are served and those of the old one are not
    ensure!(test.cluster_id("c").await? == id, "it is another cluster");
    ensure!(
        old_client.client()?.get("x").await.is_err(),
        "a certificate of the old authority is served"
    );
    let host = names::client_host("c", &test.namespace, "");
    let with_their_own = Endpoint {
        tls: Some((test.client_tls("etcd-client-tls").await?, host)),
        ..old_client
    };
    with_their_own.client()?.get("x").await?;
    // and what they renew reaches members without a restart
    let before = member_pods(test).await?;
    with_fresh_certificates(test, &writer, async {
        let renewed = authority.secrets("c", &test.namespace, &[&authority])?;
        let wanted = renewed[1]["stringData"]["server.crt"]
            .as_str()
            .unwrap_or_default()
            .trim()
            .to_owned();
        for secret in &renewed {
            apply_secret(test, secret).await?;
        }
        until("the renewed certificate to be handed out", 60, async || {
            let data = secrets(test).get("c-server-tls").await?.data.unwrap_or_default();
            let now = data
                .get("server.crt")
                .map(|file| String::from_utf8_lossy(&file.0).trim().to_owned());
            Ok((now.as_deref() == Some(wanted.as_str())).then_some(()))
        })
        .await?;
        writer.goes_on(50, 60).await
    })
    .await?;
    ensure!(member_pods(test).await? == before, "a renewal restarted a pod");
    let written = writer.finish().await?.without_a_wait()?;
    Ok(written.to_string())
}

pub(crate) async fn tls_static_becomes_auto(test: &Test) -> Result<String> {
    // given a cluster with the user's own certificates, and a client
    let authority = Authority::new("static")?;
    for secret in authority.secrets("c", &test.namespace, &[&authority])? {
        apply_secret(test, &secret).await?;
    }
    test.created("c", json!({"size": 3, "TLS": static_tls()})).await?;
    let id = test.cluster_id("c").await?;
    let writer = test.writer("c").await?;
    let old_client = test.endpoint("c").await?;
    writer.goes_on(50, 30).await?;
    writer.measure_from_here();
    // when one edit asks for certificates of Stateward
    let auto = json!({"TLS": {"static": null, "auto": {"overlapSeconds": 2}}});
    let edit = async { test.edit("c", auto).await.map(drop) };
    // then the new authority came by the same steps as any other, and the user's own certificates open nothing any more
    rotated_step_by_step(test, &writer, edit, "c-ca-tls", &[]).await?;
    ensure!(test.cluster_id("c").await? == id, "it is another cluster");
    ensure!(
        old_client.client()?.get("x").await.is_err(),
        "a certificate of the old authority is served"
    );
    let written = writer.finish().await?.without_a_wait()?;
    Ok(written.to_string())
}
