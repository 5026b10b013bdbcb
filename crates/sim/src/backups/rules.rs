//! What must hold in every history of an EtcdBackup, whatever happens.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use stateward_etcd::Reason;
use stateward_etcd::agent::State;
use stateward_etcd::api::agent::Task;
use stateward_etcd::api::etcd_backup::{AttemptKind, DeletionPolicy, Verify};
use stateward_etcd::api::{EtcdBackup, names};
use stateward_etcd::backup::RECORDS;

use super::store::{Broken, Store};
use super::world::{Kube, task};

/// The names of the rules.
pub(crate) mod name {
    crate::rules::names! {
    pub(crate) const ONE_AT_A_TIME: &str = "never two attempts at once";
    pub(crate) const DUE_ONCE: &str = "a due time is served once, and missed ones are caught up once";
    pub(crate) const TRUTH: &str = "the status claims no success without an outcome";
    pub(crate) const BOUNDED: &str = "the records are bounded";
    pub(crate) const DELETION_ENDS: &str = "deletion ends";
    pub(crate) const FILES: &str = "files are deleted as requested, or it is reported that they remain";
    pub(crate) const NUMBERS: &str = "an attempt is recorded before its pod is created, under a new number";
    pub(crate) const FINALIZERS: &str = "what must be cleaned up is held by a finalizer first";
    pub(crate) const SUSPENDED: &str = "nothing starts while it is suspended";
    pub(crate) const PATIENCE: &str = "failures are tried again later each time";
    pub(crate) const PROVEN_STAY: &str = "a backup that is proven as asked is deleted only in favour of others that are";
    pub(crate) const BOUNDED_FILES: &str = "what retention does not keep is deleted, proven or not";
    pub(crate) const IN_PLACE: &str = "what was at the path stays until the new one is proven";
    pub(crate) const NEIGHBOUR: &str = "backups of another object at the same path are left alone";
    pub(crate) const CONVERGES: &str = "without faults a backup is taken when it is due";
    }
}

/// A pod that has been terminating for so long is on a node that does not respond.
const TERMINATING_TOO_LONG: i64 = 600_000;

/// What really happened.
pub(super) struct Truth {
    pub(super) store: Store,
    files: BTreeSet<String>,
    proven: BTreeSet<String>,
    deleted: bool,
    reported_left: bool,
    /// The scheduled time of the last attempt, and whether it was served.
    served: Option<(i64, bool)>,
    /// When an attempt failed last, how many failed in a row, and with which error.
    failed: Option<(i64, i64, String)>,
    good: u64,
    /// A rule that is not checked.
    ignores: Option<&'static str>,
    broken: Option<(&'static str, String)>,
    vanished: u64,
}

impl Truth {
    pub(super) fn new(ignores: Option<&'static str>) -> Self {
        Self {
            store: Store::new(),
            files: BTreeSet::new(),
            proven: BTreeSet::new(),
            deleted: false,
            reported_left: false,
            served: None,
            failed: None,
            good: 0,
            ignores,
            broken: None,
            vanished: 0,
        }
    }

    pub(super) fn good(&self) -> u64 {
        self.good
    }

    pub(super) fn backed_up(&mut self, location: &str) {
        self.files.insert(location.to_owned());
        self.deleted = false;
    }

    pub(super) fn proven(&mut self, location: &str) {
        self.proven.insert(location.to_owned());
    }

    pub(super) fn files_deleted(&mut self) {
        self.deleted = true;
    }

    pub(super) fn vanished(&mut self) {
        self.vanished += 1;
    }

    pub(super) fn reported(&mut self, reason: Reason) {
        self.reported_left |= reason == Reason::FilesLeft;
    }

    pub(super) fn take_broken(&mut self) -> Option<(&'static str, String)> {
        self.broken.take()
    }

    /// What an agent did to the store.
    pub(super) fn did(&mut self, broken: Broken) {
        if let Some((rule, what)) = broken {
            self.broke(rule, what);
        }
    }

    pub(super) fn broke(&mut self, rule: &'static str, what: String) {
        if self.ignores != Some(rule) {
            self.broken.get_or_insert((rule, what));
        }
    }

    /// A pod is about to be created.
    pub(super) fn pod_wanted(&mut self, kube: &Kube, pod: &Pod) {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let Some(object) = &kube.object else { return };
        let status = object.status.clone().unwrap_or_default();
        if !matches!(task(pod), Some(Task::Follow(_))) {
            // An operator that lost leadership may be about to create the pod of an attempt that is over: the name
            // makes the API server reject it, or the next reconcile stops it. Its number was recorded in any case.
            let number = name.rsplit('-').next().and_then(|number| number.parse::<i64>().ok());
            if number.is_none_or(|number| number > status.attempts) {
                self.broke(
                    name::NUMBERS,
                    format!("{name} is created and the status has {} attempts", status.attempts),
                );
            }
        }
        let finalizers = object.metadata.finalizers.clone().unwrap_or_default();
        let wanted = object.spec.plan.deletion_policy == Some(DeletionPolicy::Delete);
        let held = finalizers
            .iter()
            .any(|finalizer| finalizer == names::FINALIZER_BACKUP_FILES);
        if wanted && !held && matches!(task(pod), Some(Task::Backup(_))) {
            self.broke(name::FINALIZERS, format!("{name} is created without a finalizer"));
        }
    }

