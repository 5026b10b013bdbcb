//! Proof that the simulation can fail: planners and drivers that are broken on purpose, and each must be caught.

use std::time::Duration;

use jiff::Timestamp;
use stateward_api::EtcdVersion;
use stateward_plan::etcd::{
    Effect, Intent, Launch, Listed, MemberName, Plan, Record, Recovery, RequestState, Stop, Storage, Trust, Voice,
    World, members, plan,
};

use crate::dice::Dice;
use crate::many::run_many;
use crate::profile::Profile;
use crate::rules::name;
use crate::sim::Sim;
use crate::subject::{REAL, Subject};
use crate::user::wish;

/// Within so many histories a broken planner must be caught.
const SEEDS: u64 = 3000;

type Planner = fn(&Intent, &Record, &World, Timestamp) -> Plan;

fn caught(what: &'static str, broken: Planner, rules: &[&str]) {
    let subject = Subject {
        name: what,
        plan: broken,
        ..REAL
    };
    caught_as(&subject, rules);
}

fn caught_as(subject: &Subject, rules: &[&str]) {
    let summary = run_many(subject, 0, SEEDS, 1);
    let (seed, outcome) = summary
        .broken
        .first_key_value()
        .unwrap_or_else(|| panic!("{} was not caught in {SEEDS} histories", subject.name));
    let rule = outcome.broken.as_ref().map_or("", |broken| broken.rule);
    assert!(
        rules.contains(&rule),
        "{}: seed {seed} was caught by \"{rule}\"",
        subject.name
    );
}

fn listed<'a>(intent: &'a Intent, world: &'a World) -> impl Iterator<Item = (MemberName, &'a Listed)> {
    let lines = world.list.iter().flat_map(|list| &list.members);
    lines.filter_map(|line| Some((members::owner(intent, line)?, line)))
}

fn remove(world: &World, member: &MemberName, line: &Listed) -> Option<Effect> {
    Some(Effect::RemoveMember {
        member: member.clone(),
        id: line.id,
        cluster: world.list.as_ref()?.cluster,
        pod: world.pods.get(member).map(|pod| pod.uid.clone()),
        claim: world.claims.get(member).map(|claim| claim.uid.clone()),
    })
}

fn restart(world: &World, member: &MemberName) -> Option<Effect> {
    Some(Effect::DeletePod {
        member: member.clone(),
        uid: world.pods.get(member)?.uid.clone(),
        how: Stop::Restart,
    })
}

#[test]
fn members_are_never_sealed() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        plan.effects.retain(|effect| !matches!(effect, Effect::SealPod { .. }));
        plan
    }
    caught("no seals", broken, &[name::WORDS, name::CONVERGES, name::MEMORY]);
}

#[test]
fn a_member_comes_back_as_if_it_were_new() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        let all: Vec<_> = listed(intent, world)
            .map(|(name, line)| (name, line.peer_urls[0].clone()))
            .collect();
        for effect in &mut plan.effects {
            if let Effect::CreatePod { launch, .. } = effect
                && *launch == Launch::Sealed
            {
                *launch = Launch::Join { members: all.clone() };
            }
        }
        plan
    }
    caught("join instead of sealed", broken, &[name::MEMORY]);
}

#[test]
fn a_member_comes_back_as_a_first_member() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        let token = record.bootstrap.as_ref().map(|bootstrap| bootstrap.token.clone());
        for effect in &mut plan.effects {
            if let Effect::CreatePod { launch, .. } = effect
                && *launch == Launch::Sealed
            {
                *launch = Launch::Seed {
                    token: token.clone().unwrap_or_default(),
                };
            }
        }
        plan
    }
    caught("seed instead of sealed", broken, &[name::ONE_BOOTSTRAP]);
}

#[test]
fn the_record_of_the_bootstrap_is_ignored() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        if world.list.is_none() {
            let mut blind = world.clone();
            blind.pods.clear();
            blind.claims.clear();
            return plan(intent, &Record::default(), &blind, now);
        }
        plan(intent, record, world, now)
    }
    caught("bootstraps again", broken, &[name::ONE_BOOTSTRAP, name::WRITES]);
}

