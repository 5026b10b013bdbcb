//! Rules that are checked against a plan and its input.

use std::collections::BTreeMap;

use stateward_etcd::cluster::{
    Effect, Intent, Launch, Listed, MemberId, MemberName, MemberProbe, Plan, Reason, Record, Stop, World, members,
};

use super::{healthy, is_retained, name, not_as_expected};
use crate::operator::by_name;
use crate::sim::Sim;

/// The name of a broken rule, and how it was broken.
type Broken = (&'static str, String);

impl Sim<'_> {
    /// Checks a plan against its input.
    pub(crate) fn check_plan(&mut self, intent: &Intent, record: &Record, world: &World, plan: &Plan) {
        for (rule, why) in Judge::new(intent, record, world, plan).violations() {
            self.break_rule(rule, why);
        }
    }
}

/// A plan and its input.
struct Judge<'a> {
    intent: &'a Intent,
    record: &'a Record,
    world: &'a World,
    plan: &'a Plan,
    /// The entries of the proven list that are ours.
    listed: BTreeMap<MemberName, Listed>,
    all_voters: usize,
    healthy_voters: usize,
}

impl<'a> Judge<'a> {
    fn new(intent: &'a Intent, record: &'a Record, world: &'a World, plan: &'a Plan) -> Self {
        let mut judge = Self {
            intent,
            record,
            world,
            plan,
            listed: by_name(world, intent),
            all_voters: world.list.as_ref().map_or(0, |list| list.voters().count()),
            healthy_voters: 0,
        };
        judge.healthy_voters = judge.listed.keys().filter(|name| judge.is_healthy_voter(name)).count();
        judge
    }

    fn is_healthy_voter(&self, name: &MemberName) -> bool {
        let line = self.listed.get(name);
        line.is_some_and(|line| !line.learner && healthy(self.world, name, line))
    }

    fn answers(&self, name: &MemberName) -> bool {
        matches!(self.world.probes.get(name), Some(MemberProbe::Reply(_)))
    }

    /// Its pod is being deleted: it must not be counted on, whatever it replies.
    fn stops(&self, name: &MemberName) -> bool {
        self.world.pods.get(name).is_some_and(|pod| pod.terminating)
    }

    fn leads(&self, id: MemberId) -> bool {
        self.world.list.as_ref().and_then(|list| list.leader) == Some(id)
    }

    /// etcd 3.2 has no call that transfers leadership.
    fn can_transfer_leadership(&self, name: &MemberName) -> bool {
        match self.world.probes.get(name) {
            Some(MemberProbe::Reply(reply)) => reply.version.at_least(3, 3, 0),
            _ => true,
        }
    }

    fn violations(&self) -> Vec<Broken> {
        let mut all = Vec::new();
        // An event changes nothing.
        let mut effects = self.plan.effects.iter();
        let touches = effects.find(|effect| !matches!(effect, Effect::Tell(_)));
        if let (true, Some(effect)) = (self.intent.paused, touches) {
            all.push((name::PAUSED, effect.to_string()));
        }
        let mut stopped = 0;
        for effect in &self.plan.effects {
            match effect {
                Effect::AddMember { learner: false, .. } => self.added_voter(effect, &mut all),
                Effect::RemoveMember { member, id, .. } => self.removed(effect, member, *id, &mut all),
                Effect::ReleaseMember { id, .. } => self.released(effect, *id, &mut all),
                Effect::DeletePod { member, how, .. } => {
                    stopped += usize::from(self.is_healthy_voter(member));
                    self.stopped(effect, member, *how, stopped, &mut all);
                }
                Effect::DeleteClaim { member, .. } if self.world.list.is_none() || self.listed.contains_key(member) => {
                    all.push((name::DATA, format!("{effect}: not proven to be out of the list")));
                }
                Effect::DeleteClaim { uid, .. } if is_retained(self.intent, self.record, uid) => {
                    all.push((name::RESTORE_RETAINS, effect.to_string()));
                }
                Effect::DeleteUnstartedClaim { member, .. } if !self.never_started(member) => {
                    all.push((name::DATA, format!("{effect}: no member reports that it never started")));
                }
                Effect::CreatePod { member, launch, .. } => self.created(effect, member, launch, &mut all),
                Effect::AddMember { learner: true, .. }
                | Effect::DeleteClaim { .. }
                | Effect::DeleteUnstartedClaim { .. }
                | Effect::ApplyPeerService
                | Effect::ApplyClientService
                | Effect::ApplyBudget
                | Effect::CreateClaim { .. }
                | Effect::TryPod { .. }
                | Effect::CheckNodesEnded { .. }
                | Effect::SealPod { .. }
                | Effect::RelabelPod { .. }
                | Effect::GrowClaim { .. }
                | Effect::Promote { .. }
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
                | Effect::Tell(_) => {}
            }
        }
        self.changes(&mut all);
        self.messages(&mut all);
        all
    }

