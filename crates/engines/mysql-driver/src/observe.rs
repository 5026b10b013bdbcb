//! Observation: the world of one cluster from the caches, and what its servers say themselves. It changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use stateward_core::Uid;
use stateward_core::claim::Claim;
use stateward_core::kind::Trouble;
use stateward_core::pod::Facts;
use stateward_mysql::intent::Intent;
use stateward_mysql::names::{
    self, ANNOTATION_METADATA, ANNOTATION_POD_HASH, ANNOTATION_VERSION, CONTAINER, LABEL_READS, LABEL_ROLE,
};
use stateward_mysql::world::{self, NoReply, Object, Ordinal, Reply, Role, Server, StatefulSet, Taken, World};
use stateward_runtime::{Key, Look, Observed, Runtime};

use crate::caches::{Caches, is_free, is_owned};
use crate::client::{Error, reply};
use crate::driver::MySQLDriver;
use crate::secrets::{self, Passwords};
use crate::session::{Access, Link, Reach, Session, Taken as TakenVariables};
use crate::tls;

/// How soon a server that did not answer is asked again.
const SILENCE_INTERVAL: Duration = Duration::from_millis(300);
/// How often a clone's progress is looked at.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// For how long a claim may be pending before its events are looked at.
const CLAIM_PATIENCE: Duration = Duration::from_secs(2);
/// An administrator's word that a node is shut down.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// What actions need beside the world.
pub struct Means {
    /// The members whose pods can be reached.
    pub(crate) reach: BTreeMap<Ordinal, Reach>,
    /// Passwords.
    pub(crate) passwords: Option<Passwords>,
    /// Which process took which variables last.
    pub(crate) taken: TakenVariables,
}

/// Looks at everything of a cluster.
pub(crate) async fn observe(driver: &MySQLDriver, look: Look<'_, MySQLDriver>) -> kube::Result<Observed<MySQLDriver>> {
    let (runtime, caches) = (driver.runtime.as_ref(), &driver.caches);
    let (key, intent, memory, session) = (look.key, look.intent, look.memory, look.session);
    let judged = secrets::judge(&mut session.secrets, runtime, caches, key, intent).await?;
    let certificates = tls::judge(&mut session.secrets, runtime, caches, key, intent).await?;
    let mut world = World {
        secrets: judged.secrets,
        taken: judged.taken.or(certificates.taken),
        tls: certificates.tls,
        ..World::default()
    };
    objects(caches, key, intent, &mut world);
    for member in intent.members() {
        world.members.entry(member).or_default();
    }
    let mut look_again = None;
    for claim in caches.claims.of(key) {
        let member = member_of_claim(intent, &claim.name_any());
        if let Some(member) = member {
            let problem = session.problem(runtime, key, &claim, &mut look_again).await;
            let mut owners = claim.metadata.owner_references.iter().flatten();
            let owned = owners.any(|owner| owner.uid == intent.uid.0);
            let observed = world.members.entry(member).or_default();
            (observed.claim, observed.owned) = (Some(Claim::of(&claim, problem)), owned);
        }
    }
    let mut pods: BTreeMap<Ordinal, Arc<Pod>> = BTreeMap::new();
    for pod in caches.pods.of(key) {
        let Some(member) = names::ordinal(&intent.name, &pod.name_any()) else {
            continue;
        };
        if !is_owned(&pod.metadata, &intent.uid.0) {
            continue;
        }
        world.members.entry(member).or_default().pod = Some(session.pod(runtime, &pod));
        pods.insert(member, pod);
    }
    session.forget_pods(&world);
    let mut reach = BTreeMap::new();
    if let Some(passwords) = &judged.passwords {
        let access = Access {
            passwords,
            ca: certificates.ca.as_ref().map(|(version, ca)| (version.as_str(), ca)),
            waker: look.waker,
        };
        pods.retain(|member, _| {
            let pod = world.members.get(member).and_then(|member| member.pod.as_ref());
            pod.is_some_and(|pod| pod.facts.address.is_some() && !pod.facts.ended)
        });
        session.keep_only(|member| pods.contains_key(&member));
        for (member, pod) in &pods {
            let primary = memory.primary == Some(*member);
            let linked = session.link(intent, *member, pod, &access, primary);
            if let Err(reason) = linked {
                set_silent(&mut world, *member, NoReply { since: None, reason });
            }
        }
        ask_all(session, &mut world).await;
        for (member, link) in session.links() {
            if let Some(pod) = pods.get(&member) {
                reach.insert(member, link.reach(pod));
            }
        }
        world.ahead = match memory.primary.filter(|primary| replies(&world, *primary)) {
            Some(primary) => ahead(&reach, primary).await,
            None => None,
        };
    }
    for (member, observed) in &mut world.members {
        let Server::Reply(reply) = &mut observed.server else {
            continue;
        };
        reply.config = session.config_of(*member, &reply.process);
        if world.tls.fingerprint.is_some()
            && let Some(reach) = reach.get(member)
        {
            reply.certificate = tls::presented(session, *member, reach, &reply.process, &world.tls).await;
        }
        if reply.clone.as_ref().is_some_and(|clone| clone.running) {
            look_again = sooner(look_again, PROGRESS_INTERVAL);
        }
    }
    if may_reply(&world) {
        look_again = sooner(look_again, SILENCE_INTERVAL);
    }
    Ok(Observed {
        world,
        means: Means {
            reach,
            passwords: judged.passwords,
            taken: session.taken.clone(),
        },
        look_again,
        trouble: certificates.trouble.map(|message| Trouble {
            reason: "CannotCarryOut",
            message,
        }),
    })
}

