//! What to do next, decided from what the user wants, what is remembered and what was observed.
//!
//! Chapters of an operations manual decide, one file each, and [`plan`] has their order. Each adds to the memory and to the actions of
//! this reconcile; what a chapter records, the ones after it rest on, since the memory is stored before the first action. No chapter
//! calls another: what several need is in `members`, `restarts` and `round`.

mod ackers;
mod bootstrap;
mod certificates;
mod clone;
mod config;
mod disk;
mod failover;
mod hibernate;
mod labels;
mod members;
mod objects;
mod open;
mod passwords;
mod pods;
mod quarantine;
mod remember;
mod replicate;
pub mod report;
mod restarts;
mod roll;
mod round;
mod scale;
mod seal;
mod switchover;
#[cfg(test)]
mod testing;
mod upgrade;
mod wait;

use jiff::Timestamp;
use stateward_core::kind::Plan;

use crate::intent::Intent;
use crate::kind::MySQLClusters;
use crate::memory::Memory;
use crate::reason::Reason;
use crate::world::World;
use round::{Flow, Round, View, Work};

/// Decides what to do next.
pub fn plan(intent: &Intent, memory: &Memory, world: &World, now: Timestamp) -> Plan<MySQLClusters> {
    let view = View {
        intent,
        world,
        now,
        stored: memory,
        outdated: restarts::outdated(intent, memory, world),
    };
    let mut round = Round {
        memory: memory.clone(),
        ..Round::default()
    };
    decide(&view, &mut round);
    let report = report::report(&view, &round);
    Plan {
        memory: round.memory,
        report,
        actions: round.actions,
        wake: round.wake,
    }
}

/// The order of the chapters. What keeps acknowledged writes comes before what restarts, changes or removes.
fn decide(view: &View<'_>, round: &mut Round) {
    if view.intent.paused {
        let message = "spec.paused is true: nothing is changed until it is false again";
        round.say(Work::Blocked, Reason::Paused, message);
        return;
    }
    remember::remember(view, round);
    if hibernate::hibernate(view, round) == Flow::Stop || bootstrap::decide(view, round) == Flow::Stop {
        return;
    }
    if round.memory.current.is_none() {
        upgrade::upgrade(view, round);
    }
    if !round.memory.founded() {
        create(view, round);
        return;
    }
    round.next_restart = restarts::next(view, round);
    if failover::failover(view, round) == Flow::Stop || switchover::switchover(view, round) == Flow::Stop {
        labels::take(view, round);
        // It may wait for a member whose pod is not there.
        pods::pods(view, round);
        return;
    }
    round.next_restart = restarts::next(view, round);
    labels::take(view, round);
    seal::seal(view, round);
    quarantine::quarantine(view, round);
    ackers::ackers(view, round);
    open::open(view, round);
    replicate::replicate(view, round);
    labels::give(view, round);
    clone::clone(view, round);
    if objects::objects(view, round) == Flow::Stop {
        return;
    }
    certificates::issue(view, round);
    pods::pods(view, round);
    scale::scale(view, round);
    roll::roll(view, round);
    if round.memory.current.is_some() {
        upgrade::upgrade(view, round);
    }
    certificates::reload(view, round);
    passwords::passwords(view, round);
    disk::disk(view, round);
    config::config(view, round);
    wait::wait(view, round);
}

/// Until the first transactions exist.
fn create(view: &View<'_>, round: &mut Round) {
    if objects::objects(view, round) == Flow::Stop || certificates::issue(view, round) == Flow::Stop {
        return;
    }
    pods::pods(view, round);
    bootstrap::found(view, round);
}

#[cfg(test)]
mod tests {
    use super::testing::{three, with_spec};
    use crate::kind::MySQLClusters;
    use crate::reason::Reason;
    use stateward_core::kind::Kind;

    #[test]
    fn steady_state_does_nothing() {
        let one = with_spec(serde_json::json!({"size": 1}));
        for given in [three(), one.with_members(1)] {
            let plan = given.then(Reason::AsExpected, &[]);
            assert_eq!(plan.wake, None);
            assert_eq!(plan.memory, given.memory);
            assert!(plan.report.available.holds && !plan.report.degraded.holds);
        }
    }

    #[test]
    fn what_is_remembered_is_read_back_from_the_status() {
        // given a memory in which everything is set
        let given = super::testing::everything(three());
        let object =
            serde_json::json!({"metadata": {"name": "orders", "namespace": "ns", "uid": "u"}, "spec": {"size": 3}});
        let cluster = serde_json::from_value(object).expect("a cluster");
        let mut plan = given.plan();
        plan.memory = given.memory.clone();
        // when it is written and read back
        let status = MySQLClusters::status(&cluster, &given.intent, &given.world, &plan, given.now);
        assert_eq!(MySQLClusters::memory(&status), given.memory);
        // then the same again changes nothing
        let mut again = cluster.clone();
        again.status = Some(status.clone());
        assert_eq!(
            MySQLClusters::status(&again, &given.intent, &given.world, &plan, given.now),
            status
        );
    }

    #[test]
    fn a_paused_cluster_is_left_alone() {
        let given = three().edited(|spec| spec["paused"] = true.into()).crashed(0);
        given.then(Reason::Paused, &[]);
    }

    /// The chapters that `decide` asks.
    const CHAPTERS: &[(&str, &str)] = &[
        ("ackers", include_str!("ackers.rs")),
        ("bootstrap", include_str!("bootstrap.rs")),
        ("certificates", include_str!("certificates.rs")),
        ("clone", include_str!("clone.rs")),
        ("config", include_str!("config.rs")),
        ("disk", include_str!("disk.rs")),
        ("failover", include_str!("failover.rs")),
        ("hibernate", include_str!("hibernate.rs")),
        ("labels", include_str!("labels.rs")),
        ("objects", include_str!("objects.rs")),
        ("open", include_str!("open.rs")),
        ("passwords", include_str!("passwords.rs")),
        ("pods", include_str!("pods.rs")),
        ("quarantine", include_str!("quarantine.rs")),
        ("replicate", include_str!("replicate.rs")),
        ("roll", include_str!("roll.rs")),
        ("scale", include_str!("scale.rs")),
        ("seal", include_str!("seal.rs")),
        ("switchover", include_str!("switchover.rs")),
        ("upgrade", include_str!("upgrade.rs")),
        ("wait", include_str!("wait.rs")),
    ];

    #[test]
    fn decide_asks_every_chapter_and_no_chapter_calls_another() {
        let order = include_str!("mod.rs").split("\nfn decide(").nth(1).expect("decide");
        for (name, text) in CHAPTERS {
            assert!(order.contains(&format!("{name}::")), "decide does not ask {name}");
            let code = text.split("#[cfg(test)]").next().expect("code");
            for (other, _) in CHAPTERS.iter().filter(|(other, _)| other != name) {
                let call = format!("super::{other}::");
                assert!(!code.contains(&call), "{name} calls {other}");
            }
        }
    }
}
