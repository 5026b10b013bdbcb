//! The operator crashes in the middle of its work.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::test::Test;
use crate::wait::until;

async fn crash(test: &Test) -> Result<()> {
    test.environment.kill_operator().await?;
    test.environment.start_operator().await
}

pub(crate) async fn killed_during_create(test: &Test) -> Result<String> {
    test.create("c", json!({"size": 3})).await?;
    for pods in 1..=3 {
        until(&format!("pod {pods}"), 60, async || {
            Ok((test.pods_of("c").await?.len() >= pods).then_some(()))
        })
        .await?;
        crash(test).await?;
    }
    test.settled("c", 120).await?;
    let writer = test.writer("c").await?;
    writer.writes_more(20, 30).await?;
    let written = writer.finish().await?;
    Ok(format!("{} writes", written.acknowledged))
}

pub(crate) async fn killed_during_scale(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 1})).await?;
    let writer = test.writer("c").await?;
    test.edit("c", json!({"size": 3})).await?;
    until("the second pod", 60, async || {
        Ok((test.pods_of("c").await?.len() >= 2).then_some(()))
    })
    .await?;
    crash(test).await?;
    test.settled("c", 120).await?;
    test.edit("c", json!({"size": 1})).await?;
    crash(test).await?;
    test.settled("c", 120).await?;
    ensure!(test.list("c").await?.len() == 1, "a member is stranded");
    let written = writer.finish().await?;
    Ok(format!("{} writes", written.acknowledged))
}

pub(crate) async fn killed_during_replacement(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let writer = test.writer("c").await?;
    let leader = test.leader("c").await?;
    let pods = test.pods_of("c").await?;
    let victim = pods
        .iter()
        .map(ResourceExt::name_any)
        .find(|pod| *pod != leader)
        .unwrap_or_default();
    test.claims().delete(&victim, &DeleteParams::default()).await?;
    test.delete_pod(&victim).await?;
    until("the lost member to leave the list", 60, async || {
        Ok(test
            .list("c")
            .await?
            .iter()
            .all(|member| member.name != victim)
            .then_some(()))
    })
    .await?;
    crash(test).await?;
    test.settled("c", 120).await?;
    let written = writer.finish().await?;
    Ok(format!("{} writes", written.acknowledged))
}

pub(crate) async fn restart_touches_no_pod(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let facts = async || -> Result<Vec<_>> {
        let pods = test.pods_of("c").await?;
        let mut facts: Vec<_> = pods
            .iter()
            .map(|pod| (pod.name_any(), pod.uid(), pod.metadata.resource_version.clone()))
            .collect();
        facts.sort();
        Ok(facts)
    };
    let before = facts().await?;
    let version = test.get("c").await?.metadata.resource_version;
    crash(test).await?;
    test.settled("c", 60).await?;
    let writer = test.writer("c").await?;
    writer.writes_more(50, 30).await?;
    ensure!(facts().await? == before, "the operator's restart changed a pod");
    ensure!(
        test.get("c").await?.metadata.resource_version == version,
        "the operator's restart wrote to the cluster"
    );
    writer.finish().await?;
    Ok("not one write".into())
}

/// Runs operators that each crash right after their first write, until the cluster matches its spec.
async fn one_write_a_life(test: &Test, seconds: u64) -> Result<u32> {
    let meter = test.environment.meter().context("nothing is counted here")?;
    let mut lives = 0;
    let settled = test.settled("c", seconds);
    tokio::pin!(settled);
    let result = loop {
        meter.fall_after(1);
        tokio::select! {
            settled = &mut settled => break settled,
            () = meter.fell() => {}
        }
        lives += 1;
        crash(test).await?;
    };
    meter.fall_after(0);
    crash(test).await?;
    result.map(|_| lives)
}

