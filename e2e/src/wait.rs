//! Waiting for a condition, bounded, with the reason when it does not come.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

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
