//! The operator's rounds, as `operator` does them: observe through caches that may be behind, plan, write the status
//! with the resource version it was read at, carry out the effects in their order, end at the first failure.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use stateward_api::etcd_cluster::EtcdClusterStatus;
use stateward_plan::etcd::{Effect, Intent, KeptBackup, MemberName, Plan, Record, World, status};

use crate::guards::{Seen, version_of};
use crate::kube::{Cluster, Shown, uid};
use crate::proof::Watch;
use crate::queue::{Event, Id, Ms, skewed, stamp};
use crate::rules::name;
use crate::sim::Sim;

pub(crate) struct Operator {
    letter: char,
    /// It believes to be the one that acts.
    pub(crate) leads: bool,
    pub(crate) alive: bool,
    /// Counts its lives, so that no step of an earlier one is carried out.
    epoch: u32,
    pub(crate) cache: Shown,
    /// Its caches stand still until then.
    pub(crate) stale_until: Ms,
    /// Its caches show no pods, or no claims, whatever is there.
    pub(crate) blind_to_pods: bool,
    pub(crate) blind_to_claims: bool,
    next_round: Ms,
    round: Option<Round>,
    names: u32,
    /// It dies before it carries out this many more steps (0: the next one).
    pub(crate) dies_in: Option<u32>,
    /// By how much its clock is wrong.
    skew: i64,
    pub(crate) watch: Watch,
    /// What kubelets said of pods that are gone: it has not heard what was said before the first, and has heard up to the
    /// second.
    pub(crate) deaf_before: usize,
    pub(crate) heard_words: usize,
}

struct Round {
    cluster: Rc<Cluster>,
    world: World,
    plan: Plan,
    /// 0 is the record, then come the effects.
    step: usize,
    /// The EtcdCluster as it was last read or written.
    seen: Seen,
}

/// The slow resync.
const RESYNC: Ms = 20_000;

impl Operator {
    /// Its round goes on to take a restore up.
    pub(crate) fn is_about_to_restore(&self) -> bool {
        let record = self.next_record();
        record.is_some_and(|(before, after)| after.begins_restore(before).is_some())
    }

    /// The record that its round goes on to write, after the one before.
    pub(crate) fn next_record(&self) -> Option<(&Record, &Record)> {
        let round = self.round.as_ref().filter(|round| round.step == 0)?;
        Some((&round.cluster.record, &round.plan.record))
    }

    /// What its round goes on to do.
    pub(crate) fn next_effect(&self) -> Option<&Effect> {
        let round = self.round.as_ref()?;
        round.plan.effects.get(round.step.checked_sub(1)?)
    }

    pub(crate) fn new(letter: char, skew: i64) -> Self {
        Self {
            letter,
            leads: false,
            alive: true,
            epoch: 0,
            cache: Shown::default(),
            stale_until: 0,
            blind_to_pods: false,
            blind_to_claims: false,
            next_round: 0,
            round: None,
            names: 0,
            dies_in: None,
            skew,
            watch: Watch::default(),
            deaf_before: 0,
            heard_words: 0,
        }
    }
}