#[test]
fn a_first_member_starts_before_it_is_recorded() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        if record.bootstrap.is_none() {
            plan.record = record.clone();
        }
        plan
    }
    caught("no record", broken, &[name::ONE_BOOTSTRAP]);
}

#[test]
fn the_leader_is_the_one_that_leaves() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        let leader = world.list.as_ref().and_then(|list| list.leader);
        let leads = listed(intent, world).find(|(_, line)| Some(line.id) == leader);
        for effect in &mut plan.effects {
            if let (Effect::RemoveMember { .. }, Some((member, line))) = (&*effect, &leads)
                && let Some(other) = remove(world, member, line)
            {
                *effect = other;
            }
        }
        plan
    }
    caught("removes the leader", broken, &[name::LEADER]);
}

#[test]
fn the_leader_is_restarted_without_handing_over() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        for effect in &mut plan.effects {
            if let Effect::MoveLeader { from, .. } = effect
                && let Some((member, _)) = listed(intent, world).find(|(_, line)| line.id == *from)
                && let Some(other) = restart(world, &member)
            {
                *effect = other;
            }
        }
        plan
    }
    caught("restarts the leader", broken, &[name::LEADER]);
}

#[test]
fn data_of_listed_members_is_deleted() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        for (member, line) in listed(intent, world) {
            let silent = matches!(world.voices.get(&member), Some(Voice::Silent(_)));
            if let (true, Some(claim), Some(list)) = (silent && !line.learner, world.claims.get(&member), &world.list) {
                plan.effects.push(Effect::DeleteClaim {
                    member,
                    uid: claim.uid.clone(),
                    cluster: list.cluster,
                });
            }
        }
        plan
    }
    caught("deletes data", broken, &[name::DATA]);
}

#[test]
fn members_join_as_voters() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        for effect in &mut plan.effects {
            if let Effect::AddMember { learner, .. } = effect {
                *learner = false;
            }
        }
        plan
    }
    caught("no learners", broken, &[name::ONE_CHANGE]);
}

#[test]
fn a_silent_member_is_held_for_lost() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        let silent = listed(intent, world)
            .find(|(member, line)| !line.learner && matches!(world.voices.get(member), Some(Voice::Silent(_))));
        if let Some((member, line)) = silent
            && plan.effects.is_empty()
        {
            plan.effects.extend(remove(world, &member, line));
        }
        plan
    }
    caught("silent is lost", broken, &[name::EVIDENCE]);
}

#[test]
fn all_outdated_members_restart_at_once() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        if plan
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::DeletePod { how: Stop::Restart, .. }))
        {
            plan.effects = listed(intent, world)
                .filter_map(|(member, _)| restart(world, &member))
                .collect();
        }
        plan
    }
    caught(
        "restarts all",
        broken,
        &[name::QUORUM, name::LEADER, name::NO_RESTART, name::CONVERGES],
    );
}

#[test]
fn members_are_restarted_for_no_reason() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        let leader = world.list.as_ref().and_then(|list| list.leader);
        let follower = listed(intent, world).find(|(_, line)| Some(line.id) != leader && !line.learner);
        if plan.effects.is_empty() && intent.size >= 3 {
            plan.effects
                .extend(follower.and_then(|(member, _)| restart(world, &member)));
        }
        plan
    }
    caught("restarts for nothing", broken, &[name::NO_RESTART]);
}

#[test]
fn nobody_is_promoted() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        plan.effects.retain(|effect| !matches!(effect, Effect::Promote { .. }));
        plan
    }
    caught("promotes nobody", broken, &[name::CONVERGES]);
}

