//! The baseline: a script creates the same pods, claims and services by the same procedure, without an operator. The
//! script knows what it does, so it observes only what it waits for.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::future::{try_join, try_join_all};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use kube::api::{DeleteParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use stateward_etcd::api::{EtcdCluster, EtcdVersion, names};
use stateward_etcd::cluster::{Intent, Launch, MemberId, MemberName, TlsStage, manifests};
use stateward_etcd_driver::client::Client;

use crate::test::{Test, is_ready};
use crate::wait::{seen, until, watch};

/// The time limit for each step of the script.
const STEP_TIMEOUT: u64 = 120;

/// A cluster that the script creates.
pub(crate) struct ByHand<'a> {
    test: &'a Test,
    cluster: EtcdCluster,
    intent: Intent,
    version: EtcdVersion,
    members: Vec<MemberName>,
}

impl<'a> ByHand<'a> {
    pub(crate) fn new(test: &'a Test, name: &str, size: usize, version: &str) -> Result<Self> {
        let object = json!({
            "apiVersion": "etcd.database.coreos.com/v1beta2",
            "kind": "EtcdCluster",
            "metadata": {"name": name, "namespace": test.namespace, "uid": format!("by-hand-{name}")},
            "spec": {"size": size, "version": version},
        });
        let cluster: EtcdCluster = serde_json::from_value(object)?;
        let intent = Intent::of(&cluster, false).map_err(|refused| anyhow::anyhow!("{refused:?}"))?;
        let members = (0..size).map(|_| fresh(name)).collect();
        Ok(Self {
            test,
            intent,
            members,
            version: version.parse()?,
            cluster,
        })
    }

    /// Starts all members at once, each with the full list.
    pub(crate) async fn parallel(&self) -> Result<()> {
        let all = self.members.iter().map(|member| {
            let launch = Launch::Static {
                token: self.cluster.name().to_owned(),
                members: self.members.clone(),
            };
            self.start(member, launch)
        });
        try_join(self.services(), try_join_all(all)).await?;
        self.serves().await
    }

    /// Starts a first member, then adds the others as learners, one after another. Where etcd allows more than one
    /// learner, the next is added before the previous one is promoted, which is the fastest way with real DNS names
    /// (ADR 7).
    pub(crate) async fn seed_then_join(&self) -> Result<()> {
        let (seed, others) = self.members.split_first().context("a cluster without members")?;
        let launch = Launch::Seed {
            token: self.cluster.name().to_owned(),
        };
        try_join(self.services(), self.start(seed, launch)).await?;
        let first = self.answers(seed).await?;
        let several = self.version >= "3.6.0".parse()?;
        for (position, member) in others.iter().enumerate() {
            if position == 0 || !several {
                self.add(&first, member).await?;
            }
            self.start(member, self.joining(&self.members[..=position + 1])).await?;
            self.answers(member).await?;
            if let Some(next) = others.get(position + 1).filter(|_| several) {
                self.add(&first, next).await?;
            }
            self.promote(&first, member).await?;
        }
        self.serves().await
    }

    /// What follows when a member's volume is proven lost: remove, add, start, promote. Returns the time since the
    /// removal, because the time before it measures the operator's proof.
    pub(crate) async fn replace(&mut self, lost: &MemberName) -> Result<Duration> {
        let survivor = self.members.iter().find(|member| *member != lost).cloned();
        let survivor = self.answers(&survivor.context("no survivor")?).await?;
        let id = self.id(&survivor, lost).await?;
        retry("the lost member to be removed", async || {
            survivor.member_remove(id).await.map(drop)
        })
        .await?;
        let started = Instant::now();
        let (pods, claims) = (self.test.pods(), self.test.claims());
        let (now, in_background) = (DeleteParams::default().grace_period(0), DeleteParams::default());
        let claim = names::claim(&lost.0);
        try_join(pods.delete(&lost.0, &now), claims.delete(&claim, &in_background)).await?;
        let new = fresh(self.cluster.name());
        self.members.retain(|member| member != lost);
        self.add(&survivor, &new).await?;
        self.members.push(new.clone());
        self.start(&new, self.joining(&self.members)).await?;
        self.answers(&new).await?;
        self.promote(&survivor, &new).await?;
        self.serves().await?;
        Ok(started.elapsed())
    }

    /// Deletes a pod and creates it again as soon as its name is free.
    pub(crate) async fn restart(&self, member: &MemberName) -> Result<()> {
        self.test.delete_pod(&member.0).await?;
        let pod = self.pod(member, &Launch::Sealed);
        watch(&self.test.pods(), &member.0, STEP_TIMEOUT, |pod: Option<&Pod>| {
            pod.is_none()
        })
        .await?;
        self.test.pods().create(&PostParams::default(), &pod).await?;
        self.serves().await
    }

