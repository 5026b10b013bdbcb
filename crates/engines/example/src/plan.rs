//! What to do next with a Mirror. Pure.
//!
//! The rules: a file that was served is not lost while one pod that holds it lives; there is never a second first pod; a copy
//! serves nothing that it did not fetch.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use stateward_core::Uid;
use stateward_core::guard::{self, Check, Guard};
use stateward_core::kind::{self, Kind, Plan, Trouble};
use stateward_core::pod::Facts;

use crate::api::{Mirror, MirrorStatus};

/// A Mirror.
pub struct Mirrors;

/// What the user wants, checked.
#[derive(Clone, Debug)]
pub struct Intent {
    /// The names of the pods.
    pub pods: Vec<String>,
}

/// What is remembered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// The pod that the others fetch from.
    pub primary: Option<String>,
    /// The file was served once.
    pub seeded: bool,
}

/// The pods of one Mirror.
pub type World = BTreeMap<String, Member>;

/// A pod, and what it said.
#[derive(Clone, Debug, Default)]
pub struct Member {
    /// What Kubernetes shows.
    pub facts: Facts,
    /// It holds the file; `None`: it did not answer, which proves nothing.
    pub holds: Option<bool>,
}

/// One step.
#[allow(missing_docs, reason = "the fields are named for what they are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make a pod; a `seed` starts with the file of the spec.
    Create { pod: String, seed: bool },
    /// Let a pod fetch the file from another.
    Fetch { pod: String, from: String },
    /// Delete a pod.
    Delete { pod: String, uid: Uid },
}

/// What must still be so when an action is executed, and only the pods know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// This pod holds the file.
    Holds(String),
}

impl Action {
    /// The guards.
    pub fn guards(&self, memory: &Memory) -> Vec<Guard<Fact>> {
        match self {
            Self::Create { .. } => vec![Guard::Absent],
            Self::Fetch { .. } => Vec::new(),
            Self::Delete { uid, .. } => {
                // The file stays somewhere else.
                let holds = memory.primary.iter().cloned().map(|pod| Fact::Holds(pod).into());
                holds.chain([Guard::Uid(uid.clone())]).collect()
            }
        }
    }
}

impl guard::Fact for Fact {
    /// What pods said at this moment when they were asked.
    type Facts = BTreeMap<String, Option<bool>>;
    /// The pod to ask.
    type Need = String;
    type Context = ();

    fn check(&self, said: &Self::Facts, (): &()) -> Check<String> {
        let Self::Holds(pod) = self;
        match said.get(pod) {
            Some(holds) => Check::that(*holds == Some(true), || format!("{pod} does not hold the file now")),
            None => Check::Unread(pod.clone()),
        }
    }
}

impl Kind for Mirrors {
    const NAME: &'static str = "Mirror";

    type Object = Mirror;
    type Status = MirrorStatus;
    type Intent = Intent;
    type Memory = Memory;
    type World = World;
    type Report = String;
    type Action = Action;
    type Settings = ();

    fn memory(status: &MirrorStatus) -> Memory {
        Memory {
            primary: status.primary.clone(),
            seeded: status.seeded,
        }
    }

    fn intent(mirror: &Mirror, _: &Memory, (): &()) -> Result<Intent, String> {
        if !(1..=9).contains(&mirror.spec.size) {
            return Err("spec.size: write a number from 1 to 9".into());
        }
        let name = mirror.metadata.name.as_deref().unwrap_or_default();
        let pods = (0..mirror.spec.size).map(|number| format!("{name}-{number}")).collect();
        Ok(Intent { pods })
    }

    fn plan(intent: &Intent, memory: &Memory, world: &World, _: Timestamp) -> Plan<Self> {
        let mut memory = memory.clone();
        let mut actions = Vec::new();
        let report = decide(intent, &mut memory, world, &mut actions);
        let again = !actions.is_empty() || !report.is_empty();
        Plan {
            memory,
            report,
            actions,
            wake: again.then_some(Duration::from_millis(200)),
        }
    }

