//! MySQLClusters: the line of one in the list, and its description.

use jiff::Timestamp;
use stateward_core::conditions::{self, ConditionStatus, is_true, types};
use stateward_mysql::MySQLCluster;
use stateward_mysql::api::{MySQLClusterStatus, Phase};

use super::all::age;
use super::table::table;

/// The line in the list.
pub(super) fn row(cluster: &MySQLCluster, now: Timestamp) -> [String; 5] {
    let status = cluster.status.clone().unwrap_or_default();
    let (state, reason) = state(cluster, &status);
    [
        format!("{}/{}", status.ready_members, cluster.spec.size),
        version(&status).to_owned(),
        state.to_owned(),
        age(cluster.metadata.creation_timestamp.as_ref(), now),
        reason,
    ]
}

fn version(status: &MySQLClusterStatus) -> &str {
    if status.current_version.is_empty() {
        &status.target_version
    } else {
        &status.current_version
    }
}

/// The most important state in the status, and its reason.
fn state(cluster: &MySQLCluster, status: &MySQLClusterStatus) -> (&'static str, String) {
    if cluster.status.is_none() {
        return ("New", "the operator has not reconciled it yet".into());
    }
    let holds = |type_: &str| is_true(&status.conditions, type_);
    let (state, type_) = match status.phase {
        Phase::Failed => ("Failed", types::AVAILABLE),
        _ if cluster.spec.paused => ("Paused", types::PROGRESSING),
        Phase::Hibernating => ("Hibernating", types::AVAILABLE),
        _ if holds(types::RECOVERING) => ("Recovering", types::RECOVERING),
        Phase::Creating => ("Creating", types::PROGRESSING),
        Phase::Running if !holds(types::AVAILABLE) => ("Unavailable", types::AVAILABLE),
        Phase::Running if holds(types::DEGRADED) => ("Degraded", types::DEGRADED),
        Phase::Running if holds(types::UPGRADING) => ("Upgrading", types::UPGRADING),
        Phase::Running if holds(types::SCALING) => ("Scaling", types::SCALING),
        Phase::Running if holds(types::PROGRESSING) => ("Progressing", types::PROGRESSING),
        Phase::Running => return ("Available", status.waiting.clone()),
    };
    let message = conditions::get(&status.conditions, type_).map(|one| one.message.clone());
    let reason = message.filter(|message| !message.is_empty());
    (state, reason.unwrap_or_else(|| status.waiting.clone()))
}

/// The whole description, for a terminal.
pub(super) fn text(cluster: &MySQLCluster) -> String {
    let status = cluster.status.clone().unwrap_or_default();
    let (namespace, name) = (
        cluster.metadata.namespace.clone().unwrap_or_default(),
        cluster.metadata.name.clone().unwrap_or_default(),
    );
    let mut text = format!(
        "{namespace}/{name}: {} of {} members ready, MySQL {}",
        status.ready_members,
        cluster.spec.size,
        version(&status)
    );
    if !status.current_version.is_empty() && !status.target_version.is_empty() {
        text += &format!(", changing to {}", status.target_version);
    }
    text.push('\n');
    if !status.primary.is_empty() {
        text += &format!(
            "Primary: {} (epoch {}); each write is acknowledged by {} of {}\n",
            status.primary,
            status.epoch,
            status.acks,
            status
                .ackers
                .iter()
                .filter(|acker| **acker != status.primary)
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", ")
        );
    }
    if !status.waiting.is_empty() {
        text += &format!("Now: {}\n", status.waiting);
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
    if !status.members.is_empty() {
        let rows = status.members.iter().map(|member| {
            let progress = member.clone_percent.map(|percent| format!("{percent} % cloned"));
            [
                member.name.clone(),
                format!("{:?}", member.role),
                format!("{:?}", member.health),
                member.version.clone(),
                member.lag_seconds.map(|lag| format!("{lag}s")).unwrap_or_default(),
                if member.acknowledges { "yes" } else { "" }.to_owned(),
                [progress.unwrap_or_default(), member.message.clone()]
                    .into_iter()
                    .filter(|part| !part.is_empty())
                    .collect::<Vec<_>>()
                    .join("; "),
            ]
        });
        text += &table(
            ["MEMBER", "ROLE", "HEALTH", "VERSION", "LAG", "ACKNOWLEDGES", "REASON"],
            rows,
        );
    }
    text += &format!("Writes: {name}-primary.{namespace}.svc:3306   Reads: {name}-read.{namespace}.svc:3306\n");
    text
}