fn sooner(before: Option<Duration>, now: Duration) -> Option<Duration> {
    before.into_iter().chain([now]).min()
}

/// A server whose container runs does not reply: a worker that waits for it to be silent long enough must look again.
fn may_reply(world: &World) -> bool {
    world.members.values().any(|member| {
        let runs = member.facts().is_some_and(|facts| facts.running && !facts.terminating);
        runs && member.reply().is_none()
    })
}

fn replies(world: &World, member: Ordinal) -> bool {
    world
        .members
        .get(&member)
        .is_some_and(|member| member.reply().is_some())
}

fn set_silent(world: &mut World, member: Ordinal, why: NoReply) {
    world.members.entry(member).or_default().server = Server::NoReply(why);
}

/// Asks every server at once. What it says last is what its volume is like: the agent is asked beside it.
async fn ask_all(session: &mut Session, world: &mut World) {
    let questions = session.links().map(async |(member, link)| (member, ask(link).await));
    for (member, asked) in join_all(questions).await {
        match asked {
            Ok(reply) => world.members.entry(member).or_default().server = Server::Reply(Box::new(reply)),
            Err(why) => set_silent(world, member, why),
        }
    }
}

async fn ask(link: &mut Link) -> Result<Reply, NoReply> {
    link.open().await?;
    let agent = link.agent.clone().filter(|_| !link.knows_volume());
    let (server, known) = (link.server.clone(), link.accounts.clone());
    let question = async {
        let mut session = server.session().await;
        reply::ask(&mut session, known.as_ref()).await
    };
    let volume = async {
        match agent {
            Some(agent) => agent.state().await.ok(),
            None => None,
        }
    };
    let (asked, said) = futures::join!(question, volume);
    if let Some(said) = said {
        link.said = Some((Instant::now(), said));
    }
    match asked {
        Ok(mut reply) => {
            link.replied();
            link.accounts = Some(reply::accounts_of(&reply));
            if let Some((_, said)) = &link.said {
                add_volume(&mut reply, said);
            }
            Ok(reply)
        }
        Err(error) => Err(link.failed(&error)),
    }
}

/// What the agent knows of its server.
pub(crate) fn add_volume(reply: &mut Reply, said: &stateward_mysql::agent::State) {
    reply.saved.clone_from(&said.saved);
    reply.volume = said.volume.map(|volume| world::Volume {
        size: volume.size,
        free: volume.free,
        binlogs: volume.binlogs,
    });
}

async fn ahead(reach: &BTreeMap<Ordinal, Reach>, primary: Ordinal) -> Option<stateward_mysql::GtidSet> {
    let server = &reach.get(&primary)?.server;
    let asked: Result<_, Error> = reply::ahead(&mut server.session().await).await;
    asked.ok()
}

/// The objects that exist once for the cluster.
fn objects(caches: &Caches, key: &Key, intent: &Intent, world: &mut World) {
    let uid = intent.uid.0.as_str();
    let (cluster, services) = (intent.name.as_str(), &caches.services);
    let service = |name: &str| services.named(key, name).map(|found| found.metadata.clone());
    let found: [(Object, &str, String, Option<ObjectMeta>); 6] = {
        let (headless, primary) = (cluster.to_owned(), names::primary_service(cluster));
        let (read, config) = (names::read_service(cluster), names::config_map(cluster));
        let config_map = caches.config_maps.named(key, &config);
        let budget = caches.budgets.named(key, cluster);
        let policy = caches.policies.named(key, cluster);
        [
            (Object::Headless, "Service", headless.clone(), service(&headless)),
            (Object::PrimaryService, "Service", primary.clone(), service(&primary)),
            (Object::ReadService, "Service", read.clone(), service(&read)),
            (
                Object::Config,
                "ConfigMap",
                config,
                config_map.map(|found| found.metadata.clone()),
            ),
            (
                Object::Budget,
                "PodDisruptionBudget",
                cluster.to_owned(),
                budget.map(|found| found.metadata.clone()),
            ),
            (
                Object::NetworkPolicy,
                "NetworkPolicy",
                cluster.to_owned(),
                policy.map(|found| found.metadata.clone()),
            ),
        ]
    };
    for (object, kind, name, meta) in found {
        let Some(meta) = meta else { continue };
        if is_owned(&meta, uid) {
            let hash = meta.annotations.and_then(|mut all| all.remove(ANNOTATION_METADATA));
            world.objects.insert(object, hash.unwrap_or_default());
        } else if is_free(&meta) {
            world.taken.get_or_insert(Taken::Name(format!("the {kind} {name}")));
        }
    }
    world.set = caches.sets.named(key, cluster).map(|set| {
        let annotation = |meta: Option<&ObjectMeta>, name: &str| {
            let value = meta.and_then(|meta| meta.annotations.as_ref()?.get(name));
            value.cloned().unwrap_or_default()
        };
        let replicas = set.spec.replicas;
        let template = set.spec.template.metadata.as_ref();
        StatefulSet {
            uid: Uid::of(&set.metadata),
            replicas: replicas.and_then(|replicas| u32::try_from(replicas).ok()).unwrap_or(1),
            template: annotation(template, ANNOTATION_POD_HASH),
            metadata: annotation(Some(&set.metadata), ANNOTATION_METADATA),
            ours: is_owned(&set.metadata, uid),
        }
    });
}

