//! The images of the catalogue (`pins/images.yaml`), each in a pod in which its own test succeeds. No part of Stateward is involved: the same
//! definition makes a folder for the embedded environment and an archive for the real one.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::environment::provided_version;
use crate::test::{SERVER, Test};
use crate::wait::until;

const CATALOGUE: &str = include_str!("../../../pins/images.yaml");

/// What the catalogue says of one name, with its tag filled in.
fn family(name: &str, tag: &str) -> Result<Value> {
    let catalogue: Value = serde_yaml_ng::from_str(CATALOGUE).context("cannot read the catalogue")?;
    let family = &catalogue[name];
    ensure!(family["tags"].get(tag).is_some(), "the catalogue has no {name}:{tag}");
    Ok(serde_json::from_str(&family.to_string().replace("{tag}", tag))?)
}

/// The pod that an image's own test runs in.
fn pod(name: &str, family: &Value) -> Result<Pod> {
    let test = &family["test"];
    let user = family["config"]["user"].as_str().unwrap_or_default();
    let ids: Vec<i64> = user.split(':').map(str::parse).collect::<Result<_, _>>()?;
    let [user, group] = ids[..] else {
        bail!("{name} has no user");
    };
    let pod = json!({
        "metadata": {"name": name, "labels": {SERVER: name}},
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": user, "runAsGroup": group, "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": "main", "image": family["references"][0], "imagePullPolicy": "IfNotPresent",
                "command": test["command"], "args": test["args"],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    });
    Ok(serde_json::from_value(pod)?)
}

/// Starts a pod of an image, and waits until its check prints what the catalogue expects.
async fn answers(test: &Test, title: &str) -> Result<String> {
    let (name, tag) = title.split_once(':').context("an image has a tag")?;
    let family = family(name, tag)?;
    // Given a pod of the image
    test.pods().create(&PostParams::default(), &pod(name, &family)?).await?;
    // When its check is repeated, then it prints what it should
    let check: Vec<String> = serde_json::from_value(family["test"]["check"].clone())?;
    let words = ["exec", name, "--"].into_iter().chain(check.iter().map(String::as_str));
    let words: Vec<&str> = words.collect();
    let expected = family["test"]["expect"].as_str().context("a test expects something")?;
    let said = until(&format!("{title} to answer {expected:?}"), 240, async || {
        let said = test.kubectl(&words).await?;
        ensure!(said.contains(expected), "it answers {said}");
        Ok(Some(said))
    })
    .await?;
    // Then the program has the version of its package
    let Some(version) = provided_version(title) else {
        return Ok(title.to_owned());
    };
    ensure!(said.contains(&version), "{title} is not {version}: {said}");
    Ok(format!("{name} {version}"))
}

pub(crate) async fn image_mysql(test: &Test) -> Result<String> {
    answers(test, "mysql:9.7").await
}

pub(crate) async fn image_mariadb(test: &Test) -> Result<String> {
    answers(test, "mariadb:10.11").await
}

pub(crate) async fn image_elasticsearch(test: &Test) -> Result<String> {
    answers(test, "elasticsearch:7.9.1").await
}

pub(crate) async fn image_prometheus(test: &Test) -> Result<String> {
    answers(test, "prometheus:2.53").await
}

pub(crate) async fn image_valkey(test: &Test) -> Result<String> {
    answers(test, "valkey:9.1").await
}

/// The three parts one by one; unistore's own test needs PD, and brings it.
pub(crate) async fn image_tidb(test: &Test) -> Result<String> {
    let mut all = Vec::new();
    for title in ["pd:2021.03.23", "tidb:2021.04.07", "unistore:2023.11.25"] {
        all.push(answers(test, title).await?);
    }
    Ok(all.join(", "))
}
