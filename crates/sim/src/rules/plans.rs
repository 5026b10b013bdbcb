//! Rules that can be judged from a plan and what it was made from.

use stateward_plan::etcd::{Effect, Intent, Launch, Listed, MemberName, Plan, Record, Stop, Voice, World, members};

use super::{healthy, name, not_as_wished};
use crate::operator::by_name;
use crate::sim::Sim;

/// Somebody deleted its pod: it is not to be counted on, whatever it says.
fn stops(world: &World, member: &MemberName) -> bool {
    world.pods.get(member).is_some_and(|pod| pod.terminating)
}

impl Sim<'_> {
    /// Rules that can be judged from the plan and what it was made from.
    pub(crate) fn check_plan(&mut self, intent: &Intent, record: &Record, world: &World, plan: &Plan) {
        let listed = by_name(world, intent);
        let list_leader = world.list.as_ref().and_then(|list| list.leader);
        let all_voters = world.list.as_ref().map_or(0, |list| list.voters().count());
        let quorum = all_voters / 2 + 1;
        // etcd 3.2 knows no call that hands leadership over.
        let can_hand_over = |member: &MemberName| match world.voices.get(member) {
            Some(Voice::Answered(answer)) => answer.version.at_least(3, 3, 0),
            _ => true,
        };
        let is_healthy_voter = |name: &MemberName| {
            listed
                .get(name)
                .is_some_and(|line| !line.learner && healthy(world, name, line))
        };
        let healthy_voters = listed.keys().filter(|name| is_healthy_voter(name)).count();
        let restores = plan.record.restoring().is_some();
        let recovers = plan.record.recovery.is_some() || record.recovery.is_some() || restores;
        if intent.paused && !plan.effects.is_empty() {
            self.break_rule(name::PAUSED, format!("{}", plan.effects[0]));
        }
        let mut changes = 0;
        let mut added_learners = 0;
        let mut stopped = 0;
        for effect in &plan.effects {
            match effect {
                Effect::AddMember { learner: true, .. } => added_learners += 1,
                Effect::AddMember { learner: false, .. } => {
                    changes += 1;
                    let learners_can_be = world
                        .pods
                        .values()
                        .map(|pod| &pod.version)
                        .chain(&plan.record.target)
                        .all(|version| version.has_learners());
                    if learners_can_be {
                        self.break_rule(name::ONE_CHANGE, format!("{effect} although learners can be added"));
                    }
                    if let Some(other) = listed.keys().find(|name| is_healthy_voter(name) && stops(world, name)) {
                        let why = format!("{effect} raises the quorum while {other} stops");
                        self.break_rule(name::QUORUM, why);
                    }
                    if listed.values().any(|line| line.name.is_none() && !line.learner) {
                        self.break_rule(name::ONE_CHANGE, format!("{effect} while another one has not started"));
                    }
                }
                Effect::Promote { .. } => changes += 1,
                Effect::RemoveMember { member, id, .. } => {
                    changes += 1;
                    let line = world
                        .list
                        .iter()
                        .flat_map(|list| &list.members)
                        .find(|line| line.id == *id);
                    if line.is_some_and(|line| members::owner(intent, line).is_none()) {
                        self.break_rule(name::STRANGERS, format!("{effect}"));
                    }
                    if list_leader == Some(*id)
                        && can_hand_over(member)
                        && healthy_voters > usize::from(is_healthy_voter(member))
                    {
                        self.break_rule(name::LEADER, format!("{effect}"));
                    }
                    if is_healthy_voter(member) && all_voters > 1 && healthy_voters - 1 < (all_voters - 1) / 2 + 1 {
                        self.break_rule(
                            name::QUORUM,
                            format!("{effect} leaves {} of {} voters", healthy_voters - 1, all_voters - 1),
                        );
                    }
                    let counts = |name: &&MemberName| {
                        let answers = matches!(world.voices.get(name), Some(Voice::Answered(_)));
                        *name != member && answers && !stops(world, name)
                    };
                    let votes = |name: &&MemberName| listed.get(name).is_some_and(|line| !line.learner);
                    let stay = listed.keys().filter(votes).filter(counts).count();
                    let voter = line.is_some_and(|line| !line.learner);
                    if voter && all_voters > 1 && stay < (all_voters - 1) / 2 + 1 {
                        let why = format!("{effect}: of those that stay only {stay} answer and do not stop");
                        self.break_rule(name::QUORUM, why);
                    }
                }
                Effect::ReleaseMember { id, .. } => {
                    changes += 1;
                    if !intent.release_adopted || listed.values().any(|line| line.id == *id) {
                        self.break_rule(name::STRANGERS, format!("{effect} without the user's word"));
                    }
                    let well = |line: &&stateward_plan::etcd::Listed| {
                        let mut voices = world.voices.values();
                        voices.any(|voice| matches!(voice, Voice::Answered(answer) if answer.id == line.id && answer.leader.is_some()))
                    };
                    let stay: Vec<_> = world
                        .list
                        .iter()
                        .flat_map(|list| list.voters())
                        .filter(|line| line.id != *id)
                        .collect();
                    if stay.iter().filter(|line| well(line)).count() < stay.len() / 2 + 1 {
                        self.break_rule(name::QUORUM, format!("{effect} leaves no quorum"));
                    }
                }
                Effect::DeletePod { member, how, .. } => {
                    let voter = is_healthy_voter(member);
                    stopped += usize::from(voter);
                    let hibernates = *how == Stop::Hibernate && intent.hibernate;
                    if *how == Stop::Replaced && !restores {
                        self.break_rule(name::RESTORE_PROVEN, format!("{effect} without a restore"));
                    }
                    if *how == Stop::Hibernate && !intent.hibernate {
                        self.break_rule(name::QUORUM, format!("{effect} without spec.hibernate"));
                    }
                    if hibernates || recovers {
                        continue;
                    }
                    if *how == Stop::Gone && listed.contains_key(member) {
                        self.break_rule(name::DATA, format!("{effect}: it has not left the list"));
                    }
                    if voter && healthy_voters >= quorum && all_voters >= 3 && healthy_voters - stopped < quorum {
                        self.break_rule(
                            name::QUORUM,
                            format!("{effect} leaves {} of {all_voters} voters", healthy_voters - stopped),
                        );
                    }
                    if stopped > 1 {
                        self.break_rule(name::QUORUM, format!("{effect}: two members stopped in one round"));
                    }
                    let leads = listed.get(member).is_some_and(|line| list_leader == Some(line.id));
                    if leads && voter && can_hand_over(member) && healthy_voters > 1 {
                        self.break_rule(name::LEADER, format!("{effect}"));
                    }
                    let answers = matches!(world.voices.get(member), Some(Voice::Answered(_)));
                    if world.list.is_none() && answers {
                        self.break_rule(name::QUORUM, format!("{effect}: it answers and nobody proves a list"));
                    }
                    let wish = world.pods.get(member).is_some_and(|pod| {
                        pod.template == intent.template
                            && Some(&pod.version) == plan.record.target.as_ref()
                            && !pod.ended
                            && pod.trusts.as_ref() == world.trust.as_ref().map(|trust| &trust.bundle)
                    });
                    if voter && wish && *how == Stop::Restart {
                        self.break_rule(name::NO_RESTART, format!("{effect}: it is as wished"));
                    }
                }
                Effect::DeleteClaim { member, .. } if world.list.is_none() || listed.contains_key(member) => {
                    self.break_rule(name::DATA, format!("{effect}: not proven to be out of the list"));
                }
                Effect::DeleteUnstartedClaim { member, .. } => {
                    let knows = |listed: &&Listed| listed.name.is_none();
                    let mut lists = world.voices.values().filter_map(|voice| match voice {
                        Voice::Answered(answer) => Some(&answer.list),
                        Voice::Silent(_) => None,
                    });
                    let unstarted = lists.any(|list| {
                        let mut lines = list.iter().filter(knows);
                        lines.any(|line| members::owner(intent, line).as_ref() == Some(member))
                    });
                    if world.list.is_some() || !unstarted {
                        self.break_rule(name::DATA, format!("{effect}: nobody says that it never started"));
                    }
                }
                Effect::CreatePod {
                    member,
                    launch: Launch::Join { .. },
                    ..
                } if listed
                    .get(member)
                    .is_some_and(|line| line.name.is_some() && !line.learner) =>
                {
                    self.break_rule(name::MEMORY, format!("{effect}: it votes already"));
                }
                Effect::CreatePod { launch, .. } => {
                    let first = matches!(launch, Launch::Seed { .. } | Launch::Static { .. });
                    if first
                        && record
                            .bootstrap
                            .as_ref()
                            .is_some_and(|bootstrap| bootstrap.cluster.is_some())
                    {
                        self.break_rule(
                            name::ONE_BOOTSTRAP,
                            format!("{effect}: the record says that it has begun"),
                        );
                    }
                }
                _ => {}
            }
        }
        let many = world
            .pods
            .values()
            .map(|pod| &pod.version)
            .all(|version| version.has_max_learners());
        if changes + usize::from(added_learners > 0) > 1 || (added_learners > 1 && !many) {
            self.break_rule(
                name::ONE_CHANGE,
                format!("{changes} changes and {added_learners} new learners in one plan"),
            );
        }
        let acts = plan.effects.iter().any(|effect| !matches!(effect, Effect::Tell(_)));
        if !acts
            && plan.report.waiting.is_empty()
            && let Some(why) = not_as_wished(intent, world)
        {
            self.break_rule(name::WORDS, format!("nothing is done and nothing said, but {why}"));
        }
    }
}
