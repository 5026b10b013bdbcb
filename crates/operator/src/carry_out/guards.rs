//! The facts that guards rest on, read past all caches. Whether a guard holds is said by `stateward_plan::etcd::guard`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Instant;

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use stateward_api::EtcdCluster;
use stateward_etcd::{hash_of_data, prove_list};
use stateward_plan::etcd::guard::{self, Check, FRESH_FOR, Fresh, Guard, Need, ObjectVersion, ObjectsNow, PodNow};
use stateward_plan::etcd::{ClusterId, DataHash, Effect, Intent, Listed, MemberId, MemberList, MemberName, Uid, facts};

use super::{Failure, Hands};
use crate::Shared;
use crate::caches::Key;
use crate::observe::{HASH_PATIENCE, is_owned};
use crate::{restore, tls};

/// When the EtcdCluster was last read or written in this round, and what it was.
#[derive(Default)]
pub(crate) struct Seen(Mutex<Option<(Instant, Option<ObjectVersion>)>>);

impl Seen {
    /// It was written in this round, so it is known to be the newest.
    pub(crate) fn written(cluster: &EtcdCluster) -> Self {
        Self(Mutex::new(Some((Instant::now(), Some(version_of(cluster))))))
    }

    fn lately(&self) -> Option<Option<ObjectVersion>> {
        let seen = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let lately = seen.as_ref().filter(|(at, _)| at.elapsed() < FRESH_FOR);
        lately.map(|(_, version)| version.clone())
    }

    fn now(&self, version: Option<ObjectVersion>) {
        let mut seen = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *seen = Some((Instant::now(), version));
    }
}

fn version_of(cluster: &EtcdCluster) -> ObjectVersion {
    ObjectVersion {
        uid: Uid(cluster.metadata.uid.clone().unwrap_or_default()),
        resource_version: cluster.metadata.resource_version.clone().unwrap_or_default(),
    }
}

/// Why the record may not be written, if it may not. That its version is the one it was read at is checked by the API
/// server.
pub(crate) async fn refuses_record(
    shared: &Shared,
    key: &Key,
    cluster: &EtcdCluster,
    intent: &Intent,
    guards: &[Guard],
) -> kube::Result<Option<String>> {
    let mut fresh = Fresh::default();
    for guard in guards {
        loop {
            match guard.check(&fresh, intent) {
                Check::Holds => break,
                Check::Refused(why) => return Ok(Some(why)),
                Check::Unread(Need::Restore(name)) => {
                    fresh.restore = Some(restore::now(shared, key, cluster, &name).await?);
                }
                Check::Unread(need) => return Ok(Some(format!("{need:?} is not known before the record is written"))),
            }
        }
    }
    Ok(None)
}

impl Hands<'_> {
    pub(super) fn guards(&self, effect: &Effect) -> Vec<Guard> {
        guard::guards(effect, &version_of(self.cluster), &self.observed.world)
    }

    /// Before anything is done: a round that rests on an old EtcdCluster does nothing at all.
    pub(super) async fn must_be_planned_with(&self, effect: &Effect) -> Result<(), Failure> {
        let mut guards = self.guards(effect);
        guards.retain(|guard| matches!(guard, Guard::ClusterUnchanged(_)));
        self.must_hold(&guards).await
    }

    /// All of them hold at this moment.
    pub(super) async fn must_hold(&self, guards: &[Guard]) -> Result<(), Failure> {
        let mut fresh = Fresh {
            cluster: self.seen.lately(),
            ..Fresh::default()
        };
        for guard in guards {
            loop {
                match guard.check(&fresh, self.intent) {
                    Check::Holds => break,
                    Check::Refused(why) => return Err(Failure::GuardFailed(why)),
                    Check::Unread(need) => self.read(need, &mut fresh).await?,
                }
            }
        }
        Ok(())
    }

    async fn read(&self, need: Need, fresh: &mut Fresh) -> Result<(), Failure> {
        match need {
            Need::Cluster => {
                let now = self.api::<EtcdCluster>().get_opt(&self.key.name).await?;
                let version = now.as_ref().map(version_of);
                if let Some(now) = now {
                    self.shared.put_cluster(self.key, now);
                }
                self.seen.now(version.clone());
                fresh.cluster = Some(version);
            }
            Need::WaitingRestores => {
                fresh.waiting_restores = Some(restore::waiting(self.shared, self.key, self.cluster).await?);
            }
            Need::Restore(name) => {
                fresh.restore = Some(restore::now(self.shared, self.key, self.cluster, &name).await?)
            }
            Need::Pods => fresh.pods = Some(pods(self.shared, self.key, self.cluster).await?),
            Need::Objects(member) => fresh.objects = Some(self.objects(&member).await?),
            Need::List(cluster) => fresh.list = Some(self.list(cluster).await?),
            Need::Lists(cluster) => fresh.lists = Some(self.lists(cluster).await?),
            Need::Hashes(cluster, ids) => fresh.hashes = Some(self.hashes(cluster, &ids).await?),
            Need::EndedNodes(nodes) => fresh.ended_nodes = Some(self.ended(nodes).await?),
            Need::Secrets => fresh.secrets = Some(tls::secrets_now(self.shared, self.key, self.cluster).await?),
        }
        Ok(())
    }

    async fn objects(&self, member: &MemberName) -> Result<ObjectsNow, Failure> {
        let (pods, claims) = (self.api::<Pod>(), self.api::<PersistentVolumeClaim>());
        let (pod, claim) = futures::try_join!(pods.get_opt(&member.0), claims.get_opt(&member.0))?;
        Ok(ObjectsNow {
            pod: pod.and_then(|pod| pod.metadata.uid).map(Uid),
            claim: claim.and_then(|claim| claim.metadata.uid).map(Uid),
        })
    }

    /// Those of these nodes that are deleted or out of service.
    async fn ended(&self, nodes: BTreeSet<String>) -> Result<BTreeSet<String>, Failure> {
        let all = kube::Api::<Node>::all(self.shared.client.clone());
        let all = all.list(&ListParams::default()).await?;
        let node = |name: &String| all.items.iter().find(|node| node.metadata.name.as_ref() == Some(name));
        let ended = nodes.into_iter().filter(|name| crate::fate::end(node(name)).is_some());
        Ok(ended.collect())
    }

    /// The list that a quorum agrees to.
    async fn list(&self, cluster: ClusterId) -> Result<MemberList, Failure> {
        let client = self.somebody(cluster)?;
        let speaker = self
            .observed
            .answers()
            .find(|(name, _)| {
                let other = self.observed.clients.get(*name);
                other.is_some_and(|other| other.address() == client.address())
            })
            .map(|(_, answer)| answer)
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
        for (name, _) in self.observed.answers().filter(|(_, answer)| answer.cluster == cluster) {
            let Some(client) = self.observed.clients.get(name) else {
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

/// The cluster's pods. They are not put into the cache: the watch tells of them, and wakes whoever has not seen them.
pub(crate) async fn pods(shared: &Shared, key: &Key, cluster: &EtcdCluster) -> kube::Result<Vec<PodNow>> {
    pods_of(
        shared.client.clone(),
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
    use stateward_api::names;

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
