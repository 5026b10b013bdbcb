//! The operator's reconciles, as the worker of `stateward-runtime` does them: observe through caches that may be stale, plan, write the
//! memory with the resource version that was read, execute the actions in order, end at the first failure.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use stateward_core::guard::{Check, FRESH_FOR, Precondition};
use stateward_core::ids::ObjectVersion;
use stateward_core::kind::{Action as _, Kind, Plan};

use super::execute::{DEFAULT_SETTING, VARIABLE, Wanted};
use super::kube::{Kube, stamp};
use super::rules::Moment;
use super::server::Ms;
use super::state::Sim;
use super::subject::kind;
use super::transactions::{Bits, Writer};
use crate::action::Action;
use crate::api::{MySQLCluster, MySQLClusterStatus};
use crate::guard::{Fresh, Guard, Need, Planned, guards, precondition, reads_again};
use crate::kind::{MySQLClusters, Settings};
use crate::world::{Member, Object, Ordinal};
use crate::{Intent, Memory, World, manifests};

pub(super) struct Operator {
    pub(super) alive: bool,
    /// It believes that it is the leader.
    pub(super) leads: bool,
    pub(super) cache: Kube,
    /// Until then its caches do not change.
    pub(super) stale_until: Ms,
    pub(super) next: Ms,
    work: Option<Work>,
    /// Since when a member has not replied, by its clock.
    pub(super) silent: BTreeMap<Ordinal, Timestamp>,
    /// How wrong its clock is.
    skew: i64,
    pub(super) returns: Ms,
}

/// A reconcile.
struct Work {
    object: Rc<MySQLCluster>,
    intent: Intent,
    plan: Plan<MySQLClusters>,
    /// The status that is not written yet.
    status: Option<MySQLClusterStatus>,
    /// The memory has changed: the status comes first.
    first: bool,
    step: usize,
    failed: Option<String>,
    /// Transactions of intruders that the plan could tell from others.
    noticed: Bits,
    seen: Option<(Ms, Option<ObjectVersion>)>,
}

/// The driver looks at servers this often in any case.
const RESYNC: Ms = 2000;

impl Operator {
    pub(super) fn new(cache: Kube, skew: i64) -> Self {
        Self {
            alive: true,
            leads: false,
            cache,
            stale_until: 0,
            next: 0,
            work: None,
            silent: BTreeMap::new(),
            skew,
            returns: 0,
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.work.is_some()
    }
}

pub(super) fn version_of(cluster: &MySQLCluster) -> ObjectVersion {
    ObjectVersion::of(&cluster.metadata)
}

impl Sim<'_> {
    /// Operators that are told of a change reconcile soon.
    pub(super) fn tell_operators(&mut self) {
        for index in 0..self.operators.len() {
            let told = self.calm || !self.rng.per_mille(self.profile.missed_events);
            let soon = self.now + self.rng.between(1, 60);
            if let Some(operator) = self.operators.get_mut(index)
                && told
                && operator.work.is_none()
            {
                operator.next = operator.next.min(soon);
            }
        }
    }

    pub(super) fn crash_operator(&mut self, index: usize) {
        let returns = self.now + self.rng.between(100, 6000);
        self.log(|| format!("operator {index} crashes"));
        if let Some(operator) = self.operators.get_mut(index) {
            operator.alive = false;
            operator.work = None;
            operator.returns = returns;
        }
    }

    /// An operator that starts knows only what the API server says.
    pub(super) fn revive_operator(&mut self, index: usize) {
        let (cache, now) = (self.kube.clone(), self.now);
        if let Some(operator) = self.operators.get_mut(index) {
            operator.alive = true;
            operator.cache = cache;
            operator.silent.clear();
            operator.next = now;
        }
    }

    /// Another operator leads. For a moment both may believe that they do.
    pub(super) fn pass_leadership(&mut self) {
        let (from, to) = if self.operators.first().is_some_and(|first| first.leads) {
            (0, 1)
        } else {
            (1, 0)
        };
        let both = if self.rng.per_mille(500) {
            self.rng.between(0, 8000)
        } else {
            0
        };
        let now = self.now;
        self.log(|| format!("operator {to} leads; for {both} ms both do"));
        let Some(operator) = self.operators.get_mut(to).filter(|operator| operator.alive) else {
            return;
        };
        operator.leads = true;
        operator.next = now + 1;
        self.yields.push((now + both, from));
    }

