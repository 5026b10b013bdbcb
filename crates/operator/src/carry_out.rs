//! Carrying out: effects in their order, each behind its guard. The first that fails ends the round.
//!
//! Independent neighbours (services and claims; then pods) go together, since each waits only for the API server.

mod dry_run;
mod guards;
mod objects;
mod on_etcd;

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use stateward_api::etcd_backup::ObjectName;
use stateward_api::etcd_restore::EtcdRestoreSpec;
use stateward_api::{EtcdCluster, EtcdRestore, names};
use stateward_plan::etcd::guard::{Guard, precondition};
use stateward_plan::etcd::manifests::{self, launch};
use stateward_plan::etcd::{Effect, Intent, Launch, MemberName, Stop, TlsStage, Uid};

use crate::Shared;
use crate::caches::Key;
use crate::metrics::EffectLabel;
use crate::observe::Observed;
use crate::tls;
pub(crate) use guards::{Seen, pods, refuses_record};
use objects::is_code;

/// Why an effect was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// What the decision rests on has changed: the next round decides anew.
    #[error("{0}")]
    GuardFailed(String),
    /// etcd says: not now.
    #[error("{0}")]
    NotYet(String),
    /// Kubernetes refused or did not answer.
    #[error(transparent)]
    Kubernetes(#[from] kube::Error),
    /// etcd refused or did not answer.
    #[error(transparent)]
    Etcd(stateward_etcd::Error),
    /// There is nobody to ask.
    #[error("no member that could do it answers")]
    Nobody,
    /// The API server does not take a pod that the spec asks for.
    #[error(
        "the API server refuses pod {0}: {1}. Members that run are left as they are; revert or correct this setting"
    )]
    PodRefused(String, String),
    /// An object of this name belongs to somebody else.
    #[error("{0} exists and belongs to somebody else: delete it, or choose another name for the cluster")]
    NameTaken(String),
    /// Something is missing or wrong, with what to do.
    #[error("{0}")]
    Words(String),
    /// Not known to this operator.
    #[error("this operator cannot do that")]
    Unknown,
}

impl From<stateward_etcd::Error> for Failure {
    fn from(error: stateward_etcd::Error) -> Self {
        if error.is_for_now() {
            Self::NotYet(error.to_string())
        } else {
            Self::Etcd(error)
        }
    }
}

impl From<tls::Refused> for Failure {
    fn from(refused: tls::Refused) -> Self {
        match refused {
            tls::Refused::Guard(why) => Self::GuardFailed(why),
            tls::Refused::Words(words) => Self::Words(words),
            // The next look tells of it.
            taken @ tls::Refused::Taken(_) => Self::GuardFailed(taken.to_string()),
            tls::Refused::Kubernetes(error) => Self::Kubernetes(error),
        }
    }
}

/// One round's means.
pub(crate) struct Hands<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) key: &'a Key,
    pub(crate) cluster: &'a EtcdCluster,
    pub(crate) intent: &'a Intent,
    pub(crate) observed: &'a Observed,
    /// The EtcdCluster as it was last read or written in this round.
    pub(crate) seen: Seen,
}

/// Effects of the same group go together.
#[derive(PartialEq, Eq)]
enum Group {
    Furniture,
    Pods,
    Stops,
    Alone,
}

