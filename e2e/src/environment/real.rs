//! The real environment: a Kubernetes that `./x kube up` started. Faults are injected with `./x kube fault`. The
//! operator is the shipped Deployment with the shipped permissions.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail};
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, ServiceAccount};
use kube::api::{DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams};
use kube::config::AuthInfo;
use kube::{Api, ResourceExt};
use serde_json::json;
use stateward_etcd::api::EtcdVersion;
use tokio::process::Command;

use super::in_process::{InProcess, Which};
use super::{Environment, Fault, Need};
use crate::meter::Meter;
use crate::wait::until;

/// The namespace of the shipped manifests.
const NAMESPACE: &str = "stateward-system";

/// A real Kubernetes.
pub(crate) struct Real {
    client: kube::Client,
    xtask: PathBuf,
    versions: Vec<EtcdVersion>,
    /// Set while the operator runs in this process instead of its pod.
    operators: Mutex<Option<Arc<InProcess>>>,
    log: crate::log::Log,
}

impl Real {
    /// Connects to the cluster of the current kubeconfig. `xtask` is the program that injects faults.
    pub(crate) async fn connect(xtask: PathBuf, versions: Vec<EtcdVersion>, log: crate::log::Log) -> Result<Self> {
        let client = kube::Client::try_default()
            .await
            .context("no kubeconfig; run this through ./x kube test")?;
        let environment = Self {
            client,
            xtask,
            versions,
            operators: Mutex::default(),
            log,
        };
        environment.start_operator().await?;
        Ok(environment)
    }

    async fn xtask(&self, words: &[&str]) -> Result<()> {
        let output = Command::new(&self.xtask)
            .args(["kube", "fault"])
            .args(words)
            .stdin(Stdio::null())
            .output()
            .await
            .context("cannot run xtask")?;
        if !output.status.success() {
            bail!(
                "kube fault {}: {}",
                words.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(())
    }

    fn in_process(&self) -> Option<Arc<InProcess>> {
        self.operators.lock().expect("no panic while held").clone()
    }

    /// A client with a token of the operator's service account. It has exactly the permissions of the shipped pod.
    async fn as_operator(&self) -> Result<kube::Client> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), NAMESPACE);
        let (how, request) = (PostParams::default(), TokenRequest::default());
        let answer = accounts.create_token_request("stateward", &how, &request).await?;
        let token = answer.status.and_then(|status| status.token);
        anyhow::ensure!(token.is_some(), "the API server returned no token");
        let mut config = kube::Config::infer().await?;
        config.auth_info = AuthInfo {
            token: token.map(Into::into),
            ..AuthInfo::default()
        };
        Ok(kube::Client::try_from(config)?)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn operator_pods(&self) -> Result<Vec<Pod>> {
        Ok(self
            .pods()
            .list(&ListParams::default().labels("app.kubernetes.io/name=stateward"))
            .await?
            .items)
    }
}

