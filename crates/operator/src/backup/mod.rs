//! One EtcdBackup's loop: observe, plan, write the status, carry out; then wait for the next reason to look. It decides
//! nothing itself: that is `stateward_plan::backup`'s.

mod carry_out;
mod observe;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use rand::Rng;
use stateward_api::etcd_backup::EtcdBackupStatus;
use stateward_api::{EtcdBackup, names};
use stateward_core::conditions::{self, Condition, ConditionStatus, types};
use stateward_plan::backup::{plan, share};
use tokio::sync::Notify;

use crate::caches::Key;
use crate::cluster_loop::ROUND_LIMIT;
use crate::watch::Users;
use crate::{Loops, Shared};

use carry_out::Failure;

/// Nothing is polled; this is only for events that were lost.
const RESYNC: Duration = Duration::from_secs(600);
/// A round never follows another at once.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The loops of EtcdBackups, and what wakes them beside their own objects.
#[derive(Default)]
pub(crate) struct Backups {
    pub(crate) loops: Loops,
    pub(crate) secret_users: Users,
    pub(crate) cluster_users: Users,
    /// Which of them wait for another with the same path.
    pub(crate) path_users: Users,
}

/// Wakes the loop of an EtcdBackup, and starts it where there is none.
pub(crate) fn tend(shared: &Arc<Shared>, key: &Key) {
    shared.backups.loops.tend(&shared.killed, key, |mailbox| {
        let wanted = !shared.stop.is_cancelled() && shared.caches.backups.get(key).is_some();
        wanted.then(|| run(shared.clone(), key.clone(), mailbox))
    });
    shared.wake_users_of_backup(key);
    wake_sharers(shared, key);
}

/// Whoever has the same path as an EtcdBackup, or had it, looks again.
fn wake_sharers(shared: &Shared, key: &Key) {
    for waiting in shared.backups.path_users.of(key) {
        shared.backups.loops.wake(&waiting);
    }
    let Some(backup) = shared.caches.backups.get(key) else {
        return;
    };
    for other in shared.caches.backups.all() {
        if share(&backup, &other) {
            let other = Key::new(other.namespace().unwrap_or_default(), other.name_any());
            shared.backups.loops.wake(&other);
        }
    }
}

/// Why a round failed.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error("the EtcdBackup has changed meanwhile")]
    Conflict,
    #[error(transparent)]
    Kubernetes(#[from] kube::Error),
}

struct BackupLoop {
    shared: Arc<Shared>,
    key: Key,
    memory: observe::Memory,
    failures: u32,
    refusals: u32,
    /// What could not be done, in words for the status.
    trouble: Option<String>,
}

/// Looks after one EtcdBackup until it is gone or the operator stops.
async fn run(shared: Arc<Shared>, key: Key, mailbox: Arc<Notify>) {
    let mut this = BackupLoop {
        shared: shared.clone(),
        key,
        memory: observe::Memory::default(),
        failures: 0,
        refusals: 0,
        trouble: None,
    };
    tokio::select! {
        () = shared.stop.cancelled() => return,
        () = shared.caches.backups_synced() => {}
    }
    let mut pause = Duration::ZERO;
    while shared.next_turn(&mailbox, pause).await {
        if shared.caches.backups.get(&this.key).is_none() {
            shared.backups.secret_users.forget(&this.key);
            shared.backups.cluster_users.forget(&this.key);
            if shared
                .backups
                .loops
                .leave(&this.key, || shared.caches.backups.get(&this.key).is_some())
            {
                return;
            }
            continue;
        }
        pause = this.bounded_round().await;
    }
}

fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(rand::rng().random_range(0.8..1.2))
}

impl BackupLoop {
    /// One round within its time. Returns when to look again if nothing is heard.
    async fn bounded_round(&mut self) -> Duration {
        let ended = tokio::time::timeout(ROUND_LIMIT, self.round()).await;
        let failure = match ended {
            Ok(Ok(wake)) => {
                self.failures = 0;
                return wake.map_or_else(|| jittered(RESYNC), |wake| wake.clamp(SHORTEST_PAUSE, RESYNC));
            }
            Ok(Err(RoundError::Conflict)) => return Duration::from_millis(20),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it took longer than {ROUND_LIMIT:?}"),
        };
        tracing::warn!(backup = %self.key, "the round failed: {failure}");
        self.pause_after_failure()
    }