/// The member that a claim is of.
fn member_of_claim(intent: &Intent, claim: &str) -> Option<Ordinal> {
    names::ordinal(&intent.name, claim.strip_prefix("data-")?)
}

/// How a node has ended: it was deleted, or an administrator says that it is shut down. One that is Ready runs its pods.
fn has_ended(runtime: &Runtime, node: &str) -> bool {
    if runtime.namespace.is_some() || !runtime.nodes.is_synced() {
        return false;
    }
    let Some(node) = runtime.nodes.get(&Key::new("", node)) else {
        return true;
    };
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let is_out = taints.into_iter().any(|taint| taint.key == OUT_OF_SERVICE);
    is_out && !is_ready(&node)
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    ready.any(|condition| condition.status == "True")
}

impl Session {
    fn pod(&mut self, runtime: &Runtime, pod: &Pod) -> world::Pod {
        let label = |name: &str| pod.labels().get(name).map(String::as_str);
        let annotation = |name: &str| pod.annotations().get(name).cloned();
        let facts = self.since_when(Facts::of(pod, CONTAINER));
        world::Pod {
            role: match label(LABEL_ROLE) {
                Some("primary") => Some(Role::Primary),
                Some("replica") => Some(Role::Replica),
                _ => None,
            },
            reads: label(LABEL_READS) == Some("true"),
            template: annotation(ANNOTATION_POD_HASH).unwrap_or_default(),
            version: annotation(ANNOTATION_VERSION).and_then(|version| version.parse().ok()),
            node_ended: facts.node.as_deref().is_some_and(|node| has_ended(runtime, node)),
            facts,
        }
    }

    /// A pod is blocked since what it tells, or since it was first seen so where that is earlier by our own clock.
    fn since_when(&mut self, mut facts: Facts) -> Facts {
        self.blocked.retain(|(uid, reason), _| {
            *uid != facts.uid.0 || facts.blocked.as_ref().is_some_and(|now| now.reason == *reason)
        });
        if let Some(blocked) = &mut facts.blocked {
            let key = (facts.uid.0.clone(), blocked.reason.clone());
            let seen = *self.blocked.entry(key).or_insert_with(Timestamp::now);
            blocked.since = blocked.since.into_iter().chain([seen]).min();
        }
        facts
    }

    /// Forgets pods that are gone.
    fn forget_pods(&mut self, world: &World) {
        let facts = world.members.values().filter_map(|member| member.facts());
        let uids: Vec<&str> = facts.map(|facts| facts.uid.0.as_str()).collect();
        self.blocked.retain(|(uid, _), _| uids.contains(&uid.as_str()));
    }

    /// What Kubernetes said of a claim that is not bound, in its events: the claim itself does not tell.
    async fn problem(
        &mut self,
        runtime: &Runtime,
        key: &Key,
        claim: &PersistentVolumeClaim,
        look_again: &mut Option<Duration>,
    ) -> Option<String> {
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        let uid = claim.metadata.uid.clone()?;
        if phase.is_some_and(|phase| phase != "Pending") {
            self.problems.remove(&uid);
            return None;
        }
        *look_again = sooner(*look_again, CLAIM_PATIENCE);
        let created = claim.metadata.creation_timestamp.as_ref()?.0;
        let age = Duration::try_from(Timestamp::now().duration_since(created)).unwrap_or_default();
        if age < CLAIM_PATIENCE {
            return None;
        }
        if let Some((read, problem)) = self.problems.get(&uid)
            && read.elapsed() < CLAIM_PATIENCE
        {
            return problem.clone();
        }
        let events: Api<Event> = runtime.api(&key.namespace);
        let about = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        let found = events.list(&about).await.ok()?;
        let problem = found
            .items
            .into_iter()
            .filter(|event| matches!(event.reason.as_deref(), Some("ProvisioningFailed" | "FailedBinding")))
            .max_by_key(|event| event.last_timestamp.as_ref().map(|time| time.0))
            .and_then(|event| event.message);
        self.problems.insert(uid, (Instant::now(), problem.clone()));
        problem
    }
}