    pub(super) fn tick_operators(&mut self) {
        let now = self.now;
        let due: Vec<usize> = self
            .yields
            .iter()
            .filter(|(at, _)| *at <= now)
            .map(|(_, index)| *index)
            .collect();
        self.yields.retain(|(at, _)| *at > now);
        for index in due {
            let others = self
                .operators
                .iter()
                .enumerate()
                .any(|(at, other)| at != index && other.leads && other.alive);
            if let Some(operator) = self.operators.get_mut(index).filter(|_| others) {
                operator.leads = false;
                operator.work = None;
            }
        }
        for index in 0..self.operators.len() {
            let Some(operator) = self.operators.get(index) else {
                break;
            };
            if !operator.alive && operator.returns <= now {
                self.revive_operator(index);
            } else if operator.alive && operator.leads && operator.next <= now {
                self.step(index);
            }
        }
    }

    fn step(&mut self, index: usize) {
        if !self.calm && self.rng.per_mille(self.profile.operator_crashes) {
            return self.crash_operator(index);
        }
        let work = self.operators.get_mut(index).and_then(|operator| operator.work.take());
        match work {
            None => self.begin(index),
            Some(work) => self.proceed(index, work),
        }
    }

    fn pause(&mut self, index: usize, pause: Ms) {
        let next = self.now + pause;
        if let Some(operator) = self.operators.get_mut(index) {
            operator.next = next;
        }
    }

    /// Caches catch up kind by kind, and sometimes one of them does not.
    fn refresh(&mut self, index: usize) {
        let stale = if self.calm { 0 } else { self.profile.stale };
        let behind: [bool; 5] = std::array::from_fn(|_| self.rng.per_mille(stale));
        let (now, kube) = (self.now, &self.kube);
        let Some(operator) = self.operators.get_mut(index) else {
            return;
        };
        if operator.stale_until > now && !self.calm {
            return;
        }
        let old = std::mem::replace(&mut operator.cache, kube.clone());
        let cache = &mut operator.cache;
        if behind[0] {
            cache.cluster = old.cluster;
        }
        if behind[1] {
            cache.pods = old.pods;
        }
        if behind[2] {
            cache.claims = old.claims;
        }
        if behind[3] {
            cache.set = old.set;
            cache.objects = old.objects;
        }
        if behind[4] {
            cache.ended_nodes = old.ended_nodes;
        }
    }

    fn begin(&mut self, index: usize) {
        self.refresh(index);
        let Some(operator) = self.operators.get(index) else {
            return;
        };
        let (object, cache, skew) = (operator.cache.cluster.clone(), operator.cache.clone(), operator.skew);
        self.rounds += 1;
        let clock = skewed(self.now, skew);
        let old = MySQLClusters::stored(&object);
        let memory = MySQLClusters::memory(&old);
        let intent = match MySQLClusters::intent(&object, &memory, &Settings) {
            Ok(intent) => intent,
            Err(why) => {
                let new = MySQLClusters::refused(&object, &why, clock);
                if old != new
                    && let Err(why) = self.store(&object, new, None)
                {
                    self.log(|| format!("operator {index} could not write the status: {why}"));
                }
                return self.pause(index, RESYNC);
            }
        };
        let world = self.observe(index, &cache, &intent, &memory, clock);
        let plan = (self.subject.plan)(&intent, &memory, &world, clock);
        let new = MySQLClusters::status(&object, &intent, &world, &plan, clock);
        self.log_plan(index, &old, &new, &plan);
        self.judge(&Moment::Planned {
            intent: &intent,
            memory: &memory,
            world: &world,
            plan: &plan,
        });
        if plan.memory != memory && old == new {
            self.judge(&Moment::Stored {
                meant: &plan.memory,
                kept: &memory,
            });
        }
        let first = plan.memory != memory && !self.subject.writes_late;
        let idle = plan.actions.is_empty() && old == new;
        if self.calm && self.now > self.calm_since {
            self.check_settled(&intent, &memory, &new, idle, &plan);
        }
        let noticed = self.noticed(&world);
        let delay = self.rng.between(1, 10);
        if let Some(operator) = self.operators.get_mut(index) {
            operator.work = Some(Work {
                object,
                intent,
                plan,
                status: (old != new).then_some(new),
                first,
                step: 0,
                failed: None,
                noticed,
                seen: None,
            });
        }
        self.pause(index, delay);
    }