    fn pause_after_failure(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let pause = Duration::from_millis(250).saturating_mul(1 << self.failures.min(10));
        jittered(pause.min(LONGEST_PAUSE))
    }

    async fn round(&mut self) -> Result<Option<Duration>, RoundError> {
        let shared = self.shared.clone();
        let Some(mut backup) = shared.caches.backups.get(&self.key) else {
            return Ok(None);
        };
        let world = observe::observe(&shared, &self.key, &backup, &mut self.memory).await?;
        let now = Timestamp::now();
        let old = backup.status.clone().unwrap_or_default();
        let mut plan = plan(&backup, &world, now);
        if let Some(trouble) = &self.trouble {
            say_trouble(&mut plan.status, trouble, backup.metadata.generation, now);
        }
        let mut fresh = false;
        if old != plan.status {
            backup = Arc::new(self.write_status(&backup, plan.status).await?);
            fresh = true;
        }
        let hands = carry_out::Hands {
            shared: &shared,
            key: &self.key,
            backup: &backup,
        };
        match hands.carry_out(&plan.effects, fresh).await {
            Ok(()) => {
                self.refusals = 0;
                let told = self.trouble.take().is_some();
                // What was done is seen in the next round; words of trouble that is over are taken back.
                let again = told || plan.effects.iter().any(carry_out::changes_something);
                Ok(plan.wake.into_iter().chain(again.then_some(Duration::ZERO)).min())
            }
            Err((effect, Failure::GuardFailed(why))) => {
                tracing::info!(backup = %self.key, "not done: {effect}: {why}");
                self.refusals = self.refusals.saturating_add(1);
                Ok(Some(Duration::from_millis(10 << self.refusals.min(7))))
            }
            Err((effect, failure)) => {
                tracing::warn!(backup = %self.key, "could not {effect}: {failure}");
                self.trouble = Some(format!("could not {effect}: {failure}"));
                Ok(Some(self.pause_after_failure()))
            }
        }
    }

    /// Writes the status with the resource version that the round began with.
    async fn write_status(&self, backup: &EtcdBackup, status: EtcdBackupStatus) -> Result<EtcdBackup, RoundError> {
        let shared = &self.shared;
        if !shared.tenure.holds() {
            return Err(RoundError::Conflict);
        }
        let api: Api<EtcdBackup> = Api::namespaced(shared.client.clone(), &self.key.namespace);
        let mut object = backup.clone();
        object.status = Some(status);
        let params = PostParams {
            field_manager: Some(names::MANAGER.into()),
            ..PostParams::default()
        };
        match api.replace_status(&self.key.name, &params, &object).await {
            Ok(written) => {
                shared.metrics.status_writes.inc();
                shared.put_backup(&self.key, written.clone());
                Ok(written)
            }
            Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => {
                // The watch may be late: ask, so that the next round has the newest.
                match api.get_opt(&self.key.name).await? {
                    Some(now) => shared.put_backup(&self.key, now),
                    None => {
                        let uid = backup.metadata.uid.as_deref().unwrap_or_default();
                        shared.caches.backups.forget(&self.key, &self.key.name, uid);
                    }
                }
                Err(RoundError::Conflict)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// A step that could not be done is said where the user looks.
fn say_trouble(status: &mut EtcdBackupStatus, trouble: &str, generation: Option<i64>, now: Timestamp) {
    let condition = Condition::new(types::DEGRADED, ConditionStatus::True, "CannotCarryOut", trouble);
    conditions::set(&mut status.conditions, condition.observed(generation), &Time(now));
    status.waiting = trouble.to_owned();
    if !status.succeeded {
        trouble.clone_into(&mut status.reason);
    }
}
