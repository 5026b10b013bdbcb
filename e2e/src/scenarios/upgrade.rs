//! Versions change under load.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use stateward_etcd::api::EtcdVersion;

use crate::test::Test;

/// The newest patch of a minor version in this environment.
fn newest(test: &Test, minor: u64) -> Option<EtcdVersion> {
    test.environment
        .versions()
        .into_iter()
        .filter(|version| version.minor() == minor)
        .max()
}

async fn upgrade(test: &Test, to: &EtcdVersion) -> Result<()> {
    test.edit("c", json!({"version": to.to_string()})).await?;
    crate::wait::until(&format!("etcd {to}"), 150, async || {
        let status = test.get("c").await?.status.unwrap_or_default();
        ensure!(
            status.current_version == to.to_string(),
            "{}",
            crate::test::describe(&test.get("c").await?)
        );
        Ok(Some(()))
    })
    .await?;
    test.settled("c", 90).await?;
    for pod in test.pods_of("c").await? {
        let cluster = test.get("c").await?;
        let runs = test.etcd(&cluster, &pod).await?.status().await?.version;
        ensure!(runs == to.to_string(), "a member still runs {runs}");
    }
    Ok(())
}

pub(crate) async fn one_minor(test: &Test) -> Result<String> {
    let pairs = (2..7)
        .rev()
        .filter_map(|minor| Some((newest(test, minor)?, newest(test, minor + 1)?)));
    let (from, to) = pairs
        .into_iter()
        .find(|(from, to)| stateward_etcd::cluster::check_path(from, to).is_ok())
        .context("no two versions that follow each other")?;
    test.created("c", json!({"size": 3, "version": from.to_string()}))
        .await?;
    let writer = test.writer("c").await?;
    upgrade(test, &to).await?;
    let written = writer.finish().await?;
    Ok(format!(
        "{from} to {to}; longest gap {:.1} s; {} writes",
        written.longest_gap.as_secs_f64(),
        written.acknowledged
    ))
}

pub(crate) async fn refused_path(test: &Test) -> Result<String> {
    let have = test.environment.versions();
    let (from, to) = (have.first().context("no version")?, have.last().context("no version")?);
    ensure!(to.minor() > from.minor(), "only one minor version at hand");
    let wanted = if to.minor() > from.minor() + 1 {
        to.to_string()
    } else {
        format!("3.{}.0", from.minor() + 2)
    };
    test.created("c", json!({"size": 1, "version": from.to_string()}))
        .await?;
    test.edit("c", json!({ "version": wanted })).await?;
    let message = test.condition("c", "Degraded", "VersionRefused", 30).await?;
    ensure!(
        message.contains(&format!("3.{}.x first", from.minor() + 1)),
        "the message does not say what to set first: {message}"
    );
    test.edit("c", json!({"version": from.to_string()})).await?;
    test.settled("c", 60).await?;
    Ok(message)
}

pub(crate) async fn from_the_oldest_to_the_newest_and_back(test: &Test) -> Result<String> {
    let first = newest(test, 2).context("no etcd 3.2")?;
    test.created("c", json!({"size": 3, "version": first.to_string()}))
        .await?;
    let writer = test.writer("c").await?;
    let mut path = vec![first.to_string()];
    for minor in [3, 4, 5, 6, 7, 6, 5] {
        let to = newest(test, minor).with_context(|| format!("no etcd 3.{minor}"))?;
        upgrade(test, &to)
            .await
            .with_context(|| format!("after {}", path.join(", ")))?;
        path.push(to.to_string());
    }
    let written = writer.finish().await?;
    Ok(format!(
        "{}; longest gap {:.1} s; {} writes",
        path.join(" > "),
        written.longest_gap.as_secs_f64(),
        written.acknowledged
    ))
}

