//! Observation: the world of one cluster from the caches, and what its members say themselves. It changes nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::{Asked, Client, ask, hash_of_data, prove_list};
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::ListParams;
use rand::Rng;
use stateward_core::kind::Trouble;
use stateward_core::reason;
use stateward_etcd::api::{EtcdCluster, names};
use stateward_etcd::cluster::manifests::ANNOTATION_METADATA;
use stateward_etcd::cluster::members::owner;
use stateward_etcd::cluster::{
    Alarm, DataHash, Intent, KeptBackup, MemberId, MemberList, MemberName, MemberProbe, NoReply, NoReplyKind, Record,
    Reply, Services, Trust, Uid, UpgradeBackup, World, facts,
};
use stateward_runtime::{Key, Look, Observed};

use crate::Shared;
use crate::cluster::Clusters;
use crate::connections::{Connections, why_no_reply};
use crate::secrets::SecretReader;

/// For how long a claim may be pending before its events are looked at.
const CLAIM_PATIENCE: Duration = Duration::from_secs(2);

/// How soon a member that is silent is asked again.
const NO_REPLY_INTERVAL: Duration = Duration::from_secs(1);

/// What a loop keeps between rounds: connections and what was read, nothing that a decision rests on.
#[derive(Default)]
pub(crate) struct Session {
    pub(crate) connections: Connections,
    pub(crate) secrets: SecretReader,
    /// Names for new members. They stay the same until they are used, so that a step that is refused for now is tried
    /// again with the same words.
    fresh_names: Vec<MemberName>,
    /// Since when this loop has seen what timers wait for.
    watch: crate::ends::Watch,
    /// What Kubernetes last said of a pending claim, by UID, and when that was read.
    problems: HashMap<String, (Instant, Option<String>)>,
    /// When a pod was first seen to be blocked, by UID and Kubernetes' reason. Times in objects are of other clocks.
    blocked: HashMap<(String, String), Timestamp>,
}

/// What actions need beside the world.
pub(crate) struct Means {
    /// The versions of the pods that were seen: what a restart rests on must still be so when it is executed.
    pub(crate) pod_versions: BTreeMap<MemberName, String>,
    /// Connections to the members that answered.
    pub(crate) clients: BTreeMap<MemberName, Client>,
}

/// The words of the members that answered.
pub(crate) fn answers(world: &World) -> impl Iterator<Item = (&MemberName, &Reply)> {
    world.probes.iter().filter_map(|(name, probe)| match probe {
        MemberProbe::Reply(reply) => Some((name, reply)),
        MemberProbe::NoReply(_) => None,
    })
}

/// Looks at everything of a cluster.
pub(crate) async fn observe(shared: &Shared, look: Look<'_, Clusters>) -> kube::Result<Observed<Clusters>> {
    let (key, cluster, intent, record) = (look.key, look.object, look.intent, look.memory);
    let session = look.session;
    session.connections.wake(look.waker);
    let uid = intent.uid.0.as_str();
    let mut judged = crate::tls::judge(&mut session.secrets, shared, key, cluster).await?;
    let mut world = World {
        secrets: std::mem::take(&mut judged.secrets),
        certificates_end: judged.not_after,
        ..World::default()
    };
    let mut pods: BTreeMap<MemberName, Arc<Pod>> = BTreeMap::new();
    for pod in shared.caches.pods.of(key) {
        if is_owned(&pod.metadata, uid) {
            let name = MemberName(pod.metadata.name.clone().unwrap_or_default());
            world.pods.insert(name.clone(), session.since_when(facts::pod(&pod)));
            pods.insert(name, pod);
        }
    }
    let mut look_again = None;
    for claim in shared.caches.claims.of(key) {
        let name = claim.metadata.name.clone().unwrap_or_default();
        if is_owned(&claim.metadata, uid) {
            let problem = session.problem(shared, key, &claim, &mut look_again).await;
            world
                .claims
                .insert(MemberName(name), stateward_core::claim::Claim::of(&claim, problem));
        } else if is_free(&claim.metadata) {
            world.foreign_claims.push(name);
        }
    }
    world.services = services(shared, key, uid, &mut world.conflicts);
    backups(shared, key, intent, record, &mut world);
    crate::ends::observe(shared, record, &mut world);
    session.connections.keep_only(|member| pods.contains_key(member));
    let uids: Vec<&str> = world.pods.values().map(|pod| pod.uid.0.as_str()).collect();
    session.blocked.retain(|(uid, _), _| uids.contains(&uid.as_str()));
    let mut clients = listen(shared, key, intent, record, &pods, session, &mut world).await;
    if crate::adopted::are_needed(intent, &world) {
        listen_to_adopted(shared, key, cluster, intent, session, &mut world, &mut clients).await?;
    }
    let seen = judged.look_at_members(&world).await;
    world.trust = judged.trust.take().map(|trust| Trust { seen, ..trust });
    world.trust_files = judged.files.take();
    world.list = prove(record, &world, &clients).await;
    if world.list.is_some() && world.has_alarm(Alarm::Corrupt) {
        world.hashes = hashes(&world, &clients).await;
    }
    if world
        .probes
        .values()
        .any(|probe| matches!(probe, MemberProbe::NoReply(_)))
    {
        // Kubernetes may not notice when it speaks again.
        look_again = look_again.into_iter().chain([NO_REPLY_INTERVAL]).min();
    }
    world.auth_enabled = auth_enabled(intent, record, &world, &clients).await;
    world.restores = crate::restore::requests(shared, key, cluster);
    world.backups = crate::restore::backups(shared, key, cluster);
    world.watched = session.watch.look(record, &world);
    session.draw(key, intent, &mut world);
    let versions = pods
        .into_iter()
        .filter_map(|(name, pod)| Some((name, pod.metadata.resource_version.clone()?)));
    Ok(Observed {
        world,
        means: Means {
            pod_versions: versions.collect(),
            clients,
        },
        look_again,
        trouble: judged.trouble.map(|message| Trouble {
            reason: reason::shared::CANNOT_CARRY_OUT,
            message,
        }),
    })
}

