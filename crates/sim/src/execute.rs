//! Executes effects on the current state, with their guards (the plan's `effect.rs` describes each effect).

use std::rc::Rc;

use stateward_core::pod::Facts;
use stateward_etcd::cluster::guard::precondition;
use stateward_etcd::cluster::{Effect, Intent, Launch, LaunchKind, MemberName, Pod, Stop, Storage, World};

use crate::guards::Seen;
use crate::kube::Cluster;
use crate::queue::{Event, stamp};
use crate::rules::name;
use crate::sim::Sim;

impl Sim<'_> {
    pub(crate) fn execute(
        &mut self,
        cluster: &Rc<Cluster>,
        world: &World,
        effect: &Effect,
        seen: &mut Seen,
    ) -> Result<(), String> {
        let guards = self.guards(cluster, world, effect);
        self.must_hold(cluster, &guards, seen)?;
        let precondition = precondition(&guards);
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
                self.check_nothing_is_awaited(cluster.id, launch, member);
                self.check_not_replaced(cluster.id, member);
                let shown = Pod {
                    facts: Facts {
                        created: stamp(self.now),
                        ..Facts::default()
                    },
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
            Effect::SealPod { member, .. } => {
                let id = self.pod_for(member, world, &precondition)?.id;
                self.patched(id);
                self.kube.change_pod(id, |pod| {
                    pod.launch = Launch::Sealed;
                    pod.shown.launch = LaunchKind::Sealed;
                });
                Ok(())
            }
            Effect::CheckNodesEnded { nodes } => {
                // Its guard has passed. From here on another history begins.
                let ended = &self.kube.now.ended_nodes;
                if nodes.iter().any(|node| !ended.contains_key(node)) {
                    self.break_rule(name::EVIDENCE, "the nodes of members that are given up exist");
                }
                Ok(())
            }
            Effect::RelabelPod { member, .. } => {
                let id = self.pod_for(member, world, &precondition)?.id;
                let metadata = intent.metadata.clone();
                self.kube.change_pod(id, |pod| pod.shown.metadata = metadata);
                Ok(())
            }
            Effect::DeletePod { member, how, .. } => {
                if self.kube.now.pods.contains_key(member) {
                    self.pod_for(member, world, &precondition)?;
                    self.check_stop(world, member, *how);
                    if matches!(how, Stop::Restart | Stop::Replaced) {
                        self.check_successor(intent, world, member);
                    }
                    self.delete_pod(member, Some(*how));
                }
                Ok(())
            }
            Effect::DeleteClaim { member, uid, .. } | Effect::DeleteUnstartedClaim { member, uid, .. } => {
                if self.kube.now.claims.contains_key(member) {
                    self.claim_for(member, &precondition)?;
                    self.check_claim_deletion(world, effect, member, cluster.id);
                    self.check_claim_is_not_kept(member, uid);
                    if intent.retain_claims && self.truth.replaced_claims.contains(uid) {
                        self.break_rule(name::RESTORE_RETAINS, effect.to_string());
                    }
                    self.delete_claim(member);
                }
                Ok(())
            }
            Effect::GrowClaim { member, bytes, .. } => {
                self.claim_for(member, &precondition)?;
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
                self.log(|| format!("etcd: {member} is in the list"));
                Ok(())
            }
            Effect::Promote { id, cluster: of, .. } => self.promote(*of, *id),
            Effect::RemoveMember {
                member,
                id,
                cluster: of,
                ..
            } => {
                self.check_removal(cluster, world, member, *id);
                self.remove_member(*of, *id)?;
                self.log(|| format!("etcd: {member} is out of the list"));
                Ok(())
            }
            Effect::ReleaseMember {
                member,
                id,
                cluster: of,
            } => {
                self.remove_member(*of, *id)?;
                self.log(|| format!("etcd: {member}, which was adopted, is out of the list"));
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
            Effect::CompareAgain { hashes, .. } => {
                // Its guard has compared the hashes. If all were equal, the alarm is disarmed next.
                let mut hashes = hashes.values().map(|hash| &hash.hash);
                let first = hashes.next();
                if hashes.all(|hash| Some(hash) == first) {
                    self.check_agreement();
                }
                Ok(())
            }
            Effect::Disarm { id, alarm, cluster: of } => self.disarm(*of, *id, *alarm),
            Effect::EnableDowngrade { to, cluster: of } => {
                self.leader_for_operator(*of)?;
                self.truth.downgrade = Some(to.minor());
                self.truth.floor = to.minor();
                self.truth.follows = None;
                Ok(())
            }
            Effect::CancelDowngrade { cluster: of } => {
                self.leader_for_operator(*of)?;
                self.truth.downgrade = None;
                Ok(())
            }
            Effect::RenewCa => self.renew_ca(cluster),
            Effect::TrustCas { cas } => self.trust_cas(cluster, cas),
            Effect::IssueCertificates { next } => self.issue_certificates(cluster, *next),
            Effect::RequestCertificates | Effect::TakeBackup { .. } | Effect::ApplyBackup | Effect::Tell(_) => Ok(()),
            Effect::DropBackup { .. } => self.drop_backup(&precondition),
            Effect::RequestRestore { name, .. } => self.request_restore(name),
        }
    }

    fn services(
        &mut self,
        cluster: &Cluster,
        change: impl FnOnce(&mut stateward_etcd::cluster::Services),
    ) -> Result<(), String> {
        match &mut self.kube.services {
            Some((owner, services)) if *owner == cluster.id => change(services),
            Some(_) => return Err("denied by a guard: the service belongs to another object".into()),
            None => {
                let mut services = stateward_etcd::cluster::Services::default();
                change(&mut services);
                self.kube.services = Some((cluster.id, services));
            }
        }
        self.kube.changed = true;
        self.clean_if_ownerless(cluster);
        Ok(())
    }

    /// Objects that were created for a cluster object that is deleted by now are collected again.
    fn clean_if_ownerless(&mut self, cluster: &Cluster) {
        let now = self.kube.now.cluster.as_ref();
        if now.is_none_or(|now| now.id != cluster.id) {
            self.queue.at(self.now + 2000, Event::Collect);
        }
    }
}

/// The API server's admission: it never accepts some pods.
fn takes(intent: &Intent) -> Result<(), String> {
    match is_rejected(intent) {
        true => Err("422: the pod is invalid".into()),
        false => Ok(()),
    }
}

/// The API server rejects a pod that is made from this spec.
pub(crate) fn is_rejected(intent: &Intent) -> bool {
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