fn group(effect: &Effect) -> Group {
    match effect {
        Effect::ApplyPeerService
        | Effect::ApplyClientService
        | Effect::ApplyBudget
        | Effect::CreateClaim { .. }
        | Effect::SealPod { .. } => Group::Furniture,
        Effect::CreatePod { .. } => Group::Pods,
        Effect::DeletePod { .. } => Group::Stops,
        Effect::TryPod { .. }
        | Effect::CheckNodesEnded { .. }
        | Effect::RelabelPod { .. }
        | Effect::DeleteClaim { .. }
        | Effect::DeleteUnstartedClaim { .. }
        | Effect::GrowClaim { .. }
        | Effect::AddMember { .. }
        | Effect::Promote { .. }
        | Effect::RemoveMember { .. }
        | Effect::ReleaseMember { .. }
        | Effect::UpdatePeerUrl { .. }
        | Effect::MoveLeader { .. }
        | Effect::Compact { .. }
        | Effect::Defragment { .. }
        | Effect::CompareAgain { .. }
        | Effect::Disarm { .. }
        | Effect::EnableDowngrade { .. }
        | Effect::CancelDowngrade { .. }
        | Effect::IssueCertificates { .. }
        | Effect::RequestCertificates
        | Effect::RenewAuthority
        | Effect::TrustAuthorities { .. }
        | Effect::TakeBackup { .. }
        | Effect::ApplyBackup
        | Effect::DropBackup { .. }
        | Effect::RequestRestore { .. }
        | Effect::Tell(_) => Group::Alone,
    }
}

/// How much earlier the first by name of several members that begin a cluster together is started. At its very first start
/// etcd asks its peers by the order of their names whether it has been there before, for up to a second each. Peers that open
/// their ports in the same moment serve nobody yet and hold each other up for seconds; the first, when a little ahead, finds
/// no port open and then answers all others.
const HEAD_START: Duration = Duration::from_millis(150);

/// Whom this starts, where it is one of several that begin a cluster together.
fn first_member(effect: &Effect) -> Option<&MemberName> {
    let Effect::CreatePod { member, launch, .. } = effect else {
        return None;
    };
    matches!(launch, Launch::Static { .. }).then_some(member)
}