/// The EtcdBackups that the cluster keeps.
fn backups(shared: &Shared, key: &Key, intent: &Intent, record: &Record, world: &mut World) {
    let uid = intent.uid.0.as_str();
    let get = |name: String| shared.caches.backups.get(&Key::new(key.namespace.clone(), name));
    if let Some(kept) = get(names::kept_backup(&key.name)) {
        let meta = &kept.metadata;
        let hash = meta.annotations.as_ref().and_then(|all| all.get(ANNOTATION_METADATA));
        world.kept_backup = if is_owned(meta, uid) {
            KeptBackup::Ours {
                uid: Uid(meta.uid.clone().unwrap_or_default()),
                hash: hash.cloned().unwrap_or_default(),
            }
        } else if is_free(meta) {
            KeptBackup::Theirs
        } else {
            KeptBackup::None
        };
    }
    let before = record.upgrade_backup.clone().and_then(get);
    world.upgrade_backup = before.filter(|backup| is_owned(&backup.metadata, uid)).map(|backup| {
        let status = backup.status.clone().unwrap_or_default();
        UpgradeBackup {
            succeeded: status.succeeded,
            trouble: status.reason,
        }
    });
}

fn services(shared: &Shared, key: &Key, uid: &str, conflicts: &mut Vec<String>) -> Services {
    let mut hash_of = |kind: &str, name: &str, meta: Option<&ObjectMeta>| {
        let meta = meta?;
        if is_owned(meta, uid) {
            return Some(meta.annotations.as_ref()?.get(ANNOTATION_METADATA)?.clone());
        }
        if is_free(meta) {
            conflicts.push(format!("{kind} {name}"));
        }
        None
    };
    let (peer, client) = (names::peer_service(&key.name), names::client_service(&key.name));
    let budget = names::disruption_budget(&key.name);
    let of_service = |name: &str| shared.caches.services.named(key, name);
    Services {
        peer: hash_of(
            "Service",
            &peer,
            of_service(&peer).as_ref().map(|service| &service.metadata),
        ),
        client: hash_of(
            "Service",
            &client,
            of_service(&client).as_ref().map(|service| &service.metadata),
        ),
        budget: hash_of(
            "PodDisruptionBudget",
            &budget,
            shared
                .caches
                .budgets
                .named(key, &budget)
                .as_ref()
                .map(|budget| &budget.metadata),
        ),
    }
}

/// Made for the cluster of this UID: names come back, UIDs do not.
pub(crate) fn is_owned(meta: &ObjectMeta, uid: &str) -> bool {
    let by_reference = meta.owner_references.iter().flatten().any(|owner| owner.uid == uid);
    let by_annotation = || {
        let annotations = meta.annotations.as_ref();
        annotations
            .and_then(|all| all.get(names::ANNOTATION_CLUSTER_UID))
            .map(String::as_str)
            == Some(uid)
    };
    by_reference || (meta.owner_references.iter().flatten().next().is_none() && by_annotation())
}

/// Stays for good: what an object that is gone owned is on its way out, and so is what is being deleted.
fn is_free(meta: &ObjectMeta) -> bool {
    meta.owner_references.iter().flatten().next().is_none() && meta.deletion_timestamp.is_none()
}