/// The user reverts a downgrade at several moments.
pub(crate) async fn downgrade_reverted(test: &Test) -> Result<String> {
    let (low, high) = (newest(test, 6).context("no 3.6")?, newest(test, 7).context("no 3.7")?);
    test.created("c", json!({"size": 3, "version": high.to_string()}))
        .await?;
    let writer = test.writer("c").await?;
    for moment in ["Downgrading", "RollingUpgrade"] {
        test.edit("c", json!({"version": low.to_string()})).await?;
        test.condition("c", "Upgrading", moment, 60).await?;
        test.edit("c", json!({"version": high.to_string()})).await?;
        test.settled("c", 120).await?;
        crate::wait::until("no downgrade to be under way", 60, async || {
            let cluster = test.get("c").await?;
            for pod in test.pods_of("c").await? {
                let status = test.etcd(&cluster, &pod).await?.status().await?;
                ensure!(status.version == high.to_string(), "a member runs {}", status.version);
                ensure!(
                    !status.downgrade_info.is_some_and(|info| info.enabled),
                    "etcd is still downgrading"
                );
            }
            Ok(Some(()))
        })
        .await?;
    }
    let written = writer.finish().await?;
    Ok(format!(
        "{high} to {low} and back twice; longest gap {:.1} s; {} writes",
        written.longest_gap.as_secs_f64(),
        written.acknowledged
    ))
}

pub(crate) async fn refused_while_authentication_is_enabled(test: &Test) -> Result<String> {
    // given a cluster of 3.4 with authentication enabled,
    let (from, to) = (newest(test, 4).context("no 3.4")?, newest(test, 5).context("no 3.5")?);
    test.created("c", json!({"size": 3, "version": from.to_string()}))
        .await?;
    let pods = test.pods_of("c").await?;
    let ip = pods[0].status.as_ref().and_then(|status| status.pod_ip.clone());
    let address = format!("{}:2379", ip.context("the pod has no address")?);
    let user = json!({"name": "root", "password": "secret"});
    post(&address, "/v3/auth/user/add", "", &user).await?;
    post(
        &address,
        "/v3/auth/user/grant",
        "",
        &json!({"user": "root", "role": "root"}),
    )
    .await?;
    post(&address, "/v3/auth/enable", "", &json!({})).await?;
    let before = uids(test).await?;
    // when the version is edited, then it is rejected with the reason, and reverting heals.
    test.edit("c", json!({"version": to.to_string()})).await?;
    let message = test.condition("c", "Degraded", "VersionRefused", 60).await?;
    ensure!(
        message.contains("etcdctl auth disable"),
        "it does not say what to do: {message}"
    );
    test.edit("c", json!({"version": from.to_string()})).await?;
    test.settled("c", 60).await?;
    ensure!(
        uids(test).await? == before,
        "a pod was restarted for a version that was rejected"
    );
    // When it is edited again and authentication is disabled, then the upgrade continues.
    test.edit("c", json!({"version": to.to_string()})).await?;
    test.condition("c", "Degraded", "VersionRefused", 60).await?;
    let token = post(&address, "/v3/auth/authenticate", "", &user).await?;
    let token = token["token"].as_str().context("no token")?.to_owned();
    post(&address, "/v3/auth/disable", &token, &json!({})).await?;
    upgrade(test, &to).await?;
    Ok(message)
}

async fn uids(test: &Test) -> Result<Vec<Option<String>>> {
    let mut uids: Vec<_> = test
        .pods_of("c")
        .await?
        .into_iter()
        .map(|pod| pod.metadata.uid)
        .collect();
    uids.sort();
    Ok(uids)
}

/// Sends a request to etcd's JSON gateway, which has calls that our own client does not need.
async fn post(address: &str, path: &str, token: &str, body: &serde_json::Value) -> Result<serde_json::Value> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let body = body.to_string();
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    let request = format!(
        "POST {path} HTTP/1.0\r\nHost: {address}\r\nAuthorization: {token}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    ensure!(head.contains(" 200 "), "{path}: {answer}");
    Ok(serde_json::from_str(body.trim())?)
}
