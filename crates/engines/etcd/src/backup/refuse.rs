//! Specs that cannot be followed are refused in words that say what to change; nothing is touched.

use crate::api::EtcdBackup;
use crate::api::etcd_backup::EtcdBackupStatus;

use super::{Activity, Reason, Step};
use stateward_core::cron::Schedule;

/// The first thing that is wrong.
pub(super) fn problem(backup: &EtcdBackup) -> Option<String> {
    let spec = &backup.spec;
    if let Some(problem) = backup.problems().into_iter().next() {
        return Some(problem.to_string());
    }
    if let Some(Err(error)) = spec.plan.schedule.as_deref().map(Schedule::parse) {
        return Some(format!("spec.schedule: {error}"));
    }
    if spec.plan.schedule.is_some() && spec.plan.interval_seconds().is_some() {
        return Some(
            "spec.schedule and spec.backupPolicy.backupIntervalInSecond both say when: keep one of them".to_owned(),
        );
    }
    if spec.plan.continuous && !spec.plan.is_periodic() {
        return Some(
            "spec.continuous needs snapshots to start from: set schedule or backupPolicy.backupIntervalInSecond"
                .to_owned(),
        );
    }
    for endpoint in &spec.etcd_endpoints {
        if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
            return Some(format!(
                "spec.etcdEndpoints: \"{endpoint}\" is not a URL: write it as \"http://example-etcd-cluster-client:2379\""
            ));
        }
        if endpoint.starts_with("https://") && spec.client_tls_secret.is_none() {
            return Some(format!(
                "spec.etcdEndpoints: \"{endpoint}\" needs a certificate: set clientTLSSecret to a Secret with etcd-client.crt, etcd-client.key and etcd-client-ca.crt"
            ));
        }
    }
    None
}

pub(super) fn refuse(status: &mut EtcdBackupStatus, reason: Reason, problem: &str) -> Step {
    if status.last_success_date.is_none() {
        status.succeeded = false;
    }
    problem.clone_into(&mut status.reason);
    Step::say(Activity::Blocked, reason, problem)
}