    /// A member that is not the leader: the operator's side of the measurement loses a follower too.
    pub(crate) async fn follower(&self) -> Result<MemberName> {
        for member in &self.members {
            let status = self.answers(member).await?.status().await?;
            let id = status.header.map(|header| header.member_id);
            if status.leader != 0 && id != Some(status.leader) {
                return Ok(member.clone());
            }
        }
        bail!("no follower among {:?}", self.members)
    }

    /// Deletes everything and waits until the pods are gone.
    pub(crate) async fn delete(&self) -> Result<()> {
        for member in &self.members {
            let _ = self.test.pods().delete(&member.0, &DeleteParams::default()).await;
            let _ = self
                .test
                .claims()
                .delete(&names::claim(&member.0), &DeleteParams::default())
                .await;
        }
        self.test.pods_gone().await
    }

    async fn services(&self) -> Result<()> {
        let services: Api<Service> = Api::namespaced(self.test.client.clone(), &self.test.namespace);
        let (mut peer, mut client) = (
            manifests::peer_service(&self.cluster),
            manifests::client_service(&self.cluster),
        );
        try_join(create(&services, &mut peer), create(&services, &mut client)).await?;
        Ok(())
    }

    async fn start(&self, member: &MemberName, launch: Launch) -> Result<()> {
        let mut claim: PersistentVolumeClaim = manifests::claim(&self.cluster, member);
        let mut pod = self.pod(member, &launch);
        let (claims, pods) = (self.test.claims(), self.test.pods());
        try_join(create(&claims, &mut claim), create(&pods, &mut pod)).await?;
        Ok(())
    }

    fn pod(&self, member: &MemberName, launch: &Launch) -> Pod {
        let mut pod = manifests::pod(&self.intent, member, launch, &self.version, TlsStage::Off, None);
        pod.metadata.owner_references = None;
        pod
    }

    fn joining(&self, list: &[MemberName]) -> Launch {
        let url = |member: &MemberName| (member.clone(), self.intent.peer_url(member, false));
        Launch::Join {
            members: list.iter().map(url).collect(),
        }
    }

    async fn answers(&self, member: &MemberName) -> Result<Client> {
        let has_address = |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some());
        let pod = seen(&self.test.pods(), &member.0, STEP_TIMEOUT, has_address).await?;
        let client = self.test.etcd(&self.cluster, &pod).await?;
        until(&format!("{member} to answer"), STEP_TIMEOUT, async || {
            Ok(client.status().await.map(Some)?)
        })
        .await?;
        Ok(client)
    }

    /// etcd rejects this for some seconds after each promotion, so the script retries.
    async fn add(&self, to: &Client, member: &MemberName) -> Result<()> {
        let url = self.intent.peer_url(member, false);
        retry("a learner to be added", async || {
            to.member_add(&url, true).await.map(drop)
        })
        .await
    }

    async fn promote(&self, by: &Client, member: &MemberName) -> Result<()> {
        let id = self.id(by, member).await?;
        retry("a learner to be promoted", async || {
            by.member_promote(id).await.map(drop)
        })
        .await
    }

    async fn id(&self, by: &Client, member: &MemberName) -> Result<MemberId> {
        let url = self.intent.peer_url(member, false);
        let list = by.member_list(false).await?.members;
        let found = list.iter().find(|listed| listed.peer_urls.contains(&url));
        Ok(MemberId(
            found.with_context(|| format!("{member} is not in the list"))?.id,
        ))
    }

    /// All pods are ready and all members vote.
    async fn serves(&self) -> Result<()> {
        let pods = self.test.pods();
        let ready = self
            .members
            .iter()
            .map(|member| seen(&pods, &member.0, STEP_TIMEOUT, is_ready));
        let ready = try_join_all(ready).await?;
        let client = self.test.etcd(&self.cluster, &ready[0]).await?;
        until("the members to vote", STEP_TIMEOUT, async || {
            let list = client.member_list(false).await?.members;
            let voters = list.iter().filter(|member| !member.is_learner).count();
            Ok((voters == self.members.len()).then_some(()))
        })
        .await
    }
}

fn fresh(cluster: &str) -> MemberName {
    MemberName(names::member(cluster, rand::random()))
}

/// Sets no owner: the garbage collector would delete objects whose owner does not exist.
async fn create<K>(api: &Api<K>, object: &mut K) -> Result<()>
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    object.meta_mut().owner_references = None;
    api.create(&PostParams::default(), object).await?;
    Ok(())
}

async fn retry(what: &str, ask: impl AsyncFn() -> stateward_etcd_driver::client::Result<()>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(STEP_TIMEOUT);
    loop {
        match ask().await {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > deadline => bail!("waited for {what}: {error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}