#[test]
fn strangers_are_removed() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        let lines = world.list.iter().flat_map(|list| &list.members);
        for line in lines.filter(|line| members::owner(intent, line).is_none()) {
            plan.effects.extend(remove(world, &MemberName("stranger".into()), line));
        }
        plan
    }
    caught("removes strangers", broken, &[name::STRANGERS, name::ONE_CHANGE]);
}

#[test]
fn waiting_is_not_explained() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        plan.report.waiting.clear();
        plan
    }
    caught("says nothing", broken, &[name::WORDS]);
}

#[test]
fn pause_is_ignored() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut intent = intent.clone();
        intent.paused = false;
        plan(&intent, record, world, now)
    }
    caught("ignores pause", broken, &[name::PAUSED]);
}

#[test]
fn a_survivor_takes_over_without_consent() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut intent = intent.clone();
        intent.recovery = Recovery::FromSurvivor(Duration::ZERO);
        plan(&intent, record, world, now)
    }
    caught("recovers without consent", broken, &[name::EVIDENCE]);
}

#[test]
fn leftovers_stay() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        plan.effects
            .retain(|effect| !matches!(effect, Effect::DeleteClaim { .. }));
        plan
    }
    caught("never cleans up", broken, &[name::CONVERGES, name::WORDS]);
}

#[test]
fn the_status_changes_in_every_round() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        plan.report.generation = now.as_second();
        plan
    }
    caught("a restless status", broken, &[name::CONVERGES]);
}

#[test]
fn the_next_version_does_not_wait_for_the_clusters() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut world = world.clone();
        for voice in world.voices.values_mut() {
            if let Voice::Answered(answer) = voice {
                answer.cluster_minor = Some(answer.version.minor());
            }
        }
        plan(intent, record, &world, now)
    }
    caught("hurries on", broken, &[name::VERSIONS]);
}

#[test]
fn an_old_log_is_not_swept() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        plan.record.old_log = None;
        plan
    }
    // Two upgrades in a row are rare in what is drawn, so this one is written down.
    let subject = Subject {
        name: "keeps the old log",
        plan: broken,
        ..REAL
    };
    let mut sim = Sim::new(18, Profile::gentle(), &subject, false);
    sim.create_cluster(Intent {
        size: 3,
        version: EtcdVersion::new(3, 4, 23),
        storage: Storage::Durable { bytes: 1 << 30 },
        ..wish(&mut Dice::new(1))
    });
    sim.wake_operator(0, 5);
    for (minor, patch) in [(4, 23), (5, 35), (6, 16)] {
        assert_eq!(sim.broken, None);
        sim.calm = false;
        sim.edit(|intent| intent.version = EtcdVersion::new(3, minor, patch));
        sim.calm = true;
        sim.come_to_rest();
    }
    assert_eq!(sim.broken.map(|broken| broken.rule), Some(name::CONVERGES));
}

#[test]
fn a_driver_without_guards() {
    let subject = Subject {
        name: "no guards",
        guards: false,
        ..REAL
    };
    caught_as(
        &subject,
        &[
            name::DATA,
            name::EVIDENCE,
            name::WRITES,
            name::QUORUM,
            name::ONE_CHANGE,
            name::TRUST,
            name::WORDS,
        ],
    );
}

#[test]
fn a_backup_is_followed_before_it_is_proven() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut world = world.clone();
        for request in &mut world.restores {
            request.state = RequestState::Proven(Box::default());
        }
        plan(intent, record, &world, now)
    }
    caught("follows anything", broken, &[name::RESTORE_PROVEN]);
}

#[test]
fn a_restore_that_is_done_is_forgotten() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut forgetful = record.clone();
        forgetful.restore = record.restoring().cloned();
        plan(intent, &forgetful, world, now)
    }
    caught("restores again", broken, &[name::RESTORE_ONCE]);
}