impl Sim<'_> {
    /// Something changed in the API: operators that hear of it look soon.
    pub(crate) fn notify_operators(&mut self) {
        for index in 0..self.operators.len() {
            let hears = self.calm || !self.dice.per_mille(self.profile.missed_events);
            if hears {
                let soon = self.now + self.dice.between(5, 150);
                self.wake_operator(index, soon);
            }
        }
    }

    pub(crate) fn wake_operator(&mut self, index: usize, at: Ms) {
        let now = self.now;
        let operator = &mut self.operators[index];
        if operator.alive
            && operator.leads
            && operator.round.is_none()
            && (operator.next_round <= now || at < operator.next_round)
        {
            operator.next_round = at.max(now + 1);
            self.queue.at(operator.next_round, Event::Round(index));
        }
    }

    pub(crate) fn kill_operator(&mut self, index: usize) {
        self.stop_operator(index);
        let pause = self.dice.between(500, 20_000);
        self.queue.at(self.now + pause, Event::Revive(index));
    }

    /// It is gone until it is brought back.
    pub(crate) fn stop_operator(&mut self, index: usize) {
        let letter = self.operators[index].letter;
        self.tell(|| format!("operator {letter} is killed"));
        let operator = &mut self.operators[index];
        operator.alive = false;
        operator.epoch += 1;
        operator.round = None;
        operator.next_round = 0;
        operator.dies_in = None;
    }

    /// A restarted operator knows nothing but what the API shows it, and that may be the past.
    pub(crate) fn revive_operator(&mut self, index: usize) {
        if self.operators[index].alive {
            return;
        }
        let behind = !self.calm && self.dice.per_mille(self.profile.stale);
        let shown = match self.dice.pick(self.kube.past.make_contiguous()) {
            Some(past) if behind => past.clone(),
            _ => self.kube.now.clone(),
        };
        let operator = &mut self.operators[index];
        operator.alive = true;
        operator.cache = shown;
        operator.watch = Watch::default();
        operator.deaf_before = self.said.len();
        operator.heard_words = self.said.len();
        let letter = operator.letter;
        self.tell(|| {
            format!(
                "operator {letter} starts{}",
                if behind { " and is shown the past" } else { "" }
            )
        });
        let soon = self.now + 100;
        self.wake_operator(index, soon);
    }

    /// Leadership goes to the other one; for a while both may believe to have it.
    pub(crate) fn pass_leadership(&mut self) {
        let (from, to) = if self.operators[0].leads { (0, 1) } else { (1, 0) };
        if !self.operators[to].alive {
            return;
        }
        let both = self.dice.between(0, 15_000);
        self.tell(|| format!("operator {} takes over; for {both} ms both lead", ["a", "b"][to]));
        self.operators[to].leads = true;
        if self.dice.per_mille(500)
            && let Some(past) = self.dice.pick(self.kube.past.make_contiguous())
        {
            self.operators[to].cache = past.clone();
            self.operators[to].stale_until = self.now + self.dice.between(0, 5000);
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
        operator.round = None;
        operator.epoch += 1;
        operator.next_round = 0;
    }

    /// Caches catch up kind by kind, and now and then one of them does not.
    fn refresh(&mut self, index: usize) {
        if self.calm {
            self.operators[index].cache = self.kube.now.clone();
            self.operators[index].heard_words = self.said.len();
            return;
        }
        if self.operators[index].stale_until > self.now {
            return;
        }
        let stale = self.profile.stale;
        let (cluster, pods, claims, nodes, restores, secrets) = (
            self.dice.per_mille(stale),
            self.dice.per_mille(stale),
            self.dice.per_mille(stale),
            self.dice.per_mille(stale),
            self.dice.per_mille(stale),
            self.trust_dice.per_mille(stale),
        );
        let now = &self.kube.now;
        if !pods {
            self.operators[index].heard_words = self.said.len();
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
        if self.operators[index].blind_to_pods {
            cache.pods = Rc::default();
        }
        if self.operators[index].blind_to_claims {
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
        let mut asked = Vec::new();
        for (name, pod) in cache.pods.iter().filter(|(_, pod)| own(pod.owner)) {
            if pod.shown.running {
                world.voices.insert(name.clone(), self.ask(pod.id));
                asked.push(pod.id);
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
        world.trust = self.observe_trust(cluster.id, &cache.secrets, &world, &asked);
        self.hear_elsewhere(&cluster.intent, &mut world, &mut asked);
        world.list = self.proven_list(&asked);
        self.tell_alarms(&asked, &mut world);
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

    pub(crate) fn begin_round(&mut self, index: usize) {
        let operator = &self.operators[index];
        if !operator.alive || !operator.leads || operator.round.is_some() || operator.next_round != self.now {
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
        self.tell_plan(index, &cluster.report, &plan);
        self.check_alarms(&world, &plan);
        self.check_told(&world, &plan, clock);
        self.check_plan(&cluster.intent, &cluster.record, &world, &plan);
        self.check_settled(&cluster, &world, &plan);
        let now = self.now;
        let operator = &mut self.operators[index];
        operator.round = Some(Round {
            cluster,
            world,
            plan,
            step: 0,
            seen: None,
        });
        let epoch = operator.epoch;
        let delay = self.dice.between(1, 20);
        self.queue.at(now + delay, Event::Step(index, epoch));
    }

    fn tell_plan(&mut self, index: usize, known: &Option<stateward_plan::etcd::Report>, plan: &Plan) {
        let letter = self.operators[index].letter;
        if known.as_ref() != Some(&plan.report) || !plan.effects.is_empty() {
            self.tell(|| {
                let effects: Vec<String> = plan.effects.iter().map(ToString::to_string).collect();
                let waiting = if plan.report.waiting.is_empty() {
                    "as wished"
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
        let Some(mut round) = operator.round.take() else { return };
        if operator.dies_in == Some(0) || (!self.calm && self.dice.per_mille(self.profile.operator_dies)) {
            return self.kill_operator(index);
        }
        if let Some(left) = &mut self.operators[index].dies_in {
            *left -= 1;
        }
        let (lost, answer_lost) = if self.calm {
            (false, false)
        } else {
            (
                self.dice.per_mille(self.profile.api_errors),
                self.dice.per_mille(self.profile.api_errors),
            )
        };
        let what = match round.step.checked_sub(1) {
            None => "write the record".to_owned(),
            Some(effect) => round.plan.effects[effect].to_string(),
        };
        let mut result = if lost {
            Err("503".to_owned())
        } else if let Some(effect) = round.step.checked_sub(1) {
            let effects = &round.plan.effects;
            let first = if effect == 0 { effects.as_slice() } else { &[] };
            self.must_be_planned_with(&round.cluster, &round.world, first, &mut round.seen)
                .and_then(|()| self.carry_out(&round.cluster, &round.world, &effects[effect], &mut round.seen))
        } else if round.plan.record != round.cluster.record {
            self.write_status(&mut round)
        } else {
            Ok(()) // Words alone come after what is done.
        };
        if answer_lost && result.is_ok() {
            result = Err("timed out (but it happened)".into());
        }
        round.step += 1;
        match result {
            Ok(()) if round.step <= round.plan.effects.len() => {
                let delay = if self.calm {
                    5
                } else {
                    self.dice.between(1, self.profile.slowest_call)
                };
                self.operators[index].round = Some(round);
                self.queue.at(self.now + delay, Event::Step(index, epoch));
            }
            Ok(()) => {
                self.write_words(&mut round);
                let wake = round.plan.wake.map_or(RESYNC, |wake: Duration| wake.as_millis() as Ms);
                // An operator is never exactly on time.
                let pause = wake + self.dice.between(1, 50 + 3 * wake);
                self.end_round(index, pause);
            }
            Err(why) => {
                let letter = self.operators[index].letter;
                self.tell(|| format!("operator {letter} fails to {what}: {why}"));
                if round.step > 1 {
                    self.write_words(&mut round);
                }
                let pause = self.dice.between(100, 1000);
                self.end_round(index, pause);
            }
        }
    }

    fn end_round(&mut self, index: usize, pause: Ms) {
        let at = self.now + pause;
        self.operators[index].next_round = 0;
        self.wake_operator(index, at);
    }

    /// What later steps rest on goes first, and only onto the object it was read from.
    fn write_status(&mut self, round: &mut Round) -> Result<(), String> {
        let (cluster, plan) = (round.cluster.clone(), &round.plan);
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
            .filter(|restore| restore.step == stateward_plan::etcd::RestoreStep::Done);
        for (name, uid) in done.flat_map(|restore| restore.old_claims.iter().filter(|(name, _)| *name != restore.seed))
        {
            if self
                .kube
                .now
                .claims
                .get(name)
                .is_some_and(|claim| claim.shown.uid == *uid)
            {
                self.ledger.replaced_claims.insert(uid.clone());
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
            round.cluster = Rc::new(Cluster {
                intent: cluster.intent.clone(),
                ..now.clone()
            });
            round.seen = Some((self.now, Some(version_of(&round.cluster))));
        }
        Ok(())
    }

    /// Words alone can wait, and nothing rests on them.
    fn write_words(&mut self, round: &mut Round) {
        if round.plan.record == round.cluster.record
            && let Err(why) = self.write_status(round)
        {
            self.tell(|| format!("the status is not written: {why}"));
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

/// What the API server keeps of a status: only what survives the way through JSON.
fn stored(status: &EtcdClusterStatus) -> Result<EtcdClusterStatus, String> {
    let text = serde_json::to_string(status).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| format!("422: {error}"))
}

/// Kubernetes keeps times to the second.
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
        | Effect::RenewAuthority
        | Effect::TrustAuthorities { .. }
        | Effect::TakeBackup { .. }
        | Effect::ApplyBackup
        | Effect::DropBackup { .. }
        | Effect::RequestRestore { .. }
        | Effect::Tell(_) => false,
    }
}

/// The members of a list by name.
pub(crate) fn by_name(world: &World, intent: &Intent) -> BTreeMap<MemberName, stateward_plan::etcd::Listed> {
    world
        .list
        .iter()
        .flat_map(|list| &list.members)
        .filter_map(|listed| Some((stateward_plan::etcd::members::owner(intent, listed)?, listed.clone())))
        .collect()
}