    /// The status was written.
    pub(super) fn status_written(&mut self, old: &EtcdBackup, new: &EtcdBackup, clock: i64, jumps: bool) {
        let before = old.status.clone().unwrap_or_default();
        let after = new.status.clone().unwrap_or_default();
        if after.attempts < before.attempts || after.attempts > before.attempts + 1 {
            self.broke(
                name::NUMBERS,
                format!("{} attempts after {}", after.attempts, before.attempts),
            );
        }
        // One write may end an attempt and begin the next one.
        let succeeded = after.last_success_date != before.last_success_date || (after.succeeded && !before.succeeded);
        if succeeded {
            self.good += 1;
            let known = after.backups.first();
            if known.is_none_or(|record| !self.files.contains(&record.location)) {
                self.broke(name::TRUTH, "a success without a backup".into());
            }
            self.failed = None;
            if let Some((_, served)) = &mut self.served {
                *served = true;
            }
        }
        let started = after.attempts > before.attempts;
        let current = after.current.as_ref().filter(|_| started);
        if let Some(current) = current.filter(|current| current.kind == AttemptKind::Backup) {
            if new.spec.plan.suspend && new.spec.plan.is_periodic() {
                self.broke(name::SUSPENDED, format!("{} starts", current.pod));
            }
            let scheduled = current.scheduled_for.as_ref().map_or(0, |time| time.0.as_millisecond());
            if let Some((last, served)) = self.served.filter(|_| !jumps)
                && (scheduled < last || (scheduled == last && served))
            {
                self.broke(
                    name::DUE_ONCE,
                    format!("{} serves {scheduled} after {last}", current.pod),
                );
            }
            self.served = Some((scheduled, false));
            if let Some((at, failures, with)) = self.failed.clone().filter(|_| !jumps) {
                let wait = clock - at;
                if failures >= 4 && wait < 30_000 && with == after.attempted_with {
                    self.broke(
                        name::PATIENCE,
                        format!("tried again {wait} ms after failure {failures}"),
                    );
                }
            }
        }
        if after.consecutive_failures > before.consecutive_failures {
            self.failed = Some((clock, after.consecutive_failures, before.attempted_with.clone()));
        }
        self.store.reported(&after.backups);
        for record in &after.backups {
            if !self.files.contains(&record.location) {
                self.broke(name::TRUTH, format!("{} was never written", record.location));
            }
            if record.verified == Some(Verify::Restore) && !self.proven.contains(&record.location) {
                self.broke(name::TRUTH, format!("{} was never proven", record.location));
            }
        }
        if after.succeeded && after.consecutive_failures > 0 {
            self.broke(
                name::TRUTH,
                format!("succeeded after {} failures", after.consecutive_failures),
            );
        }
    }
}

/// After every step.
pub(super) fn check(kube: &Kube, now: i64, jumps: bool, truth: &mut Truth) {
    let agents = kube.agents();
    let stopped = |since: i64| jumps || now - since > TERMINATING_TOO_LONG;
    let at_work: Vec<&str> = agents
        .iter()
        .filter(|(_, agent)| agent.component != "follow" && matches!(agent.state, State::Running | State::Waiting(_)))
        .filter(|(_, agent)| {
            let since = agent
                .terminating
                .map(|since| since.as_millisecond() - super::time(0).as_millisecond());
            !since.is_some_and(stopped)
        })
        .map(|(name, _)| name.as_str())
        .collect();
    if at_work.len() > 1 {
        truth.broke(name::ONE_AT_A_TIME, at_work.join(" and "));
    }
    let Some(object) = &kube.object else { return };
    let records = object.status.as_ref().map_or(0, |status| status.backups.len());
    if records > RECORDS {
        truth.broke(name::BOUNDED, format!("{records} records"));
    }
    // Five attempts of five minutes each, and the time that their pods take to stop.
    if let Some(deleted) = kube.deleted_at
        && now - deleted > 3 * 3_600_000
    {
        truth.broke(
            name::DELETION_ENDS,
            format!("it was deleted {} s ago", (now - deleted) / 1000),
        );
    }
}

/// After hours without faults.
pub(super) fn check_end(kube: &Kube, truth: &mut Truth, now: i64) {
    let Some(object) = &kube.object else {
        let ended = truth.files.is_empty()
            || truth.deleted
            || truth.reported_left
            || truth.vanished > 0
            || !kube.wants_deletion();
        if !ended {
            let what = "the object is gone, its files are not, and nothing was reported";
            truth.broke(name::FILES, what.into());
        }
        return;
    };
    let plan = &object.spec.plan;
    let most = plan.max_backups().and_then(|most| usize::try_from(most).ok());
    let limit = if plan.is_periodic() {
        most.map(|most| 2 * most + 1)
    } else {
        Some(0)
    };
    let (periodic, left) = truth.store.counts();
    let files = if plan.is_periodic() { periodic } else { left };
    if limit.is_some_and(|limit| files > limit) {
        truth.broke(
            name::BOUNDED_FILES,
            format!("{files} files where {most:?} are to be kept"),
        );
    }
    let status = object.status.clone().unwrap_or_default();
    let done = status
        .last_success_date
        .as_ref()
        .map(|time| time.0.as_millisecond() - super::time(0).as_millisecond());
    let recent = done.is_some_and(|done| !object.spec.plan.is_periodic() || now - done < 3_600_000);
    if !recent || !status.reason.is_empty() || status.consecutive_failures > 0 {
        truth.broke(
            name::CONVERGES,
            format!("last success {done:?} at {now}: {} {}", status.reason, status.waiting),
        );
    }
}
