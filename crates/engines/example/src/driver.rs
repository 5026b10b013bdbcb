//! How a Mirror is observed and how its actions are executed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Resource, ResourceExt};
use serde_json::json;
use stateward_core::guard::{Fresh, Need};
use stateward_core::kind::Kind;
use stateward_core::names::MANAGER;
use stateward_core::pod::Facts;
use stateward_runtime::cache::{Index, own_key, owner_key};
use stateward_runtime::guards::{self, Reader};
use stateward_runtime::{Driver, Failure, Key, Look, Observed, Runtime, Step, objects, watch, worker};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::api::Mirror;
use crate::plan::{Action, Fact, Member, Mirrors, World};

/// The port that the pods serve on.
pub const PORT: u16 = 7878;

/// The driver of Mirrors.
pub struct MirrorDriver {
    /// What all workers share.
    pub runtime: Runtime,
    /// The image with the `mirror` program.
    pub image: String,
    mirrors: Index<Mirror>,
    pods: Index<Pod>,
}

impl MirrorDriver {
    /// A driver that follows nothing yet.
    pub fn new(runtime: Runtime, image: &str) -> Self {
        Self {
            runtime,
            image: image.into(),
            mirrors: Index::new(own_key),
            pods: Index::new(stateward_runtime::cache::agent_key),
        }
    }

    fn manifest(&self, mirror: &Mirror, pod: &str, seed: bool) -> Result<Pod, serde_json::Error> {
        let mut args = vec![format!("0.0.0.0:{PORT}")];
        args.extend(seed.then(|| mirror.spec.text.clone()));
        serde_json::from_value(json!({
            "metadata": {
                "name": pod,
                "namespace": mirror.metadata.namespace,
                "labels": {"app.kubernetes.io/name": "mirror", "app.kubernetes.io/managed-by": MANAGER},
                "ownerReferences": [mirror.controller_owner_ref(&())],
            },
            "spec": {
                "containers": [{"name": "mirror", "image": self.image, "args": args}],
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
            },
        }))
    }
}

/// Asks a pod. An answer is the status code and the body.
async fn ask(member: &Member, request: &str) -> Option<(u16, String)> {
    let address = format!("{}:{PORT}", member.facts.address.as_deref()?);
    let asked = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        stream
            .write_all(format!("{request} HTTP/1.0\r\n\r\n").as_bytes())
            .await
            .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    };
    tokio::time::timeout(Duration::from_secs(1), asked).await.ok()?
}

/// Whether a pod holds the file.
async fn holds(member: &Member) -> Option<bool> {
    ask(member, "GET /").await.map(|(code, _)| code == 200)
}

/// Asks pods for what guards rest on.
struct AskPods<'a> {
    driver: &'a MirrorDriver,
    step: &'a Step<'a, MirrorDriver>,
}

impl Reader<Fact> for AskPods<'_> {
    type Error = Failure;

    async fn read(
        &mut self,
        need: Need<String>,
        said: &mut Fresh<BTreeMap<String, Option<bool>>>,
    ) -> Result<(), Failure> {
        match need {
            Need::Object => said.object = Some(worker::read(self.driver, self.step).await?),
            Need::Fact(pod) => {
                let holds = match self.step.observed.world.get(&pod) {
                    Some(member) => holds(member).await,
                    None => None,
                };
                said.facts.insert(pod, holds);
            }
        }
        Ok(())
    }
}

impl Driver for MirrorDriver {
    type Kind = Mirrors;
    type Object = Mirror;
    type Session = ();
    type Means = ();

    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn objects(&self) -> &Index<Mirror> {
        &self.mirrors
    }

    fn settings(&self) -> &() {
        &()
    }

    async fn watches(self: Arc<Self>) {
        let labels = format!("app.kubernetes.io/name=mirror,app.kubernetes.io/managed-by={MANAGER}");
        tokio::join!(
            watch::follow_all(&self.runtime, "Mirrors", &self.mirrors, |key| worker::tend(&self, key)),
            watch::follow_labelled(&self.runtime, &labels, "Pods", &self.pods, |owner| {
                if let Some((_, name)) = owner.name.split_once('/') {
                    let mirror = Key::new(owner.namespace.clone(), name);
                    self.runtime.workers.wake(Mirrors::NAME, &mirror);
                }
            }),
        );
    }

    async fn synced(&self) {
        self.mirrors.synced().await;
        self.pods.synced().await;
    }

    async fn observe(&self, look: Look<'_, Self>) -> kube::Result<Observed<Self>> {
        let (key, mirror) = (look.key, look.object);
        let mut world: World = BTreeMap::new();
        for pod in self.pods.of(&owner_key(&key.namespace, Mirrors::NAME, &key.name)) {
            if !pod
                .owner_references()
                .iter()
                .any(|owner| Some(&owner.uid) == mirror.metadata.uid.as_ref())
            {
                continue;
            }
            let mut member = Member {
                facts: Facts::of(&pod, "mirror"),
                holds: None,
            };
            if member.facts.running {
                member.holds = holds(&member).await;
            }
            world.insert(pod.name_any(), member);
        }
        Ok(Observed {
            world,
            means: (),
            look_again: None,
            trouble: None,
        })
    }

    async fn holds(&self, step: &Step<'_, Self>, action: &Action) -> Result<(), Failure> {
        let guards = action.guards(&Mirrors::memory(&Mirrors::stored(step.object)));
        guards::hold(&guards, Fresh::default(), &(), &mut AskPods { driver: self, step }).await
    }

    async fn execute(&self, step: &Step<'_, Self>, action: &Action) -> Result<(), Failure> {
        let owner = owner_key(&step.key.namespace, Mirrors::NAME, &step.key.name);
        match action {
            Action::Create { pod, seed } => {
                let uid = step.object.metadata.uid.as_deref().unwrap_or_default();
                let pod = self.manifest(step.object, pod, *seed);
                let pod = pod.map_err(|error| Failure::Failed(error.to_string()))?;
                objects::create_pod(&self.runtime, &pod, &self.pods, objects::by_owner(uid)).await
            }
            Action::Fetch { pod, from } => {
                let world = &step.observed.world;
                let (Some(member), Some(source)) = (world.get(pod), world.get(from)) else {
                    return Err(Failure::GuardFailed(format!("{pod} or {from} is gone")));
                };
                let source = source.facts.address.as_deref().unwrap_or_default();
                match ask(member, &format!("POST /{source}:{PORT}")).await {
                    Some((200, _)) => Ok(()),
                    _ => Err(Failure::NotYet(format!("{pod} could not fetch the file"))),
                }
            }
            Action::Delete { pod, uid } => {
                let (key, params) = (Key::new(step.key.namespace.clone(), pod), DeleteParams::default());
                objects::delete(&self.runtime, &key, uid, None, params, (&self.pods, &owner)).await
            }
        }
    }
}
