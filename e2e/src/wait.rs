//! Bounded waiting for a condition, with the reason if it does not become true.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::runtime::wait::{Condition, await_condition};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// Polls until there is a result. Errors mean "not yet"; on timeout, the last one is reported.
pub(crate) async fn until<T>(what: &str, seconds: u64, ask: impl AsyncFn() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut last = String::from("not yet");
    loop {
        match tokio::time::timeout(Duration::from_secs(10), ask()).await {
            Ok(Ok(Some(value))) => return Ok(value),
            Ok(Ok(None)) => {}
            Ok(Err(error)) => last = format!("{error:#}"),
            Err(_) => last = "the check took longer than 10 s".into(),
        }
        if Instant::now() > deadline {
            bail!("waited {seconds} s for {what}: {last}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The same for one object, driven by a watch: polling would distort measurements of time.
pub(crate) async fn watch<K>(api: &Api<K>, name: &str, seconds: u64, condition: impl Condition<K>) -> Result<Option<K>>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let condition = await_condition(api.clone(), name, condition);
    let met = tokio::time::timeout(Duration::from_secs(seconds), condition).await;
    Ok(met.with_context(|| format!("waited {seconds} s for {name}"))??)
}

/// Watches until the object exists and meets the condition.
pub(crate) async fn seen<K>(api: &Api<K>, name: &str, seconds: u64, good: impl Fn(&K) -> bool) -> Result<K>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let found = watch(api, name, seconds, |object: Option<&K>| object.is_some_and(&good)).await?;
    found.with_context(|| format!("{name} is gone"))
}