impl Environment for Real {
    fn name(&self) -> &'static str {
        "real"
    }

    fn client(&self) -> kube::Client {
        self.client.clone()
    }

    fn versions(&self) -> Vec<EtcdVersion> {
        self.versions.clone()
    }

    fn lacks(&self, need: Need) -> Option<&'static str> {
        if need == Need::S3 && std::env::var_os(crate::s3::IMAGE).is_none() {
            return Some("the image of the S3 server is not loaded; ./x kube test loads it");
        }
        if let Some(why) = super::not_fetched(need) {
            return Some(why);
        }
        let previous = std::env::var_os("STATEWARD_PREVIOUS").is_some();
        (need == Need::Previous && !previous).then_some("the commit of the previous release is not in this clone")
    }

    fn kubeconfig(&self) -> PathBuf {
        std::env::var_os("KUBECONFIG").unwrap_or_default().into()
    }

    fn fault(&self, fault: Fault) -> LocalBoxFuture<'_, Result<()>> {
        async move {
            let slash = |namespace: &str, name: &str| format!("{namespace}/{name}");
            match &fault {
                Fault::Kill(namespace, pod) => self.xtask(&["kill", &slash(namespace, pod)]).await,
                Fault::Freeze(namespace, pod) => self.xtask(&["freeze", &slash(namespace, pod)]).await,
                Fault::Thaw(namespace, pod) => self.xtask(&["thaw", &slash(namespace, pod)]).await,
                Fault::LoseVolume(namespace, claim) => self.xtask(&["lose-volume", &slash(namespace, claim)]).await,
                Fault::CorruptVolume(namespace, claim) => {
                    self.xtask(&["corrupt-volume", &slash(namespace, claim)]).await
                }
                Fault::TruncateVolume(namespace, claim) => {
                    self.xtask(&["truncate-volume", &slash(namespace, claim)]).await
                }
                Fault::StopNode(node) => self.xtask(&["stop-node", node]).await,
                Fault::StartNode(node) => self.xtask(&["start-node", node]).await,
                Fault::Cut(namespace, a, b) => self.xtask(&["cut", &slash(namespace, a), &slash(namespace, b)]).await,
                Fault::CutOperator(namespace, pod) => {
                    for operator in self.operator_pods().await? {
                        let operator = slash(NAMESPACE, &operator.metadata.name.unwrap_or_default());
                        self.xtask(&["cut", &operator, &slash(namespace, pod)]).await?;
                    }
                    Ok(())
                }
                Fault::CutNode(node) => self.xtask(&["cut", node, "control"]).await,
                Fault::Heal => self.xtask(&["heal"]).await,
                Fault::StopApi => self.xtask(&["stop-api"]).await,
                Fault::StartApi => self.xtask(&["start-api"]).await,
            }
        }
        .boxed_local()
    }

    fn kill_operator(&self) -> LocalBoxFuture<'_, Result<()>> {
        async move {
            if let Some(operators) = self.in_process() {
                operators.kill(Which::First).await;
                return Ok(());
            }
            for pod in self.operator_pods().await? {
                let name = pod.metadata.name.clone().unwrap_or_default();
                self.xtask(&["kill", &format!("{NAMESPACE}/{name}")]).await?;
                // Wait until Kubernetes has seen it too: what it reports about this pod from now on is about the
                // restarted container.
                let before = lives(&pod);
                until("the kubelet to see that the operator ended", 30, async || {
                    let pod = self.pods().get_opt(&name).await?;
                    Ok(pod
                        .is_none_or(|pod| lives(&pod) > before || !crate::test::is_ready(&pod))
                        .then_some(()))
                })
                .await?;
            }
            Ok(())
        }
        .boxed_local()
    }

    fn start_operator(&self) -> LocalBoxFuture<'_, Result<()>> {
        async move {
            if let Some(operators) = self.in_process() {
                operators.start(Which::First);
                return Ok(());
            }
            let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), NAMESPACE);
            // A scenario may have uninstalled it or replaced it.
            let there = deployments.get_opt("stateward").await?;
            let as_shipped = |deployment: &Deployment| {
                let spec = &deployment.spec;
                let image = spec.template.spec.as_ref()?.containers.first()?.image.as_ref()?;
                Some(spec.replicas == Some(1) && image.ends_with(concat!("stateward:", env!("CARGO_PKG_VERSION"))))
            };
            if there.as_ref().and_then(as_shipped) != Some(true) {
                let words = [
                    "apply",
                    "--server-side",
                    "--force-conflicts",
                    "-f",
                    "deploy/install.yaml",
                ];
                crate::tool::run("kubectl", &self.kubeconfig(), &words, None).await?;
            }
            until("the operator's Deployment to be available", 60, async || {
                // Restarts of a pod that was killed often are delayed more and more; a new pod starts at once.
                for pod in self.operator_pods().await?.iter().filter(|pod| backs_off(pod)) {
                    self.pods().delete(&pod.name_any(), &DeleteParams::default()).await?;
                }
                let deployment = deployments.get("stateward").await?;
                let generation = deployment.metadata.generation;
                let status = deployment.status.unwrap_or_default();
                let done = status.observed_generation == generation
                    && status.updated_replicas == Some(1)
                    && status.replicas == Some(1)
                    && status.available_replicas == Some(1);
                Ok(done.then_some(()))
            })
            .await
        }
        .boxed_local()
    }

    fn operator_in_process(&self, in_process: bool) -> LocalBoxFuture<'_, Result<()>> {
        async move {
            let before = self.operators.lock().expect("no panic while held").take();
            if let Some(before) = before {
                before.kill(Which::First).await;
                before.kill(Which::Second).await;
            }
            if !in_process {
                return Ok(());
            }
            let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), NAMESPACE);
            let none = json!({"spec": {"replicas": 0}});
            deployments
                .patch("stateward", &PatchParams::default(), &Patch::Merge(&none))
                .await?;
            until("the operator's pod to be gone", 60, async || {
                Ok(self.operator_pods().await?.is_empty().then_some(()))
            })
            .await?;
            let operators = Arc::new(InProcess::new(self.as_operator().await?, None));
            operators.start(Which::First);
            *self.operators.lock().expect("no panic while held") = Some(operators);
            Ok(())
        }
        .boxed_local()
    }

    fn meter(&self) -> Option<Arc<Meter>> {
        self.in_process().map(|operators| operators.meter.clone())
    }

    fn second_operator(&self, runs: bool) -> LocalBoxFuture<'_, Result<()>> {
        async move {
            let operators = self.in_process().context("the operator is in its pod")?;
            operators.kill(Which::Second).await;
            if runs {
                operators.start(Which::Second);
            }
            Ok(())
        }
        .boxed_local()
    }

    fn operator_log(&self) -> LocalBoxFuture<'_, String> {
        async move {
            if self.in_process().is_some() {
                return self.log.tail(80);
            }
            let mut all = String::new();
            for pod in self.operator_pods().await.unwrap_or_default() {
                let name = pod.metadata.name.unwrap_or_default();
                let options = LogParams {
                    tail_lines: Some(60),
                    ..LogParams::default()
                };
                all += &format!(
                    "--- {name}\n{}\n",
                    self.pods()
                        .logs(&name, &options)
                        .await
                        .unwrap_or_else(|error| error.to_string())
                );
            }
            all
        }
        .boxed_local()
    }
}

fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref());
    status.into_iter().flatten()
}

/// How often a pod's containers were restarted.
fn lives(pod: &Pod) -> i32 {
    containers(pod).map(|container| container.restart_count).sum()
}

/// Whether the kubelet delays the restart of one of its containers.
fn backs_off(pod: &Pod) -> bool {
    containers(pod)
        .filter_map(|container| container.state.as_ref()?.waiting.as_ref()?.reason.as_deref())
        .any(|reason| reason == "CrashLoopBackOff")
}
