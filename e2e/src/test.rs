//! What a scenario works with: a namespace of its own, clusters in it, ways to wait and to look.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod, Secret, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use stateward_api::{EtcdBackup, EtcdCluster, EtcdRestore, names};
use stateward_core::conditions::{is_true, types};
use stateward_etcd::{Client, Timeouts, Tls};

use crate::ground::{Fault, Ground};
use crate::wait::until;
use crate::writer::{Endpoint, Writer};

/// The etcd version of scenarios that are not about versions.
pub(crate) const USUAL: &str = "3.5.35";

/// The label of pods with which a scenario plays the world around the operator; they go at its end.
pub(crate) const SERVER: &str = "stateward-e2e-server";

/// One run of a scenario.
pub(crate) struct Test {
    /// Where.
    pub(crate) ground: Arc<dyn Ground>,
    /// The namespace that is only its own.
    pub(crate) namespace: String,
    /// An administrator's client.
    pub(crate) client: kube::Client,
    /// The version to use where it does not matter.
    pub(crate) usual: String,
}

/// A member as etcd itself lists it.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    /// Its ID.
    pub(crate) id: u64,
    /// Its name.
    pub(crate) name: String,
    /// It does not vote.
    pub(crate) learner: bool,
}

impl Test {
    /// Makes the namespace, with the "restricted" pod security standard enforced.
    pub(crate) async fn new(ground: Arc<dyn Ground>, scenario: &str) -> Result<Self> {
        let client = ground.client();
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
            .context("cannot make a namespace")?;
        let have = ground.versions();
        let usual = have
            .iter()
            .map(ToString::to_string)
            .find(|version| version == USUAL)
            .or_else(|| have.last().map(ToString::to_string))
            .context("no etcd image at hand")?;
        Ok(Self {
            ground,
            namespace,
            client,
            usual,
        })
    }

    /// Deletes the clusters and waits until their pods are gone, then the namespace, which Kubernetes clears in its own
    /// time.
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
        until("the pods to go away", 90, async || {
            let left = self.pods().list(&ListParams::default()).await?.items;
            if !left.is_empty() {
                bail!("{}", left.iter().map(remains).collect::<Vec<_>>().join("; "));
            }
            Ok(Some(()))
        })
        .await
    }

    /// The clusters of the namespace.
    pub(crate) fn clusters(&self) -> Api<EtcdCluster> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Its EtcdBackups.
    pub(crate) fn backups(&self) -> Api<EtcdBackup> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Its pods.
    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Its claims.
    pub(crate) fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates a cluster with this spec; a version is filled in where none is given.
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

    /// Creates a cluster and waits until it is as the spec says.
    pub(crate) async fn created(&self, name: &str, spec: Value) -> Result<()> {
        self.create(name, spec).await?;
        self.settled(name, 60).await.map(drop)
    }

    /// Merges this into the spec.
    pub(crate) async fn edit(&self, name: &str, spec: Value) -> Result<()> {
        let patch = json!({ "spec": spec });
        self.clusters()
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        Ok(())
    }

    /// The cluster now.
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

    /// The claims of a cluster.
    pub(crate) async fn claims_of(&self, name: &str) -> Result<Vec<PersistentVolumeClaim>> {
        Ok(self
            .claims()
            .list(&ListParams::default().labels(&names::selector_text(name)))
            .await?
            .items)
    }

    /// Waits until the cluster is as the spec says: by its status, by Kubernetes, and by etcd's own member list.
    pub(crate) async fn settled(&self, name: &str, seconds: u64) -> Result<EtcdCluster> {
        until(&format!("{name} to be as its spec says"), seconds, async || {
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
                bail!("etcd lists {} members, {voters} voters, {size} wanted", list.len());
            }
            Ok(Some(cluster))
        })
        .await
    }

    /// Waits until a condition holds with this reason, and gives its message.
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

    /// The member list, asked of one of the cluster's pods.
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

    /// A client of one member.
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
        match stateward_plan::etcd::manifests::tls_secrets(cluster).client {
            Some(name) => self.client_tls(&name).await.map(Some),
            None => Ok(None),
        }
    }

    /// A client's certificate of this Secret.
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

    /// A client that writes all along.
    pub(crate) async fn writer(&self, name: &str) -> Result<Writer> {
        let writer = Writer::start(self.endpoint(name).await?);
        writer.goes_on(5, 30).await?;
        Ok(writer)
    }

    /// The name of the member that leads.
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

    /// kubectl as an administrator, in this namespace.
    pub(crate) async fn kubectl(&self, words: &[&str]) -> Result<String> {
        self.tool("kubectl", words, None).await
    }

    /// Applies a manifest to this namespace as a user would.
    pub(crate) async fn apply(&self, manifest: &str) -> Result<()> {
        self.tool("kubectl", &["apply", "-f", "-"], Some(manifest))
            .await
            .map(drop)
    }

    /// Helm as an administrator, in this namespace.
    pub(crate) async fn helm(&self, words: &[&str]) -> Result<String> {
        self.tool("helm", words, None).await
    }

    /// One of them, with something to read.
    pub(crate) async fn tool(&self, program: &str, words: &[&str], input: Option<&str>) -> Result<String> {
        let words = [&["--namespace", self.namespace.as_str()], words].concat();
        crate::tool::run(program, &self.ground.kubeconfig(), &words, input).await
    }

    /// Breaks or mends something in this namespace.
    pub(crate) async fn fault(&self, fault: Fault) -> Result<()> {
        self.ground.fault(fault).await
    }

    /// Deletes a pod as a user would.
    pub(crate) async fn delete_pod(&self, name: &str) -> Result<()> {
        self.pods().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// etcd's ID of the cluster, as the status has it.
    pub(crate) async fn cluster_id(&self, name: &str) -> Result<String> {
        let id = self.get(name).await?.status.unwrap_or_default().cluster_id;
        if id.is_empty() {
            bail!("the status has no cluster ID")
        } else {
            Ok(id)
        }
    }
}

/// Whether Kubernetes holds a pod for ready.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| {
        all.iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    })
}

/// Whether a cluster's status says that it is as its spec says.
pub(crate) fn is_settled(cluster: &EtcdCluster) -> bool {
    let status = cluster.status.clone().unwrap_or_default();
    status.observed_generation == cluster.metadata.generation
        && usize::try_from(cluster.spec.size).is_ok_and(|size| status.members.ready.len() == size)
        && is_true(&status.conditions, types::AVAILABLE)
        && !is_true(&status.conditions, types::PROGRESSING)
}

/// Why a pod may still be there, in one line.
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
