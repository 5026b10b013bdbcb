//! What a scenario works with: a namespace of its own, clusters in it, and ways to wait and to inspect.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod, Secret, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use stateward_core::conditions::{is_true, types};
use stateward_etcd::api::{EtcdBackup, EtcdCluster, EtcdRestore, names};
use stateward_etcd_driver::client::{Client, Timeouts, Tls};

use crate::environment::{Environment, Fault};
use crate::wait::until;
use crate::writer::{Endpoint, Writer};

/// The etcd version of scenarios that are not about versions.
pub(crate) const USUAL: &str = "3.5.35";

/// The label of pods that a scenario creates beside the operator's. They are deleted when it ends.
pub(crate) const SERVER: &str = "stateward-e2e-server";

pub(crate) struct Test {
    pub(crate) environment: Arc<dyn Environment>,
    /// The scenario's own namespace.
    pub(crate) namespace: String,
    /// A client with administrator permissions.
    pub(crate) client: kube::Client,
    /// The version to use where it does not matter.
    pub(crate) usual: String,
}

/// A member as etcd lists it.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) id: u64,
    pub(crate) name: String,
    /// Whether it is a learner, which does not vote.
    pub(crate) learner: bool,
}

impl Test {
    /// Creates the namespace and enforces the "restricted" Pod Security Standard in it.
    pub(crate) async fn new(environment: Arc<dyn Environment>, scenario: &str) -> Result<Self> {
        let client = environment.client();
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let suffix: String = (0..4).map(|_| char::from(b'a' + rand::random_range(0..26u8))).collect();
        let namespace = format!(
            "{}-{suffix}",
            scenario.replace('_', "-").chars().take(40).collect::<String>()
        );
        let object =
            json!({"metadata": {"name": namespace, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
        namespaces
            .create(&PostParams::default(), &serde_json::from_value(object)?)
            .await
            .context("cannot create the namespace")?;
        let have = environment.versions();
        let usual = have
            .iter()
            .map(ToString::to_string)
            .find(|version| version == USUAL)
            .or_else(|| have.last().map(ToString::to_string))
            .context("no etcd image is available")?;
        Ok(Self {
            environment,
            namespace,
            client,
            usual,
        })
    }

    /// Deletes the clusters, waits until their pods are gone, and deletes the namespace without waiting for it.
    pub(crate) async fn clean_up(&self) -> Result<()> {
        let restores: Api<EtcdRestore> = Api::namespaced(self.client.clone(), &self.namespace);
        restores
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await?;
        self.backups()
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await?;
        self.clusters()
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await?;
        self.mysql_clusters()
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await?;
        self.stateful_sets()
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await?;
        self.pods()
            .delete_collection(&DeleteParams::default(), &ListParams::default().labels(SERVER))
            .await?;
        self.pods_gone().await?;
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        namespaces.delete(&self.namespace, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until no pod is left in the namespace.
    pub(crate) async fn pods_gone(&self) -> Result<()> {
        until("the pods to be deleted", 90, async || {
            let left = self.pods().list(&ListParams::default()).await?.items;
            if !left.is_empty() {
                bail!("{}", left.iter().map(remains).collect::<Vec<_>>().join("; "));
            }
            Ok(Some(()))
        })
        .await
    }

    pub(crate) fn clusters(&self) -> Api<EtcdCluster> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn backups(&self) -> Api<EtcdBackup> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn stateful_sets(&self) -> Api<StatefulSet> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates a cluster with this spec. Fills in the version if the spec has none.
    pub(crate) async fn create(&self, name: &str, mut spec: Value) -> Result<()> {
        if spec.get("version").is_none() {
            spec["version"] = json!(self.usual);
        }
        let object = json!({"apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdCluster", "metadata": {"name": name}, "spec": spec});
        self.clusters()
            .create(&PostParams::default(), &serde_json::from_value(object)?)
            .await
            .with_context(|| format!("cannot create EtcdCluster {name}"))?;
        Ok(())
    }

    /// Creates a cluster and waits until it matches its spec.
    pub(crate) async fn created(&self, name: &str, spec: Value) -> Result<()> {
        self.create(name, spec).await?;
        self.settled(name, 60).await.map(drop)
    }

    /// Merges a patch into the spec.
    pub(crate) async fn edit(&self, name: &str, spec: Value) -> Result<()> {
        let patch = json!({ "spec": spec });
        self.clusters()
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        Ok(())
    }

    pub(crate) async fn get(&self, name: &str) -> Result<EtcdCluster> {
        Ok(self.clusters().get(name).await?)
    }

    /// The pods of a cluster that are not being deleted.
    pub(crate) async fn pods_of(&self, name: &str) -> Result<Vec<Pod>> {
        let pods = self
            .pods()
            .list(&ListParams::default().labels(&names::selector_text(name)))
            .await?
            .items;
        Ok(pods
            .into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .collect())
    }

    pub(crate) async fn claims_of(&self, name: &str) -> Result<Vec<PersistentVolumeClaim>> {
        Ok(self
            .claims()
            .list(&ListParams::default().labels(&names::selector_text(name)))
            .await?
            .items)
    }

    /// Waits until the cluster matches its spec: by its status, by Kubernetes, and by etcd's own member list.
    pub(crate) async fn settled(&self, name: &str, seconds: u64) -> Result<EtcdCluster> {
        until(&format!("{name} to match its spec"), seconds, async || {
            let cluster = self.get(name).await?;
            let size = usize::try_from(cluster.spec.size)?;
            if !is_settled(&cluster) {
                bail!("{}", describe(&cluster));
            }
            let pods = self.pods_of(name).await?;
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            if pods.len() != size || ready != size {
                bail!("{} pods, {ready} ready, {size} wanted", pods.len());
            }
            let list = self.list_by(&cluster, &pods[0]).await?;
            let voters = list.iter().filter(|member| !member.learner).count();
            if list.len() != size || voters != size {
                bail!("etcd lists {} members, {voters} voters, expected {size}", list.len());
            }
            Ok(Some(cluster))
        })
        .await
    }

    /// Waits until a condition is true with this reason, and returns its message.
    pub(crate) async fn condition(&self, name: &str, type_: &str, reason: &str, seconds: u64) -> Result<String> {
        until(
            &format!("{name} to have condition {type_} with reason {reason}"),
            seconds,
            async || {
                let cluster = self.get(name).await?;
                let status = cluster.status.clone().unwrap_or_default();
                let found = status
                    .conditions
                    .iter()
                    .find(|condition| condition.type_ == type_ && condition.reason == reason);
                if found.is_none() {
                    bail!("{}", describe(&cluster));
                }
                Ok(found.map(|condition| condition.message.clone()))
            },
        )
        .await
    }

    /// The member list, from one of the cluster's pods.
    pub(crate) async fn list(&self, name: &str) -> Result<Vec<Listed>> {
        let cluster = self.get(name).await?;
        let pods = self.pods_of(name).await?;
        let pod = pods.iter().find(|pod| is_ready(pod)).context("no ready pod")?;
        self.list_by(&cluster, pod).await
    }

    async fn list_by(&self, cluster: &EtcdCluster, pod: &Pod) -> Result<Vec<Listed>> {
        let members = self.etcd(cluster, pod).await?.member_list(false).await?.members;
        Ok(members
            .into_iter()
            .map(|member| Listed {
                id: member.id,
                name: member.name,
                learner: member.is_learner,
            })
            .collect())
    }

    /// An etcd client for one member.
    pub(crate) async fn etcd(&self, cluster: &EtcdCluster, pod: &Pod) -> Result<Client> {
        let address = pod
            .status
            .as_ref()
            .and_then(|status| status.pod_ip.as_ref())
            .context("the pod has no address yet")?;
        let address = SocketAddr::new(address.parse()?, 2379);
        let tls = self.tls(cluster).await?;
        let host = cluster.member_host(&pod.name_any());
        let timeouts = Timeouts {
            connect: Duration::from_secs(2),
            request: Duration::from_secs(3),
        };
        Ok(Client::new(
            address,
            tls.as_ref().map(|tls| (tls, host.as_str())),
            timeouts,
        )?)
    }

    async fn tls(&self, cluster: &EtcdCluster) -> Result<Option<Tls>> {
        match stateward_etcd::cluster::manifests::tls_secrets(cluster).client {
            Some(name) => self.client_tls(&name).await.map(Some),
            None => Ok(None),
        }
    }

    /// The client certificate in a Secret.
    pub(crate) async fn client_tls(&self, name: &str) -> Result<Tls> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let data = secrets.get(name).await?.data.unwrap_or_default();
        let file = |key: &str| {
            data.get(key)
                .map(|bytes| bytes.0.as_slice())
                .with_context(|| format!("secret {name} has no {key}"))
        };
        Ok(Tls::new(
            file("etcd-client-ca.crt")?,
            Some((file("etcd-client.crt")?, file("etcd-client.key")?)),
        )?)
    }

    /// How clients reach a cluster: its client service.
    pub(crate) async fn endpoint(&self, name: &str) -> Result<Endpoint> {
        let services: Api<Service> = Api::namespaced(self.client.clone(), &self.namespace);
        let service = services.get(&names::client_service(name)).await?;
        let address = service
            .spec
            .and_then(|spec| spec.cluster_ip)
            .context("the client service has no address")?;
        let cluster = self.get(name).await?;
        let tls = self.tls(&cluster).await?;
        Ok(Endpoint {
            address: SocketAddr::new(address.parse()?, 2379),
            tls: tls.map(|tls| (tls, names::client_host(name, &self.namespace, cluster.cluster_domain()))),
        })
    }

    /// Starts a client that writes continuously.
    pub(crate) async fn writer(&self, name: &str) -> Result<Writer> {
        let writer = Writer::start(self.endpoint(name).await?);
        writer.writes_more(5, 30).await?;
        Ok(writer)
    }

    /// The name of the leader.
    pub(crate) async fn leader(&self, name: &str) -> Result<String> {
        until("a leader", 15, async || {
            let cluster = self.get(name).await?;
            for pod in self.pods_of(name).await? {
                let Ok(status) = self.etcd(&cluster, &pod).await?.status().await else {
                    continue;
                };
                let id = status.header.map(|header| header.member_id);
                if status.leader != 0 && id == Some(status.leader) {
                    return Ok(Some(pod.name_any()));
                }
            }
            Ok(None)
        })
        .await
    }

    /// Runs kubectl as an administrator, in this namespace.
    pub(crate) async fn kubectl(&self, words: &[&str]) -> Result<String> {
        self.tool("kubectl", words, None).await
    }

    /// Applies a manifest to this namespace.
    pub(crate) async fn apply(&self, manifest: &str) -> Result<()> {
        self.tool("kubectl", &["apply", "-f", "-"], Some(manifest))
            .await
            .map(drop)
    }

    /// Runs Helm as an administrator, in this namespace.
    pub(crate) async fn helm(&self, words: &[&str]) -> Result<String> {
        self.tool("helm", words, None).await
    }

    /// Runs a tool in this namespace, with optional standard input.
    pub(crate) async fn tool(&self, program: &str, words: &[&str], input: Option<&str>) -> Result<String> {
        let words = [&["--namespace", self.namespace.as_str()], words].concat();
        crate::tool::run(program, &self.environment.kubeconfig(), &words, input).await
    }

    /// Injects a fault, or undoes one.
    pub(crate) async fn fault(&self, fault: Fault) -> Result<()> {
        self.environment.fault(fault).await
    }

    /// Deletes a pod as a user would.
    pub(crate) async fn delete_pod(&self, name: &str) -> Result<()> {
        self.pods().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// The cluster ID in the status.
    pub(crate) async fn cluster_id(&self, name: &str) -> Result<String> {
        let id = self.get(name).await?.status.unwrap_or_default().cluster_id;
        if id.is_empty() {
            bail!("the status has no cluster ID")
        } else {
            Ok(id)
        }
    }
}

/// Whether Kubernetes reports a pod as ready.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| {
        all.iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    })
}

/// Whether a cluster's status reports that it matches its spec.
pub(crate) fn is_settled(cluster: &EtcdCluster) -> bool {
    let status = cluster.status.clone().unwrap_or_default();
    status.observed_generation == cluster.metadata.generation
        && usize::try_from(cluster.spec.size).is_ok_and(|size| status.members.ready.len() == size)
        && is_true(&status.conditions, types::AVAILABLE)
        && !is_true(&status.conditions, types::PROGRESSING)
}

/// Why a pod may still exist, in one line.
fn remains(pod: &Pod) -> String {
    let owners: Vec<_> = pod
        .owner_references()
        .iter()
        .map(|owner| format!("{} {} {}", owner.kind, owner.name, owner.uid))
        .collect();
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let deleted = pod.metadata.deletion_timestamp.as_ref().map(|time| time.0.to_string());
    format!(
        "{} of {} is {}, {}",
        pod.name_any(),
        owners.join(" and "),
        phase.unwrap_or("nowhere"),
        deleted.map_or("not being deleted".to_owned(), |time| format!("deleted {time}"))
    )
}

/// A cluster's state in one line.
pub(crate) fn describe(cluster: &EtcdCluster) -> String {
    let status = cluster.status.clone().unwrap_or_default();
    let conditions: Vec<_> = status
        .conditions
        .iter()
        .map(|condition| format!("{}={:?}({})", condition.type_, condition.status, condition.reason))
        .collect();
    format!(
        "phase {:?}, generation {:?} of {:?}, {} of {} ready, {}; waiting: {}",
        status.phase,
        status.observed_generation,
        cluster.metadata.generation,
        status.members.ready.len(),
        cluster.spec.size,
        conditions.join(" "),
        status.waiting
    )
}
