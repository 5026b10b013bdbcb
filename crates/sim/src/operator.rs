//! The operator's reconciles, as `operator` does them: observe through caches that may be stale, plan, write the status
//! with the resource version that was read, execute the effects in order, end at the first failure.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use stateward_etcd::api::etcd_cluster::EtcdClusterStatus;
use stateward_etcd::cluster::{Effect, Intent, KeptBackup, MemberName, Plan, Record, World, status};

use crate::guards::{Seen, version_of};
use crate::kube::{Cluster, Shown, uid};
use crate::proof::Watch;
use crate::queue::{Event, Id, Ms, skewed, stamp};
use crate::rules::name;
use crate::sim::Sim;

pub(crate) struct Operator {
    letter: char,
    /// It believes that it is the leader.
    pub(crate) leads: bool,
    pub(crate) alive: bool,
    /// Counts its starts, so that no step of an earlier process is executed.
    epoch: u32,
    pub(crate) cache: Shown,
    /// Until then its caches do not change.
    pub(crate) stale_until: Ms,
    /// Its caches return no pods, or no claims, even if there are any.
    pub(crate) sees_no_pods: bool,
    pub(crate) sees_no_claims: bool,
    next_reconcile: Ms,
    reconcile: Option<Reconcile>,
    names: u32,
    /// It crashes before it executes this many more steps (0: the next one).
    pub(crate) crashes_in: Option<u32>,
    /// How wrong its clock is.
    skew: i64,
    pub(crate) watch: Watch,
    /// A range of `reported_exits`: it missed those before the first index, and has seen those up to the second.
    pub(crate) exits_missed: usize,
    pub(crate) exits_seen: usize,
}

struct Reconcile {
    cluster: Rc<Cluster>,
    world: World,
    plan: Plan,
    /// 0 is the record; the effects follow.
    step: usize,
    /// The EtcdCluster as it was last read or written.
    seen: Seen,
}

/// The slow resync.
const RESYNC: Ms = 20_000;

impl Operator {
    /// Its reconcile is about to begin a restore.
    pub(crate) fn is_about_to_restore(&self) -> bool {
        let record = self.next_record();
        record.is_some_and(|(before, after)| after.begins_restore(before).is_some())
    }

    /// The stored record, and the record that its reconcile is about to write.
    pub(crate) fn next_record(&self) -> Option<(&Record, &Record)> {
        let reconcile = self.reconcile.as_ref().filter(|reconcile| reconcile.step == 0)?;
        Some((&reconcile.cluster.record, &reconcile.plan.record))
    }

    /// The effect that its reconcile is about to execute.
    pub(crate) fn next_effect(&self) -> Option<&Effect> {
        let reconcile = self.reconcile.as_ref()?;
        reconcile.plan.effects.get(reconcile.step.checked_sub(1)?)
    }

    pub(crate) fn new(letter: char, skew: i64) -> Self {
        Self {
            letter,
            leads: false,
            alive: true,
            epoch: 0,
            cache: Shown::default(),
            stale_until: 0,
            sees_no_pods: false,
            sees_no_claims: false,
            next_reconcile: 0,
            reconcile: None,
            names: 0,
            crashes_in: None,
            skew,
            watch: Watch::default(),
            exits_missed: 0,
            exits_seen: 0,
        }
    }
}

