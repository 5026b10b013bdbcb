//! Guards: the planner's own code decides whether they hold, by fresh facts that are read from the real state. What the
//! API server checks with a request is checked here in the same way.

use std::rc::Rc;

use stateward_etcd::cluster::guard::{
    self, Check, FRESH_FOR, FactNeed, Facts, Fresh, Guard, Need, ObjectVersion, ObjectsNow, PodNow, Precondition,
};
use stateward_etcd::cluster::{Effect, MemberName, Record, Uid, World};

use crate::kube::{Cluster, uid};
use crate::queue::Ms;
use crate::rules::name;
use crate::sim::Sim;

/// The version and content of the EtcdCluster when it was last read or written in a reconcile.
pub(crate) type Seen = Option<(Ms, Option<ObjectVersion>)>;

pub(crate) fn version_of(cluster: &Cluster) -> ObjectVersion {
    ObjectVersion {
        uid: uid(cluster.id),
        resource_version: cluster.version.to_string(),
    }
}

impl Sim<'_> {
    /// The guards that the driver checks.
    fn kept(&self, effect: Option<&Effect>, mut guards: Vec<Guard>) -> Vec<Guard> {
        if self.subject.without.is_some() {
            guards.retain(|guard| guard::kind(effect, guard) != self.subject.without);
        }
        guards
    }

    pub(crate) fn guards(&self, cluster: &Cluster, world: &World, effect: &Effect) -> Vec<Guard> {
        self.kept(Some(effect), guard::guards(effect, &version_of(cluster), world))
    }

    /// Checked before the first effect: a reconcile that read an old EtcdCluster executes nothing at all.
    pub(crate) fn must_be_planned_with(
        &self,
        cluster: &Cluster,
        world: &World,
        effects: &[Effect],
        seen: &mut Seen,
    ) -> Result<(), String> {
        for effect in effects {
            let mut guards = self.guards(cluster, world, effect);
            guards.retain(|guard| matches!(guard, Guard::Unchanged(_)));
            self.must_hold(cluster, &guards, seen)?;
        }
        Ok(())
    }

    pub(crate) fn must_hold(&self, cluster: &Cluster, guards: &[Guard], seen: &mut Seen) -> Result<(), String> {
        let fresh_for = FRESH_FOR.as_millis() as Ms;
        let lately = seen.as_ref().filter(|(at, _)| at + fresh_for > self.now);
        let mut fresh = Fresh {
            object: lately.map(|(_, version)| version.clone()),
            facts: Facts::default(),
        };
        loop {
            match guard::check(guards, &fresh, &cluster.intent) {
                Check::Holds => return Ok(()),
                Check::Refused(why) => return Err(format!("denied by a guard: {why}")),
                Check::Unread(Need::Object) => {
                    let version = self.kube.now.cluster.as_deref().map(version_of);
                    *seen = Some((self.now, version.clone()));
                    fresh.object = Some(version);
                }
                Check::Unread(Need::Fact(need)) => self.read(need, cluster, &mut fresh.facts)?,
            }
        }
    }

    fn read(&self, need: FactNeed, cluster: &Cluster, facts: &mut Facts) -> Result<(), String> {
        let now = &self.kube.now;
        match need {
            FactNeed::WaitingRestores => facts.waiting_restores = Some(self.waiting_restores()),
            FactNeed::Restore(name) => facts.restore = Some(self.restore_of_name(&name)),
            FactNeed::Pods => {
                let own = now.pods.values().filter(|pod| pod.owner == cluster.id);
                let pods = own.map(|pod| PodNow {
                    name: pod.name.clone(),
                    uid: pod.shown.uid.clone(),
                    trusts: pod.shown.trusts.clone(),
                });
                facts.pods = Some(pods.collect());
            }
            FactNeed::Objects(member) => {
                facts.objects = Some(ObjectsNow {
                    pod: now.pods.get(&member).map(|pod| pod.shown.uid.clone()),
                    claim: now.claims.get(&member).map(|claim| claim.shown.uid.clone()),
                });
            }
            FactNeed::List(of) => {
                let asked: Vec<_> = self.processes.keys().copied().collect();
                let list = self.proven_list(&asked).filter(|list| list.cluster == of);
                facts.list = Some(list.ok_or("no quorum proves the list")?);
            }
            FactNeed::Lists(of) => facts.lists = Some(self.lists_of(of)?),
            FactNeed::EndedNodes(nodes) => {
                let ended = nodes.into_iter().filter(|node| now.ended_nodes.contains_key(node));
                facts.ended_nodes = Some(ended.collect());
            }
            FactNeed::Secrets => facts.secrets = Some(self.secrets_now(cluster.id)),
            FactNeed::Hashes(of, ids) => facts.hashes = Some(self.hashes_of(of, &ids)),
        }
        Ok(())
    }

    /// How the API server replies to a request about a pod with this precondition.
    pub(crate) fn pod_for(
        &self,
        member: &MemberName,
        world: &World,
        precondition: &Precondition,
    ) -> Result<Rc<crate::kube::PodObject>, String> {
        let pod = self.kube.now.pods.get(member).ok_or("404: the pod is gone")?;
        same(precondition, &pod.shown.uid)?;
        if precondition.unmodified && world.pods.get(member) != Some(&pod.shown) {
            return Err("409: the pod has been modified".into());
        }
        Ok(pod.clone())
    }

    /// The same for a claim.
    pub(crate) fn claim_for(&self, member: &MemberName, precondition: &Precondition) -> Result<(), String> {
        let claim = self.kube.now.claims.get(member).ok_or("404: the claim is gone")?;
        same(precondition, &claim.shown.uid)
    }

    /// Deletes the EtcdBackup of `spec.backup`.
    pub(crate) fn drop_backup(&mut self, precondition: &Precondition) -> Result<(), String> {
        let Some(backup) = self.kube.kept_backup else {
            return Ok(());
        };
        same(precondition, &uid(backup.id))?;
        if backup.owner.is_none() {
            self.break_rule(name::FOREIGN, "an EtcdBackup that a user made is deleted");
        }
        self.kube.kept_backup = None;
        self.kube.changed = true;
        Ok(())
    }

    /// Whether the guards allow writing the record, and which preconditions the request has.
    pub(crate) fn record_may_be_written(&self, cluster: &Cluster, after: &Record) -> Result<Precondition, String> {
        let guards = self.kept(None, guard::record_guards(&cluster.record, after));
        self.must_hold(cluster, &guards, &mut None)?;
        Ok(guard::precondition(&guards))
    }
}

fn same(precondition: &Precondition, now: &Uid) -> Result<(), String> {
    match &precondition.uid {
        Some(uid) if uid != now => Err("409: the UID differs".into()),
        Some(_) | None => Ok(()),
    }
}
