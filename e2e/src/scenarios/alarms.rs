//! Alarms of etcd, and what keeps members from running: both are told, and what can be cleared is.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use stateward_etcd::Client;
use stateward_plan::etcd::{Alarm, MemberId};

use crate::test::Test;
use crate::wait::until;

/// A member that was in the list of no cluster here for long.
const GONE: MemberId = MemberId(0xdead);

/// A client of the first pod, past the service: etcd calls no member ready while CORRUPT is raised.
async fn member(test: &Test, name: &str) -> Result<Client> {
    let (cluster, pods) = (test.get(name).await?, test.pods_of(name).await?);
    test.etcd(&cluster, pods.first().context("no pod")?).await
}

async fn ids(test: &Test, name: &str) -> Result<Vec<u64>> {
    let mut ids: Vec<_> = test.list(name).await?.iter().map(|member| member.id).collect();
    ids.sort_unstable();
    Ok(ids)
}

pub(crate) async fn alarms_of_anybody_are_cleared(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let before = ids(test, "c").await?;
    let own = MemberId(*before.first().context("no member")?);
    let mut told = Vec::new();
    for (of, alarm) in [
        (own, Alarm::Corrupt),
        (MemberId(0), Alarm::Corrupt),
        (GONE, Alarm::Corrupt),
        (GONE, Alarm::NoSpace),
    ] {
        // given a cluster that nobody touches for the moment,
        test.edit("c", json!({"paused": true})).await?;
        test.condition("c", "Progressing", "Paused", 30).await?;
        // when an alarm is raised for a member, for nobody, or for one that is gone,
        let client = member(test, "c").await?;
        client.raise(of, alarm).await?;
        ensure!(
            client.put("key", "refused").await.is_err(),
            "{alarm} of {of} refuses no write"
        );
        // then the status tells of it, and not that all is well or that the quorum is lost,
        let words = test.condition("c", "Available", "WritesRefused", 60).await?;
        ensure!(words.contains(&alarm.to_string()), "the alarm is not named: {words}");
        test.condition("c", "Degraded", "WritesRefused", 10).await?;
        told.push(words);
        // and when the cluster may be touched again, it is cleared, and no member had to go.
        test.edit("c", json!({"paused": false})).await?;
        until("writes to be taken again", 90, async || {
            client.put("key", format!("after {alarm} of {of}")).await?;
            Ok(Some(()))
        })
        .await?;
        test.settled("c", 60).await?;
        ensure!(
            ids(test, "c").await? == before,
            "{alarm} of {of} changed the member list"
        );
    }
    Ok(told.join(" | "))
}

/// The events about an object of the namespace with this reason.
async fn warnings(test: &Test, name: &str, reason: &str) -> Result<usize> {
    let events: Api<Event> = Api::namespaced(test.client.clone(), &test.namespace);
    let about = events
        .list(&ListParams::default())
        .await?
        .items
        .into_iter()
        .filter(|event| {
            let object = &event.involved_object;
            object.kind.as_deref() == Some("EtcdCluster") && object.name.as_deref() == Some(name)
        });
    Ok(about
        .filter(|event| event.reason.as_deref() == Some(reason) && event.type_.as_deref() == Some("Warning"))
        .count())
}

pub(crate) async fn image_that_cannot_be_pulled_is_told(test: &Test) -> Result<String> {
    // Given a cluster whose image nobody has,
    test.create("c", json!({"size": 3, "repository": "quay.io/nobody/has-this"}))
        .await?;
    // when it is created, then that is told as a condition and as one event,
    let words = test.condition("c", "Degraded", "ImagePullBackOff", 60).await?;
    until("the event", 30, async || {
        Ok(Some(warnings(test, "c", "ImagePullBackOff").await?).filter(|count| *count > 0))
    })
    .await?;
    ensure!(
        warnings(test, "c", "ImagePullBackOff").await? == 1,
        "the same trouble is told more than once"
    );
    // and when the image is corrected, all is well.
    test.edit("c", json!({"repository": Value::Null})).await?;
    test.settled("c", 120).await?;
    Ok(words)
}
