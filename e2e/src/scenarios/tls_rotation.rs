//! One CA after another: rotated, replaced, or the TLS mode changed, while the cluster runs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use stateward_etcd::api::names;
use stateward_etcd_driver::client::messages::RangeRequest;

use super::tls::{apply_secret, member_pods, secrets, shown, static_tls, with_fresh_certificates};
use super::{backup, restore};
use crate::certificates::Ca;
use crate::test::Test;
use crate::wait::until;
use crate::writer::{Endpoint, Writer};

/// Requests a CA rotation, as documented.
async fn request_ca_rotation(test: &Test, why: &str) -> Result<()> {
    let patch = json!({"metadata": {"annotations": {"stateward.dev/rotate-ca": why}}});
    test.clusters()
        .patch("c", &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

/// The stage of a rotation, according to the status.
async fn stage_of(test: &Test, name: &str) -> Result<String> {
    let status = test.get(name).await?.status.unwrap_or_default();
    Ok(status.tls.unwrap_or_default().stage)
}

/// Waits until the Secret contains another CA and nobody trusts the old one. Returns the stages that were seen.
async fn rotated(test: &Test, ca: &str, old: &[u8], seconds: u64) -> Result<Vec<String>> {
    let stages = std::cell::RefCell::new(Vec::<String>::new());
    until("only the new CA to be trusted", seconds, async || {
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
        // With TLS.auto, members have their own CA.
        let peers = if ca == "theirs" { ca } else { "c-peer-ca-tls" };
        let peers = file(peers, "tls.crt").await?;
        let ca = file(ca, "tls.crt").await?;
        ensure!(ca != old, "the CA did not change");
        for (secret, key, ca) in [
            ("c-peer-tls", "peer-ca.crt", &peers),
            ("c-server-tls", "server-ca.crt", &ca),
            ("c-client-tls", "etcd-client-ca.crt", &ca),
        ] {
            let trusted = file(secret, key).await?;
            let same = String::from_utf8_lossy(&trusted).trim().replace('\r', "")
                == String::from_utf8_lossy(ca).trim().replace('\r', "");
            ensure!(same, "{secret} trusts another CA; stage {stage}");
        }
        ensure!(stage.is_empty(), "stage {stage}");
        Ok(Some(()))
    })
    .await?;
    Ok(stages.into_inner())
}

/// Starts a rotation, follows it with the client to its end, and checks that no step was left out.
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
        writer.writes_more(100, 60).await?;
        Ok(stages)
    })
    .await?;
    ensure!(
        stages == ["TrustingBoth", "Reissuing", "DroppingOld"],
        "the stages were {stages:?}"
    );
    Ok(())
}

pub(crate) async fn tls_ca_rotated(test: &Test) -> Result<String> {
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
    let old_of_peers = secrets(test).get("c-peer-ca-tls").await?.data;
    writer.writes_more(50, 30).await?;
    writer.measure_from_here();
    // when a user requests a CA rotation
    let ask = request_ca_rotation(test, "the key may have leaked");
    rotated_step_by_step(test, &writer, ask, "c-ca-tls", &old).await?;
    // then every write is kept, and certificates of the old CA are no longer accepted
    ensure!(test.cluster_id("c").await? == id, "it is another cluster");
    ensure!(
        member_pods(test).await?.is_disjoint(&before),
        "a member was not restarted"
    );
    ensure!(
        old_client.client()?.get("x").await.is_err(),
        "a certificate of the old CA is accepted"
    );
    ensure!(
        secrets(test).get("c-peer-ca-tls").await?.data != old_of_peers,
        "members kept their CA"
    );
    let after = member_pods(test).await?;
    let written = writer.finish().await?.without_a_wait()?;
    // and nothing more happens
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure!(member_pods(test).await? == after, "it keeps restarting members");
    Ok(written.to_string())
}

