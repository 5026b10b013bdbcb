//! A simulation: seeded histories in which pods die, the operator dies between any two actions and sees the past. The rules are
//! checked at every step, and at the end the Mirror must be as the spec says.

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use stateward_core::guard::{self, Check, Fresh, Need};
use stateward_core::kind::Kind;
use stateward_core::{Uid, pod::Facts};

use crate::api::{Mirror, MirrorSpec, MirrorStatus};
use crate::plan::{Action, Member, Mirrors, World};

/// Which guards are evaluated: to prove that the simulation can fail, one is left out.
#[derive(Clone, Copy, PartialEq)]
enum Keeps {
    All,
    NotTheGuard,
}

struct Sim {
    rng: StdRng,
    mirror: Mirror,
    world: World,
    /// What the operator's caches show; the real world once they are not behind.
    shown: World,
    uids: u32,
    seeds: u32,
    keeps: Keeps,
}

impl Sim {
    fn new(seed: u64, keeps: Keeps) -> Self {
        let mut mirror = Mirror::new("m", MirrorSpec::default());
        mirror.spec.size = 3;
        Self {
            rng: StdRng::seed_from_u64(seed),
            mirror,
            world: World::new(),
            shown: World::new(),
            uids: 0,
            seeds: 0,
            keeps,
        }
    }

    fn holders(&self) -> usize {
        self.world.values().filter(|member| member.holds == Some(true)).count()
    }

    /// One reconcile, as the worker does it. It may end between any two steps.
    fn reconcile(&mut self, faults: bool) -> Result<(), String> {
        if !faults || self.rng.random_bool(0.7) {
            self.shown = self.world.clone();
        }
        let (old, world) = (Mirrors::stored(&self.mirror), self.shown.clone());
        let memory = Mirrors::memory(&old);
        let intent = Mirrors::intent(&self.mirror, &memory, &())?;
        let plan = Mirrors::plan(&intent, &memory, &world, Timestamp::UNIX_EPOCH);
        let status: MirrorStatus = Mirrors::status(&self.mirror, &intent, &world, &plan, Timestamp::UNIX_EPOCH);
        self.mirror.status = Some(status);
        for action in &plan.actions {
            if faults && self.rng.random_bool(0.1) {
                return Ok(()); // the operator dies
            }
            if self.keeps == Keeps::All && !self.holds(action, &plan.memory) {
                return Ok(());
            }
            self.execute(action)?;
        }
        Ok(())
    }

    fn holds(&self, action: &Action, memory: &crate::plan::Memory) -> bool {
        let (guards, mut said) = (action.guards(memory), Fresh::default());
        loop {
            match guard::check(&guards, &said, &()) {
                Check::Holds => return true,
                Check::Refused(_) | Check::Unread(Need::Object) => return false,
                Check::Unread(Need::Fact(pod)) => {
                    let holds = self.world.get(&pod).and_then(|member| member.holds);
                    said.facts.insert(pod, holds);
                }
            }
        }
    }

    /// What Kubernetes and the pods do.
    fn execute(&mut self, action: &Action) -> Result<(), String> {
        match action {
            Action::Create { pod, seed } if !self.world.contains_key(pod) => {
                self.uids += 1;
                self.seeds += u32::from(*seed);
                let facts = Facts {
                    uid: Uid(self.uids.to_string()),
                    ..Facts::default()
                };
                let holds = Some(*seed);
                self.world.insert(pod.clone(), Member { facts, holds });
                if self.seeds > 1 && Mirrors::memory(&Mirrors::stored(&self.mirror)).seeded {
                    return Err("a second first pod".into());
                }
            }
            Action::Fetch { pod, from } => {
                let source = self.world.get(from).is_some_and(|member| member.holds == Some(true));
                if let Some(member) = self.world.get_mut(pod).filter(|_| source) {
                    member.holds = Some(true);
                }
            }
            Action::Delete { pod, uid } => {
                let before = self.holders();
                if self.world.get(pod).is_some_and(|member| member.facts.uid == *uid) {
                    self.world.remove(pod);
                }
                if before > 0 && self.holders() == 0 {
                    return Err(format!("the last copy was deleted with {pod}"));
                }
            }
            Action::Create { .. } => {}
        }
        Ok(())
    }

    fn fault(&mut self) {
        // One pod is lost, never the last that holds the file.
        let pods: Vec<String> = self.world.keys().cloned().collect();
        if pods.is_empty() {
            return;
        }
        let pod = pods[self.rng.random_range(0..pods.len())].clone();
        let last = self.holders() == 1 && self.world[&pod].holds == Some(true);
        if !last {
            self.world.remove(&pod);
        }
    }

    fn history(mut self) -> Result<(), String> {
        for _ in 0..60 {
            match self.rng.random_range(0..10) {
                0 => self.fault(),
                1 => self.mirror.spec.size = self.rng.random_range(1..=4),
                _ => self.reconcile(true)?,
            }
        }
        for _ in 0..30 {
            self.reconcile(false)?;
        }
        let status = Mirrors::stored(&self.mirror);
        let (size, pods) = (self.mirror.spec.size, self.world.len());
        let as_wanted = pods == size && self.holders() == size && status.waiting.is_empty();
        as_wanted
            .then_some(())
            .ok_or_else(|| format!("{pods} pods of {size}: {status:?}"))
    }
}

#[test]
fn no_history_breaks_a_rule() {
    for seed in 0..3000 {
        let outcome = Sim::new(seed, Keeps::All).history();
        assert_eq!(outcome, Ok(()), "seed {seed}");
    }
}

#[test]
fn without_its_guard_a_rule_is_broken() {
    let broken = (0..3000).any(|seed| Sim::new(seed, Keeps::NotTheGuard).history().is_err());
    assert!(broken, "the guard is not needed, or the simulation does not see why");
}