    fn status(_: &Mirror, _: &Intent, world: &World, plan: &Plan<Self>, _: Timestamp) -> MirrorStatus {
        MirrorStatus {
            primary: plan.memory.primary.clone(),
            seeded: plan.memory.seeded,
            serving: world.values().filter(|member| member.holds == Some(true)).count(),
            waiting: plan.report.clone(),
        }
    }

    fn refused(mirror: &Mirror, why: &str, _: Timestamp) -> MirrorStatus {
        MirrorStatus {
            waiting: why.into(),
            ..Self::stored(mirror)
        }
    }

    fn say(new: &mut MirrorStatus, _: &MirrorStatus, trouble: &Trouble, _: Timestamp) {
        new.waiting.clone_from(&trouble.message);
    }
}

/// The decision: what is remembered and done, and what is waited for.
fn decide(intent: &Intent, memory: &mut Memory, world: &World, actions: &mut Vec<Action>) -> String {
    let holds = |pod: &String| world.get(pod).is_some_and(|member| member.holds == Some(true));
    let Some(primary) = memory.primary.clone() else {
        memory.primary = intent.pods.first().cloned();
        return "choosing the first pod".into();
    };
    if !holds(&primary) {
        return recover(&primary, memory, world, actions);
    }
    memory.seeded = true;
    // A primary that is to go hands its role to a copy that stays.
    if !intent.pods.contains(&primary) {
        let successor = intent.pods.iter().find(|pod| holds(pod)).cloned();
        let waits = successor.is_none();
        memory.primary = successor.or(Some(primary.clone()));
        if !waits {
            return format!("another pod takes the place of {primary}");
        }
    }
    for pod in &intent.pods {
        match world.get(pod) {
            None => actions.push(Action::Create {
                pod: pod.clone(),
                seed: false,
            }),
            Some(member) if member.holds == Some(false) => actions.push(Action::Fetch {
                pod: pod.clone(),
                from: primary.clone(),
            }),
            Some(_) => {}
        }
    }
    for (pod, member) in world {
        let leaves = !intent.pods.contains(pod) && *pod != primary;
        if !member.facts.terminating && (leaves || member.facts.ended) {
            actions.push(Action::Delete {
                pod: pod.clone(),
                uid: member.facts.uid.clone(),
            });
        }
    }
    match intent.pods.iter().find(|pod| !holds(pod)) {
        Some(pod) => format!("waiting until {pod} serves"),
        None => String::new(),
    }
}

/// The primary does not hold the file, as far as is known.
fn recover(primary: &str, memory: &mut Memory, world: &World, actions: &mut Vec<Action>) -> String {
    // One that does not answer may hold it all the same.
    let lost = world.get(primary).is_none_or(|member| member.holds == Some(false));
    let copy = world.iter().find(|(_, member)| member.holds == Some(true));
    match copy {
        Some((copy, _)) if lost => {
            memory.primary = Some(copy.clone());
            format!("{copy} takes the place of {primary}, which lost the file")
        }
        None if !memory.seeded && !world.contains_key(primary) => {
            actions.push(Action::Create {
                pod: primary.into(),
                seed: true,
            });
            format!("waiting until {primary} serves")
        }
        _ => format!("waiting until {primary} answers"),
    }
}

impl kind::Action for Action {
    fn name(&self) -> &'static str {
        match self {
            Self::Create { .. } => "create_pod",
            Self::Fetch { .. } => "fetch",
            Self::Delete { .. } => "delete_pod",
        }
    }

    fn is_note(&self) -> bool {
        false
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { pod, seed: true } => write!(f, "create pod {pod} with the file"),
            Self::Create { pod, seed: false } => write!(f, "create pod {pod}"),
            Self::Fetch { pod, from } => write!(f, "let {pod} fetch from {from}"),
            Self::Delete { pod, uid } => write!(f, "delete pod {pod} (uid {uid})"),
        }
    }
}