pub(crate) async fn tls_ca_of_the_user_replaced(test: &Test) -> Result<String> {
    // given a cluster that waits for the user's CA, and then has certificates of it
    let (old, new) = (Ca::new("old")?, Ca::new("new")?);
    let tls = json!({"auto": {"caSecret": "mine", "overlapSeconds": 2}});
    test.create("c", json!({"size": 3, "TLS": tls})).await?;
    let message = test.condition("c", "Degraded", "CannotCarryOut", 60).await?;
    ensure!(message.contains("mine"), "the message is: {message}");
    apply_secret(test, &old.secret("mine")).await?;
    test.settled("c", 180).await?;
    let writer = test.writer("c").await?;
    let (id, before, shows) = (
        test.cluster_id("c").await?,
        member_pods(test).await?,
        shown(test).await?,
    );
    // when the Secret has the certificate of one CA and the key of another, or is gone
    let mut torn = new.secret("mine");
    torn["stringData"]["tls.key"] = json!(old.key);
    apply_secret(test, &torn).await?;
    until("a message about the key", 60, async || {
        let message = test.condition("c", "Degraded", "CannotCarryOut", 5).await?;
        ensure!(message.contains("not the key"), "the message is: {message}");
        Ok(Some(()))
    })
    .await?;
    secrets(test)
        .delete("mine", &kube::api::DeleteParams::default())
        .await?;
    until("a message about the Secret", 60, async || {
        let message = test.condition("c", "Degraded", "CannotCarryOut", 5).await?;
        ensure!(message.contains("does not exist"), "the message is: {message}");
        Ok(Some(()))
    })
    .await?;
    // then a lost member still comes back, and no certificate changes
    let lost = test.pods_of("c").await?[0].name_any();
    test.delete_pod(&lost).await?;
    until("the member to be back", 120, async || {
        let ready = test.get("c").await?.status.unwrap_or_default().members.ready.len();
        let now = member_pods(test).await?;
        Ok((ready == 3 && now.len() == 3 && now != before).then_some(()))
    })
    .await?;
    writer.writes_more(30, 60).await?;
    ensure!(
        shown(test).await?.iter().all(|one| shows.contains(one)),
        "certificates changed"
    );
    // when it is replaced completely
    writer.measure_from_here();
    let secret = new.secret("mine");
    // then it is an ordinary rotation
    rotated_step_by_step(test, &writer, apply_secret(test, &secret), "mine", old.pem.as_bytes()).await?;
    ensure!(test.cluster_id("c").await? == id, "it is another cluster");
    let written = writer.finish().await?.without_a_wait()?;
    Ok(written.to_string())
}

pub(crate) async fn tls_ca_rotated_during_a_continuous_backup(test: &Test) -> Result<String> {
    // given a cluster whose changes are streamed to a store
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
    // when its CA is rotated while a client writes
    with_fresh_certificates(test, &writer, async {
        request_ca_rotation(test, "the key may have leaked").await?;
        rotated(test, "c-ca-tls", &old, 400).await?;
        test.settled("c", 120).await?;
        writer.writes_more(50, 60).await
    })
    .await?;
    let written = writer.finish().await?;
    // then what is written with the new certificates is streamed, too
    let last = restore::write(test, "c", "after").await?;
    let status = backup::streamed(test, "b", last, 240).await?;
    let healthy = until("no problem to be reported", 60, async || {
        let status = backup::status(test, "b").await?;
        ensure!(status.waiting.is_empty(), "the message is: {}", status.waiting);
        Ok(Some(status))
    });
    healthy.await?;
    // and the changes are complete from the only snapshot to the end
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

/// The number of keys of the writing client.
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

pub(crate) async fn tls_ca_rotated_while_the_operator_crashes(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3, "TLS": {"auto": {"overlapSeconds": 1}}}))
        .await?;
    let writer = test.writer("c").await?;
    let old = secrets(test).get("c-ca-tls").await?.data.unwrap_or_default()["tls.crt"]
        .0
        .clone();
    let mut deaths = 0;
    with_fresh_certificates(test, &writer, async {
        // the renewal time has come
        let patch = json!({"metadata": {"annotations": {"stateward.dev/renew-after": "2020-01-01T00:00:00Z"}}});
        secrets(test)
            .patch("c-ca-tls", &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        // at the beginning of every stage, and again in the middle of it
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
                test.environment.kill_operator().await?;
                test.environment.start_operator().await?;
                deaths += 1;
                if pause > 0 {
                    break;
                }
            }
        }
        rotated(test, "c-ca-tls", &old, 400).await?;
        test.settled("c", 120).await?;
        writer.writes_more(50, 60).await
    })
    .await?;
    let written = writer.finish().await?;
    Ok(format!(
        "{deaths} crashes, {} writes, longest gap {:.1} s",
        written.acknowledged,
        written.longest_gap.as_secs_f64()
    ))
}

