//! Actions on Kubernetes' objects.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use stateward_core::Uid;
use stateward_mysql::action::{Action, Stop};
use stateward_mysql::manifests::{self, Manifest};
use stateward_mysql::names::{self, LABEL_READS, LABEL_ROLE};
use stateward_mysql::world::{Ordinal, Role};
use stateward_runtime::{Failure, Index, Key, objects};

use super::Executor;
use crate::caches::is_owned;

impl Executor<'_> {
    pub(super) async fn on_kubernetes(self, action: &Action) -> Result<(), Failure> {
        match action {
            Action::Apply(object) => match manifests::object(*object, self.intent) {
                Some(manifest) => self.apply(manifest).await,
                None => Err(Failure::Failed(format!("this operator cannot create {object:?}"))),
            },
            Action::ApplySet { replicas } => self.apply_set(*replicas).await,
            Action::ScaleIn { uid, replicas } => {
                let patch = json!({"metadata": {"uid": uid.0}, "spec": {"replicas": replicas}});
                self.patch(&self.intent.name, &patch, &self.caches.sets).await
            }
            Action::Label {
                member,
                uid,
                role,
                reads,
                ..
            } => self.label(*member, uid, *role, *reads).await,
            Action::DeletePod { member, uid, how } => {
                let params = match how {
                    Stop::Restart => DeleteParams::default(),
                    Stop::Force => DeleteParams::default().grace_period(0),
                };
                let key = self.named(&names::pod(&self.intent.name, *member));
                let of = (&self.caches.pods, self.key);
                objects::delete(self.runtime, &key, uid, None, params, of).await
            }
            Action::DeleteClaim { member, uid, .. } => {
                let key = self.named(&names::claim(&self.intent.name, *member));
                let of = (&self.caches.claims, self.key);
                objects::delete(self.runtime, &key, uid, None, DeleteParams::background(), of).await
            }
            Action::GrowClaim { member, uid, bytes } => {
                let request = json!({"requests": {"storage": bytes.to_string()}});
                let patch = json!({"metadata": {"uid": uid.0}, "spec": {"resources": request}});
                let name = names::claim(&self.intent.name, *member);
                self.patch(&name, &patch, &self.caches.claims).await
            }
            Action::OwnClaim { member, uid, owned } => self.own_claim(*member, uid, *owned).await,
            Action::TakeBackup { .. } => Err(Failure::Failed("this operator cannot back up MySQL yet".into())),
            _ => Err(Failure::Failed("this is no action on Kubernetes".into())),
        }
    }

    fn named(self, name: &str) -> Key {
        Key::new(self.key.namespace.clone(), name)
    }

    async fn apply(self, manifest: Manifest) -> Result<(), Failure> {
        let (runtime, caches) = (self.runtime, self.caches);
        let ours = |meta: &ObjectMeta| is_owned(meta, &self.intent.uid.0);
        match manifest {
            Manifest::ConfigMap(object) => {
                objects::apply(runtime, object, Some((&caches.config_maps, self.key)), ours).await
            }
            Manifest::Service(object) => {
                objects::apply(runtime, object, Some((&caches.services, self.key)), ours).await
            }
            Manifest::Budget(object) => objects::apply(runtime, object, Some((&caches.budgets, self.key)), ours).await,
            Manifest::NetworkPolicy(object) => {
                objects::apply(runtime, object, Some((&caches.policies, self.key)), ours).await
            }
        }
    }

    /// The StatefulSet with this many pods; never with fewer than it has.
    async fn apply_set(self, replicas: u32) -> Result<(), Failure> {
        let name = &self.intent.name;
        let there = self
            .runtime
            .api::<StatefulSet>(&self.key.namespace)
            .get_opt(name)
            .await?;
        let now = there.as_ref().and_then(|set| set.spec.replicas);
        if now.is_some_and(|now| u32::try_from(now).is_ok_and(|now| now > replicas)) {
            let why = format!("the StatefulSet {name} has more than {replicas} pods now");
            return Err(Failure::GuardFailed(why));
        }
        let mut set = manifests::stateful_set(self.intent, replicas, &self.driver.agent_image, there.as_ref());
        // The template is of a pod, which this Kubernetes may admit only without user IDs.
        let pod = Pod {
            spec: set.spec.template.spec.take(),
            ..Pod::default()
        };
        set.spec.template.spec = self.runtime.platform.adapt(&self.runtime.client, pod).await?.spec;
        let ours = |meta: &ObjectMeta| is_owned(meta, &self.intent.uid.0);
        objects::apply(self.runtime, set, Some((&self.caches.sets, self.key)), ours).await
    }

    async fn own_claim(self, member: Ordinal, uid: &Uid, owned: bool) -> Result<(), Failure> {
        let name = names::claim(&self.intent.name, member);
        let there = self.caches.claims.named(self.key, &name);
        let owners = there.and_then(|claim| claim.metadata.owner_references.clone());
        let mut owners = owners.unwrap_or_default();
        owners.retain(|owner| owner.uid != self.intent.uid.0);
        owners.extend(owned.then(|| manifests::owner(self.intent)));
        let patch = json!({"metadata": {"uid": uid.0, "ownerReferences": owners}});
        self.patch(&name, &patch, &self.caches.claims).await
    }

    async fn label(self, member: Ordinal, uid: &Uid, role: Option<Role>, reads: bool) -> Result<(), Failure> {
        let role = role.map(|role| match role {
            Role::Primary => "primary",
            Role::Replica => "replica",
        });
        let labels = json!({LABEL_ROLE: role, LABEL_READS: reads.then_some("true")});
        let patch = json!({"metadata": {"uid": uid.0, "labels": labels}});
        let name = names::pod(&self.intent.name, member);
        self.patch(&name, &patch, &self.caches.pods).await
    }

    async fn patch<K: objects::Object>(self, name: &str, patch: &Value, index: &Index<K>) -> Result<(), Failure> {
        objects::patch(self.runtime, &self.named(name), patch, |patched| index.put(patched)).await
    }
}
