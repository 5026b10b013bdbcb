//! Effects with what they write to Kubernetes, complete: whoever executes an order needs to know nothing of etcd for it.

use std::fmt;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::manifests::{self, launch};
use super::world::{MemberName, TlsStage, World};
use super::{Effect, Intent, Launch};
use crate::api::{EtcdBackup, EtcdRestore, EtcdVersion};

/// An effect, with its manifest where it writes one.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// What is decided.
    pub effect: Effect,
    /// What is written for it.
    pub write: Option<Write>,
}

/// A request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Server-side apply.
    ApplyService(Box<Service>),
    /// Server-side apply.
    ApplyBudget(Box<PodDisruptionBudget>),
    /// Server-side apply.
    ApplyBackup(Box<EtcdBackup>),
    /// Fails when one of that name exists.
    CreateClaim(Box<PersistentVolumeClaim>),
    /// Fails when one of that name exists.
    CreatePod(Box<Pod>),
    /// Only asks whether it would be accepted.
    TryPod(Box<Pod>),
    /// Does nothing when one of that name exists.
    CreateRestore(Box<EtcdRestore>),
    /// Labels and annotations of a running pod, applied by their own field manager.
    ApplyMetadata(Box<ObjectMeta>),
    /// A merge patch of a pod.
    PatchPod(String, Value),
    /// A merge patch of a claim.
    PatchClaim(String, Value),
}

impl Order {
    /// The order for an effect.
    pub fn of(effect: Effect, intent: &Intent, world: &World) -> Self {
        let write = write(&effect, intent, world);
        Self { effect, write }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.effect.fmt(f)
    }
}

fn write(effect: &Effect, intent: &Intent, world: &World) -> Option<Write> {
    let cluster = &intent.cluster;
    let pod = |member: &MemberName, launch: &Launch, version: &EtcdVersion, tls: TlsStage| {
        let trusts = world.trust_files.as_ref();
        Box::new(manifests::pod(intent, member, launch, version, tls, trusts))
    };
    Some(match effect {
        Effect::ApplyPeerService => Write::ApplyService(Box::new(manifests::peer_service(cluster))),
        Effect::ApplyClientService => Write::ApplyService(Box::new(manifests::client_service(cluster))),
        Effect::ApplyBudget => Write::ApplyBudget(Box::new(manifests::budget(cluster))),
        Effect::CreateClaim { member } => Write::CreateClaim(Box::new(manifests::claim(cluster, member))),
        Effect::CreatePod {
            member,
            launch,
            version,
            tls,
        } => Write::CreatePod(pod(member, launch, version, *tls)),
        Effect::TryPod {
            member,
            launch,
            version,
            tls,
        } => Write::TryPod(pod(member, launch, version, *tls)),
        Effect::SealPod { member, uid } => {
            let tls = world.pods.get(member).is_some_and(|pod| pod.tls == TlsStage::On);
            let annotations = launch::annotations(intent, member, &Launch::Sealed, tls);
            let patch = json!({"metadata": {"uid": uid.0, "annotations": annotations}});
            Write::PatchPod(member.0.clone(), patch)
        }
        Effect::RelabelPod { member, uid } => {
            Write::ApplyMetadata(Box::new(manifests::pod_metadata(intent, member, uid)))
        }
        Effect::GrowClaim { member, uid, .. } => {
            let resources = cluster.claim_spec().resources;
            let requests = resources.and_then(|resources| resources.requests);
            let patch = json!({"metadata": {"uid": uid.0}, "spec": {"resources": {"requests": requests}}});
            Write::PatchClaim(member.0.clone(), patch)
        }
        Effect::TakeBackup { name, version } => {
            Write::ApplyBackup(Box::new(manifests::upgrade_backup(cluster, name, version)?))
        }
        Effect::ApplyBackup => Write::ApplyBackup(Box::new(manifests::kept_backup(cluster)?)),
        Effect::RequestRestore { name, backup } => {
            Write::CreateRestore(Box::new(manifests::requested_restore(cluster, name, backup)))
        }
        Effect::CheckNodesEnded { .. }
        | Effect::DeletePod { .. }
        | Effect::DeleteClaim { .. }
        | Effect::DeleteUnstartedClaim { .. }
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
        | Effect::RenewCa
        | Effect::TrustCas { .. }
        | Effect::DropBackup { .. }
        | Effect::Tell(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::three;
    use crate::cluster::{LaunchKind, facts};

    #[test]
    fn a_sealed_pod_keeps_its_tls_and_starts_with_its_data_only() {
        for (stage, scheme) in [
            (TlsStage::Off, "http"),
            (TlsStage::Prepared, "http"),
            (TlsStage::On, "https"),
        ] {
            // given a member that joined, at a stage of TLS
            let given = three().pod("c-b", |pod| (pod.launch, pod.tls) = (LaunchKind::Join, stage));
            let uid = given.world.pods[&MemberName::from("c-b")].uid.clone();
            // when it is sealed
            let effect = Effect::SealPod {
                member: "c-b".into(),
                uid: uid.clone(),
            };
            let Some(Write::PatchPod(name, patch)) = Order::of(effect, &given.intent, &given.world).write else {
                panic!("no patch of a pod");
            };
            // then the patch is of this very pod, and names it alone, at its own address
            assert_eq!((name.as_str(), &patch["metadata"]["uid"]), ("c-b", &json!(uid.0)));
            let annotations = &patch["metadata"]["annotations"];
            assert_eq!(annotations[launch::KIND], "Sealed");
            let address = format!("c-b={scheme}://c-b.c.n.svc:2380");
            assert_eq!(annotations[launch::MEMBERS], address.as_str());
        }
    }

    #[test]
    fn a_created_pod_is_what_the_next_reconcile_expects() {
        // given a spec
        let given = three();
        let effect = Effect::CreatePod {
            member: "c-b".into(),
            launch: Launch::Sealed,
            version: given.intent.version.clone(),
            tls: TlsStage::Off,
        };
        // when a pod is made from it
        let Some(Write::CreatePod(pod)) = Order::of(effect, &given.intent, &given.world).write else {
            panic!("no pod");
        };
        // then it is up to date by its annotations
        let seen = facts::pod(&pod);
        assert_eq!(
            (seen.template, seen.metadata),
            (given.intent.template.clone(), given.intent.metadata.clone())
        );
        assert_eq!(
            (seen.version, seen.launch),
            (given.intent.version.clone(), LaunchKind::Sealed)
        );
    }
}