pub(crate) async fn killed_after_every_write(test: &Test) -> Result<String> {
    let meter = test.environment.meter().context("nothing is counted here")?;
    meter.fall_after(1);
    test.create("c", json!({"size": 1, "version": "3.6.16"})).await?;
    let mut lives = vec![("create", one_write_a_life(test, 300).await?)];
    let writer = test.writer("c").await?;
    meter.fall_after(1);
    test.edit("c", json!({"size": 3})).await?;
    lives.push(("grow", one_write_a_life(test, 400).await?));
    let leader = test.leader("c").await?;
    let pods = test.pods_of("c").await?;
    let victim = pods.iter().map(ResourceExt::name_any).find(|pod| *pod != leader);
    let victim = victim.context("no follower")?;
    meter.fall_after(1);
    test.claims().delete(&victim, &DeleteParams::default()).await?;
    test.delete_pod(&victim).await?;
    until("the pod to go", 60, async || {
        Ok(test.pods().get_opt(&victim).await?.is_none().then_some(()))
    })
    .await?;
    lives.push(("replace", one_write_a_life(test, 400).await?));
    meter.fall_after(1);
    test.edit("c", json!({"version": "3.7.3"})).await?;
    lives.push(("upgrade", one_write_a_life(test, 400).await?));
    meter.fall_after(1);
    test.edit("c", json!({"size": 1})).await?;
    lives.push(("shrink", one_write_a_life(test, 300).await?));
    let status = test.get("c").await?.status.unwrap_or_default();
    ensure!(status.current_version == "3.7.3", "it runs {}", status.current_version);
    ensure!(test.list("c").await?.len() == 1, "a member is stranded");
    ensure!(test.claims_of("c").await?.len() == 1, "a claim is stranded");
    let written = writer.finish().await?;
    Ok(format!(
        "operators with one write each: {}; {} writes, longest gap {:.1} s",
        lives
            .iter()
            .map(|(what, lives)| format!("{what} {lives}"))
            .collect::<Vec<_>>()
            .join(", "),
        written.acknowledged,
        written.longest_gap.as_secs_f64()
    ))
}

/// Two operators run, and the lease moves between them while they work. The holder may lose it in the middle of a
/// reconcile.
pub(crate) async fn two_operators_and_a_moving_lease(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 1})).await?;
    let writer = test.writer("c").await?;
    test.environment.second_operator(true).await?;
    let leases: Api<Lease> = Api::namespaced(test.client.clone(), "stateward-system");
    let mut holders = std::collections::BTreeSet::new();
    let work = async {
        for size in [3, 1, 3] {
            test.edit("c", json!({ "size": size })).await?;
            test.settled("c", 150).await?;
        }
        anyhow::Ok(())
    };
    let wander = async {
        loop {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            if let Ok(Some(lease)) = leases.get_opt("stateward").await {
                holders.extend(lease.spec.and_then(|spec| spec.holder_identity));
            }
            // Nobody holds it: the first operator that checks acquires it, and the other one may not have noticed yet.
            let free = json!({"spec": {"holderIdentity": null, "renewTime": null}});
            let _lost = leases
                .patch("stateward", &PatchParams::default(), &Patch::Merge(&free))
                .await;
        }
    };
    let result = tokio::select! {
        result = work => result,
        () = wander => Ok(()),
    };
    test.environment.second_operator(false).await?;
    result?;
    test.settled("c", 60).await?;
    ensure!(test.list("c").await?.len() == 3, "a member is stranded or missing");
    ensure!(test.claims_of("c").await?.len() == 3, "a claim is stranded or missing");
    ensure!(holders.len() > 1, "only {holders:?} ever led");
    let written = writer.finish().await?;
    Ok(format!(
        "{} operators led; {} writes",
        holders.len(),
        written.acknowledged
    ))
}

pub(crate) async fn idle_clusters_send_no_requests(test: &Test) -> Result<String> {
    let meter = test.environment.meter().context("nothing is counted here")?;
    let plain = json!({"size": 3});
    let with_certificates = json!({"size": 3, "TLS": {"auto": {}}});
    for (name, spec) in [("a", &plain), ("b", &plain), ("c", &with_certificates)] {
        test.create(name, spec.clone()).await?;
    }
    for name in ["a", "b", "c"] {
        test.settled(name, 120).await?;
    }
    // Events are written a moment after what they report.
    let before = until("ten seconds without a request", 60, async || {
        let before = meter.count();
        tokio::time::sleep(Duration::from_secs(10)).await;
        Ok((meter.count() == before).then_some(before))
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let after = meter.count();
    crate::meter::quiet(before, after)?;
    Ok(format!(
        "60 s with three clusters: no write, no read, {} watches opened anew",
        after.watches - before.watches
    ))
}
