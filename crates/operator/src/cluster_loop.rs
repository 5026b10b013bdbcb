//! One cluster's loop: observe, plan, carry out, then wait for the next reason to look. A round is bounded in time and
//! waits for nothing; whatever needs time asks to be woken.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::PostParams;
use rand::Rng;
use stateward_api::etcd_cluster::{EtcdClusterStatus, TlsStatus};
use stateward_api::{EtcdCluster, names};
use stateward_core::conditions::{self, Condition, ConditionStatus, types};
use stateward_plan::etcd::guard::record_guards;
use stateward_plan::etcd::{Intent, LATER, plan, status};
use tokio::sync::Notify;

use crate::Shared;
use crate::caches::Key;
use crate::carry_out::{Failure, Hands, Seen, refuses_record};
use crate::metrics::{End, EndLabel};
use crate::observe::{Memory, observe};

/// How long a round may take.
pub(crate) const ROUND_LIMIT: Duration = Duration::from_secs(20);
/// Words alone are written to the status at most this often.
const WORDS_INTERVAL: Duration = Duration::from_secs(1);
/// A round never follows another at once, whatever the plan says.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What a round leaves behind.
struct Outcome {
    end: End,
    wake: Option<Duration>,
}

impl Outcome {
    fn quiet() -> Self {
        Self {
            end: End::Quiet,
            wake: None,
        }
    }
}

/// Why a round failed.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    /// Somebody else wrote the EtcdCluster: look again.
    #[error("the EtcdCluster has changed meanwhile")]
    Conflict,
    /// The API.
    #[error(transparent)]
    Kubernetes(#[from] kube::Error),
}

/// A cluster's loop and what it keeps.
struct ClusterLoop {
    shared: Arc<Shared>,
    key: Key,
    memory: Memory,
    /// Rounds in a row that failed, or that etcd refused for now.
    failures: u32,
    refusals: u32,
    /// What could not be done, as reason and message for the status.
    trouble: Option<(&'static str, String)>,
    /// When the status was last written.
    written: Option<Instant>,
}

/// Looks after one cluster until it is gone or the operator stops.
pub(crate) async fn run(shared: Arc<Shared>, key: Key, mailbox: Arc<Notify>) {
    let stop = &shared.stop;
    let mut this = ClusterLoop {
        shared: shared.clone(),
        key,
        memory: Memory::new(mailbox.clone()),
        failures: 0,
        refusals: 0,
        trouble: None,
        written: None,
    };
    let mut wake = None;
    tokio::select! {
        () = stop.cancelled() => return,
        () = shared.caches.synced() => {}
    }
    loop {
        let pause = wake.unwrap_or_else(|| jittered(shared.config.health_interval));
        if !shared.next_turn(&mailbox, pause).await {
            return;
        }
        if shared.caches.clusters.get(&this.key).is_none() {
            if shared.leave(&this.key) {
                return;
            }
            continue;
        }
        wake = this.bounded_round().await;
    }
}

fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(rand::rng().random_range(0.8..1.2))
}

impl ClusterLoop {
    /// One round within its time. Returns when to look again if nothing is heard.
    async fn bounded_round(&mut self) -> Option<Duration> {
        let began = Instant::now();
        let result = tokio::time::timeout(ROUND_LIMIT, self.round()).await;
        let metrics = &self.shared.metrics;
        metrics.round_seconds.observe(began.elapsed().as_secs_f64());
        let (end, wake) = match result {
            Ok(Ok(outcome)) => {
                if outcome.end != End::Failed {
                    self.failures = 0;
                }
                (outcome.end, outcome.wake)
            }
            Ok(Err(RoundError::Conflict)) => (End::Refused, Some(Duration::from_millis(20))),
            Ok(Err(error)) => {
                tracing::warn!(cluster = %self.key, %error, "the round failed");
                (End::Failed, None)
            }
            Err(_) => {
                tracing::warn!(cluster = %self.key, "the round took longer than {ROUND_LIMIT:?} and was ended");
                (End::Failed, None)
            }
        };
        metrics.rounds.get_or_create(&EndLabel { end }).inc();
        if end == End::Failed {
            self.failures = self.failures.saturating_add(1);
            let pause = Duration::from_millis(250).saturating_mul(1 << self.failures.min(10));
            return Some(jittered(pause.min(LONGEST_PAUSE)));
        }
        wake
    }