/// Asks the members of a cluster that is being taken over, under the names of their endpoints.
async fn listen_to_adopted(
    shared: &Shared,
    key: &Key,
    cluster: &EtcdCluster,
    intent: &Intent,
    session: &mut Session,
    world: &mut World,
    clients: &mut BTreeMap<MemberName, Client>,
) -> Result<(), kube::Error> {
    let scope = crate::adopted::scope(shared, key).await?;
    let connections = crate::adopted::connect(shared, key, cluster, intent, &scope, &mut session.secrets).await;
    let questions = connections.into_iter().map(async |(name, client)| match client {
        Ok(client) => {
            let asked = ask(&client.with_request_timeout(Duration::from_secs(1))).await;
            let asked = asked
                .map_err(|error| crate::adopted::why_no_reply(&error))
                .and_then(|asked| {
                    crate::adopted::may_be_joined(intent, &scope, &asked.reply)
                        .map_err(|why| NoReply::new(NoReplyKind::CannotAsk, why))?;
                    Ok(asked)
                });
            (name, Some(client), asked)
        }
        Err(why) => (name, None, Err(NoReply::new(NoReplyKind::CannotAsk, why))),
    });
    for (name, client, asked) in join_all(questions).await {
        match asked {
            Ok(asked) => {
                world.alarms.extend(asked.alarms);
                world.probes.insert(name.clone(), MemberProbe::Reply(asked.reply));
                clients.extend(client.map(|client| (name, client)));
            }
            Err(why) => drop(world.probes.insert(name, MemberProbe::NoReply(why))),
        }
    }
    Ok(())
}

/// Asks a member about itself; on the way to a higher minor version also for the one that the cluster has agreed on.
async fn question(client: &Client, intent: &Intent, record: &Record) -> crate::client::Result<Asked> {
    let mut asked = ask(client).await?;
    let current = record.current.as_ref();
    if current.is_some_and(|current| intent.version.minor() > current.minor()) {
        let agreed = client.cluster_version().await;
        asked.reply.cluster_minor = agreed.ok().flatten().map(|version| version.minor());
    }
    Ok(asked)
}

/// Asks every member that may answer, all at once.
async fn listen(
    shared: &Shared,
    key: &Key,
    intent: &Intent,
    record: &Record,
    pods: &BTreeMap<MemberName, Arc<Pod>>,
    session: &mut Session,
    world: &mut World,
) -> BTreeMap<MemberName, Client> {
    let mut clients = BTreeMap::new();
    for (name, pod) in pods {
        let facts = &world.pods[name];
        if facts.address.is_none() || facts.ended || (!facts.running && facts.ever_ran) {
            continue;
        }
        let connections = &mut session.connections;
        match connections
            .to(shared, key, intent, name, pod, &mut session.secrets)
            .await
        {
            Ok(client) => match connections.why_no_reply(name) {
                Some(why) => drop(world.probes.insert(name.clone(), MemberProbe::NoReply(why))),
                None => drop(clients.insert(name.clone(), client)),
            },
            Err(why) => drop(world.probes.insert(name.clone(), MemberProbe::NoReply(why))),
        }
    }
    let questions = clients.iter().map(|(name, client)| {
        let should_answer = world.pods.get(name).is_some_and(|pod| pod.ready && !pod.terminating);
        let client = client.with_request_timeout(session.connections.patience(name, should_answer));
        async move { (name, question(&client, intent, record).await) }
    });
    for (name, asked) in join_all(questions).await {
        let probe = match asked {
            Ok(asked) => {
                session.connections.heard(name, None);
                world.alarms.extend(asked.alarms);
                MemberProbe::Reply(asked.reply)
            }
            Err(error) => {
                let why = why_no_reply(&error);
                session.connections.heard(name, Some(&why));
                MemberProbe::NoReply(why)
            }
        };
        world.probes.insert(name.clone(), probe);
    }
    for (name, _) in world.pods.iter().filter(|(_, pod)| pod.terminating) {
        session.connections.close(name);
    }
    clients.retain(|name, _| matches!(world.probes.get(name), Some(MemberProbe::Reply(_))));
    clients
}