impl Sim<'_> {
    /// Something changed in the API: operators that are notified reconcile soon.
    pub(crate) fn notify_operators(&mut self) {
        for index in 0..self.operators.len() {
            let is_notified = self.calm || !self.rng.per_mille(self.profile.missed_events);
            if is_notified {
                let soon = self.now + self.rng.between(5, 150);
                self.wake_operator(index, soon);
            }
        }
    }

    pub(crate) fn wake_operator(&mut self, index: usize, at: Ms) {
        let now = self.now;
        let operator = &mut self.operators[index];
        if operator.alive
            && operator.leads
            && operator.reconcile.is_none()
            && (operator.next_reconcile <= now || at < operator.next_reconcile)
        {
            operator.next_reconcile = at.max(now + 1);
            self.queue.at(operator.next_reconcile, Event::Reconcile(index));
        }
    }

    pub(crate) fn kill_operator(&mut self, index: usize) {
        self.stop_operator(index);
        let pause = self.rng.between(500, 20_000);
        self.queue.at(self.now + pause, Event::Revive(index));
    }

    /// It does not run until it is started again.
    pub(crate) fn stop_operator(&mut self, index: usize) {
        let letter = self.operators[index].letter;
        self.log(|| format!("operator {letter} is killed"));
        let operator = &mut self.operators[index];
        operator.alive = false;
        operator.epoch += 1;
        operator.reconcile = None;
        operator.next_reconcile = 0;
        operator.crashes_in = None;
    }

    /// A restarted operator knows only what the API returns, and that may be the past.
    pub(crate) fn revive_operator(&mut self, index: usize) {
        if self.operators[index].alive {
            return;
        }
        let behind = !self.calm && self.rng.per_mille(self.profile.stale);
        let shown = match self.rng.pick(self.kube.past.make_contiguous()) {
            Some(past) if behind => past.clone(),
            _ => self.kube.now.clone(),
        };
        let operator = &mut self.operators[index];
        operator.alive = true;
        operator.cache = shown;
        operator.watch = Watch::default();
        operator.exits_missed = self.reported_exits.len();
        operator.exits_seen = self.reported_exits.len();
        let letter = operator.letter;
        self.log(|| {
            format!(
                "operator {letter} starts{}",
                if behind { " and reads the past" } else { "" }
            )
        });
        let soon = self.now + 100;
        self.wake_operator(index, soon);
    }

    /// Passes leadership to the other operator; for a while both may believe that they have it.
    pub(crate) fn pass_leadership(&mut self) {
        let (from, to) = if self.operators[0].leads { (0, 1) } else { (1, 0) };
        if !self.operators[to].alive {
            return;
        }
        let both = self.rng.between(0, 15_000);
        self.log(|| format!("operator {} becomes the leader; for {both} ms both are", ["a", "b"][to]));
        self.operators[to].leads = true;
        if self.rng.per_mille(500)
            && let Some(past) = self.rng.pick(self.kube.past.make_contiguous())
        {
            self.operators[to].cache = past.clone();
            self.operators[to].stale_until = self.now + self.rng.between(0, 5000);
        }
        self.queue.at(self.now + both, Event::Yield(from));
        let soon = self.now + 50;
        self.wake_operator(to, soon);
    }

    pub(crate) fn yield_leadership(&mut self, index: usize) {
        if self
            .operators
            .iter()
            .filter(|operator| operator.leads && operator.alive)
            .count()
            < 2
        {
            return;
        }
        let operator = &mut self.operators[index];
        operator.leads = false;
        operator.reconcile = None;
        operator.epoch += 1;
        operator.next_reconcile = 0;
    }

    /// Caches catch up kind by kind, and sometimes one of them does not.
    fn refresh(&mut self, index: usize) {
        if self.calm {
            self.operators[index].cache = self.kube.now.clone();
            self.operators[index].exits_seen = self.reported_exits.len();
            return;
        }
        if self.operators[index].stale_until > self.now {
            return;
        }
        let stale = self.profile.stale;
        let (cluster, pods, claims, nodes, restores, secrets) = (
            self.rng.per_mille(stale),
            self.rng.per_mille(stale),
            self.rng.per_mille(stale),
            self.rng.per_mille(stale),
            self.rng.per_mille(stale),
            self.trust_rng.per_mille(stale),
        );
        let now = &self.kube.now;
        if !pods {
            self.operators[index].exits_seen = self.reported_exits.len();
        }
        let cache = &mut self.operators[index].cache;
        if !cluster {
            cache.cluster = now.cluster.clone();
        }
        if !pods {
            cache.pods = now.pods.clone();
        }
        if !claims {
            cache.claims = now.claims.clone();
        }
        if !nodes {
            cache.dead_nodes = now.dead_nodes.clone();
            cache.ended_nodes = now.ended_nodes.clone();
        }
        if !claims {
            cache.attachments = now.attachments.clone();
        }
        if !restores {
            cache.restores = now.restores.clone();
        }
        if !secrets {
            cache.secrets = now.secrets.clone();
        }
    }

    fn observe(&mut self, index: usize, cluster: &Cluster) -> World {
        let mut cache = self.operators[index].cache.clone();
        if self.operators[index].sees_no_pods {
            cache.pods = Rc::default();
        }
        if self.operators[index].sees_no_claims {
            cache.claims = Rc::default();
        }
        let own = |owner: Id| owner == cluster.id;
        let mut world = World {
            fresh_names: self.fresh_names(index, cluster.intent.size + 1),
            fresh_token: format!("token-{}{}", self.operators[index].letter, self.operators[index].names),
            dead_nodes: cache.dead_nodes.as_ref().clone(),
            auth_enabled: Some(false),
            secrets: self.certificates_due(cluster.id, &cache.secrets),
            ..World::default()
        };
        let mut probed = Vec::new();
        for (name, pod) in cache.pods.iter().filter(|(_, pod)| own(pod.owner)) {
            if pod.shown.running {
                world.probes.insert(name.clone(), self.probe(pod.id));
                probed.push(pod.id);
            }
            world.pods.insert(name.clone(), pod.shown.clone());
        }
        for (name, claim) in cache.claims.iter() {
            if own(claim.owner) {
                world.claims.insert(name.clone(), claim.shown.clone());
            } else {
                world.foreign_claims.push(name.0.clone());
            }
        }
        match &self.kube.services {
            Some((owner, services)) if own(*owner) => world.services = services.clone(),
            Some(_) => world.conflicts.push("service demo".into()),
            None => {}
        }
        world.kept_backup = match self.kube.kept_backup {
            Some(backup) if backup.owner == Some(cluster.id) => KeptBackup::Ours {
                uid: uid(backup.id),
                hash: String::new(),
            },
            Some(_) => KeptBackup::Theirs,
            None => KeptBackup::None,
        };
        world.trust = self.observe_trust(cluster.id, &cache.secrets, &world, &probed);
        self.probe_elsewhere(&cluster.intent, &mut world, &mut probed);
        world.list = self.proven_list(&probed);
        self.observe_alarms(&probed, &mut world);
        self.show_restores(&cluster.intent, &cache.restores, &mut world);
        self.observe_ends(index, &cluster.record, &mut world);
        world
    }

    fn fresh_names(&self, index: usize, count: usize) -> Vec<MemberName> {
        let operator = &self.operators[index];
        (0..count as u32)
            .map(|more| MemberName(format!("demo-{}{}", operator.letter, operator.names + more)))
            .collect()
    }

    pub(crate) fn begin_reconcile(&mut self, index: usize) {
        let operator = &self.operators[index];
        if !operator.alive || !operator.leads || operator.reconcile.is_some() || operator.next_reconcile != self.now {
            return;
        }
        self.refresh(index);
        let Some(cluster) = self.operators[index].cache.cluster.clone() else {
            let later = self.now + RESYNC;
            self.wake_operator(index, later);
            return;
        };
        self.rounds += 1;
        let cluster = Rc::new(Cluster {
            intent: cluster.intent.clone().at(&cluster.record),
            ..Cluster::clone(&cluster)
        });
        let world = self.observe(index, &cluster);
        let clock = skewed(self.now, self.operators[index].skew);
        let plan = (self.subject.plan)(&cluster.intent, &cluster.record, &world, clock);
        let used = plan
            .effects
            .iter()
            .any(|effect| names_a_fresh_one(effect, &world.fresh_names))
            || plan.record.bootstrap != cluster.record.bootstrap
            || plan.record.restore != cluster.record.restore
            || plan.record.asked != cluster.record.asked;
        if used {
            self.operators[index].names += world.fresh_names.len() as u32;
        }
        self.log_plan(index, &cluster.report, &plan);
        self.check_alarms(&world, &plan);
        self.check_reported(&world, &plan, clock);
        self.check_plan(&cluster.intent, &cluster.record, &world, &plan);
        self.check_settled(&cluster, &world, &plan);
        let now = self.now;
        let operator = &mut self.operators[index];
        operator.reconcile = Some(Reconcile {
            cluster,
            world,
            plan,
            step: 0,
            seen: None,
        });
        let epoch = operator.epoch;
        let delay = self.rng.between(1, 20);
        self.queue.at(now + delay, Event::Step(index, epoch));
    }

    fn log_plan(&mut self, index: usize, known: &Option<stateward_etcd::cluster::Report>, plan: &Plan) {
        let letter = self.operators[index].letter;
        if known.as_ref() != Some(&plan.report) || !plan.effects.is_empty() {
            self.log(|| {
                let effects: Vec<String> = plan.effects.iter().map(ToString::to_string).collect();
                let waiting = if plan.report.waiting.is_empty() {
                    "as expected"
                } else {
                    &plan.report.waiting
                };
                format!("operator {letter} plans: {waiting} [{}]", effects.join("; "))
            });
        }
    }

    pub(crate) fn next_step(&mut self, index: usize, epoch: u32) {
        let operator = &mut self.operators[index];
        if !operator.alive || operator.epoch != epoch {
            return;
        }
        let Some(mut reconcile) = operator.reconcile.take() else {
            return;
        };
        if operator.crashes_in == Some(0) || (!self.calm && self.rng.per_mille(self.profile.operator_crashes)) {
            return self.kill_operator(index);
        }
        if let Some(left) = &mut self.operators[index].crashes_in {
            *left -= 1;
        }
        let (lost, answer_lost) = if self.calm {
            (false, false)
        } else {
            (
                self.rng.per_mille(self.profile.api_errors),
                self.rng.per_mille(self.profile.api_errors),
            )
        };
        let what = match reconcile.step.checked_sub(1) {
            None => "write the record".to_owned(),
            Some(effect) => reconcile.plan.effects[effect].to_string(),
        };
        let mut result = if lost {
            Err("503".to_owned())
        } else if let Some(effect) = reconcile.step.checked_sub(1) {
            let effects = &reconcile.plan.effects;
            let first = if effect == 0 { effects.as_slice() } else { &[] };
            self.must_be_planned_with(&reconcile.cluster, &reconcile.world, first, &mut reconcile.seen)
                .and_then(|()| {
                    self.execute(
                        &reconcile.cluster,
                        &reconcile.world,
                        &effects[effect],
                        &mut reconcile.seen,
                    )
                })
        } else if reconcile.plan.record != reconcile.cluster.record {
            self.write_status(&mut reconcile)
        } else {
            Ok(()) // Words alone come after what is done.
        };
        if answer_lost && result.is_ok() {
            result = Err("timed out (but it was executed)".into());
        }
        reconcile.step += 1;
        match result {
            Ok(()) if reconcile.step <= reconcile.plan.effects.len() => {
                let delay = if self.calm {
                    5
                } else {
                    self.rng.between(1, self.profile.slowest_call)
                };
                self.operators[index].reconcile = Some(reconcile);
                self.queue.at(self.now + delay, Event::Step(index, epoch));
            }
            Ok(()) => {
                self.write_message(&mut reconcile);
                let wake = reconcile
                    .plan
                    .wake
                    .map_or(RESYNC, |wake: Duration| wake.as_millis() as Ms);
                // An operator never wakes exactly on time.
                let pause = wake + self.rng.between(1, 50 + 3 * wake);
                self.end_reconcile(index, pause);
            }
            Err(why) => {
                let letter = self.operators[index].letter;
                self.log(|| format!("operator {letter} fails to {what}: {why}"));
                if reconcile.step > 1 {
                    self.write_message(&mut reconcile);
                }
                let pause = self.rng.between(100, 1000);
                self.end_reconcile(index, pause);
            }
        }
    }

    fn end_reconcile(&mut self, index: usize, pause: Ms) {
        let at = self.now + pause;
        self.operators[index].next_reconcile = 0;
        self.wake_operator(index, at);
    }

    /// Writes the record before the effects that depend on it, and only to the object that it was read from.
    fn write_status(&mut self, reconcile: &mut Reconcile) -> Result<(), String> {
        let (cluster, plan) = (reconcile.cluster.clone(), &reconcile.plan);
        let status = status::status(
            &cluster.status,
            &cluster.intent,
            &plan.record,
            &plan.report,
            stamp(self.now),
        );
        if status == *cluster.status {
            return Ok(());
        }
        let precondition = self.record_may_be_written(&cluster, &plan.record)?;
        let current = self.kube.now.cluster.as_ref().ok_or("404: the cluster is gone")?;
        if current.id != cluster.id || (precondition.unmodified && current.version != cluster.version) {
            return Err("409: the object has been modified".into());
        }
        if cluster.record.recovery.is_none() && plan.record.recovery.is_some() {
            self.check_recovery(&cluster.intent, plan.record.recovery.as_ref());
        }
        self.check_consent_lasts(&cluster.intent, &cluster.record, &plan.record);
        self.check_restore_record(&cluster.intent, &cluster.record, &plan.record);
        self.note_times(&cluster.record, &plan.record);
        let done = plan
            .record
            .restore
            .iter()
            .filter(|restore| restore.step == stateward_etcd::cluster::RestoreStep::Done);
        for (name, uid) in done.flat_map(|restore| restore.old_claims.iter().filter(|(name, _)| *name != restore.seed))
        {
            if self
                .kube
                .now
                .claims
                .get(name)
                .is_some_and(|claim| claim.shown.uid == *uid)
            {
                self.truth.replaced_claims.insert(uid.clone());
            }
        }
        let (status, report) = (stored(&status)?, plan.report.clone());
        let (kept, meant) = (status::record(&status), to_the_second(plan.record.clone()));
        if kept != meant {
            let what = format!("{meant:?} became {kept:?}");
            self.break_rule(name::REMEMBERED, what);
        }
        if let Some(now) = self.kube.cluster_mut() {
            now.record = kept;
            now.status = Rc::new(status);
            now.report = Some(report);
            reconcile.cluster = Rc::new(Cluster {
                intent: cluster.intent.clone(),
                ..now.clone()
            });
            reconcile.seen = Some((self.now, Some(version_of(&reconcile.cluster))));
        }
        Ok(())
    }

    /// Writes a status whose record did not change. It can fail without harm, because nothing depends on it.
    fn write_message(&mut self, reconcile: &mut Reconcile) {
        if reconcile.plan.record == reconcile.cluster.record
            && let Err(why) = self.write_status(reconcile)
        {
            self.log(|| format!("the status is not written: {why}"));
        }
    }

    /// The spec and record that the API holds now.
    pub(crate) fn present(&self) -> Option<(&Intent, &Record)> {
        self.kube
            .now
            .cluster
            .as_ref()
            .map(|cluster| (&cluster.intent, &cluster.record))
    }
}