    async fn round(&mut self) -> Result<Outcome, RoundError> {
        let shared = self.shared.clone();
        let Some(cluster) = shared.caches.clusters.get(&self.key) else {
            return Ok(Outcome::quiet());
        };
        if cluster.metadata.deletion_timestamp.is_some() {
            return Ok(Outcome::quiet()); // what it owns goes with it
        }
        let old = cluster.status.clone().unwrap_or_default();
        let intent = match Intent::of(&cluster, shared.config.ephemeral_by_default) {
            Ok(intent) => intent,
            Err(refused) => {
                let generation = cluster.metadata.generation.unwrap_or(0);
                let new = status::refused(&old, generation, &refused.to_string(), Timestamp::now());
                self.write_status(&cluster, &old, new).await?;
                return Ok(Outcome::quiet());
            }
        };
        let record = status::record(&old);
        let intent = intent.at(&record);
        let observed = observe(&shared, &self.key, &cluster, &intent, &record, &mut self.memory).await?;
        let now = Timestamp::now();
        let plan = plan(&intent, &record, &observed.world, now);
        let mut new = status::status(&old, &intent, &plan.record, &plan.report, now);
        if let Some(end) = observed.certificates_end {
            let clients = intent.client_tls;
            let tls = new.tls.get_or_insert_with(|| TlsStatus {
                clients,
                ..TlsStatus::default()
            });
            tls.not_after = Some(Time(end));
        }
        let certificates = || Some(("CannotCarryOut", observed.certificates_trouble.clone()?));
        if let Some((reason, trouble)) = self.trouble.clone().or_else(certificates) {
            say_trouble(&mut new, &old, (reason, &trouble), now);
        } else if let Some(problem) = cluster.tolerated().first() {
            say_tolerated(&mut new, &old, &problem.to_string(), now);
        }
        // What later decisions rest on is written before the step that depends on it; mere words need not hold it up.
        let first = plan.record != record;
        let mut cluster = cluster;
        let mut seen = Seen::default();
        let guards = record_guards(&record, &plan.record);
        if let Some(why) = refuses_record(&shared, &self.key, &cluster, &intent, &guards).await? {
            tracing::info!(cluster = %self.key, "not recorded: {why}");
            return Ok(self.refused_for_now(Some(Duration::from_millis(20))));
        }
        if first && let Some(written) = self.write_status(&cluster, &old, new.clone()).await? {
            seen = Seen::written(&written);
            cluster = Arc::new(written);
        }
        let hands = Hands {
            shared: &shared,
            key: &self.key,
            cluster: &cluster,
            intent: &intent,
            observed: &observed,
            seen,
        };
        let result = hands.carry_out(&plan.effects).await;
        let mut held_back = None;
        if !first && old != new {
            held_back = self.words_can_wait(&old, &new);
            if held_back.is_none() {
                self.write_status(&cluster, &old, new).await?;
            }
        }
        let end = match result {
            Ok(()) => {
                if self.trouble.take().is_some() {
                    held_back = Some(SHORTEST_PAUSE); // the status still tells of it
                }
                self.refusals = 0;
                if plan.effects.is_empty() { End::Quiet } else { End::Done }
            }
            Err((effect, Failure::NotYet(why))) => {
                tracing::debug!(cluster = %self.key, "{effect}: {why}");
                return Ok(self.refused_for_now(plan.wake));
            }
            Err((effect, Failure::GuardFailed(why))) => {
                tracing::info!(cluster = %self.key, "not done: {effect}: {why}");
                return Ok(self.refused_for_now(Some(Duration::from_millis(20))));
            }
            Err((_, failure @ Failure::PodRefused(..))) => {
                tracing::warn!(cluster = %self.key, "{failure}");
                self.trouble = Some(("PodRefused", failure.to_string()));
                End::Failed
            }
            Err((_, failure @ Failure::NameTaken(_))) => {
                tracing::warn!(cluster = %self.key, "{failure}");
                self.trouble = Some(("NameTaken", failure.to_string()));
                End::Failed
            }
            // Members that are not ours are asked as well.
            Err((effect, Failure::Etcd(error))) if !intent.adopt.is_empty() => {
                tracing::warn!(cluster = %self.key, "could not {effect}: {error}");
                let why = crate::adopted::in_own_words(&error);
                self.trouble = Some(("CannotCarryOut", format!("could not {effect}: {why}")));
                End::Failed
            }
            Err((effect, failure)) => {
                tracing::warn!(cluster = %self.key, "could not {effect}: {failure}");
                self.trouble = Some(("CannotCarryOut", format!("could not {effect}: {failure}")));
                End::Failed
            }
        };
        // Silent members are awaited (see `Connections`).
        let next = plan
            .wake
            .map(|wake| if plan.awaits_word { wake.max(LATER) } else { wake });
        let wake = [next, observed.look_again, held_back].into_iter().flatten().min();
        let wake = wake.map(|wake| wake.max(SHORTEST_PAUSE));
        Ok(Outcome { end, wake })
    }

    /// Another try soon; less soon when it was refused many times.
    fn refused_for_now(&mut self, wake: Option<Duration>) -> Outcome {
        self.refusals = self.refusals.saturating_add(1);
        let longest = if self.refusals < 40 { 250 } else { 1000 };
        let wake = wake
            .unwrap_or(Duration::from_millis(longest))
            .max(Duration::from_millis(10));
        let wake = if self.refusals < 40 {
            wake.min(Duration::from_millis(longest))
        } else {
            Duration::from_millis(longest)
        };
        Outcome {
            end: End::Refused,
            wake: Some(wake),
        }
    }

