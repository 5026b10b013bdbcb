//! Executing what was planned for an EtcdCluster: each effect when its guards hold.

mod guards;
mod on_etcd;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, PostParams};
use stateward_core::kind::Kind;
use stateward_etcd::api::{EtcdCluster, EtcdRestore, names};
use stateward_etcd::backup::Backup;
use stateward_etcd::cluster::guard::{Guard, precondition};
use stateward_etcd::cluster::manifests;
use stateward_etcd::cluster::{Effect, Intent, Order, Stop, World, Write};
use stateward_runtime::objects::{self, Object, Whose, is_code};
use stateward_runtime::{Index, Key, Step};

use crate::cluster::Clusters;
use crate::observe::{Means, is_owned};
use crate::{Shared, tls};
pub(crate) use guards::pods;

/// Why an effect was not executed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// For a reason that every engine has.
    #[error(transparent)]
    General(#[from] stateward_runtime::Failure),
    /// Kubernetes refused or did not answer.
    #[error(transparent)]
    Kubernetes(#[from] kube::Error),
    /// etcd refused or did not answer.
    #[error(transparent)]
    Etcd(crate::client::Error),
    /// There is nobody to ask.
    #[error("no member that could do it answers")]
    Nobody,
    /// Not known to this operator.
    #[error("this operator cannot do that")]
    Unknown,
}

fn guard_failed(why: impl Into<String>) -> Failure {
    Failure::General(stateward_runtime::Failure::GuardFailed(why.into()))
}

impl Failure {
    /// In the words for the status. Members that are not ours are asked as well, and those are not quoted. This is the only
    /// conversion, so that no step can forget it.
    pub(crate) fn said(self, intent: &Intent) -> stateward_runtime::Failure {
        match self {
            Self::General(failure) => failure,
            Self::Kubernetes(error) => stateward_runtime::Failure::Kubernetes(error),
            Self::Etcd(error) if !intent.adopt.is_empty() => {
                stateward_runtime::Failure::Failed(crate::adopted::in_own_words(&error).to_owned())
            }
            failure @ (Self::Etcd(_) | Self::Nobody | Self::Unknown) => {
                stateward_runtime::Failure::Failed(failure.to_string())
            }
        }
    }
}

impl From<crate::client::Error> for Failure {
    fn from(error: crate::client::Error) -> Self {
        if error.is_for_now() {
            Self::General(stateward_runtime::Failure::NotYet(error.to_string()))
        } else {
            Self::Etcd(error)
        }
    }
}

impl From<tls::Refused> for Failure {
    fn from(refused: tls::Refused) -> Self {
        match refused {
            tls::Refused::Guard(why) => guard_failed(why),
            tls::Refused::Words(words) => stateward_runtime::Failure::Failed(words).into(),
            // The next look tells of it.
            taken @ tls::Refused::Taken(_) => guard_failed(taken.to_string()),
            tls::Refused::Kubernetes(error) => Self::Kubernetes(error),
        }
    }
}

/// Executes what was planned for an EtcdCluster.
pub(crate) struct Executor<'a> {
    driver: &'a Clusters,
    shared: &'a Shared,
    step: &'a Step<'a, Clusters>,
    key: &'a Key,
    cluster: &'a EtcdCluster,
    intent: &'a Intent,
    world: &'a World,
    means: &'a Means,
}

impl<'a> Executor<'a> {
    pub(crate) fn new(driver: &'a Clusters, shared: &'a Shared, step: &'a Step<'a, Clusters>) -> Self {
        Self {
            driver,
            shared,
            step,
            key: step.key,
            cluster: step.object,
            intent: step.intent,
            world: &step.observed.world,
            means: &step.observed.means,
        }
    }

    /// Everything that an effect rests on is still so. What is about Secrets evaluates its guards with what it reads itself, and
    /// writes with the versions of that.
    pub(crate) async fn holds(&self, effect: &Effect) -> Result<(), Failure> {
        if matches!(effect, Effect::IssueCertificates { .. } | Effect::TrustCas { .. }) {
            return Ok(());
        }
        self.must_hold(&self.guards(effect)).await
    }

    pub(crate) async fn execute(&self, order: &Order) -> Result<(), Failure> {
        match &order.write {
            Some(write) => self.write(write).await,
            None => self.act(&order.effect, &self.guards(&order.effect)).await,
        }
    }

