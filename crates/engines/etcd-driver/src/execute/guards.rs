//! The facts that guards rest on, read past all caches. Whether a guard holds is said by `stateward_etcd::cluster::guard`.

use std::collections::{BTreeMap, BTreeSet};

use crate::client::{hash_of_data, prove_list};
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use stateward_etcd::api::EtcdCluster;
use stateward_etcd::cluster::guard::{
    self, Fact, FactNeed, Facts, Fresh, Guard, Need, ObjectVersion, ObjectsNow, PodNow,
};
use stateward_etcd::cluster::{
    ClusterId, DataHash, Effect, Listed, MemberId, MemberList, MemberName, Order, Record, Uid, facts,
};
use stateward_runtime::guards::{Reader, hold};
use stateward_runtime::{Key, worker};

use super::{Executor, Failure};
use crate::observe::{HASH_PATIENCE, answers, is_owned};
use crate::{Shared, restore, tls};

impl Executor<'_> {
    pub(super) fn guards(&self, effect: &Effect) -> Vec<Guard> {
        guard::guards(effect, &ObjectVersion::of(&self.cluster.metadata), self.world)
    }

    /// Before anything is done: a reconcile that rests on an old EtcdCluster does nothing at all.
    pub(crate) async fn begin(&self, orders: &[Order]) -> Result<(), Failure> {
        let guards = orders.iter().flat_map(|order| self.guards(&order.effect));
        let guards: Vec<Guard> = guards.filter(|guard| matches!(guard, Guard::Unchanged(_))).collect();
        self.must_hold(&guards).await
    }

    /// The record may be written. That its version is the one it was read at is checked by the API server.
    pub(crate) async fn may_remember(&self, before: &Record, after: &Record) -> Result<(), Failure> {
        self.must_hold(&guard::record_guards(before, after)).await
    }

    /// All of them hold at this moment.
    pub(super) async fn must_hold(&self, guards: &[Guard]) -> Result<(), Failure> {
        let fresh = Fresh {
            object: self.step.seen.lately(),
            facts: Facts::default(),
        };
        hold(guards, fresh, self.intent, &mut FromApi(self)).await
    }

    async fn read(&self, need: FactNeed, facts: &mut Facts) -> Result<(), Failure> {
        match need {
            FactNeed::WaitingRestores => {
                facts.waiting_restores = Some(restore::waiting(self.shared, self.key, self.cluster).await?);
            }
            FactNeed::Restore(name) => {
                facts.restore = Some(restore::now(self.shared, self.key, self.cluster, &name).await?)
            }
            FactNeed::Pods => facts.pods = Some(pods(self.shared, self.key, self.cluster).await?),
            FactNeed::Objects(member) => facts.objects = Some(self.objects(&member).await?),
            FactNeed::List(cluster) => facts.list = Some(self.list(cluster).await?),
            FactNeed::Lists(cluster) => facts.lists = Some(self.lists(cluster).await?),
            FactNeed::Hashes(cluster, ids) => facts.hashes = Some(self.hashes(cluster, &ids).await?),
            FactNeed::EndedNodes(nodes) => facts.ended_nodes = Some(self.ended(nodes).await?),
            FactNeed::Secrets => facts.secrets = Some(tls::secrets_now(self.shared, self.key, self.cluster).await?),
        }
        Ok(())
    }

    async fn objects(&self, member: &MemberName) -> Result<ObjectsNow, Failure> {
        let (pods, claims) = (
            self.shared.runtime.api::<Pod>(&self.key.namespace),
            self.shared.runtime.api::<PersistentVolumeClaim>(&self.key.namespace),
        );
        let (pod, claim) = futures::try_join!(pods.get_opt(&member.0), claims.get_opt(&member.0))?;
        Ok(ObjectsNow {
            pod: pod.and_then(|pod| pod.metadata.uid).map(Uid),
            claim: claim.and_then(|claim| claim.metadata.uid).map(Uid),
        })
    }

    /// Those of these nodes that are deleted or out of service.
    async fn ended(&self, nodes: BTreeSet<String>) -> Result<BTreeSet<String>, Failure> {
        let all = kube::Api::<Node>::all(self.shared.runtime.client.clone());
        let all = all.list(&ListParams::default()).await?;
        let node = |name: &String| all.items.iter().find(|node| node.metadata.name.as_ref() == Some(name));
        let ended = nodes.into_iter().filter(|name| crate::ends::end(node(name)).is_some());
        Ok(ended.collect())
    }

    /// The list that a quorum agrees to.
    async fn list(&self, cluster: ClusterId) -> Result<MemberList, Failure> {
        let client = self.somebody(cluster)?;
        let speaker = answers(self.world)
            .find(|(name, _)| {
                let other = self.means.clients.get(*name);
                other.is_some_and(|other| other.address() == client.address())
            })
            .map(|(_, reply)| reply)
            .ok_or(Failure::Nobody)?;
        Ok(prove_list(client, speaker).await?)
    }

    /// The hashes of these members' data; those that cannot be compared are left out.
    async fn hashes(&self, cluster: ClusterId, ids: &[MemberId]) -> Result<BTreeMap<MemberId, DataHash>, Failure> {
        let questions = ids.iter().map(async |id| {
            let client = self.member(cluster, *id)?.with_request_timeout(HASH_PATIENCE);
            Ok(hash_of_data(&client).await?.map(|hash| (*id, hash)))
        });
        let answers: Result<Vec<_>, Failure> = join_all(questions).await.into_iter().collect();
        Ok(answers?.into_iter().flatten().collect())
    }

    /// The lists of all members that answered.
    async fn lists(&self, cluster: ClusterId) -> Result<Vec<Vec<Listed>>, Failure> {
        let mut lists = Vec::new();
        for (name, _) in answers(self.world).filter(|(_, reply)| reply.cluster == cluster) {
            let Some(client) = self.means.clients.get(name) else {
                continue;
            };
            let list = client.member_list(false).await?;
            let lines = list.members.into_iter().map(|member| Listed {
                id: MemberId(member.id),
                name: Some(member.name).filter(|name| !name.is_empty()).map(MemberName),
                peer_urls: member.peer_urls,
                learner: member.is_learner,
            });
            lists.push(lines.collect());
        }
        if lists.is_empty() {
            Err(Failure::Nobody)
        } else {
            Ok(lists)
        }
    }
}

