//! The embedded environment: an embedded Kubernetes in this process, with the operator as a user with exactly the
//! permissions of `deploy/install.yaml`.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use embedded_kube::{Cluster, ImageSource};
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::discovery;
use kube::{Api, ResourceExt};
use serde::Deserialize;
use stateward_etcd::api::{EtcdCluster, EtcdVersion};

use super::in_process::{InProcess, Which};
use super::{Environment, Fault, Need};
use crate::meter::Meter;

/// The operator's user name in the shipped manifests.
const USER: &str = "system:serviceaccount:stateward-system:stateward";
const GROUPS: &[&str] = &[
    "system:serviceaccounts",
    "system:serviceaccounts:stateward-system",
    "system:authenticated",
];

/// An embedded Kubernetes with the operator.
pub(crate) struct Embedded {
    cluster: Cluster,
    _program: tempfile::TempDir,
    versions: Vec<EtcdVersion>,
    operators: InProcess,
    log: crate::log::Log,
    kubeconfig: tempfile::NamedTempFile,
}

/// The `stateward` program that was built beside this one, as the image that agents run.
fn agent(folder: &Path) -> Result<ImageSource> {
    let own = std::env::current_exe()?;
    let program = own.with_file_name("stateward");
    ImageSource::program(
        stateward_runtime::operator::AGENT_IMAGE,
        ("stateward", &program),
        folder,
    )
    .with_context(|| format!("no program at {}: run cargo build -p stateward", program.display()))
}

impl Embedded {
    /// Starts it with three nodes, the images of this folder, and the operator.
    pub(crate) async fn start(images: &Path, versions: Vec<EtcdVersion>, log: crate::log::Log) -> Result<Self> {
        let program = tempfile::tempdir()?;
        let cluster = Cluster::builder()
            .images(agent(program.path())?)
            .nodes(3)
            .node_grace(Duration::from_secs(25))
            .back_off(Duration::from_secs(1))
            .images(ImageSource::Folder(images.to_owned()))
            .start()
            .await
            .context("cannot start the embedded Kubernetes")?;
        let kubeconfig = tempfile::NamedTempFile::new()?;
        std::fs::write(kubeconfig.path(), cluster.kubeconfig_yaml())?;
        let operators = InProcess::new(cluster.client_as(USER, GROUPS), Some(cluster.guest().await?));
        let environment = Self {
            kubeconfig,
            cluster,
            _program: program,
            versions,
            operators,
            log,
        };
        environment
            .install()
            .await
            .context("cannot apply deploy/install.yaml")?;
        environment.start_operator().await?;
        Ok(environment)
    }

    /// Applies the shipped manifests except for the Deployment: the operator runs in this process.
    async fn install(&self) -> Result<()> {
        let manifests = include_str!("../../../deploy/install.yaml");
        let client = self.cluster.client();
        for document in serde_yaml_ng::Deserializer::from_str(manifests) {
            let object = serde_json::Value::deserialize(document)?;
            if object.is_null() || object["kind"] == "Deployment" {
                continue;
            }
            let object: DynamicObject = serde_json::from_value(object)?;
            let types = object.types.clone().context("an object without a kind")?;
            let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
            let kind = kube::core::GroupVersionKind::gvk(group, version, &types.kind);
            let (resource, _) = discovery::pinned_kind(&client, &kind).await?;
            let api: Api<DynamicObject> = match object.namespace() {
                Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
                None => Api::all_with(client.clone(), &resource),
            };
            api.patch(
                &object.name_any(),
                &PatchParams::apply("e2e").force(),
                &Patch::Apply(&object),
            )
            .await
            .with_context(|| format!("{} {}", types.kind, object.name_any()))?;
        }
        Ok(())
    }
}