    fn log_plan(
        &mut self,
        index: usize,
        old: &MySQLClusterStatus,
        new: &MySQLClusterStatus,
        plan: &Plan<MySQLClusters>,
    ) {
        if old == new && plan.actions.is_empty() {
            return;
        }
        self.log(|| {
            let actions: Vec<String> = plan.actions.iter().map(ToString::to_string).collect();
            let memory = &plan.memory;
            let ackers: Vec<String> = memory.ackers.iter().map(ToString::to_string).collect();
            let pending = memory.pending.as_ref().map(|pending| (&pending.ackers, pending.acks));
            format!(
                "operator {index} plans: \"{}\" primary {:?}, A {{{}}} k {}/{} pending {pending:?} [{}]",
                new.waiting,
                memory.primary.map(|primary| primary.0),
                ackers.join(","),
                memory.acks,
                memory.required,
                actions.join("; ")
            )
        });
    }

    fn proceed(&mut self, index: usize, mut work: Work) {
        if work.first {
            work.first = false;
            let status = work.status.take();
            let lost = self.is_lost();
            let written = match status {
                _ if lost => Err("503".to_owned()),
                Some(status) => self.store(&work.object, status, Some(&work.plan.memory)),
                None => Ok(work.object.clone()),
            };
            let written = if self.is_lost() {
                Err("timed out (but it was written)".into())
            } else {
                written
            };
            match written {
                Ok(object) => {
                    work.seen = Some((self.now, Some(version_of(&object))));
                    work.object = object;
                }
                Err(why) => {
                    self.log(|| format!("operator {index} could not write the status: {why}"));
                    let pause = self.rng.between(20, 600);
                    return self.pause(index, pause);
                }
            }
            return self.keep(index, work);
        }
        let Some(action) = work.plan.actions.get(work.step).cloned() else {
            return self.finish(index, work);
        };
        let result = self.act(index, &action, &mut work);
        if let Err(why) = result {
            self.log(|| format!("operator {index} could not {action}: {why}"));
            work.failed.get_or_insert(why);
        } else {
            self.log(|| format!("operator {index}: {action}"));
        }
        work.step += 1;
        // Neighbours that go together are executed whatever becomes of the others.
        let next = work.plan.actions.get(work.step);
        if work.failed.is_some() && !next.is_some_and(|next| action.goes_with(next)) {
            return self.finish(index, work);
        }
        self.keep(index, work);
    }

    fn keep(&mut self, index: usize, work: Work) {
        let slowest = if self.calm { 5 } else { self.profile.slowest_call };
        let delay = self.rng.between(1, slowest);
        if let Some(operator) = self.operators.get_mut(index) {
            operator.work = Some(work);
        }
        self.pause(index, delay);
    }

    /// What is observed to be in a member and not in the primary, and was written by nobody who may.
    fn noticed(&self, world: &World) -> Bits {
        let Some(ahead) = &world.ahead else {
            return Bits::default();
        };
        let theirs = self.transactions.by(Writer::Intruder);
        let mut noticed = Bits::default();
        for reply in world.members.values().filter_map(Member::reply) {
            let own = self.transactions.named(&reply.executed, &theirs);
            noticed = noticed.or(&own.minus(&self.transactions.named(ahead, &theirs)));
        }
        noticed
    }

    fn finish(&mut self, index: usize, mut work: Work) {
        if work.failed.is_none() {
            self.truth.noticed = self.truth.noticed.or(&work.noticed);
        }
        if let Some(status) = work.status.take()
            && let Err(why) = self.store(&work.object, status, Some(&work.plan.memory))
        {
            self.log(|| format!("operator {index} could not write the status: {why}"));
        }
        let wake = work.plan.wake.map_or(RESYNC, |wake: Duration| {
            Ms::try_from(wake.as_millis()).unwrap_or(RESYNC)
        });
        let wake = wake.min(RESYNC);
        let pause = if work.failed.is_some() {
            self.rng.between(20, 600)
        } else {
            wake + self.rng.between(1, 20 + wake / 2)
        };
        self.pause(index, pause);
    }

    /// A request, or its answer, is lost.
    fn is_lost(&mut self) -> bool {
        !self.calm && self.rng.per_mille(self.profile.errors)
    }

    fn act(&mut self, index: usize, action: &Action, work: &mut Work) -> Result<(), String> {
        if self.is_lost() {
            return Err("503".into());
        }
        let precondition = self.guarded(index, action, work)?;
        let wanted = wanted(&work.intent);
        self.execute(index, action, &precondition, &wanted)?;
        if self.is_lost() {
            return Err("timed out (but it was executed)".into());
        }
        Ok(())
    }