/// Reads facts from Kubernetes and etcd.
struct FromApi<'a>(&'a Executor<'a>);

impl Reader<Fact> for FromApi<'_> {
    type Error = Failure;

    async fn read(&mut self, need: Need, fresh: &mut Fresh) -> Result<(), Failure> {
        match need {
            Need::Object => {
                fresh.object = Some(worker::read(self.0.driver, self.0.step).await?);
                Ok(())
            }
            Need::Fact(need) => self.0.read(need, &mut fresh.facts).await,
        }
    }
}

/// The cluster's pods. They are not put into the cache: the watch tells of them, and wakes whoever has not seen them.
pub(crate) async fn pods(shared: &Shared, key: &Key, cluster: &EtcdCluster) -> kube::Result<Vec<PodNow>> {
    pods_of(
        shared.runtime.client.clone(),
        key,
        cluster.metadata.uid.as_deref().unwrap_or_default(),
    )
    .await
}

/// By their owner and not by their labels: if somebody removes the labels of a pod, it keeps running, and watches no longer show it.
async fn pods_of(client: kube::Client, key: &Key, uid: &str) -> kube::Result<Vec<PodNow>> {
    let api: kube::Api<Pod> = kube::Api::namespaced(client, &key.namespace);
    let pods = api.list(&ListParams::default()).await?.items;
    let own = pods.iter().filter(|pod| is_owned(&pod.metadata, uid));
    Ok(own
        .map(|pod| PodNow {
            name: MemberName(pod.metadata.name.clone().unwrap_or_default()),
            uid: Uid(pod.metadata.uid.clone().unwrap_or_default()),
            trusts: facts::pod(pod).trusts,
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use kube::api::PostParams;
    use serde_json::json;
    use stateward_etcd::api::names;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_pod_without_its_labels_is_still_the_clusters() {
        // given a pod of the cluster whose labels somebody removed, and one of another cluster
        let kube = embedded_kube::Cluster::start().await.expect("an embedded Kubernetes");
        let key = Key::new("default", "c");
        let api: kube::Api<Pod> = kube::Api::namespaced(kube.client(), &key.namespace);
        for (name, cluster) in [("c-1", "ours"), ("d-1", "theirs")] {
            let pod = json!({
                "metadata": {"name": name, "annotations": {names::ANNOTATION_CLUSTER_UID: cluster}},
                "spec": {"containers": [{"name": "etcd", "image": "etcd"}]},
            });
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            api.create(&PostParams::default(), &pod).await.expect("made");
        }
        // when it is asked whether a pod of the cluster is there, then there is one
        let pods = pods_of(kube.client(), &key, "ours").await.expect("pods");
        let names: Vec<&str> = pods.iter().map(|pod| pod.name.0.as_str()).collect();
        assert_eq!(names, ["c-1"]);
        kube.stop().await;
    }
}