    /// Writes what was planned. Nothing here knows etcd.
    async fn write(&self, write: &Write) -> Result<(), Failure> {
        let (runtime, caches) = (&self.shared.runtime, &self.shared.caches);
        let whose = |meta: &ObjectMeta| match self.is_ours(meta) {
            true => Whose::Ours,
            false => Whose::Theirs,
        };
        match write {
            Write::ApplyService(service) => {
                self.apply((**service).clone(), Some((&caches.services, self.key)))
                    .await
            }
            Write::ApplyBudget(budget) => self.apply((**budget).clone(), Some((&caches.budgets, self.key))).await,
            Write::ApplyBackup(backup) => self.apply((**backup).clone(), None).await,
            Write::CreateClaim(claim) => Ok(objects::create(runtime, &**claim, &caches.claims, whose).await?),
            Write::CreatePod(pod) => Ok(objects::create_pod(runtime, pod, &caches.pods, whose).await?),
            Write::TryPod(pod) => Ok(objects::try_pod(runtime, pod).await?),
            Write::CreateRestore(restore) => {
                let api = runtime.api::<EtcdRestore>(&self.key.namespace);
                match api.create(&PostParams::default(), restore).await {
                    Ok(_) => Ok(()),
                    Err(error) if is_code(&error, 409) => Ok(()),
                    Err(error) => Err(error.into()),
                }
            }
            Write::ApplyMetadata(metadata) => {
                Ok(objects::apply_metadata(runtime, metadata, &caches.pods, manifests::stays_on_pod).await?)
            }
            Write::PatchPod(name, patch) => self.patch(name, patch, &caches.pods).await,
            Write::PatchClaim(name, patch) => self.patch(name, patch, &caches.claims).await,
        }
    }

    async fn act(&self, effect: &Effect, guards: &[Guard]) -> Result<(), Failure> {
        let (runtime, caches) = (&self.shared.runtime, &self.shared.caches);
        let precondition = precondition(guards);
        match effect {
            Effect::CheckNodesEnded { .. } | Effect::CompareAgain { .. } => Ok(()), // Their guards have looked.
            Effect::DeletePod { member, uid, how } => {
                let params = match how {
                    Stop::Force => DeleteParams::default().grace_period(0),
                    Stop::Restart | Stop::Gone | Stop::Hibernate | Stop::Replaced => DeleteParams::default(),
                };
                let version = self.means.pod_versions.get(member).cloned();
                let version = version.filter(|_| precondition.unmodified);
                let of_cluster = (&caches.pods, self.key);
                Ok(objects::delete(runtime, &self.named(&member.0), uid, version, params, of_cluster).await?)
            }
            Effect::DeleteClaim { member, uid, .. } | Effect::DeleteUnstartedClaim { member, uid, .. } => {
                let (params, of_cluster) = (DeleteParams::background(), (&caches.claims, self.key));
                Ok(objects::delete(runtime, &self.named(&member.0), uid, None, params, of_cluster).await?)
            }
            Effect::Tell(note) => {
                runtime.events.tell(self.cluster, note);
                Ok(())
            }
            Effect::IssueCertificates { next } => {
                Ok(tls::issue(self.shared, self.key, self.cluster, self.intent, *next, guards).await?)
            }
            Effect::RequestCertificates => Ok(tls::request(self.shared, self.key, self.cluster).await?),
            Effect::RenewCa => Ok(tls::renew_ca(self.shared, self.key, self.cluster).await?),
            Effect::TrustCas { cas } => {
                Ok(tls::trust(self.shared, self.key, self.cluster, self.intent, cas, guards).await?)
            }
            Effect::DropBackup { uid } => {
                let backup = self.named(&names::kept_backup(&self.key.name));
                let (params, itself) = (DeleteParams::background(), (&caches.backups, &backup));
                objects::delete(runtime, &backup, uid, None, params, itself).await?;
                // The cache has it already, so its worker does not hear of it from the watch.
                runtime.workers.wake(Backup::NAME, &backup);
                Ok(())
            }
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
            // These write what their orders hold. A backup without `spec.backup` is none.
            Effect::ApplyPeerService
            | Effect::ApplyClientService
            | Effect::ApplyBudget
            | Effect::CreateClaim { .. }
            | Effect::CreatePod { .. }
            | Effect::TryPod { .. }
            | Effect::SealPod { .. }
            | Effect::RelabelPod { .. }
            | Effect::GrowClaim { .. }
            | Effect::TakeBackup { .. }
            | Effect::ApplyBackup
            | Effect::RequestRestore { .. } => Err(Failure::Unknown),
        }
    }

    fn named(&self, name: &str) -> Key {
        Key::new(self.key.namespace.clone(), name)
    }

    fn is_ours(&self, meta: &ObjectMeta) -> bool {
        is_owned(meta, &self.intent.uid.0)
    }

    /// Makes an object, or makes it what the cluster's spec says. An EtcdBackup is not put into a cache (`None`): the watch brings
    /// it to its own worker, which would not be told otherwise.
    async fn apply<K: Object>(&self, object: K, index: Option<(&Index<K>, &Key)>) -> Result<(), Failure> {
        let is_ours = |meta: &ObjectMeta| self.is_ours(meta);
        Ok(objects::apply(&self.shared.runtime, object, index, is_ours).await?)
    }

    async fn patch<K: Object>(&self, name: &str, patch: &serde_json::Value, index: &Index<K>) -> Result<(), Failure> {
        let put = |patched| index.put(patched);
        Ok(objects::patch(&self.shared.runtime, &self.named(name), patch, put).await?)
    }
}
