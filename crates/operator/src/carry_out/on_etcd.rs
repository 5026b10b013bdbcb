//! What is asked of the members themselves, and what they must say before their data is touched.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use stateward_etcd::messages::RangeRequest;
use stateward_etcd::{Client, Downgrade, hash_of_data, prove_list};
use stateward_plan::etcd::members::owner;
use stateward_plan::etcd::{ClusterId, DataHash, Effect, MemberId, MemberName};

use super::{Failure, Hands};
use crate::observe::HASH_PATIENCE;

/// How long one defragmentation is waited for. It goes on by itself when it takes longer.
const DEFRAGMENTATION_PATIENCE: Duration = Duration::from_secs(15);

impl Hands<'_> {
    pub(super) async fn act_on_etcd(&self, effect: &Effect) -> Result<(), Failure> {
        match effect {
            Effect::AddMember {
                peer_url,
                learner,
                cluster,
                ..
            } => match self.somebody(*cluster)?.member_add(peer_url, *learner).await {
                // An earlier request that timed out was heard after all.
                Ok(_) | Err(stateward_etcd::Error::AlreadyThere(_)) => Ok(()),
                Err(error) => Err(error.into()),
            },
            Effect::Promote { id, cluster, .. } => match self.somebody(*cluster)?.member_promote(*id).await {
                Ok(_) | Err(stateward_etcd::Error::NotALearner) => Ok(()),
                Err(error) => Err(error.into()),
            },
            Effect::RemoveMember {
                member,
                id,
                cluster,
                pod,
                claim,
            } => {
                self.must_rest_on(member, pod.as_ref(), claim.as_ref()).await?;
                match self.somebody_but(*cluster, Some(*id))?.member_remove(*id).await {
                    Ok(_) | Err(stateward_etcd::Error::MemberNotFound) => Ok(()),
                    Err(error) => Err(error.into()),
                }
            }
            Effect::ReleaseMember { id, cluster, .. } => {
                match self.somebody_but(*cluster, Some(*id))?.member_remove(*id).await {
                    Ok(_) | Err(stateward_etcd::Error::MemberNotFound) => Ok(()),
                    Err(error) => Err(error.into()),
                }
            }
            Effect::UpdatePeerUrl {
                id, peer_url, cluster, ..
            } => {
                self.somebody(*cluster)?.member_update(*id, peer_url).await?;
                Ok(())
            }
            Effect::MoveLeader { from, to, cluster } => {
                self.member(*cluster, *from)?.move_leader(*to).await?;
                Ok(())
            }
            Effect::Compact { cluster } => {
                let client = self.somebody(*cluster)?;
                let read = RangeRequest {
                    key: b"\0".to_vec(),
                    count_only: true,
                    ..RangeRequest::default()
                };
                let revision = client.range(read).await?.header.unwrap_or_default().revision;
                match client.compact(revision, true).await {
                    Ok(_) => Ok(()),
                    Err(stateward_etcd::Error::Refused(why)) if why.contains("compacted") => Ok(()),
                    Err(error) => Err(error.into()),
                }
            }
            Effect::Defragment { id, cluster, .. } => {
                let client = self.member(*cluster, *id)?;
                client
                    .with_request_timeout(DEFRAGMENTATION_PATIENCE)
                    .defragment()
                    .await?;
                Ok(())
            }
            Effect::CompareAgain { hashes, cluster } => self.must_still_have(hashes, *cluster).await,
            Effect::Disarm { id, alarm, cluster } => {
                self.somebody(*cluster)?.disarm(*id, *alarm).await?;
                Ok(())
            }
            Effect::EnableDowngrade { to, cluster } => {
                let target = format!("{}.{}", to.major(), to.minor());
                match self.somebody(*cluster)?.downgrade(Downgrade::Enable, &target).await {
                    Ok(_) => Ok(()),
                    Err(stateward_etcd::Error::Refused(why)) if why.contains("ongoing downgrade") => Ok(()),
                    Err(error) => Err(error.into()),
                }
            }
            Effect::CancelDowngrade { cluster } => {
                match self.somebody(*cluster)?.downgrade(Downgrade::Cancel, "").await {
                    Ok(_) => Ok(()),
                    Err(stateward_etcd::Error::Refused(why)) if why.contains("no inflight downgrade") => Ok(()),
                    Err(error) => Err(error.into()),
                }
            }
            _ => Err(Failure::Unknown),
        }
    }

    /// A member of that cluster that answers and votes, the leader if possible.
    fn somebody(&self, cluster: ClusterId) -> Result<&Client, Failure> {
        self.somebody_but(cluster, None)
    }

    fn somebody_but(&self, cluster: ClusterId, not: Option<MemberId>) -> Result<&Client, Failure> {
        self.observed
            .answers()
            .filter(|(_, answer)| answer.cluster == cluster && !answer.learner && Some(answer.id) != not)
            .filter(|(_, answer)| answer.leader.is_some())
            .max_by_key(|(_, answer)| answer.leader == Some(answer.id))
            .and_then(|(name, _)| self.observed.clients.get(name))
            .ok_or(Failure::Nobody)
    }

    /// One certain member.
    fn member(&self, cluster: ClusterId, id: MemberId) -> Result<&Client, Failure> {
        self.observed
            .answers()
            .find(|(_, answer)| answer.cluster == cluster && answer.id == id)
            .and_then(|(name, _)| self.observed.clients.get(name))
            .ok_or(Failure::Nobody)
    }

    /// A quorum says at this moment that the member is not in the list.
    pub(super) async fn must_be_out(&self, member: &MemberName, cluster: ClusterId) -> Result<(), Failure> {
        let client = self.somebody(cluster)?;
        let speaker = self
            .observed
            .answers()
            .find(|(name, _)| {
                self.observed
                    .clients
                    .get(*name)
                    .is_some_and(|other| other.address() == client.address())
            })
            .map(|(_, answer)| answer)
            .ok_or(Failure::Nobody)?;
        let list = prove_list(client, speaker).await?;
        if list.cluster != cluster {
            return Err(Failure::GuardFailed(format!(
                "cluster {} answered instead of {cluster}",
                list.cluster
            )));
        }
        if list
            .members
            .iter()
            .any(|listed| owner(self.intent, listed).as_ref() == Some(member) || listed.name.as_ref() == Some(member))
        {
            return Err(Failure::GuardFailed(format!("{member} is in the member list again")));
        }
        Ok(())
    }

    /// These members' data has the hashes that the decision rests on, at this moment.
    async fn must_still_have(&self, hashes: &BTreeMap<MemberId, DataHash>, cluster: ClusterId) -> Result<(), Failure> {
        let questions = hashes.iter().map(async |(id, was)| {
            let client = self.member(cluster, *id)?.with_request_timeout(HASH_PATIENCE);
            let is = hash_of_data(&client).await?;
            if is == Some(*was) {
                return Ok(());
            }
            let is = is.map_or_else(|| "not to be compared".to_owned(), |is| is.to_string());
            let message = format!("the data of member {id} was {was} and is {is}");
            Err(Failure::GuardFailed(message))
        });
        join_all(questions).await.into_iter().collect()
    }

    /// Every member that answered lists this one at this moment, and without a name.
    pub(super) async fn must_be_unstarted(&self, member: &MemberName, cluster: ClusterId) -> Result<(), Failure> {
        let mut asked = 0;
        for (name, answer) in self.observed.answers() {
            let Some(client) = self.observed.clients.get(name).filter(|_| answer.cluster == cluster) else {
                continue;
            };
            let list = client.member_list(false).await?;
            let unstarted = list.members.iter().any(|listed| {
                let ours = |url: &String| self.intent.member_of_url(url).as_ref() == Some(member);
                listed.name.is_empty() && listed.peer_urls.iter().any(ours)
            });
            if !unstarted {
                return Err(Failure::GuardFailed(format!("{member} has started meanwhile")));
            }
            asked += 1;
        }
        if asked == 0 { Err(Failure::Nobody) } else { Ok(()) }
    }
}
