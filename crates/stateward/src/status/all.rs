//! The list: a line for each cluster, backup and restore, with the reason if it is not healthy.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use stateward_core::conditions::{self, is_true, types};
use stateward_etcd::api::etcd_cluster::{EtcdClusterStatus, Phase};
use stateward_etcd::api::etcd_restore::RestorePhase;
use stateward_etcd::api::{EtcdBackup, EtcdCluster, EtcdRestore};
use stateward_mysql::MySQLCluster;

use super::mysql;
use super::table::table;

/// All objects to list.
#[derive(Default)]
pub(super) struct Found {
    pub(super) clusters: Vec<EtcdCluster>,
    pub(super) backups: Vec<EtcdBackup>,
    pub(super) restores: Vec<EtcdRestore>,
    pub(super) mysql: Vec<MySQLCluster>,
}

/// A table for each kind that has objects.
pub(super) fn text(found: &Found, with_namespace: bool, now: Timestamp) -> String {
    let clusters = kind(
        ["CLUSTER", "READY", "VERSION", "STATE", "AGE", "REASON"],
        found.clusters.iter().map(|one| (&one.metadata, cluster(one, now))),
        with_namespace,
    );
    let backups = kind(
        ["BACKUP", "KEPT", "LAST SUCCESS", "STATE", "AGE", "REASON"],
        found.backups.iter().map(|one| (&one.metadata, backup(one, now))),
        with_namespace,
    );
    let restores = kind(
        ["RESTORE", "CLUSTER", "REVISION", "STATE", "AGE", "REASON"],
        found.restores.iter().map(|one| (&one.metadata, restore(one, now))),
        with_namespace,
    );
    let mysql = kind(
        ["MYSQL", "READY", "VERSION", "STATE", "AGE", "REASON"],
        found.mysql.iter().map(|one| (&one.metadata, mysql::row(one, now))),
        with_namespace,
    );
    let tables: Vec<String> = [clusters, backups, restores, mysql].into_iter().flatten().collect();
    tables.join("\n")
}

/// The table of one kind; the first columns are namespace and name, which `rows` do not have.
fn kind<'a>(
    header: [&str; 6],
    rows: impl Iterator<Item = (&'a ObjectMeta, [String; 5])>,
    with_namespace: bool,
) -> Option<String> {
    let mut rows: Vec<[String; 7]> = rows
        .map(|(of, [a, b, c, d, e])| {
            let (namespace, name) = (of.namespace.clone(), of.name.clone());
            [namespace.unwrap_or_default(), name.unwrap_or_default(), a, b, c, d, e]
        })
        .collect();
    rows.sort();
    if rows.is_empty() {
        return None;
    }
    if with_namespace {
        let [name, a, b, c, d, e] = header;
        return Some(table(["NAMESPACE", name, a, b, c, d, e], rows));
    }
    Some(table(
        header,
        rows.into_iter().map(|[_, name, a, b, c, d, e]| [name, a, b, c, d, e]),
    ))
}

fn cluster(cluster: &EtcdCluster, now: Timestamp) -> [String; 5] {
    let status = cluster.status.clone().unwrap_or_default();
    let version = if status.current_version.is_empty() {
        &status.target_version
    } else {
        &status.current_version
    };
    let (state, reason) = cluster_state(&status);
    [
        format!("{}/{}", status.ready_members, cluster.spec.size),
        version.clone(),
        state.to_owned(),
        age(cluster.metadata.creation_timestamp.as_ref(), now),
        reason,
    ]
}

/// The most important state in a cluster's status, and its reason.
fn cluster_state(status: &EtcdClusterStatus) -> (&'static str, String) {
    let holds = |type_: &str| is_true(&status.conditions, type_);
    let message = |type_: &str| conditions::get(&status.conditions, type_).map(|one| one.message.clone());
    let (state, type_) = match status.phase {
        Phase::None => return ("New", "the operator has not reconciled it yet".into()),
        Phase::Failed => return ("Failed", status.reason.clone()),
        _ if status.control_paused => ("Paused", types::PROGRESSING),
        _ if holds(types::RECOVERING) => ("Recovering", types::RECOVERING),
        Phase::Running if !holds(types::AVAILABLE) => ("Unavailable", types::AVAILABLE),
        _ if holds(types::DEGRADED) => ("Degraded", types::DEGRADED),
        Phase::Creating => ("Creating", types::PROGRESSING),
        _ if holds(types::UPGRADING) => ("Upgrading", types::UPGRADING),
        _ if holds(types::SCALING) => ("Scaling", types::SCALING),
        _ if holds(types::PROGRESSING) => ("Progressing", types::PROGRESSING),
        Phase::Running => return ("Available", status.waiting.clone()),
    };
    let reason = message(type_).filter(|message| !message.is_empty());
    (state, reason.unwrap_or_else(|| status.waiting.clone()))
}

fn backup(backup: &EtcdBackup, now: Timestamp) -> [String; 5] {
    let status = backup.status.clone().unwrap_or_default();
    let last = status.last_success_date.as_ref();
    let (state, reason) = if backup.status.is_none() {
        ("New", "the operator has not reconciled it yet".into())
    } else if is_true(&status.conditions, types::DEGRADED) || status.consecutive_failures > 0 {
        ("Failing", status.reason)
    } else if status.current.is_some() {
        ("Running", status.waiting)
    } else if backup.spec.plan.suspend {
        ("Suspended", String::new())
    } else if status.succeeded && !backup.spec.plan.is_periodic() {
        ("Complete", String::new())
    } else if status.succeeded {
        ("Scheduled", String::new())
    } else if status.reason.is_empty() {
        ("Waiting", status.waiting)
    } else {
        ("Failing", status.reason)
    };
    [
        status.backups.len().to_string(),
        last.map_or("never".to_owned(), |_| format!("{} ago", age(last, now))),
        state.to_owned(),
        age(backup.metadata.creation_timestamp.as_ref(), now),
        reason,
    ]
}

