//! The pods that work for an EtcdBackup or EtcdRestore: how they are seen, and how what is planned for them is executed.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Resource, ResourceExt};
use serde_json::json;
use stateward_core::Uid;
use stateward_core::guard::precondition;
use stateward_core::kind::Kind;
use stateward_etcd::agent::Agent;
use stateward_etcd::backup::Effect;
use stateward_runtime::cache::owner_key;
use stateward_runtime::watch::dead_since;
use stateward_runtime::{Driver, Failure, Key, Step, objects, worker};

use crate::Shared;

/// The agents that an object owns by UID. `current`: the one that its status tells of.
pub(crate) async fn of<K: Resource<DynamicType = ()>>(
    shared: &Shared,
    key: &Key,
    object: &K,
    current: Option<&str>,
) -> kube::Result<BTreeMap<String, Agent>> {
    let uid = object.meta().uid.as_deref();
    let is_ours = |pod: &Pod| {
        let mut owners = pod.owner_references().iter();
        owners.any(|owner| Some(owner.uid.as_str()) == uid)
    };
    let owned = shared
        .caches
        .agents
        .of(&owner_key(&key.namespace, &K::kind(&()), &key.name));
    let owned = owned.iter().filter(|pod| is_ours(pod));
    let mut agents: BTreeMap<_, _> = owned.map(|pod| (pod.name_any(), agent(shared, pod))).collect();
    if let Some(current) = current
        && !current.is_empty()
        && !agents.contains_key(current)
    {
        // An attempt is not over because a watch is late.
        let pods = shared.runtime.api::<Pod>(&key.namespace);
        if let Some(pod) = pods.get_opt(current).await?.filter(is_ours) {
            agents.insert(current.to_owned(), agent(shared, &pod));
            shared.caches.agents.put(pod);
        }
    }
    Ok(agents)
}

/// An agent's pod, with what is seen of its node. An operator of one namespace sees no nodes.
fn agent(shared: &Shared, pod: &Pod) -> Agent {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let node = node.and_then(|name| shared.runtime.nodes.get(&Key::new("", name)));
    Agent {
        node_dead: node.and_then(|node| dead_since(&node)),
        ..Agent::of(pod)
    }
}

/// Does what was planned for an object that agents work for.
pub(crate) async fn execute<D>(shared: &Shared, driver: &D, step: &Step<'_, D>, effect: &Effect) -> Result<(), Failure>
where
    D: Driver<Kind: Kind<Action = Effect>>,
{
    let meta = step.object.meta();
    let uid = meta.uid.as_deref().unwrap_or_default();
    let must_be = precondition(&effect.guards(&Uid(uid.to_owned())));
    let version = meta.resource_version.as_ref().filter(|_| must_be.unmodified);
    let must_be = must_be.uid.unwrap_or_default();
    let agents = &shared.caches.agents;
    let owner = owner_key(&step.key.namespace, D::Kind::NAME, &step.key.name);
    let pod = |name: &str| Key::new(step.key.namespace.clone(), name);
    match effect {
        Effect::SetFinalizers(finalizers) => {
            let patch = json!({"metadata": {"uid": must_be.0, "resourceVersion": version, "finalizers": finalizers}});
            let took = |now: D::Object| worker::took(driver, step.key, step.object, Some(now));
            objects::patch(&shared.runtime, step.key, &patch, took).await
        }
        Effect::CreatePod(pod) => {
            let pod = shared
                .runtime
                .platform
                .adapt(&shared.runtime.client, (**pod).clone())
                .await?;
            objects::create(&shared.runtime, &pod, agents, objects::by_owner(uid)).await
        }
        Effect::DeletePod { name, .. } => {
            let params = DeleteParams::default();
            objects::delete(&shared.runtime, &pod(name), &must_be, None, params, (agents, &owner)).await
        }
        Effect::ForgetPod { name, .. } => {
            let params = DeleteParams::default().grace_period(0);
            objects::delete(&shared.runtime, &pod(name), &must_be, None, params, (agents, &owner)).await
        }
        Effect::Tell(note) => {
            shared.runtime.events.tell(step.object, note);
            Ok(())
        }
    }
}
