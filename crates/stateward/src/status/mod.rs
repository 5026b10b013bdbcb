//! `stateward status` (and, as `kubectl-stateward`, `kubectl stateward status`): describes one cluster, or lists each
//! cluster, backup and restore.

mod all;
mod mysql;
mod one;
mod table;

use anyhow::{Context, Result};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use stateward_etcd::api::{EtcdBackup, EtcdCluster};
use stateward_mysql::MySQLCluster;

pub(crate) use one::text;

/// Options of `stateward status`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The EtcdCluster or MySQLCluster to describe; without it, all objects are listed
    cluster: Option<String>,
    /// The namespace; by default that of the kubeconfig
    #[arg(long, short)]
    namespace: Option<String>,
    /// All namespaces
    #[arg(long, short = 'A', conflicts_with_all = ["cluster", "namespace"])]
    all_namespaces: bool,
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    let client = Client::try_default()
        .await
        .context("cannot find a Kubernetes: set KUBECONFIG, or run `stateward local up`")?;
    let namespace = options
        .namespace
        .clone()
        .unwrap_or_else(|| client.default_namespace().to_owned());
    match &options.cluster {
        Some(name) => print!("{}", describe(&client, &namespace, name).await?),
        None => {
            let namespace = (!options.all_namespaces).then_some(namespace.as_str());
            let found = all::Found {
                clusters: list(&client, namespace).await?,
                backups: list(&client, namespace).await?,
                restores: list(&client, namespace).await?,
                mysql: list(&client, namespace).await?,
            };
            let text = all::text(&found, options.all_namespaces, Timestamp::now());
            if text.is_empty() {
                let place = namespace.map_or("any namespace".to_owned(), |name| format!("namespace {name}"));
                eprintln!("No EtcdCluster, EtcdBackup, EtcdRestore or MySQLCluster found in {place}.");
            }
            print!("{text}");
        }
    }
    Ok(())
}

async fn describe(client: &Client, namespace: &str, name: &str) -> Result<String> {
    let clusters: Api<EtcdCluster> = Api::namespaced(client.clone(), namespace);
    let cluster = clusters
        .get_opt(name)
        .await
        .with_context(|| format!("cannot read EtcdCluster {name} in namespace {namespace}"))?;
    let Some(cluster) = cluster else {
        let clusters: Api<MySQLCluster> = Api::namespaced(client.clone(), namespace);
        let cluster = clusters.get_opt(name).await;
        let cluster = cluster.with_context(|| format!("cannot read MySQLCluster {name} in namespace {namespace}"))?;
        let cluster = cluster
            .with_context(|| format!("no EtcdCluster or MySQLCluster is named {name} in namespace {namespace}"))?;
        return Ok(mysql::text(&cluster));
    };
    let mut backups: Vec<EtcdBackup> = list(client, Some(namespace)).await.unwrap_or_default();
    backups.retain(|backup| backup.spec.cluster_ref.as_ref().is_some_and(|of| of.name == name));
    Ok(one::text(&cluster) + &one::backups_text(&backups))
}

/// All objects of a kind in a namespace, or in all namespaces.
async fn list<K>(client: &Client, namespace: Option<&str>) -> Result<Vec<K>>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let api: Api<K> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let place = namespace.map_or("all namespaces".to_owned(), |name| format!("namespace {name}"));
    let listed = api.list(&ListParams::default()).await;
    Ok(listed
        .with_context(|| format!("cannot list {} in {place}", K::plural(&())))?
        .items)
}
