//! The description of one cluster, with its members and its backups.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stateward_core::conditions::{ConditionStatus, types};
use stateward_etcd::api::etcd_restore::RestorePhase;
use stateward_etcd::api::{EtcdBackup, EtcdCluster};

use super::table::table;

/// The backups of a cluster, for a terminal.
pub(crate) fn backups_text(backups: &[EtcdBackup]) -> String {
    if backups.is_empty() {
        return String::new();
    }
    let rows = backups.iter().map(|backup| {
        let status = backup.status.clone().unwrap_or_default();
        let second = |time: Time| time.0.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let time = |time: Option<Time>| time.map(second).unwrap_or_default();
        let newest = status.backups.first().cloned();
        let (revision, size, file) = newest.map_or_else(Default::default, |newest| {
            let size = format!("{}Ki", newest.size_bytes >> 10);
            (newest.revision.to_string(), size, newest.location)
        });
        // Only continuous backups have a restorable point.
        let point = status.latest_restorable.map_or_else(String::new, |point| {
            format!("{} {}", point.revision, time(point.time)).trim_end().to_owned()
        });
        let messages = [status.waiting, status.reason];
        let message = messages
            .into_iter()
            .find(|message| !message.is_empty())
            .unwrap_or_default();
        let message = match status.consecutive_failures {
            0 | 1 => message,
            failures => format!("{failures} failures: {message}"),
        };
        [
            backup.metadata.name.clone().unwrap_or_default(),
            time(status.last_success_date),
            revision,
            size,
            file,
            point,
            time(status.next_backup_time),
            message,
        ]
    });
    let header = [
        "BACKUP",
        "LAST SUCCESS",
        "REVISION",
        "SIZE",
        "FILE",
        "RESTORABLE TO",
        "NEXT",
        "REASON",
    ];
    table(header, rows)
}

/// The whole description of a cluster, for a terminal.
pub(crate) fn text(cluster: &EtcdCluster) -> String {
    let status = cluster.status.clone().unwrap_or_default();
    let version = if status.current_version.is_empty() {
        status.target_version.as_str()
    } else {
        status.current_version.as_str()
    };
    let mut text = format!(
        "{}/{}: {} of {} members ready, etcd {version}",
        cluster.namespace(),
        cluster.name(),
        status.ready_members,
        cluster.spec.size
    );
    if !status.current_version.is_empty() && !status.target_version.is_empty() {
        text += &format!(", changing to {}", status.target_version);
    }
    text.push('\n');
    if !status.waiting.is_empty() {
        text += &format!("Now: {}\n", status.waiting);
    }
    if let Some(restore) = status
        .restore
        .as_ref()
        .filter(|restore| restore.phase != RestorePhase::Complete)
    {
        text += &format!(
            "Restore: EtcdRestore {} restores {} (revision {}), step {:?}; {}\n",
            restore.name, restore.source.location, restore.source.revision, restore.phase, restore.lost
        );
    }
    for condition in &status.conditions {
        let good = match condition.type_.as_str() {
            types::AVAILABLE => ConditionStatus::True,
            _ => ConditionStatus::False,
        };
        if condition.status != good && condition.message != status.waiting && !condition.message.is_empty() {
            text += &format!("{}: {} ({})\n", condition.type_, condition.message, condition.reason);
        }
    }
    if !status.member_statuses.is_empty() {
        let rows = status.member_statuses.iter().map(|member| {
            [
                member.name.clone(),
                member.id.clone(),
                member.role.map(|role| format!("{role:?}")).unwrap_or_default(),
                format!("{:?}", member.health),
                member.version.clone(),
                member.db_size.clone(),
                member.node.clone(),
                member.message.clone(),
            ]
        });
        text += &table(
            ["MEMBER", "ID", "ROLE", "HEALTH", "VERSION", "DB", "NODE", "REASON"],
            rows,
        );
    }
    if !status.service_name.is_empty() {
        text += &format!(
            "Clients: {}.{}.svc:{}\n",
            status.service_name,
            cluster.namespace(),
            status.client_port
        );
    }
    if let Some(end) = status.tls.and_then(|tls| tls.not_after) {
        text += &format!("Certificates: the first one expires at {}\n", end.0);
    }
    text
}
