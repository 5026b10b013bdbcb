//! Alarms of etcd, and problems that keep members from running: all are reported, and alarms are cleared where
//! possible.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use stateward_etcd::cluster::{Alarm, MemberId};
use stateward_etcd_driver::client::Client;

use crate::test::Test;
use crate::wait::until;

/// A member ID that no member list of this cluster contains.
const GONE: MemberId = MemberId(0xdead);

/// A client of the first pod. The service does not help here, because no member is ready while CORRUPT is raised.
async fn member(test: &Test, name: &str) -> Result<Client> {
    let (cluster, pods) = (test.get(name).await?, test.pods_of(name).await?);
    test.etcd(&cluster, pods.first().context("no pod")?).await
}

async fn ids(test: &Test, name: &str) -> Result<Vec<u64>> {
    let mut ids: Vec<_> = test.list(name).await?.iter().map(|member| member.id).collect();
    ids.sort_unstable();
    Ok(ids)
}

pub(crate) async fn alarms_of_any_member_are_cleared(test: &Test) -> Result<String> {
    test.created("c", json!({"size": 3})).await?;
    let before = ids(test, "c").await?;
    let own = MemberId(*before.first().context("no member")?);
    let mut messages = Vec::new();
    for (of, alarm) in [
        (own, Alarm::Corrupt),
        (MemberId(0), Alarm::Corrupt),
        (GONE, Alarm::Corrupt),
        (GONE, Alarm::NoSpace),
    ] {
        // given a paused cluster,
        test.edit("c", json!({"paused": true})).await?;
        test.condition("c", "Progressing", "Paused", 30).await?;
        // when an alarm is raised for a member, for ID 0, or for a member that is gone,
        let client = member(test, "c").await?;
        client.raise(of, alarm).await?;
        ensure!(
            client.put("key", "refused").await.is_err(),
            "{alarm} of {of} does not block writes"
        );
        // then the status reports the alarm, and neither a healthy cluster nor a lost quorum,
        let message = test.condition("c", "Available", "WritesRefused", 60).await?;
        ensure!(
            message.contains(&alarm.to_string()),
            "the alarm is not named: {message}"
        );
        test.condition("c", "Degraded", "WritesRefused", 10).await?;
        messages.push(message);
        // and when the cluster is no longer paused, the alarm is cleared without removing a member.
        test.edit("c", json!({"paused": false})).await?;
        until("writes to be accepted again", 90, async || {
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
    Ok(messages.join(" | "))
}

/// The number of events about an object with this reason.
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

pub(crate) async fn image_pull_failure_is_reported(test: &Test) -> Result<String> {
    // given a cluster with an image that does not exist,
    test.create("c", json!({"size": 3, "repository": "quay.io/nobody/has-this"}))
        .await?;
    // when it is created, then a condition and exactly one event report it,
    let message = test.condition("c", "Degraded", "ImagePullBackOff", 60).await?;
    until("the event", 30, async || {
        Ok(Some(warnings(test, "c", "ImagePullBackOff").await?).filter(|count| *count > 0))
    })
    .await?;
    ensure!(
        warnings(test, "c", "ImagePullBackOff").await? == 1,
        "the same problem is reported more than once"
    );
    // and when the image is corrected, the cluster becomes healthy.
    test.edit("c", json!({"repository": Value::Null})).await?;
    test.settled("c", 120).await?;
    Ok(message)
}
