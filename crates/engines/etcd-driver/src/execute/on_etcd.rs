//! What is asked of the members themselves.

use std::time::Duration;

use crate::client::messages::RangeRequest;
use crate::client::{Client, Downgrade};
use stateward_etcd::cluster::{ClusterId, Effect, MemberId};

use super::{Executor, Failure};
use crate::observe::answers;

/// How long one defragmentation is waited for. It goes on by itself when it takes longer.
const DEFRAGMENTATION_PATIENCE: Duration = Duration::from_secs(15);

impl Executor<'_> {
    pub(super) async fn act_on_etcd(&self, effect: &Effect) -> Result<(), Failure> {
        match effect {
            Effect::AddMember {
                peer_url,
                learner,
                cluster,
                ..
            } => match self.somebody(*cluster)?.member_add(peer_url, *learner).await {
                // An earlier request that timed out was heard after all.
                Ok(_) | Err(crate::client::Error::AlreadyThere(_)) => Ok(()),
                Err(error) => Err(error.into()),
            },
            Effect::Promote { id, cluster, .. } => match self.somebody(*cluster)?.member_promote(*id).await {
                Ok(_) | Err(crate::client::Error::NotALearner) => Ok(()),
                Err(error) => Err(error.into()),
            },
            Effect::RemoveMember { id, cluster, .. } | Effect::ReleaseMember { id, cluster, .. } => {
                match self.somebody_but(*cluster, Some(*id))?.member_remove(*id).await {
                    Ok(_) | Err(crate::client::Error::MemberNotFound) => Ok(()),
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
                    Err(crate::client::Error::Refused(why)) if why.contains("compacted") => Ok(()),
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
            Effect::Disarm { id, alarm, cluster } => {
                self.somebody(*cluster)?.disarm(*id, *alarm).await?;
                Ok(())
            }
            Effect::EnableDowngrade { to, cluster } => {
                let target = format!("{}.{}", to.major(), to.minor());
                match self.somebody(*cluster)?.downgrade(Downgrade::Enable, &target).await {
                    Ok(_) => Ok(()),
                    Err(crate::client::Error::Refused(why)) if why.contains("ongoing downgrade") => Ok(()),
                    Err(error) => Err(error.into()),
                }
            }
            Effect::CancelDowngrade { cluster } => {
                match self.somebody(*cluster)?.downgrade(Downgrade::Cancel, "").await {
                    Ok(_) => Ok(()),
                    Err(crate::client::Error::Refused(why)) if why.contains("no inflight downgrade") => Ok(()),
                    Err(error) => Err(error.into()),
                }
            }
            Effect::ApplyPeerService
            | Effect::ApplyClientService
            | Effect::ApplyBudget
            | Effect::CreateClaim { .. }
            | Effect::CreatePod { .. }
            | Effect::TryPod { .. }
            | Effect::CheckNodesEnded { .. }
            | Effect::SealPod { .. }
            | Effect::RelabelPod { .. }
            | Effect::DeletePod { .. }
            | Effect::DeleteClaim { .. }
            | Effect::DeleteUnstartedClaim { .. }
            | Effect::GrowClaim { .. }
            | Effect::CompareAgain { .. }
            | Effect::IssueCertificates { .. }
            | Effect::RequestCertificates
            | Effect::RenewCa
            | Effect::TrustCas { .. }
            | Effect::TakeBackup { .. }
            | Effect::ApplyBackup
            | Effect::DropBackup { .. }
            | Effect::RequestRestore { .. }
            | Effect::Tell(_) => Err(Failure::Unknown),
        }
    }

    /// A member of that cluster that answers and votes, the leader if possible.
    pub(super) fn somebody(&self, cluster: ClusterId) -> Result<&Client, Failure> {
        self.somebody_but(cluster, None)
    }

    fn somebody_but(&self, cluster: ClusterId, not: Option<MemberId>) -> Result<&Client, Failure> {
        answers(self.world)
            .filter(|(_, reply)| reply.cluster == cluster && !reply.learner && Some(reply.id) != not)
            .filter(|(_, reply)| reply.leader.is_some())
            .max_by_key(|(_, reply)| reply.leader == Some(reply.id))
            .and_then(|(name, _)| self.means.clients.get(name))
            .ok_or(Failure::Nobody)
    }

    /// One certain member.
    pub(super) fn member(&self, cluster: ClusterId, id: MemberId) -> Result<&Client, Failure> {
        answers(self.world)
            .find(|(_, reply)| reply.cluster == cluster && reply.id == id)
            .and_then(|(name, _)| self.means.clients.get(name))
            .ok_or(Failure::Nobody)
    }
}
