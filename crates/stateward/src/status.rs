//! `stateward status CLUSTER` (and, as `kubectl-stateward`, `kubectl stateward status CLUSTER`): a cluster in words.

use anyhow::{Context, Result};
use comfy_table::{Table, presets};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::ListParams;
use stateward_api::conditions::{ConditionStatus, types};
use stateward_api::etcd_restore::RestorePhase;
use stateward_api::{EtcdBackup, EtcdCluster};

/// Options of `stateward status`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The EtcdCluster
    cluster: String,
    /// Its namespace; that of the kubeconfig unless given
    #[arg(long, short)]
    namespace: Option<String>,
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    let client = kube::Client::try_default()
        .await
        .context("cannot find a Kubernetes: set KUBECONFIG, or run `stateward local up`")?;
    let namespace = options
        .namespace
        .clone()
        .unwrap_or_else(|| client.default_namespace().to_owned());
    let clusters: Api<EtcdCluster> = Api::namespaced(client.clone(), &namespace);
    let cluster = clusters
        .get(&options.cluster)
        .await
        .with_context(|| format!("cannot read EtcdCluster {} in namespace {namespace}", options.cluster))?;
    print!("{}", text(&cluster));
    let all: Api<EtcdBackup> = Api::namespaced(client, &namespace);
    let mut backups = all
        .list(&ListParams::default())
        .await
        .map(|list| list.items)
        .unwrap_or_default();
    let of_it = |backup: &EtcdBackup| {
        backup
            .spec
            .cluster_ref
            .as_ref()
            .is_some_and(|of| of.name == options.cluster)
    };
    backups.retain(of_it);
    print!("{}", backups_text(&backups));
    Ok(())
}

/// The backups of a cluster, for a terminal.
pub(crate) fn backups_text(backups: &[EtcdBackup]) -> String {
    if backups.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["BACKUP", "LAST SUCCESS", "REVISION", "BYTES", "FILE", "NEXT", ""]);
    for backup in backups {
        let status = backup.status.clone().unwrap_or_default();
        let time = |time: Option<Time>| time.map(|time| time.0.to_string()).unwrap_or_default();
        let newest = status.backups.first().cloned().unwrap_or_default();
        let words = if status.waiting.is_empty() {
            status.reason
        } else {
            status.waiting
        };
        table.add_row([
            backup.metadata.name.clone().unwrap_or_default(),
            time(status.last_success_date),
            newest.revision.to_string(),
            newest.size_bytes.to_string(),
            newest.location,
            time(status.next_backup_time),
            words,
        ]);
    }
    format!("{table}\n")
}

/// The whole story of a cluster, for a terminal.
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
        text += &format!(", going to {}", status.target_version);
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
            "Restore: EtcdRestore {} puts back {} (revision {}), step {:?}; {}\n",
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
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["MEMBER", "ID", "ROLE", "HEALTH", "VERSION", "DB", "NODE", ""]);
    for member in &status.member_statuses {
        let role = member.role.map(|role| format!("{role:?}")).unwrap_or_default();
        let health = format!("{:?}", member.health);
        table.add_row([
            &member.name,
            &member.id,
            &role,
            &health,
            &member.version,
            &member.db_size,
            &member.node,
            &member.message,
        ]);
    }
    if !status.member_statuses.is_empty() {
        text += &format!("{table}\n");
    }
    if !status.service_name.is_empty() {
        text += &format!(
            "Clients: {}.{}.svc:{}\n",
            status.service_name,
            cluster.namespace(),
            status.client_port
        );
    }
    text
}
