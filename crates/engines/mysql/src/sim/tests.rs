//! The model itself, by actions that are issued by hand: it does what MySQL and Kubernetes do, and rules see what breaks them.

use std::collections::BTreeSet;
use std::rc::Rc;

use stateward_core::guard::Precondition;

use super::execute::{DEFAULT_SETTING, Wanted};
use super::history::begin;
use super::profile::Profile;
use super::rng::Rng;
use super::rules::name;
use super::state::Sim;
use super::subject::REAL;
use super::transactions::Writer;
use crate::GtidSet;
use crate::action::{Action, Stop};
use crate::memory::{Bootstrap, Memory};
use crate::world::{Ordinal, Process};
use stateward_core::Uid;

const NOBODY: Process = Process {
    uuid: 0,
    boot: String::new(),
};
const ZERO: Ordinal = Ordinal(0);
const ONE: Ordinal = Ordinal(1);
const TWO: Ordinal = Ordinal(2);

/// A world without operators.
fn world() -> Sim<'static> {
    let mut sim = begin(&REAL, Rng::new(7), Profile::gentle(), false);
    sim.operators.clear();
    sim
}

/// Executes an action, whatever its guards say.
fn act(sim: &mut Sim<'_>, action: Action) -> Result<(), String> {
    let wanted = Wanted {
        template: "t".into(),
        version: "9.7.4".parse().expect("a version"),
        setting: DEFAULT_SETTING,
        ..Wanted::default()
    };
    sim.execute(0, &action, &Precondition::default(), &wanted)
}

fn pass(sim: &mut Sim<'_>, time: u64) {
    sim.go_on(time, |_| false);
}

fn remember(sim: &mut Sim<'_>, change: impl FnOnce(&mut Memory)) {
    change(Rc::make_mut(&mut sim.truth.memory));
}

fn follow(member: Ordinal, source: Ordinal, acknowledge: bool) -> Action {
    Action::Replicate {
        member,
        process: NOBODY,
        source,
        source_process: NOBODY,
        acknowledge,
    }
}

fn open(member: Ordinal, acks: u32) -> Action {
    Action::Open {
        member,
        process: NOBODY,
        acks,
        holders: Vec::new(),
    }
}

fn stop_receiver(member: Ordinal) -> Action {
    Action::StopReceiver {
        member,
        process: NOBODY,
    }
}

/// A primary and two replicas, of which one acknowledges each write.
fn three() -> Sim<'static> {
    let mut sim = world();
    act(&mut sim, Action::ApplySet { replicas: 3 }).expect("a StatefulSet");
    pass(&mut sim, 5000);
    remember(&mut sim, |memory| {
        memory.bootstrap = Some(Bootstrap {
            seed: ZERO,
            first: GtidSet::default(),
        });
    });
    let found = Action::Found {
        member: ZERO,
        process: NOBODY,
    };
    act(&mut sim, found).expect("founded");
    let first = sim.transactions.gtids(&sim.truth.founded);
    remember(&mut sim, |memory| {
        memory.primary = Some(ZERO);
        memory.acks = 1;
        memory.ackers = BTreeSet::from([ONE, TWO]);
        memory.bootstrap.get_or_insert_default().first = first;
    });
    for member in [ONE, TWO] {
        let clone = Action::Clone {
            member,
            process: NOBODY,
            donor: ZERO,
            donor_process: NOBODY,
            discard: GtidSet::default(),
        };
        act(&mut sim, clone).expect("a clone");
        pass(&mut sim, 2000);
        act(&mut sim, follow(member, ZERO, true)).expect("a replica");
    }
    pass(&mut sim, 1000);
    act(&mut sim, open(ZERO, 1)).expect("a primary");
    assert_eq!(sim.broken, None);
    sim
}

fn boot(sim: &Sim<'_>, member: Ordinal) -> u32 {
    sim.by_host(member).expect("a server")
}

