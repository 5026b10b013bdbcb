//! Waiting for a condition, bounded, with the reason when it does not come.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::runtime::wait::{Condition, await_condition};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// Asks until there is an answer; errors count as "not yet" and the last one is told when time is up.
pub(crate) async fn until<T>(what: &str, seconds: u64, ask: impl AsyncFn() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut last = String::from("not yet");
    loop {
        match tokio::time::timeout(Duration::from_secs(10), ask()).await {
            Ok(Ok(Some(value))) => return Ok(value),
            Ok(Ok(None)) => {}
            Ok(Err(error)) => last = format!("{error:#}"),
            Err(_) => last = "asking took longer than 10 s".into(),
        }
        if Instant::now() > deadline {
            bail!("waited {seconds} s for {what}: {last}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The same for an object, told by a watch: where time is measured, asking again and again would be measured too.
pub(crate) async fn watch<K>(api: &Api<K>, name: &str, seconds: u64, condition: impl Condition<K>) -> Result<Option<K>>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let condition = await_condition(api.clone(), name, condition);
    let met = tokio::time::timeout(Duration::from_secs(seconds), condition).await;
    Ok(met.with_context(|| format!("waited {seconds} s for {name}"))??)
}

/// Watches until the object is there and as it should be.
pub(crate) async fn seen<K>(api: &Api<K>, name: &str, seconds: u64, good: impl Fn(&K) -> bool) -> Result<K>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let found = watch(api, name, seconds, |object: Option<&K>| object.is_some_and(&good)).await?;
    found.with_context(|| format!("{name} is gone"))
}