    fn added_voter(&self, effect: &Effect, all: &mut Vec<Broken>) {
        let running = self.world.pods.values().map(|pod| &pod.version);
        let mut versions = running.chain(&self.plan.record.target);
        if versions.all(|version| version.has_learners()) {
            all.push((name::ONE_CHANGE, format!("{effect} although learners can be added")));
        }
        let mut voters = self.listed.keys().filter(|name| self.is_healthy_voter(name));
        if let Some(other) = voters.find(|name| self.stops(name)) {
            all.push((name::QUORUM, format!("{effect} raises the quorum while {other} stops")));
        }
        let mut lines = self.listed.values();
        if lines.any(|line| line.name.is_none() && !line.learner) {
            all.push((name::ONE_CHANGE, format!("{effect} while another one has not started")));
        }
    }

    fn removed(&self, effect: &Effect, member: &MemberName, id: MemberId, all: &mut Vec<Broken>) {
        let mut lines = self.world.list.iter().flat_map(|list| &list.members);
        let line = lines.find(|line| line.id == id);
        if line.is_some_and(|line| members::owner(self.intent, line).is_none()) {
            all.push((name::FOREIGN_MEMBERS, effect.to_string()));
        }
        let well = self.is_healthy_voter(member);
        if self.leads(id) && self.can_transfer_leadership(member) && self.healthy_voters > usize::from(well) {
            all.push((name::LEADER, effect.to_string()));
        }
        if self.all_voters < 2 {
            return;
        }
        let (others, quorum) = (self.all_voters - 1, (self.all_voters - 1) / 2 + 1);
        if well && self.healthy_voters - 1 < quorum {
            let why = format!("{effect} leaves {} of {others} voters", self.healthy_voters - 1);
            all.push((name::QUORUM, why));
        }
        let voters = self.listed.iter().filter(|(_, line)| !line.learner);
        let stay = voters
            .map(|(name, _)| name)
            .filter(|name| *name != member && self.answers(name) && !self.stops(name))
            .count();
        if line.is_some_and(|line| !line.learner) && stay < quorum {
            let why = format!("{effect}: of those that stay only {stay} reply and do not stop");
            all.push((name::QUORUM, why));
        }
    }

    fn released(&self, effect: &Effect, id: MemberId, all: &mut Vec<Broken>) {
        let ours = self.listed.values().any(|line| line.id == id);
        if !self.intent.release_adopted || ours {
            all.push((name::FOREIGN_MEMBERS, format!("{effect} without the user's request")));
        }
        let well = |line: &&&Listed| {
            let mut probes = self.world.probes.values();
            probes.any(
                |probe| matches!(probe, MemberProbe::Reply(reply) if reply.id == line.id && reply.leader.is_some()),
            )
        };
        let voters = self.world.list.iter().flat_map(|list| list.voters());
        let stay: Vec<_> = voters.filter(|line| line.id != id).collect();
        if stay.iter().filter(well).count() < stay.len() / 2 + 1 {
            all.push((name::QUORUM, format!("{effect} leaves no quorum")));
        }
    }