    /// How long a change of mere words is held back, and of who is ready while members come and go, so that a busy
    /// cluster's status is not written many times a second.
    fn words_can_wait(&self, old: &EtcdClusterStatus, new: &EtcdClusterStatus) -> Option<Duration> {
        let left = WORDS_INTERVAL.checked_sub(self.written?.elapsed())?;
        let turns = |status: &EtcdClusterStatus| -> Vec<_> {
            let conditions = status.conditions.iter();
            conditions
                .map(|condition| (condition.type_.clone(), condition.status))
                .collect()
        };
        let same = old.phase == new.phase
            && (old.members == new.members || conditions::is_true(&new.conditions, types::PROGRESSING))
            && old.observed_generation == new.observed_generation
            && turns(old) == turns(new);
        same.then_some(left)
    }

    /// Writes the status if it says anything new. Returns the EtcdCluster as it is then.
    async fn write_status(
        &mut self,
        cluster: &EtcdCluster,
        old: &EtcdClusterStatus,
        new: EtcdClusterStatus,
    ) -> Result<Option<EtcdCluster>, RoundError> {
        if *old == new {
            return Ok(None);
        }
        if !self.shared.tenure.holds() {
            return Err(RoundError::Conflict);
        }
        let api: Api<EtcdCluster> = Api::namespaced(self.shared.client.clone(), &self.key.namespace);
        let mut object = cluster.clone();
        object.status = Some(new);
        let params = PostParams {
            field_manager: Some(names::MANAGER.into()),
            ..PostParams::default()
        };
        match api.replace_status(&self.key.name, &params, &object).await {
            Ok(written) => {
                self.written = Some(Instant::now());
                self.shared.metrics.status_writes.inc();
                self.shared.put_cluster(&self.key, written.clone());
                Ok(Some(written))
            }
            Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => {
                // The watch may be late: ask, so that the next round has the newest.
                if let Some(now) = api.get_opt(&self.key.name).await? {
                    self.shared.put_cluster(&self.key, now);
                }
                Err(RoundError::Conflict)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// A step that could not be done is said where the user looks.
fn say_trouble(new: &mut EtcdClusterStatus, old: &EtcdClusterStatus, (reason, trouble): (&str, &str), now: Timestamp) {
    degrade(new, old, reason, trouble, now);
    new.waiting = trouble.to_owned();
}

/// What of the spec should not be there, where nothing worse is to be said.
fn say_tolerated(new: &mut EtcdClusterStatus, old: &EtcdClusterStatus, problem: &str, now: Timestamp) {
    if !conditions::is_true(&new.conditions, types::DEGRADED) {
        degrade(new, old, "InvalidSpec", problem, now);
    }
}

/// The condition turns only if it was not so before: what the plan alone would say was never seen.
fn degrade(new: &mut EtcdClusterStatus, old: &EtcdClusterStatus, reason: &str, message: &str, now: Timestamp) {
    let is_it = |condition: &&Condition| condition.type_ == types::DEGRADED;
    let generation = new.observed_generation;
    if let Some(was) = old.conditions.iter().find(is_it)
        && let Some(slot) = new.conditions.iter_mut().find(|condition| is_it(&&**condition))
    {
        *slot = was.clone();
    }
    let condition = Condition::new(types::DEGRADED, ConditionStatus::True, reason, message);
    conditions::set(&mut new.conditions, condition.observed(generation), &Time(now));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_that_stays_changes_nothing_in_the_status() {
        let healthy = |now: Timestamp, old: &EtcdClusterStatus| {
            let mut new = old.clone();
            let condition = Condition::new(types::DEGRADED, ConditionStatus::False, "AsExpected", "");
            conditions::set(&mut new.conditions, condition, &Time(now));
            new.waiting = String::new();
            new
        };
        let at = |second: i64| Timestamp::from_second(second).unwrap_or_default();
        // given a status that tells of a trouble, and of what is tolerated
        let first = healthy(at(1), &EtcdClusterStatus::default());
        for say in [
            |new: &mut EtcdClusterStatus, old: &EtcdClusterStatus, now| {
                say_trouble(new, old, ("PodRefused", "no"), now)
            },
            |new: &mut EtcdClusterStatus, old: &EtcdClusterStatus, now| say_tolerated(new, old, "no", now),
        ] {
            let mut told = healthy(at(2), &first);
            say(&mut told, &first, at(2));
            assert!(conditions::is_true(&told.conditions, types::DEGRADED));
            // when a later round says the same
            let mut again = healthy(at(3), &told);
            say(&mut again, &told, at(3));
            // then nothing is to be written
            assert_eq!(again, told);
        }
    }
}