pub(crate) async fn tls_auto_becomes_static(test: &Test) -> Result<String> {
    // given a cluster with certificates of Stateward, a client, and Secrets with the user's own CA
    test.created("c", json!({"size": 3, "TLS": {"auto": {}}})).await?;
    let id = test.cluster_id("c").await?;
    let writer = test.writer("c").await?;
    let old_client = test.endpoint("c").await?;
    let ca = Ca::new("static")?;
    apply_secret(test, &ca.secret("theirs")).await?;
    let own = ca.secrets("c", &test.namespace, &[&ca])?;
    // one of them is missing at first
    for secret in &own[1..] {
        apply_secret(test, secret).await?;
    }
    writer.writes_more(50, 30).await?;
    writer.measure_from_here();
    // when one edit switches to them
    let mut tls = static_tls();
    tls["static"]["overlapSeconds"] = json!(2);
    tls["auto"] = Value::Null;
    test.edit("c", json!({ "TLS": tls })).await?;
    let message = test.condition("c", "Degraded", "CannotCarryOut", 60).await?;
    ensure!(
        message.contains("the Secret etcd-peer-tls does not exist"),
        "the message is: {message}"
    );
    let begin = apply_secret(test, &own[0]);
    rotated_step_by_step(test, &writer, begin, "theirs", &[]).await?;
    // then only their CA is trusted: its clients are served and those of the old CA are not
    ensure!(test.cluster_id("c").await? == id, "it is another cluster");
    ensure!(
        old_client.client()?.get("x").await.is_err(),
        "a certificate of the old CA is accepted"
    );
    let host = names::client_host("c", &test.namespace, "");
    let with_their_own = Endpoint {
        tls: Some((test.client_tls("etcd-client-tls").await?, host)),
        ..old_client
    };
    with_their_own.client()?.get("x").await?;
    // and renewed certificates reach members without a restart
    let before = member_pods(test).await?;
    with_fresh_certificates(test, &writer, async {
        let renewed = ca.secrets("c", &test.namespace, &[&ca])?;
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
        writer.writes_more(50, 60).await
    })
    .await?;
    ensure!(member_pods(test).await? == before, "a renewal restarted a pod");
    // and a completely different CA is rotated in by the same steps
    let another = Ca::new("another")?;
    let begin = async {
        apply_secret(test, &another.secret("theirs")).await?;
        for secret in another.secrets("c", &test.namespace, &[&another])? {
            apply_secret(test, &secret).await?;
        }
        Ok(())
    };
    rotated_step_by_step(test, &writer, begin, "theirs", ca.pem.as_bytes()).await?;
    ensure!(
        with_their_own.client()?.get("x").await.is_err(),
        "a certificate of their first CA is accepted"
    );
    let written = writer.finish().await?.without_a_wait()?;
    Ok(written.to_string())
}

pub(crate) async fn tls_static_becomes_auto(test: &Test) -> Result<String> {
    // given a cluster with the user's own certificates, and a client
    let ca = Ca::new("static")?;
    for secret in ca.secrets("c", &test.namespace, &[&ca])? {
        apply_secret(test, &secret).await?;
    }
    test.created("c", json!({"size": 3, "TLS": static_tls()})).await?;
    let id = test.cluster_id("c").await?;
    let writer = test.writer("c").await?;
    let old_client = test.endpoint("c").await?;
    writer.writes_more(50, 30).await?;
    writer.measure_from_here();
    // when one edit switches to certificates of Stateward
    let auto = json!({"TLS": {"static": null, "auto": {"overlapSeconds": 2}}});
    let edit = async { test.edit("c", auto).await.map(drop) };
    // then the new CA came by the ordinary steps, and the user's own certificates are no longer accepted
    rotated_step_by_step(test, &writer, edit, "c-ca-tls", &[]).await?;
    ensure!(test.cluster_id("c").await? == id, "it is another cluster");
    ensure!(
        old_client.client()?.get("x").await.is_err(),
        "a certificate of the old CA is accepted"
    );
    let written = writer.finish().await?.without_a_wait()?;
    Ok(written.to_string())
}