    fn stopped(&self, effect: &Effect, member: &MemberName, how: Stop, stopped: usize, all: &mut Vec<Broken>) {
        let restores = self.plan.record.restoring().is_some();
        if how == Stop::Replaced && !restores {
            all.push((name::RESTORE_PROVEN, format!("{effect} without a restore")));
        }
        if how == Stop::Hibernate && !self.intent.hibernate {
            all.push((name::QUORUM, format!("{effect} without spec.hibernate")));
        }
        let recovers = self.plan.record.recovery.is_some() || self.record.recovery.is_some() || restores;
        if recovers || (how == Stop::Hibernate && self.intent.hibernate) {
            return;
        }
        if how == Stop::Gone && self.listed.contains_key(member) {
            all.push((name::DATA, format!("{effect}: it has not left the list")));
        }
        let voter = self.is_healthy_voter(member);
        let (healthy, voters, quorum) = (self.healthy_voters, self.all_voters, self.all_voters / 2 + 1);
        if voter && healthy >= quorum && voters >= 3 && healthy - stopped < quorum {
            let why = format!("{effect} leaves {} of {voters} voters", healthy - stopped);
            all.push((name::QUORUM, why));
        }
        if stopped > 1 {
            all.push((name::QUORUM, format!("{effect}: two members stopped in one reconcile")));
        }
        let leads = self.listed.get(member).is_some_and(|line| self.leads(line.id));
        if leads && voter && self.can_transfer_leadership(member) && healthy > 1 {
            all.push((name::LEADER, effect.to_string()));
        }
        if self.world.list.is_none() && self.answers(member) {
            all.push((name::QUORUM, format!("{effect}: it replies and no list is proven")));
        }
        if voter && how == Stop::Restart && self.is_as_expected(member) {
            all.push((name::NO_RESTART, format!("{effect}: it is as expected")));
        }
    }

    fn is_as_expected(&self, member: &MemberName) -> bool {
        self.world.pods.get(member).is_some_and(|pod| {
            pod.template == self.intent.template
                && Some(&pod.version) == self.plan.record.target.as_ref()
                && !pod.ended
                && pod.trusts.as_ref() == self.world.trust.as_ref().map(|trust| &trust.bundle)
        })
    }

    /// Without a proven list, a member that replies must report it.
    fn never_started(&self, member: &MemberName) -> bool {
        let mut lists = self.world.probes.values().filter_map(|probe| match probe {
            MemberProbe::Reply(reply) => Some(&reply.list),
            MemberProbe::NoReply(_) => None,
        });
        let unstarted = lists.any(|list| {
            let mut lines = list.iter().filter(|line| line.name.is_none());
            lines.any(|line| members::owner(self.intent, line).as_ref() == Some(member))
        });
        self.world.list.is_none() && unstarted
    }

    fn created(&self, effect: &Effect, member: &MemberName, launch: &Launch, all: &mut Vec<Broken>) {
        let votes = |line: &Listed| line.name.is_some() && !line.learner;
        if matches!(launch, Launch::Join { .. }) && self.listed.get(member).is_some_and(votes) {
            all.push((name::MEMORY, format!("{effect}: it votes already")));
        }
        if self.record.began() && matches!(launch, Launch::Seed { .. } | Launch::Static { .. }) {
            let why = format!("{effect}: the record says that it has begun");
            all.push((name::ONE_BOOTSTRAP, why));
        }
    }

    /// One change of the list per plan, except for learners where etcd accepts several.
    fn changes(&self, all: &mut Vec<Broken>) {
        let count = |is: fn(&Effect) -> bool| self.plan.effects.iter().filter(|effect| is(effect)).count();
        let learners = count(|effect| matches!(effect, Effect::AddMember { learner: true, .. }));
        let changes = count(|effect| {
            matches!(
                effect,
                Effect::AddMember { learner: false, .. }
                    | Effect::Promote { .. }
                    | Effect::RemoveMember { .. }
                    | Effect::ReleaseMember { .. }
            )
        });
        let mut versions = self.world.pods.values().map(|pod| &pod.version);
        let many = versions.all(|version| version.has_max_learners());
        if changes + usize::from(learners > 0) > 1 || (learners > 1 && !many) {
            let why = format!("{changes} changes and {learners} new learners in one plan");
            all.push((name::ONE_CHANGE, why));
        }
    }

    /// A plan without effects says what it waits for.
    fn messages(&self, all: &mut Vec<Broken>) {
        let effects = &self.plan.effects;
        let acts = effects.iter().any(|effect| !matches!(effect, Effect::Tell(_)));
        if !acts
            && self.plan.report.waiting.is_empty()
            && let Some(why) = not_as_expected(self.intent, &self.plan.record, self.world)
        {
            all.push((
                name::MESSAGES,
                format!("nothing is done and nothing reported, but {why}"),
            ));
        }
        // A cluster without progress is Degraded, unless the user asked for it.
        let (progressing, degraded) = (&self.plan.report.progressing, &self.plan.report.degraded);
        let wanted = matches!(
            progressing.reason,
            Reason::AsExpected | Reason::Paused | Reason::Hibernating
        );
        if !progressing.holds && !degraded.holds && !wanted {
            let why = format!("it makes no progress with {} and is not Degraded", progressing.reason);
            all.push((name::MESSAGES, why));
        }
    }
}
