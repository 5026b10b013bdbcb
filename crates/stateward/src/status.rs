//! `stateward status CLUSTER` (and, as `kubectl-stateward`, `kubectl stateward status CLUSTER`): a cluster in words.

use anyhow::{Context, Result};
use comfy_table::{Table, presets};
use kube::Api;
use stateward_api::EtcdCluster;
use stateward_api::conditions::{ConditionStatus, types};

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
    let clusters: Api<EtcdCluster> = Api::namespaced(client, &namespace);
    let cluster = clusters
        .get(&options.cluster)
        .await
        .with_context(|| format!("cannot read EtcdCluster {} in namespace {namespace}", options.cluster))?;
    print!("{}", text(&cluster));
    Ok(())
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