    /// Evaluates the guards; returns what the API server checks itself.
    fn guarded(&mut self, index: usize, action: &Action, work: &mut Work) -> Result<Precondition, String> {
        let host = |member: Ordinal| work.intent.host(member);
        let planned = Planned {
            version: version_of(&work.object),
            memory: &work.plan.memory,
            hosts: &host,
        };
        let mut guards: Vec<Guard> = guards(action, &planned);
        let rests_on_it = guards.iter().any(|guard| matches!(guard, Guard::Unchanged(_)));
        guards.retain(|guard| Some(kind(guard)) != self.subject.without);
        let fresh_for = Ms::try_from(FRESH_FOR.as_millis()).unwrap_or(0);
        let lately = work.seen.as_ref().filter(|(at, _)| at + fresh_for > self.now);
        let lately = lately.filter(|_| !reads_again(action));
        let mut fresh = Fresh {
            cluster: lately.map(|(_, version)| version.clone()),
            ..Fresh::default()
        };
        for guard in &guards {
            loop {
                match guard.check(&fresh) {
                    Check::Holds => break,
                    Check::Refused(why) => return Err(format!("denied by a guard: {why}")),
                    Check::Unread(Need::Cluster) => {
                        let version = Some(version_of(&self.kube.cluster));
                        work.seen = Some((self.now, version.clone()));
                        fresh.cluster = Some(version);
                    }
                    Check::Unread(Need::Servers(members)) => {
                        for member in members {
                            let pod = self.kube.pods.get(&member).map(|pod| pod.id);
                            let reply = pod.and_then(|pod| self.ask(index, pod, &work.intent));
                            fresh.replies.insert(member, reply);
                        }
                    }
                }
            }
        }
        if rests_on_it {
            self.judge(&Moment::Acted { action });
        }
        Ok(precondition(&guards))
    }

    /// Writes a status, if the object is the one that was read.
    pub(super) fn store(
        &mut self,
        object: &Rc<MySQLCluster>,
        status: MySQLClusterStatus,
        meant: Option<&Memory>,
    ) -> Result<Rc<MySQLCluster>, String> {
        if version_of(&self.kube.cluster) != version_of(object) {
            return Err("409: the object has been modified".into());
        }
        let status = stored(&status)?;
        let kept = MySQLClusters::memory(&status);
        if let Some(meant) = meant {
            let meant = to_the_second(meant.clone());
            self.judge(&Moment::Stored {
                meant: &meant,
                kept: &kept,
            });
        }
        self.truth.memory = Rc::new(kept);
        self.kube.change_cluster(|cluster| cluster.status = Some(status));
        self.status_writes += 1;
        self.changed = true;
        self.news = true;
        Ok(self.kube.cluster.clone())
    }
}

/// What the driver makes objects from.
pub(super) fn wanted(intent: &Intent) -> Wanted {
    let objects = [
        Object::Config,
        Object::Headless,
        Object::PrimaryService,
        Object::ReadService,
        Object::Budget,
        Object::NetworkPolicy,
        Object::Backup,
    ];
    let setting = intent.config.all.get(VARIABLE).and_then(|value| value.parse().ok());
    Wanted {
        objects: objects
            .map(|object| (object, manifests::object_hash(object, intent)))
            .into(),
        template: manifests::pod_hash(intent),
        metadata: manifests::set_metadata_hash(intent),
        version: intent.version,
        setting: setting.unwrap_or(DEFAULT_SETTING),
    }
}

/// What the API server stores of a status: only what survives conversion to JSON.
fn stored(status: &MySQLClusterStatus) -> Result<MySQLClusterStatus, String> {
    let text = serde_json::to_string(status).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| format!("422: {error}"))
}

/// Kubernetes stores times with a resolution of one second.
fn to_the_second(mut memory: Memory) -> Memory {
    let times = [
        memory.failover.as_mut().map(|failover| &mut failover.since),
        memory.switchover.as_mut().map(|switchover| &mut switchover.since),
        memory.switchover_failed.as_mut(),
        memory.passwords.old_until.as_mut(),
    ];
    for time in times.into_iter().flatten() {
        *time = Timestamp::from_second(time.as_second()).unwrap_or(*time);
    }
    memory
}

pub(super) fn skewed(now: Ms, skew: i64) -> Timestamp {
    let at = stamp(now).as_millisecond() + skew;
    Timestamp::from_millisecond(at).unwrap_or_default()
}
