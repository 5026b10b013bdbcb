//! Effects, carried out on the world as it is now, with their guards (the plan's `effect.rs` says what each one is).

use std::rc::Rc;

use stateward_plan::etcd::{ClusterId, Effect, Intent, Launch, LaunchKind, MemberName, Pod, Stop, Storage, Uid, World};

use crate::etcd::peer_url;
use crate::kube::Cluster;
use crate::queue::{Event, stamp};
use crate::sim::Sim;

impl Sim<'_> {
    pub(crate) fn carry_out(&mut self, cluster: &Rc<Cluster>, world: &World, effect: &Effect) -> Result<(), String> {
        if effect.is_destructive() {
            self.still_wanted(cluster)?;
        }
        // So is it before a first member starts: the record of this moment must not say that the cluster has begun.
        if let Effect::CreatePod {
            launch: Launch::Seed { .. } | Launch::Static { .. },
            ..
        } = effect
            && self.subject.guards
        {
            self.still_wanted(cluster)?;
            let now = self
                .kube
                .now
                .cluster
                .as_ref()
                .and_then(|now| now.record.bootstrap.as_ref());
            if now.is_some_and(|bootstrap| bootstrap.cluster.is_some()) {
                return Err("refused: the cluster has begun".into());
            }
        }
        // A member comes back only into the cluster that it was in: not while, or after, that one was replaced.
        if let Effect::CreatePod {
            launch: Launch::Sealed, ..
        } = effect
            && self.subject.guards
            && self.kube.now.cluster.as_ref().map(|now| &now.record.restore) != Some(&cluster.record.restore)
        {
            return Err("refused: the cluster is replaced by one from a backup".into());
        }
        // A new cluster starts only when no other member is left, past all caches.
        if let Effect::CreatePod { member, launch, .. } = effect
            && launch.ends_the_old_cluster()
            && self.subject.guards
        {
            let mut pods = self.kube.now.pods.values();
            if pods.any(|pod| pod.owner == cluster.id && pod.name != *member) {
                return Err("refused: another member's pod is still there".into());
            }
        }
        // A pod is made to trust what the Secrets say at that moment.
        if let Effect::CreatePod { .. } = effect
            && self.subject.guards
            && self.kube.now.secrets.as_ref().map(|secrets| &secrets.bundle)
                != world.trust.as_ref().map(|trust| &trust.bundle)
        {
            return Err("refused: the Secrets say by now that others are trusted".into());
        }
        let intent = &cluster.intent;
        match effect {
            Effect::ApplyPeerService => {
                self.services(cluster, |services| services.peer = Some(intent.services.peer.clone()))
            }
            Effect::ApplyClientService => self.services(cluster, |services| {
                services.client = Some(intent.services.client.clone())
            }),
            Effect::ApplyBudget => self.services(cluster, |services| {
                services.budget = Some(intent.services.budget.clone())
            }),
            Effect::CreateClaim { member } => {
                let bytes = match intent.storage {
                    Storage::Durable { bytes } => bytes,
                    Storage::Ephemeral => 0,
                };
                self.create_claim(cluster.id, member, bytes)?;
                self.clean_if_ownerless(cluster);
                Ok(())
            }
            Effect::CreatePod {
                member,
                launch,
                version,
                tls,
            } => {
                takes(intent)?;
                self.check_launch(cluster, launch, member);
                self.check_not_replaced(cluster.id, member);
                let shown = Pod {
                    uid: Uid(String::new()),
                    created: stamp(self.now),
                    node: None,
                    address: None,
                    running: false,
                    running_since: None,
                    ever_ran: false,
                    ready: false,
                    ready_since: None,
                    terminating: false,
                    ended: false,
                    stopped: false,
                    restarts: 0,
                    last_exit: None,
                    blocked: None,
                    version: version.clone(),
                    template: intent.template.clone(),
                    metadata: intent.metadata.clone(),
                    launch: launch.kind(),
                    initial_cluster: initial_names(member, launch),
                    tls: *tls,
                    trusts: world.trust.as_ref().map(|trust| trust.bundle.clone()),
                    marked_to_leave: false,
                };
                self.create_pod(cluster.id, member, launch.clone(), shown, intent.is_durable())?;
                self.clean_if_ownerless(cluster);
                Ok(())
            }
            Effect::TryPod { .. } => takes(intent),
            Effect::SealPod { member, uid } => {
                let id = self.pod_is_still(member, uid)?;
                self.patched(id);
                self.kube.change_pod(id, |pod| {
                    pod.launch = Launch::Sealed;
                    pod.shown.launch = LaunchKind::Sealed;
                });
                Ok(())
            }
            Effect::CheckNodesEnded { nodes } => {
                let back = nodes.iter().find(|node| !self.kube.now.ended_nodes.contains_key(*node));
                match back.filter(|_| self.subject.guards) {
                    Some(node) => Err(format!("refused: {node} is back")),
                    None => Ok(()),
                }
            }
            Effect::RelabelPod { member, uid } => {
                let id = self.pod_is_still(member, uid)?;
                let metadata = intent.metadata.clone();
                self.kube.change_pod(id, |pod| pod.shown.metadata = metadata);
                Ok(())
            }
            Effect::DeletePod { member, uid, how } => {
                if self.subject.guards {
                    self.pod_is_still(member, uid)?;
                    // The precondition of the deletion names the resource version too: a pod that has meanwhile begun to
                    // run is not the one that the decision rests on.
                    let seen = world.pods.get(member);
                    let now = self.kube.now.pods.get(member).map(|pod| &pod.shown);
                    if *how == Stop::Restart && seen != now {
                        return Err("409: the pod has been modified".into());
                    }
                }
                if *how == Stop::Restart {
                    self.check_successor(intent, world, member);
                }
                self.delete_pod(member, Some(*how));
                Ok(())
            }
            Effect::DeleteClaim {
                member,
                uid,
                cluster: of,
            }
            | Effect::DeleteUnstartedClaim {
                member,
                uid,
                cluster: of,
            } => {
                if self.subject.guards {
                    self.claim_is_still(member, uid)?;
                    match effect {
                        Effect::DeleteClaim { .. } => self.is_out_of_the_list(member, *of)?,
                        _ => self.lists_unstarted(member, *of)?,
                    }
                }
                self.check_claim_deletion(member, cluster.id);
                self.check_claim_is_not_kept(member, uid);
                self.delete_claim(member);
                Ok(())
            }
            Effect::GrowClaim { member, uid, bytes } => {
                self.claim_is_still(member, uid)?;
                let bytes = *bytes;
                self.kube.change_claim(member, |claim| claim.shown.requested = bytes);
                Ok(())
            }
            Effect::AddMember {
                member,
                peer_url,
                learner,
                cluster: id,
            } => {
                self.check_source(world, *id);
                self.add_member(*id, peer_url, *learner)?;
                self.tell(|| format!("etcd: {member} is in the list"));
                Ok(())
            }
            Effect::Promote { id, cluster: of, .. } => self.promote(*of, *id),
            Effect::RemoveMember {
                member,
                id,
                cluster: of,
                pod,
                claim,
            } => {
                if self.subject.guards {
                    let has = |is: Option<Uid>, was: &Option<Uid>| is.as_ref() == was.as_ref();
                    let pod_now = self.kube.now.pods.get(member).map(|pod| pod.shown.uid.clone());
                    let claim_now = self.kube.now.claims.get(member).map(|claim| claim.shown.uid.clone());
                    if !has(pod_now, pod) || !has(claim_now, claim) {
                        return Err("refused: its pod or claim is another one by now".into());
                    }
                }
                self.check_removal(cluster, world, member, *id);
                self.remove_member(*of, *id)?;
                self.tell(|| format!("etcd: {member} is out of the list"));
                Ok(())
            }
            Effect::ReleaseMember {
                member,
                id,
                cluster: of,
            } => {
                self.remove_member(*of, *id)?;
                self.tell(|| format!("etcd: {member}, which was taken over, is out of the list"));
                Ok(())
            }
            Effect::UpdatePeerUrl {
                id,
                peer_url,
                cluster: of,
                ..
            } => self.update_url(*of, *id, peer_url),
            Effect::MoveLeader { from, to, cluster: of } => self.move_leader(*of, *from, *to),
            Effect::Compact { cluster: of } | Effect::Defragment { cluster: of, .. } => {
                self.leader_for_operator(*of).map(drop)
            }
            Effect::CompareAgain { hashes, cluster: of } if self.subject.guards => self.compare_again(*of, hashes),
            Effect::CompareAgain { .. } => Ok(()),
            Effect::Disarm { id, alarm, cluster: of } => self.disarm(*of, *id, *alarm),
            Effect::EnableDowngrade { to, cluster: of } => {
                self.leader_for_operator(*of)?;
                self.ledger.downgrade = Some(to.minor());
                self.ledger.floor = to.minor();
                self.ledger.follows = None;
                Ok(())
            }
            Effect::CancelDowngrade { cluster: of } => {
                self.leader_for_operator(*of)?;
                self.ledger.downgrade = None;
                Ok(())
            }
            Effect::RenewAuthority => self.renew_authority(cluster),
            Effect::TrustAuthorities { authorities } => self.trust_authorities(cluster, world, authorities),
            Effect::IssueCertificates { .. } => self.issue_certificates(cluster),
            Effect::RequestCertificates
            | Effect::TakeBackup { .. }
            | Effect::ApplyBackup
            | Effect::DropBackup { .. }
            | Effect::Tell(_) => Ok(()),
            Effect::RequestRestore { name, .. } => self.request_restore(name),
        }
    }

    /// Before something is taken away the custom resource is read again, past all caches: the spec that the decision
    /// rests on must still be the spec.
    fn still_wanted(&self, cluster: &Cluster) -> Result<(), String> {
        if !self.subject.guards {
            return Ok(());
        }
        let now = self.kube.now.cluster.as_ref().ok_or("refused: the cluster is gone")?;
        if now.id != cluster.id || now.intent.generation != cluster.intent.generation {
            return Err("refused: the spec is another one by now".into());
        }
        Ok(())
    }

    fn pod_is_still(&self, member: &MemberName, uid: &Uid) -> Result<u32, String> {
        let pod = self.kube.now.pods.get(member).ok_or("refused: the pod is gone")?;
        if pod.shown.uid == *uid {
            Ok(pod.id)
        } else {
            Err("refused: the pod is another one by now".into())
        }
    }

    fn claim_is_still(&self, member: &MemberName, uid: &Uid) -> Result<(), String> {
        match self.kube.now.claims.get(member) {
            Some(claim) if claim.shown.uid == *uid => Ok(()),
            Some(_) => Err("refused: the claim is another one by now".into()),
            None => Err("refused: the claim is gone".into()),
        }
    }

    fn is_out_of_the_list(&self, member: &MemberName, cluster: ClusterId) -> Result<(), String> {
        let asked: Vec<_> = self.processes.keys().copied().collect();
        let list = self.proven_list(&asked).filter(|list| list.cluster == cluster);
        let list = list.ok_or("no quorum proves the list")?;
        let url = peer_url(member);
        if list.members.iter().any(|listed| listed.peer_urls.contains(&url)) {
            return Err("refused: it is in the member list".into());
        }
        Ok(())
    }

    fn services(
        &mut self,
        cluster: &Cluster,
        change: impl FnOnce(&mut stateward_plan::etcd::Services),
    ) -> Result<(), String> {
        match &mut self.kube.services {
            Some((owner, services)) if *owner == cluster.id => change(services),
            Some(_) => return Err("refused: the service belongs to somebody else".into()),
            None => {
                let mut services = stateward_plan::etcd::Services::default();
                change(&mut services);
                self.kube.services = Some((cluster.id, services));
            }
        }
        self.kube.changed = true;
        self.clean_if_ownerless(cluster);
        Ok(())
    }

    /// What was made for a cluster object that is gone meanwhile is collected again.
    fn clean_if_ownerless(&mut self, cluster: &Cluster) {
        let now = self.kube.now.cluster.as_ref();
        if now.is_none_or(|now| now.id != cluster.id) {
            self.queue.at(self.now + 2000, Event::Collect);
        }
    }
}

/// The API server's admission: there are pods that it never takes.
fn takes(intent: &Intent) -> Result<(), String> {
    match is_refused(intent) {
        true => Err("422: the pod is invalid".into()),
        false => Ok(()),
    }
}

/// A pod that is made from this spec is refused by the API server.
pub(crate) fn is_refused(intent: &Intent) -> bool {
    intent.template.contains("bad-label")
}

fn initial_names(member: &MemberName, launch: &Launch) -> Vec<MemberName> {
    let mut names: Vec<MemberName> = match launch {
        Launch::Seed { .. } | Launch::Restore { .. } | Launch::ForceNew => vec![member.clone()],
        Launch::Static { members, .. } => members.clone(),
        Launch::Join { members } => members.iter().map(|(name, _)| name.clone()).collect(),
        Launch::Sealed => Vec::new(),
    };
    names.sort();
    names.dedup();
    names
}