fn restore(restore: &EtcdRestore, now: Timestamp) -> [String; 5] {
    let status = restore.status.clone().unwrap_or_default();
    let (state, reason) = match status.phase {
        None => ("New".to_owned(), "the operator has not reconciled it yet".to_owned()),
        Some(RestorePhase::Failed) => ("Failed".to_owned(), status.reason),
        Some(RestorePhase::Complete) => ("Complete".to_owned(), String::new()),
        Some(phase) if status.reason.is_empty() => (format!("{phase:?}"), status.waiting),
        Some(phase) => (format!("{phase:?}"), status.reason),
    };
    [
        restore.spec.etcd_cluster.name.clone(),
        status.revision.to_string(),
        state,
        age(restore.metadata.creation_timestamp.as_ref(), now),
        reason,
    ]
}

/// The age, in the format of kubectl.
pub(super) fn age(since: Option<&Time>, now: Timestamp) -> String {
    let Some(since) = since else {
        return "<unknown>".to_owned();
    };
    match now.duration_since(since.0).as_secs().max(0) {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..10_800 => format!("{}m", seconds / 60),
        seconds @ 10_800..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Objects as a user would read them, two hours after their creation.
    fn read<T: serde::de::DeserializeOwned>(text: &str) -> Vec<T> {
        let documents = serde_yaml_ng::Deserializer::from_str(text);
        documents.map(|one| T::deserialize(one).expect(text)).collect()
    }

    fn found() -> Found {
        let clusters = "
metadata: {name: orders, namespace: shop, creationTimestamp: 2026-01-01T00:00:00Z}
spec: {size: 3}
status:
  phase: Running
  currentVersion: 3.5.16
  readyMembers: 3
  conditions: [{type: Available, status: 'True', message: all members reply}]
---
metadata: {name: carts, namespace: shop, creationTimestamp: 2026-01-01T01:59:00Z}
spec: {size: 3}
status:
  phase: Running
  currentVersion: 3.5.16
  readyMembers: 1
  conditions:
  - {type: Available, status: 'False', message: quorum is lost}
  - {type: Degraded, status: 'True', message: two members do not reply}
---
metadata: {name: new, namespace: shop, creationTimestamp: 2026-01-01T01:59:59Z}
spec: {size: 1}
";
        let backups = "
metadata: {name: nightly, namespace: shop, creationTimestamp: 2025-12-01T00:00:00Z}
spec: {schedule: 0 1 * * *}
status: {succeeded: false, Reason: the bucket does not exist, consecutiveFailures: 2, lastSuccessDate: 2025-12-31T01:00:00Z, backups: [{}, {}]}
";
        let restores = "
metadata: {name: orders, namespace: shop, creationTimestamp: 2026-01-01T00:10:00Z}
spec: {etcdCluster: {name: orders}}
status: {succeeded: true, phase: Complete, revision: 42}
";
        let mysql = "
apiVersion: mysql.stateward.dev/v1alpha1
kind: MySQLCluster
metadata: {name: ledger, namespace: shop, creationTimestamp: 2026-01-01T00:00:00Z}
spec: {size: 3}
status:
  phase: Running
  currentVersion: 9.7.4
  readyMembers: 2
  conditions:
  - {type: Available, status: 'True'}
  - {type: Degraded, status: 'True', message: ledger-2 does not reply}
";
        let typed = |kind: &str, text: &str| {
            let head = format!("apiVersion: etcd.database.coreos.com/v1beta2\nkind: {kind}\nmetadata:");
            text.replace("\nmetadata:", &format!("\n{head}"))
        };
        Found {
            clusters: read(&typed("EtcdCluster", clusters)),
            backups: read(&typed("EtcdBackup", backups)),
            restores: read(&typed("EtcdRestore", restores)),
            mysql: read(mysql),
        }
    }

    #[test]
    fn each_object_has_a_line_with_the_reason_if_it_is_not_healthy() {
        let now = "2026-01-01T02:00:00Z".parse().expect("a time");
        let shown = text(&found(), false, now);
        let expected = "\
CLUSTER   READY   VERSION   STATE         AGE    REASON
carts     1/3     3.5.16    Unavailable   60s    quorum is lost
new       0/1               New           1s     the operator has not reconciled it yet
orders    3/3     3.5.16    Available     120m

BACKUP    KEPT   LAST SUCCESS   STATE     AGE   REASON
nightly   2      25h ago        Failing   31d   the bucket does not exist

RESTORE   CLUSTER   REVISION   STATE      AGE    REASON
orders    orders    42         Complete   110m

MYSQL    READY   VERSION   STATE      AGE    REASON
ledger   2/3     9.7.4     Degraded   120m   ledger-2 does not reply
";
        assert_eq!(shown, expected, "\n{shown}");
    }

    #[test]
    fn namespaces_are_a_column_and_no_objects_give_no_table() {
        let now = "2026-01-01T02:00:00Z".parse().expect("a time");
        let shown = text(&found(), true, now);
        assert!(shown.starts_with("NAMESPACE   CLUSTER   READY"), "{shown}");
        assert!(shown.contains("\nshop        carts     1/3"), "{shown}");
        assert!(text(&Found::default(), true, now).is_empty());
    }
}
