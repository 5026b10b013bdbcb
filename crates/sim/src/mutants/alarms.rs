//! Planners with mistakes about alarms, about whose data is right, and about reporting lasting problems.

use jiff::Timestamp;
use stateward_etcd::api::EtcdVersion;
use stateward_etcd::cluster::{Alarm, Bootstrap, Effect, Intent, MemberId, Plan, Record, Storage, World, plan};

use super::{Mutant, caught_in};
use crate::profile::Profile;
use crate::queue::Id;
use crate::rng::Rng;
use crate::rules::name;
use crate::sim::{Sim, Violation};
use crate::subject::Subject;
use crate::user::first_intent;

/// Each mutant with the rules that may catch it first.
pub(super) fn all() -> Vec<Mutant> {
    vec![
        caught_in(
            "reports it as healthy",
            the_report_hides_alarms,
            of_no_member,
            &[name::ALARMED],
        )
        .alone(),
        caught_in(
            "ignores alarms of removed members",
            alarms_of_the_gone_are_ignored,
            of_no_member,
            &[name::ALARMED],
        ),
        caught_in(
            "disarms early",
            an_alarm_is_disarmed_early,
            a_follower_differs,
            &[name::AGREEMENT],
        )
        .alone(),
        caught_in(
            "replaces the member that is right",
            who_is_right_is_replaced,
            a_follower_differs,
            &[name::EVIDENCE],
        ),
        caught_in(
            "adds before it moves leadership",
            a_member_is_added_under_a_wrong_leader,
            the_leader_differs,
            &[name::SOURCE],
        )
        .alone(),
        caught_in(
            "does not report lasting problems",
            lasting_problems_are_not_reported,
            no_images,
            &[name::REPORTED],
        )
        .alone(),
    ]
}

fn three(subject: &Subject, prepare: impl FnOnce(&mut Sim<'_>), then: impl FnOnce(&mut Sim<'_>)) -> Option<Violation> {
    let mut sim = Sim::new(44, Profile::gentle(), subject, false);
    prepare(&mut sim);
    sim.create_cluster(Intent {
        size: 3,
        version: EtcdVersion::new(3, 6, 16),
        bootstrap: Bootstrap::SeedThenJoin,
        storage: Storage::Durable { bytes: 1 << 30 },
        ..first_intent(&mut Rng::new(1))
    });
    sim.wake_operator(0, 5);
    sim.calm = true;
    sim.come_to_rest();
    then(&mut sim);
    sim.come_to_rest();
    sim.broken
}

fn raise(sim: &mut Sim<'_>) {
    if let Some(cluster) = sim.truth.bootstrapped.first().copied() {
        sim.raise(cluster, MemberId(0), Alarm::Corrupt);
    }
}

fn of_no_member(subject: &Subject) -> Option<Violation> {
    three(subject, |_| {}, raise)
}

fn one_differs(subject: &Subject, leads: bool) -> Option<Violation> {
    three(
        subject,
        |_| {},
        |sim| {
            let mut processes = sim.processes.iter();
            let wrong: Option<Id> = processes.find(|(_, process)| process.leads == leads).map(|(id, _)| *id);
            if let Some(wrong) = wrong {
                sim.change_content(wrong);
            }
            raise(sim);
        },
    )
}

fn a_follower_differs(subject: &Subject) -> Option<Violation> {
    one_differs(subject, false)
}

fn the_leader_differs(subject: &Subject) -> Option<Violation> {
    one_differs(subject, true)
}

fn no_images(subject: &Subject) -> Option<Violation> {
    let for_a_minute = |sim: &mut Sim<'_>| {
        for node in 0..sim.nodes.len() {
            sim.nodes[node].no_images_until = 60_000;
        }
    };
    three(subject, for_a_minute, |_| {})
}

fn the_report_hides_alarms(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(intent, record, world, now);
    if !world.alarms.is_empty() {
        plan.report.available.holds = true;
        plan.report.degraded.holds = false;
    }
    plan
}

fn alarms_of_the_gone_are_ignored(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut world = world.clone();
    let lines = world.list.iter().flat_map(|list| &list.members);
    let listed: Vec<MemberId> = lines.map(|line| line.id).collect();
    world.alarms.retain(|(id, _)| listed.contains(id));
    plan(intent, record, &world, now)
}

/// The plan for hashes that are wrong, without reading them again.
fn misled(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(intent, record, world, now);
    plan.effects
        .retain(|effect| !matches!(effect, Effect::CompareAgain { .. }));
    plan
}

fn an_alarm_is_disarmed_early(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut world = world.clone();
    if let Some(same) = world.hashes.values().next().copied() {
        world.hashes.values_mut().for_each(|hash| *hash = same);
    }
    misled(intent, record, &world, now)
}

/// Exchanges the member that differs with one of the others.
fn who_is_right_is_replaced(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut world = world.clone();
    let mut hashes: Vec<_> = world.hashes.iter().map(|(id, hash)| (*hash, *id)).collect();
    hashes.sort();
    if let [(right, one), .., (wrong, other)] = hashes.as_slice()
        && right != wrong
    {
        world.hashes.insert(*other, *right);
        world.hashes.insert(*one, *wrong);
    }
    misled(intent, record, &world, now)
}

fn a_member_is_added_under_a_wrong_leader(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut plan = plan(intent, record, world, now);
    let whole = world
        .list
        .as_ref()
        .is_some_and(|list| list.members.len() == intent.size);
    for effect in plan
        .effects
        .iter_mut()
        .filter(|_| whole && world.has_alarm(Alarm::Corrupt))
    {
        if let (Effect::MoveLeader { cluster, .. }, Some(member)) = (&*effect, world.fresh_names.first()) {
            *effect = Effect::AddMember {
                peer_url: intent.peer_url(member, false),
                member: member.clone(),
                learner: true,
                cluster: *cluster,
            };
        }
    }
    plan
}

fn lasting_problems_are_not_reported(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut world = world.clone();
    for pod in world.pods.values_mut() {
        if let Some(blocked) = &mut pod.blocked {
            blocked.since = Some(now);
        }
    }
    plan(intent, record, &world, now)
}
