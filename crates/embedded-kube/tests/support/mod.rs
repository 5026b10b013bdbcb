//! Shared by the tests.
#![allow(dead_code)] // each test file uses a part of it

pub(crate) mod kubectl;
pub(crate) mod kubelet;

use std::fmt::Debug;
use std::future::Future;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::Value;

/// The timeout of every wait. Generous, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// An object as a user would write it.
pub(crate) fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("a valid object")
}

/// Polls until there is a result.
pub(crate) async fn eventually<T, F, R>(what: &str, mut ask: F) -> T
where
    F: FnMut() -> R,
    R: Future<Output = Result<T, String>>,
{
    let started = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(state) if started.elapsed() > PATIENCE => panic!("{what}: still {state}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// For [`eventually`]: whether the state is the expected one.
pub(crate) fn is<T: PartialEq + Debug>(found: T, wanted: T) -> Result<(), String> {
    if found == wanted {
        Ok(())
    } else {
        Err(format!("{found:?}, not {wanted:?}"))
    }
}