/// The list, proven by a quorum: the leader is asked first, the others when it fails.
async fn prove(record: &Record, world: &World, clients: &BTreeMap<MemberName, Client>) -> Option<MemberList> {
    let cluster = record.bootstrap.as_ref().and_then(|bootstrap| bootstrap.cluster);
    // The first member of a restored cluster is of another one, which nobody knows yet.
    let seed = record.restoring().map(|restoring| &restoring.seed);
    let mut able: Vec<(&Client, &Reply)> = clients
        .iter()
        .filter_map(|(name, client)| match world.probes.get(name)? {
            MemberProbe::Reply(reply) => Some((name, client, reply)),
            MemberProbe::NoReply(_) => None,
        })
        .filter(|(_, _, reply)| !reply.learner && reply.leader.is_some())
        .filter(|(name, _, reply)| seed == Some(name) || cluster.is_none_or(|cluster| cluster == reply.cluster))
        .map(|(_, client, reply)| (client, reply))
        .collect();
    able.sort_by_key(|(_, reply)| reply.leader != Some(reply.id));
    let proof = |client: &Client, reply: &Reply| {
        let client = client.with_request_timeout(Duration::from_secs(1));
        let reply = reply.clone();
        async move { prove_list(&client, &reply).await.ok() }
    };
    let (first, rest) = able.split_first()?;
    if let Some(list) = proof(first.0, first.1).await {
        return Some(list);
    }
    let others = join_all(rest.iter().map(|(client, reply)| proof(client, reply))).await;
    others.into_iter().flatten().next()
}

/// Whether authentication is on, asked only where it matters: before the step from 3.4 to 3.5, whose members must all say no.
async fn auth_enabled(
    intent: &Intent,
    record: &Record,
    world: &World,
    clients: &BTreeMap<MemberName, Client>,
) -> Option<bool> {
    let current = record.current.as_ref()?;
    if (current.minor(), intent.version.minor()) != (4, 5) || record.ready_for.is_some() || world.list.is_none() {
        return None;
    }
    let voters = clients.iter().filter(
        |(name, _)| matches!(world.probes.get(*name), Some(MemberProbe::Reply(reply)) if !reply.learner && reply.leader.is_some()),
    );
    let questions = voters.map(async |(_, client)| {
        let client = client.with_request_timeout(Duration::from_secs(1));
        client.is_auth_enabled().await.ok()
    });
    let answers: Option<Vec<bool>> = join_all(questions).await.into_iter().collect();
    answers.filter(|all| !all.is_empty()).map(|all| all.contains(&true))
}

/// For how long the hash of a member's data is waited for: etcd reads all of it. A round that compares twice must end in time.
pub(crate) const HASH_PATIENCE: Duration = Duration::from_secs(7);

/// The hashes of the voters' data. A member that gives none is left out.
async fn hashes(world: &World, clients: &BTreeMap<MemberName, Client>) -> BTreeMap<MemberId, DataHash> {
    let voters = clients
        .iter()
        .filter_map(|(name, client)| match world.probes.get(name)? {
            MemberProbe::Reply(reply) if !reply.learner => Some((reply.id, client)),
            _ => None,
        });
    let questions = voters.map(async |(id, client)| {
        let hash = hash_of_data(&client.with_request_timeout(HASH_PATIENCE)).await;
        Some((id, hash.ok().flatten()?))
    });
    join_all(questions).await.into_iter().flatten().collect()
}

impl Session {
    /// A pod is blocked since what it tells, or since it was first seen so where that is earlier by our own clock.
    fn since_when(&mut self, mut pod: stateward_etcd::cluster::Pod) -> stateward_etcd::cluster::Pod {
        self.blocked.retain(|(uid, reason), _| {
            *uid != pod.uid.0 || pod.blocked.as_ref().is_some_and(|now| now.reason == *reason)
        });
        let uid = pod.uid.0.clone();
        if let Some(blocked) = &mut pod.blocked {
            let key = (uid, blocked.reason.clone());
            let seen = *self.blocked.entry(key).or_insert_with(Timestamp::now);
            blocked.since = blocked.since.into_iter().chain([seen]).min();
        }
        pod
    }

    /// Names and a token that nobody has used.
    fn draw(&mut self, key: &Key, intent: &Intent, world: &mut World) {
        let listed: Vec<MemberName> = world
            .list
            .iter()
            .flat_map(|list| &list.members)
            .filter_map(|listed| owner(intent, listed))
            .collect();
        let used = |name: &MemberName| {
            world.pods.contains_key(name) || world.claims.contains_key(name) || listed.contains(name)
        };
        self.fresh_names.retain(|name| !used(name));
        let mut random = rand::rng();
        while self.fresh_names.len() < 8 {
            let name = MemberName(names::member(&key.name, random.random()));
            if !used(&name) {
                self.fresh_names.push(name);
            }
        }
        world.fresh_names.clone_from(&self.fresh_names);
        world.fresh_token = format!("{:032x}", random.random::<u128>());
    }

    /// What Kubernetes said of a claim that is not bound, in its events: the claim itself does not tell.
    async fn problem(
        &mut self,
        shared: &Shared,
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
        *look_again = Some(CLAIM_PATIENCE);
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
        let events: Api<Event> = Api::namespaced(shared.runtime.client.clone(), &key.namespace);
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