fn write(sim: &mut Sim<'_>, member: Ordinal) -> u16 {
    let boot = boot(sim, member);
    sim.write(boot, Writer::Client, None).expect("a transaction")
}

fn committed(sim: &Sim<'_>, member: Ordinal, tx: u16) -> bool {
    sim.data_of(member).is_some_and(|data| data.executed.has(tx))
}

fn broken(sim: &Sim<'_>) -> Option<&'static str> {
    sim.broken.as_ref().map(|broken| broken.rule)
}

#[test]
fn a_write_waits_for_an_acknowledgement() {
    // given a primary whose replicas do not receive
    let mut sim = three();
    act(&mut sim, stop_receiver(ONE)).expect("stopped");
    act(&mut sim, stop_receiver(TWO)).expect("stopped");
    let tx = write(&mut sim, ZERO);
    pass(&mut sim, 3000);
    assert!(!committed(&sim, ZERO, tx));
    // when one of them receives again
    act(&mut sim, follow(ONE, ZERO, true)).expect("following");
    pass(&mut sim, 1500);
    // then the write is committed, and the other has nothing of it
    assert!(committed(&sim, ZERO, tx) && committed(&sim, ONE, tx) && !committed(&sim, TWO, tx));
    assert_eq!(broken(&sim), None);
}

#[test]
fn a_replica_that_had_received_before_it_was_enlisted_acknowledges_only_with_a_later_one() {
    // given a write that a replica received without acknowledging
    let mut sim = three();
    act(&mut sim, stop_receiver(TWO)).expect("stopped");
    act(&mut sim, follow(ONE, ZERO, false)).expect("following");
    let tx = write(&mut sim, ZERO);
    pass(&mut sim, 1500);
    assert!(!committed(&sim, ZERO, tx) && committed(&sim, ONE, tx));
    // when it is enlisted, then nothing happens
    act(&mut sim, follow(ONE, ZERO, true)).expect("following");
    pass(&mut sim, 1500);
    assert!(!committed(&sim, ZERO, tx));
    // but with the next transaction both are acknowledged
    let nudge = Action::Nudge {
        member: ZERO,
        process: NOBODY,
    };
    act(&mut sim, nudge).expect("a transaction");
    pass(&mut sim, 1500);
    assert!(committed(&sim, ZERO, tx));
}

#[test]
fn a_restarted_server_is_sealed_and_has_what_nobody_acknowledged() {
    // given a write that waits
    let mut sim = three();
    act(&mut sim, stop_receiver(ONE)).expect("stopped");
    act(&mut sim, stop_receiver(TWO)).expect("stopped");
    let tx = write(&mut sim, ZERO);
    // when the server is killed and comes back
    sim.kill(ZERO);
    pass(&mut sim, 3000);
    // then it has committed it (MySQL bug 99370), and is read-only
    assert!(committed(&sim, ZERO, tx));
    let process = sim.process(boot(&sim, ZERO)).expect("a process");
    assert!(process.read_only && process.receiver.is_none() && !process.waits);
    // and opening it now breaks a rule, as nobody else has the write
    act(&mut sim, open(ZERO, 1)).expect("open");
    assert_eq!(broken(&sim), Some(name::EXPOSED));
}

#[test]
fn a_second_primary_breaks_a_rule_unless_the_first_is_starved() {
    for (starved, rule) in [(true, None), (false, Some(name::ONE_WRITER))] {
        // given a primary that the operator does not reach, and replicas of which one or both were stopped
        let mut sim = three();
        let node = sim.process(boot(&sim, ZERO)).expect("a process").node;
        sim.cuts[super::state::NODES][node] = true;
        act(&mut sim, stop_receiver(ONE)).expect("stopped");
        if starved {
            act(&mut sim, stop_receiver(TWO)).expect("stopped");
        }
        pass(&mut sim, 1000);
        // when one becomes the primary
        remember(&mut sim, |memory| memory.primary = Some(ONE));
        act(&mut sim, follow(TWO, ONE, true)).ok().filter(|()| starved);
        if !starved {
            let two = boot(&sim, TWO);
            sim.follow(two, ZERO, true);
        }
        act(&mut sim, open(ONE, u32::from(starved))).expect("open");
        pass(&mut sim, 500);
        // then only the starved one can be replaced
        match rule {
            None => assert_eq!(sim.broken, None),
            Some(rule) => assert!(
                sim.broken
                    .as_ref()
                    .is_some_and(|broken| broken.rule == rule || broken.rule == name::EXPOSED)
            ),
        }
    }
}

#[test]
fn what_was_received_and_not_applied_is_lost_with_the_source() {
    // given an acknowledger that has not applied a write
    let mut sim = three();
    let one = boot(&sim, ONE);
    sim.process_mut(one).expect("a process").slow_until = u64::MAX;
    write(&mut sim, ZERO);
    pass(&mut sim, 1000);
    // when it follows another source
    act(&mut sim, follow(ONE, TWO, true)).expect("following");
    // then it forgets what it acknowledged
    assert_eq!(broken(&sim), Some(name::RELAY));
}

#[test]
fn turning_the_variable_off_leaves_a_running_receiver_acknowledging() {
    // given a stop that ended after its first statement
    let mut sim = three();
    act(&mut sim, stop_receiver(TWO)).expect("stopped");
    let one = boot(&sim, ONE);
    sim.process_mut(one).expect("a process").acknowledges = false;
    // when something is written, it is acknowledged all the same
    let tx = write(&mut sim, ZERO);
    pass(&mut sim, 1500);
    assert!(committed(&sim, ZERO, tx));
}

#[test]
fn an_acknowledger_that_is_not_recorded_breaks_a_rule() {
    let mut sim = three();
    remember(&mut sim, |memory| memory.ackers = BTreeSet::from([ONE]));
    sim.changed = true;
    pass(&mut sim, 200);
    assert_eq!(broken(&sim), Some(name::RECORDED));
}

#[test]
fn a_locked_account_keeps_one_replica_away() {
    let mut sim = three();
    let expel = Action::Expel {
        primary: ZERO,
        process: NOBODY,
        member: ONE,
    };
    act(&mut sim, expel).expect("expelled");
    let tx = write(&mut sim, ZERO);
    pass(&mut sim, 2000);
    assert!(committed(&sim, TWO, tx) && !committed(&sim, ONE, tx));
}

#[test]
fn a_clone_that_fails_leaves_a_server_without_its_data() {
    // given a clone in progress
    let mut sim = three();
    let clone = Action::Clone {
        member: TWO,
        process: NOBODY,
        donor: ZERO,
        donor_process: NOBODY,
        discard: GtidSet::default(),
    };
    act(&mut sim, clone).expect("a clone");
    // when the donor ends
    sim.kill(ZERO);
    pass(&mut sim, 1000);
    // then the server says that it has executed what it dropped, and serving it breaks a rule
    let data = sim.data_of(TWO).expect("data");
    assert!(data.hollow && data.clone_error.is_some() && data.holds() == Default::default());
    act(&mut sim, follow(TWO, ONE, false)).expect("following");
    assert_eq!(broken(&sim), Some(name::ERRANT));
}

#[test]
fn pods_come_back_with_their_data() {
    let mut sim = three();
    let (tx, before) = (write(&mut sim, ZERO), sim.kube.pods[&ZERO].shown.facts.uid.clone());
    pass(&mut sim, 1000);
    let delete = Action::DeletePod {
        member: ZERO,
        uid: before.clone(),
        how: Stop::Restart,
    };
    act(&mut sim, delete).expect("deleted");
    pass(&mut sim, 5000);
    let after: Uid = sim.kube.pods[&ZERO].shown.facts.uid.clone();
    assert!(before != after && committed(&sim, ZERO, tx) && sim.kube.pods[&ZERO].shown.facts.ready);
    assert_eq!(broken(&sim), None);
}