impl Hands<'_> {
    /// Carries all out. The error names the effect that failed.
    pub(crate) async fn carry_out(&self, effects: &[Effect]) -> Result<(), (Effect, Failure)> {
        for effect in effects {
            self.must_be_planned_with(effect)
                .await
                .map_err(|failure| (effect.clone(), failure))?;
        }
        for together in effects.chunk_by(|a, b| group(a) == group(b) && group(a) != Group::Alone) {
            let ahead = together.iter().filter_map(first_member).min();
            let results = join_all(together.iter().map(async |effect| {
                if first_member(effect) > ahead {
                    tokio::time::sleep(HEAD_START).await;
                }
                self.one(effect).await
            }))
            .await;
            for (effect, result) in together.iter().zip(results) {
                result.map_err(|failure| (effect.clone(), failure))?;
            }
        }
        Ok(())
    }

    async fn one(&self, effect: &Effect) -> Result<(), Failure> {
        if !self.shared.tenure.holds() {
            return Err(Failure::GuardFailed("another operator leads".into()));
        }
        tracing::debug!(cluster = %self.key, "about to {effect}");
        let guards = self.guards(effect);
        // What is about Secrets evaluates them with what it reads itself, and writes with the versions of that.
        if !matches!(
            effect,
            Effect::IssueCertificates { .. } | Effect::TrustAuthorities { .. }
        ) {
            self.must_hold(&guards).await?;
        }
        self.act(effect, &guards).await?;
        if !matches!(effect, Effect::Tell(_)) {
            tracing::info!(cluster = %self.key, "done: {effect}");
        }
        let label = EffectLabel { effect: kind(effect) };
        self.shared.metrics.effects.get_or_create(&label).inc();
        Ok(())
    }

    async fn act(&self, effect: &Effect, guards: &[Guard]) -> Result<(), Failure> {
        let caches = &self.shared.caches;
        let precondition = precondition(guards);
        match effect {
            Effect::ApplyPeerService => {
                self.apply(manifests::peer_service(self.cluster), &caches.services)
                    .await
            }
            Effect::ApplyClientService => {
                self.apply(manifests::client_service(self.cluster), &caches.services)
                    .await
            }
            Effect::ApplyBudget => self.apply(manifests::budget(self.cluster), &caches.budgets).await,
            Effect::CreateClaim { member } => {
                self.create(manifests::claim(self.cluster, member), &caches.claims)
                    .await
            }
            Effect::CreatePod {
                member,
                launch,
                version,
                tls,
            } => {
                let trusts = self.observed.trusts.as_ref();
                let image = &self.shared.config.agent_image;
                let pod = manifests::pod(self.cluster, self.intent, member, launch, version, *tls, trusts, image);
                let pod = self.shared.platform.adapt(&self.shared.client, pod).await?;
                self.create(pod, &caches.pods)
                    .await
                    .map_err(|failure| dry_run::as_refusal(failure, member))
            }
            Effect::TryPod {
                member,
                launch,
                version,
                tls,
            } => self.try_pod(member, launch, version, *tls).await,
            Effect::CheckNodesEnded { .. } | Effect::CompareAgain { .. } => Ok(()), // Their guards have looked.
            Effect::SealPod { member, uid } => self.seal(member, uid).await,
            Effect::RelabelPod { member, uid } => {
                let pod = self.known_pod(member, uid)?;
                let mut patch = manifests::relabel(self.cluster, self.intent, member, &pod);
                patch["metadata"]["uid"] = json!(uid.0);
                self.patch(&member.0, &patch, &caches.pods).await
            }
            Effect::DeletePod { member, uid, how } => {
                let params = match how {
                    Stop::Force => DeleteParams::default().grace_period(0),
                    Stop::Restart | Stop::Gone | Stop::Hibernate | Stop::Replaced => DeleteParams::default(),
                };
                let version = self.observed.pod_versions.get(member).cloned();
                let version = version.filter(|_| precondition.unmodified);
                self.delete(&member.0, uid, version, params, &caches.pods).await
            }
            Effect::DeleteClaim { member, uid, .. } | Effect::DeleteUnstartedClaim { member, uid, .. } => {
                self.delete(&member.0, uid, None, DeleteParams::background(), &caches.claims)
                    .await
            }
            Effect::GrowClaim { member, uid, .. } => {
                let request = self
                    .cluster
                    .claim_spec()
                    .resources
                    .and_then(|resources| resources.requests);
                let patch = json!({"metadata": {"uid": uid.0}, "spec": {"resources": {"requests": request}}});
                self.patch(&member.0, &patch, &caches.claims).await
            }
            Effect::Tell(note) => {
                self.shared.events.tell(self.cluster, note);
                Ok(())
            }
            Effect::IssueCertificates { next } => {
                Ok(tls::issue(self.shared, self.key, self.cluster, self.intent, *next).await?)
            }
            Effect::RequestCertificates => Ok(tls::request(self.shared, self.key, self.cluster).await?),
            Effect::RenewAuthority => Ok(tls::renew_authority(self.shared, self.key, self.cluster).await?),
            Effect::TrustAuthorities { authorities } => {
                Ok(tls::trust(self.shared, self.key, self.cluster, self.intent, authorities, guards).await?)
            }
            Effect::TakeBackup { name, version } => match manifests::upgrade_backup(self.cluster, name, version) {
                Some(backup) => self.apply_backup(backup).await,
                None => Err(Failure::Unknown),
            },
            Effect::ApplyBackup => match manifests::kept_backup(self.cluster) {
                Some(backup) => self.apply_backup(backup).await,
                None => Err(Failure::Unknown),
            },
            Effect::DropBackup { uid } => {
                let name = names::kept_backup(&self.key.name);
                self.drop_backup(&name, uid).await
            }
            Effect::RequestRestore { name, backup } => self.request_restore(name, backup).await,
            Effect::AddMember { .. }
            | Effect::Promote { .. }
            | Effect::RemoveMember { .. }
            | Effect::ReleaseMember { .. }
            | Effect::UpdatePeerUrl { .. }
            | Effect::MoveLeader { .. }
            | Effect::Compact { .. }
            | Effect::Defragment { .. }
            | Effect::Disarm { .. }
            | Effect::EnableDowngrade { .. }
            | Effect::CancelDowngrade { .. } => self.act_on_etcd(effect).await,
        }
    }

    /// An EtcdRestore of this cluster's own, which goes with it.
    async fn request_restore(&self, name: &str, backup: &str) -> Result<(), Failure> {
        let mut restore = EtcdRestore::new(
            name,
            EtcdRestoreSpec {
                etcd_cluster: ObjectName {
                    name: self.key.name.clone(),
                },
                backup_ref: Some(ObjectName { name: backup.into() }),
                ..EtcdRestoreSpec::default()
            },
        );
        restore.metadata.owner_references = Some(vec![manifests::owner(self.cluster)]);
        restore.metadata.labels = Some(names::cluster_labels(&self.key.name));
        match self.api::<EtcdRestore>().create(&PostParams::default(), &restore).await {
            Ok(_) => Ok(()),
            Err(error) if is_code(&error, 409) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn known_pod(&self, member: &MemberName, uid: &Uid) -> Result<Arc<Pod>, Failure> {
        let pod = self.shared.caches.pods.named(self.key, &member.0);
        pod.filter(|pod| pod.metadata.uid.as_deref() == Some(&uid.0))
            .ok_or_else(|| Failure::GuardFailed(format!("the pod {member} is another one now")))
    }

    async fn seal(&self, member: &MemberName, uid: &Uid) -> Result<(), Failure> {
        let pod = self.known_pod(member, uid)?;
        let tls = pod
            .annotations()
            .get(launch::TLS)
            .is_some_and(|stage| *stage == format!("{:?}", TlsStage::On));
        let annotations = launch::annotations(self.intent, member, &Launch::Sealed, tls);
        let patch = json!({"metadata": {"uid": uid.0, "annotations": annotations}});
        self.patch(&member.0, &patch, &self.shared.caches.pods).await
    }
}

/// The name of an effect in the metrics.
fn kind(effect: &Effect) -> &'static str {
    match effect {
        Effect::ApplyPeerService | Effect::ApplyClientService => "apply_service",
        Effect::ApplyBudget => "apply_budget",
        Effect::CreateClaim { .. } => "create_claim",
        Effect::CreatePod { .. } => "create_pod",
        Effect::TryPod { .. } => "try_pod",
        Effect::CheckNodesEnded { .. } => "check_nodes",
        Effect::SealPod { .. } => "seal_pod",
        Effect::RelabelPod { .. } => "relabel_pod",
        Effect::DeletePod { .. } => "delete_pod",
        Effect::DeleteClaim { .. } | Effect::DeleteUnstartedClaim { .. } => "delete_claim",
        Effect::GrowClaim { .. } => "grow_claim",
        Effect::AddMember { .. } => "add_member",
        Effect::Promote { .. } => "promote",
        Effect::RemoveMember { .. } => "remove_member",
        Effect::ReleaseMember { .. } => "release_member",
        Effect::UpdatePeerUrl { .. } => "update_peer_url",
        Effect::MoveLeader { .. } => "move_leader",
        Effect::Compact { .. } => "compact",
        Effect::Defragment { .. } => "defragment",
        Effect::CompareAgain { .. } => "compare_again",
        Effect::Disarm { .. } => "disarm",
        Effect::EnableDowngrade { .. } => "enable_downgrade",
        Effect::CancelDowngrade { .. } => "cancel_downgrade",
        Effect::IssueCertificates { .. } => "issue_certificates",
        Effect::RequestCertificates => "request_certificates",
        Effect::RenewAuthority => "renew_authority",
        Effect::TrustAuthorities { .. } => "trust_authorities",
        Effect::TakeBackup { .. } => "take_backup",
        Effect::ApplyBackup => "apply_backup",
        Effect::DropBackup { .. } => "drop_backup",
        Effect::RequestRestore { .. } => "request_restore",
        Effect::Tell(_) => "tell",
    }
}
