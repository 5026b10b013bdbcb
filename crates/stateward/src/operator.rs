//! `stateward operator`: the operator, in its pod or on a developer's machine.

use std::net::SocketAddr;

use anyhow::{Context, Result, anyhow};
use stateward::Config;
use stateward_etcd_driver::AdoptAllow;
use stateward_runtime::{Election, operator};
use tokio_util::sync::CancellationToken;

/// Options of `stateward operator`. Most can be set by environment variables too.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Manage clusters in this namespace only; by default in all namespaces
    #[arg(long, env = "WATCH_NAMESPACE")]
    namespace: Option<String>,
    /// Clusters whose spec has no storage lose their data with their pods, as with the CoreOS etcd-operator
    #[arg(long, env = "EPHEMERAL_BY_DEFAULT")]
    ephemeral_by_default: bool,
    /// Do not create or update the CustomResourceDefinitions
    #[arg(long, env = "NO_CRDS")]
    no_crds: bool,
    /// The address for metrics and health checks
    #[arg(long, env = "LISTEN", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// The image of this program, for the pods that take and restore backups
    #[arg(long, env = "OPERATOR_IMAGE", default_value = operator::AGENT_IMAGE)]
    agent_image: String,
    /// From where clusters may be adopted besides their own namespace: networks such as 10.0.0.0/8, or suffixes of host names such as shop.svc
    #[arg(long, env = "ADOPT_ALLOW", value_delimiter = ',')]
    adopt_allow: Vec<String>,
    /// Run without leader election; only where no second operator can run
    #[arg(long)]
    no_election: bool,
    /// This pod's name, for the lease
    #[arg(long, env = "POD_NAME", default_value = "stateward")]
    pod_name: String,
    /// This pod's namespace, for the lease
    #[arg(long, env = "POD_NAMESPACE", default_value = "stateward-system")]
    pod_namespace: String,
}

pub(crate) async fn run(options: Options) -> Result<()> {
    crate::logging::to_stderr("info");
    let adopt_allow = AdoptAllow::parse(&options.adopt_allow).map_err(|error| anyhow!("--adopt-allow: {error}"))?;
    let client = kube::Client::try_default()
        .await
        .context("cannot find a Kubernetes: no kubeconfig, and not in a pod")?;
    let config = Config {
        operator: operator::Config {
            namespace: options.namespace.filter(|namespace| !namespace.is_empty()),
            manage_crds: !options.no_crds,
            listen: Some(options.listen),
            election: (!options.no_election)
                .then(|| Election::new(options.pod_namespace, crate::manifests::NAME, options.pod_name)),
        },
        etcd: stateward_etcd_driver::Config {
            ephemeral_by_default: options.ephemeral_by_default,
            agent_image: options.agent_image.clone(),
            adopt_allow,
            ..stateward_etcd_driver::Config::default()
        },
        agent_image: options.agent_image,
    };
    let stop = CancellationToken::new();
    let signalled = stop.clone();
    tokio::spawn(async move {
        stop_signal().await;
        signalled.cancel();
    });
    stateward::run(config, client, stop).await.context("the operator ended")
}

/// Waits for Ctrl-C or SIGTERM.
pub(crate) async fn stop_signal() {
    let terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
    match terminate {
        Ok(mut terminate) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        }
        Err(_) => drop(tokio::signal::ctrl_c().await),
    }
}