impl Environment for Embedded {
    fn name(&self) -> &'static str {
        "embedded"
    }

    fn client(&self) -> kube::Client {
        self.cluster.client()
    }

    fn versions(&self) -> Vec<EtcdVersion> {
        self.versions.clone()
    }

    fn lacks(&self, need: Need) -> Option<&'static str> {
        let minors = |minor| self.versions.iter().any(|version| version.minor() == minor);
        match need {
            Need::Nodes | Need::Meter | Need::Cuts => None,
            Need::AllVersions if (2..=7).all(minors) => None,
            Need::AllVersions => Some("not every etcd from 3.2 to 3.7 is available: without Go, only Debian's are"),
            Need::Kubectl if crate::tool::is_there("kubectl") => None,
            Need::Kubectl => Some("kubectl is missing; ./x e2e provides it"),
            Need::S3 if crate::servers::is_built("minio") => None,
            Need::S3 => Some("MinIO is missing; ./x store build builds it"),
            Need::CertManager | Need::PrometheusOperator | Need::Image(_) => super::not_fetched(need),
            Need::Helm if crate::tool::is_there("helm") => None,
            Need::Helm => Some("Helm is missing; it is built for the real environment"),
            Need::OperatorPod | Need::Previous => Some("the operator is part of the suite's own process"),
            Need::ApiServer => Some("the API server is part of the suite's own process"),
        }
    }

    fn fault(&self, fault: Fault) -> LocalBoxFuture<'_, Result<()>> {
        async move {
            let faults = self.cluster.faults().context("no nodes")?;
            match &fault {
                Fault::Kill(namespace, pod) => faults.kill(namespace, pod, None, 9).await?,
                Fault::Freeze(namespace, pod) => faults.freeze(namespace, pod).await?,
                Fault::Thaw(namespace, pod) => faults.unfreeze(namespace, pod).await?,
                Fault::LoseVolume(namespace, claim) => {
                    faults.lose_volume(namespace, claim).await?;
                    // It may have exited by itself.
                    let _ended = faults.kill(namespace, claim, None, 9).await;
                }
                Fault::CorruptVolume(namespace, claim) => {
                    faults.corrupt_volume(namespace, claim, "*").await?;
                    let _ended = faults.kill(namespace, claim, None, 9).await;
                }
                Fault::TruncateVolume(namespace, claim) => {
                    faults.truncate_volume(namespace, claim).await?;
                    let _ended = faults.kill(namespace, claim, None, 9).await;
                }
                Fault::StopNode(node) => faults.stop_node(node).await?,
                Fault::StartNode(node) => faults.start_node(node).await?,
                Fault::Cut(namespace, one, other) => {
                    let (one, other) = (faults.address(namespace, one)?, faults.address(namespace, other)?);
                    faults.cut(one, other).await?;
                }
                Fault::StopApi | Fault::StartApi => anyhow::bail!("not possible here"),
                Fault::CutOperator(namespace, pod) => {
                    let operator = self.operators.address().context("the operator has no address")?;
                    faults.cut(operator, faults.address(namespace, pod)?).await?;
                }
                Fault::CutNode(node) => faults.cut_node(node).await?,
                Fault::Heal => {
                    faults.heal().await?;
                    faults.reconnect_nodes().await?;
                }
            }
            Ok(())
        }
        .boxed_local()
    }

    fn kill_operator(&self) -> LocalBoxFuture<'_, Result<()>> {
        async move {
            self.operators.kill(Which::First).await;
            Ok(())
        }
        .boxed_local()
    }

    fn start_operator(&self) -> LocalBoxFuture<'_, Result<()>> {
        async move {
            self.operators.start(Which::First);
            let clusters: Api<EtcdCluster> = Api::all(self.cluster.client());
            crate::wait::until("the EtcdCluster kind", 30, async || {
                Ok(Some(clusters.list(&Default::default()).await?))
            })
            .await
            .map(drop)
        }
        .boxed_local()
    }

    fn kubeconfig(&self) -> std::path::PathBuf {
        self.kubeconfig.path().to_owned()
    }

    fn address(&self) -> Option<IpAddr> {
        Some(self.cluster.gateway().into())
    }

    fn meter(&self) -> Option<Arc<Meter>> {
        Some(self.operators.meter.clone())
    }

    fn second_operator(&self, runs: bool) -> LocalBoxFuture<'_, Result<()>> {
        async move {
            self.operators.kill(Which::Second).await;
            if runs {
                self.operators.start(Which::Second);
            }
            Ok(())
        }
        .boxed_local()
    }

    fn operator_log(&self) -> LocalBoxFuture<'_, String> {
        async move { self.log.tail(80) }.boxed_local()
    }
}