#[test]
fn old_members_come_back_beside_the_restored_one() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        if let Some(restoring) = record.restoring() {
            let old = world.claims.keys().filter(|name| **name != restoring.seed);
            let back = old.filter(|name| !world.pods.contains_key(*name));
            plan.effects.extend(back.map(|name| Effect::CreatePod {
                member: name.clone(),
                launch: Launch::Sealed,
                version: intent.version.clone(),
                tls: stateward_plan::etcd::TlsStage::Off,
            }));
        }
        plan
    }
    caught("no fence", broken, &[name::RESTORE_FENCED, name::CONVERGES]);
}

#[test]
fn old_data_is_deleted_before_the_new_cluster_serves() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        let cluster = record.bootstrap.as_ref().and_then(|bootstrap| bootstrap.cluster);
        if let (Some(restoring), Some(cluster)) = (record.restoring(), cluster) {
            let old = restoring.old_claims.iter();
            plan.effects.extend(old.map(|(member, uid)| Effect::DeleteClaim {
                member: member.clone(),
                uid: uid.clone(),
                cluster,
            }));
        }
        plan
    }
    caught("deletes old claims early", broken, &[name::DATA]);
}

#[test]
fn the_restored_member_begins_empty() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        for effect in &mut plan.effects {
            if let Effect::CreatePod { launch, .. } = effect
                && let Launch::Restore { token, .. } = &launch
            {
                *launch = Launch::Seed { token: token.clone() };
            }
        }
        plan
    }
    caught("an empty restore", broken, &[name::ONE_BOOTSTRAP]);
}

#[test]
fn a_restore_is_not_recorded_first() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let asked = plan(intent, record, world, now);
        if record.restore == asked.record.restore || asked.record.restoring().is_none() {
            return asked;
        }
        // It goes on from what it has only decided.
        let mut hasty = plan(intent, &asked.record, world, now);
        hasty.record = record.clone();
        hasty
    }
    caught(
        "no record of a restore",
        broken,
        &[
            name::QUORUM,
            name::RESTORE_PROVEN,
            name::LEADER,
            name::NO_RESTART,
            name::CONVERGES,
        ],
    );
}

/// A planner that is told something else about the authorities than what is.
fn deceived(intent: &Intent, record: &Record, world: &World, now: Timestamp, how: impl Fn(&mut Trust)) -> Plan {
    let mut world = world.clone();
    if let Some(trust) = &mut world.trust {
        how(trust);
    }
    plan(intent, record, &world, now)
}

#[test]
fn certificates_are_handed_out_before_all_trust_them() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        let mut plan = plan(intent, record, world, now);
        let trust = world.trust.as_ref();
        if !intent.paused
            && trust.is_some_and(|trust| trust.issued != trust.wanted && trust.wanted.is_subset(&trust.bundle))
        {
            plan.effects.push(Effect::IssueCertificates { next: true });
        }
        plan
    }
    let subject = Subject {
        name: "hands out early",
        plan: broken,
        guards: false,
    };
    caught_as(
        &subject,
        &[
            name::TRUST,
            name::DATA,
            name::EVIDENCE,
            name::WRITES,
            name::QUORUM,
            name::ONE_CHANGE,
        ],
    );
    let guarded = Subject {
        guards: true,
        ..subject
    };
    let summary = run_many(&guarded, 0, 300, 1);
    assert!(
        summary
            .broken
            .values()
            .all(|outcome| outcome.broken.as_ref().is_none_or(|broken| broken.rule != name::TRUST)),
        "the guard of the effect lets it through"
    );
}

#[test]
fn a_new_authority_takes_the_place_of_the_old_one_at_once() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        deceived(intent, record, world, now, |trust| {
            if trust.issued != trust.wanted {
                trust.issued.clone_from(&trust.wanted);
                trust.seen = true;
            }
        })
    }
    caught("no overlap", broken, &[name::TRUST, name::CONVERGES, name::WORDS]);
}

#[test]
fn the_old_authority_is_dropped_before_the_new_certificates_are_seen() {
    fn broken(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
        deceived(intent, record, world, now, |trust| {
            trust.seen = true;
            trust.overlap_left = Duration::ZERO;
        })
    }
    caught("drops early", broken, &[name::TRUST]);
}
