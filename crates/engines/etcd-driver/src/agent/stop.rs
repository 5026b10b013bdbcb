//! Being told to stop: by a signal, or by the time limit of the task.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use stateward_etcd::api::agent::{Failure, FailureReason};
use tokio_util::sync::CancellationToken;

/// How long the work may take to clean up. Kubernetes gives a pod 30 s.
const CLEAN_UP: Duration = Duration::from_secs(20);

/// Tells the work to stop, and why. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    token: CancellationToken,
    why: Arc<OnceLock<Failure>>,
}

impl Stop {
    /// The pod is being ended.
    pub fn interrupt(&self) {
        self.because(Failure {
            reason: FailureReason::Interrupted,
            message: "the pod was told to end before the work was done; it will be done again".into(),
            retry: true,
        });
    }

    /// The time limit is over after so many seconds.
    pub(crate) fn limit(&self, seconds: Option<i64>) {
        let Some(seconds) = seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .filter(|seconds| *seconds > 0)
        else {
            return;
        };
        let stop = self.clone();
        tokio::spawn(async move {
            let over = tokio::time::sleep(Duration::from_secs(seconds));
            tokio::select! {
                () = over => stop.because(Failure {
                    reason: FailureReason::TimedOut,
                    message: format!("not done within {seconds} s: raise backupPolicy.timeoutInSecond, or see why etcd or the store is slow"),
                    retry: true,
                }),
                () = stop.token.cancelled() => {}
            }
        });
    }

    fn because(&self, why: Failure) {
        let _first_wins = self.why.set(why);
        self.token.cancel();
    }

    pub(crate) fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// The reason, once told.
    pub(crate) fn failure(&self) -> Failure {
        self.why.get().cloned().unwrap_or_else(|| Failure {
            reason: FailureReason::Interrupted,
            message: "stopped".into(),
            retry: true,
        })
    }

    /// Work that may be dropped where it stands.
    pub(crate) async fn guard<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        tokio::select! {
            done = work => done,
            () = self.token.cancelled() => Err(self.failure()),
        }
    }

    /// Work that cleans up by itself when told to stop, and is dropped when it takes too long.
    pub(crate) async fn bounded<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let too_long = async {
            self.token.cancelled().await;
            tokio::time::sleep(CLEAN_UP).await;
        };
        let done = tokio::select! {
            done = work => done,
            () = too_long => Err(self.failure()),
        };
        // What the work says of being stopped knows less than who stopped it.
        done.map_err(|failure| match self.why.get() {
            Some(why) => why.clone(),
            None => failure,
        })
    }
}