/// What the API server stores of a status: only what survives conversion to JSON.
fn stored(status: &EtcdClusterStatus) -> Result<EtcdClusterStatus, String> {
    let text = serde_json::to_string(status).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| format!("422: {error}"))
}

/// Kubernetes stores times with a resolution of one second.
fn to_the_second(mut record: Record) -> Record {
    let times = [
        record.quorum_lost.as_mut(),
        record.crash_replaced.as_mut().map(|replaced| &mut replaced.at),
        record.defragmented.as_mut().map(|done| &mut done.scheduled),
        record.old_claims.as_mut().map(|old| &mut old.served),
    ];
    for time in times.into_iter().flatten() {
        *time = Timestamp::from_second(time.as_second()).unwrap_or(*time);
    }
    record
}

fn names_a_fresh_one(effect: &Effect, fresh: &[MemberName]) -> bool {
    match effect {
        Effect::CreatePod { member, .. } | Effect::CreateClaim { member } | Effect::AddMember { member, .. } => {
            fresh.contains(member)
        }
        Effect::ApplyPeerService
        | Effect::ApplyClientService
        | Effect::ApplyBudget
        | Effect::TryPod { .. }
        | Effect::CheckNodesEnded { .. }
        | Effect::SealPod { .. }
        | Effect::RelabelPod { .. }
        | Effect::DeletePod { .. }
        | Effect::DeleteClaim { .. }
        | Effect::DeleteUnstartedClaim { .. }
        | Effect::GrowClaim { .. }
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
        | Effect::TakeBackup { .. }
        | Effect::ApplyBackup
        | Effect::DropBackup { .. }
        | Effect::RequestRestore { .. }
        | Effect::Tell(_) => false,
    }
}

/// The members of a list by name.
pub(crate) fn by_name(world: &World, intent: &Intent) -> BTreeMap<MemberName, stateward_etcd::cluster::Listed> {
    world
        .list
        .iter()
        .flat_map(|list| &list.members)
        .filter_map(|listed| Some((stateward_etcd::cluster::members::owner(intent, listed)?, listed.clone())))
        .collect()
}
