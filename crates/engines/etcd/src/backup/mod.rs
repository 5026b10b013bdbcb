//! EtcdBackup: what to do next, decided from the object with its status, what was observed and the time.
//!
//! Each file is one decision. The status is the memory: an attempt's number and pod are written to it before the pod is
//! made, and the pod's name follows from the number, so that neither a crash nor a second operator makes two.

mod attempt;
mod deletion;
mod effect;
mod follow;
mod kind;
pub(crate) mod manifests;
mod outcome;
mod point;
mod refuse;
mod report;
mod schedule;
mod shared;
mod verify;
mod world;

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::api::etcd_backup::{BackupPlan, DeletionPolicy, EtcdBackupStatus};
use crate::api::{EtcdBackup, names};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stateward_core::schedule::later;

pub use effect::Effect;
pub use kind::Backup;
pub(crate) use kind::next_look;
pub use outcome::RECORDS;
pub use point::point;
pub use shared::{Sharer, share, sharer};
pub(crate) use world::image_pull_secrets;
pub use world::{ClusterSource, Source, World};

use crate::agent::Agent;
use crate::cluster::{Note, Uid};
use crate::reason::{Cause, Reason};

/// What a round decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The complete status. Written, when it differs, before the effects.
    pub status: EtcdBackupStatus,
    /// What to carry out, in order.
    pub effects: Vec<Effect>,
    /// When to look again even if nothing is heard. `None`: nothing but an event can change anything.
    pub wake: Option<Duration>,
}

/// A pod that is being deleted for longer is on a node that does not answer, and one whose node has been dead for longer will
/// not be heard of: it is not waited for any more. It may work on all the same, which harms nothing: each attempt
/// writes under names of its own, and segments of two streams fit together.
const STUCK: Duration = Duration::from_secs(600);
/// A pod that has not started after this time is given up.
const NEVER_STARTED: Duration = Duration::from_secs(600);

/// Everything a decision may look at.
struct View<'a> {
    backup: &'a EtcdBackup,
    world: &'a World,
    now: Timestamp,
}

/// What is said of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Words {
    activity: Activity,
    reason: Cause,
    /// A sentence: what is done or waited for, and where it helps, what to do.
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    /// Nothing is to be done now.
    Idle,
    /// Something is under way.
    Working,
    /// It stands still until somebody does something, or until the next try.
    Blocked,
}

/// One decision's answer.
#[derive(Clone, Debug, Default, PartialEq)]
struct Step {
    effects: Vec<Effect>,
    words: Option<Words>,
    wake: Option<Duration>,
}

impl Step {
    fn say(activity: Activity, reason: impl Into<Cause>, message: impl Into<String>) -> Self {
        Self {
            words: Some(Words {
                activity,
                reason: reason.into(),
                message: message.into(),
            }),
            ..Self::default()
        }
    }

    fn with(mut self, effects: impl IntoIterator<Item = Effect>) -> Self {
        self.effects.extend(effects);
        self
    }

    fn wake(mut self, after: Duration) -> Self {
        self.wake = Some(self.wake.map_or(after, |wake| wake.min(after)));
        self
    }

    /// This step first, then the other; the first that has words has the say.
    fn and(mut self, other: Self) -> Self {
        self.effects.extend(other.effects);
        self.words = self.words.or(other.words);
        self.wake = self.wake.into_iter().chain(other.wake).min();
        self
    }
}

impl<'a> View<'a> {
    fn name(&self) -> &'a str {
        self.backup.metadata.name.as_deref().unwrap_or_default()
    }

    fn plan(&self) -> &'a BackupPlan {
        &self.backup.spec.plan
    }

    fn stamp(&self) -> Time {
        stamp(self.now)
    }

    /// The time until then; nothing when it is over.
    fn until(&self, then: Timestamp) -> Duration {
        Duration::try_from(then.duration_since(self.now)).unwrap_or_default()
    }

    /// The time since then.
    fn since(&self, then: Timestamp) -> Duration {
        Duration::try_from(self.now.duration_since(then)).unwrap_or_default()
    }

    /// A pod that is there and may still work.
    fn may_work(&self, agent: &Agent) -> bool {
        !agent.is_over() && !self.is_stuck(agent)
    }

    /// Its node does not answer: it is seen to be dead, or the pod has been deleted for long and is still there.
    fn is_stuck(&self, agent: &Agent) -> bool {
        let signs = [agent.terminating, agent.node_dead];
        signs.into_iter().flatten().any(|since| self.since(since) > STUCK)
    }
}

/// Times in a status have whole seconds.
fn stamp(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

fn stop(name: &str, agent: &Agent) -> Effect {
    Effect::DeletePod {
        name: name.to_owned(),
        uid: agent.uid.clone(),
    }
}

fn tell(warning: bool, reason: Reason, message: impl Into<String>) -> Effect {
    Effect::Tell(Note {
        warning,
        reason,
        message: message.into(),
    })
}

/// Decides one round.
pub fn plan(backup: &EtcdBackup, world: &World, now: Timestamp) -> Plan {
    let old = backup.status.clone().unwrap_or_default();
    let mut status = old.clone();
    let view = View { backup, world, now };
    if attempt::is_the_old_operators(&view, &old) {
        return Plan {
            status,
            effects: Vec::new(),
            wake: None,
        };
    }
    let step = if backup.metadata.deletion_timestamp.is_some() {
        deletion::delete(&view, &mut status)
    } else if let Some(problem) = refuse::problem(backup) {
        refuse::refuse(&mut status, Reason::InvalidSpec, &problem)
    } else if let Some(step) = shared::refuse(&view, &mut status) {
        step
    } else {
        finalizers(&view)
            .and(attempt::attempt(&view, &mut status))
            .and(follow::follow(&view, &mut status))
    };
    report::report(&view, &old, &mut status, step.words.as_ref());
    Plan {
        status,
        effects: step.effects,
        wake: step.wake,
    }
}

/// The finalizers that the object must carry, before there is anything that they are for.
fn finalizers(view: &View<'_>) -> Step {
    let wanted = |finalizer: &str| match finalizer {
        names::FINALIZER_PERIODIC_BACKUP => view.plan().is_periodic(),
        names::FINALIZER_BACKUP_FILES => view.plan().deletion_policy == Some(DeletionPolicy::Delete),
        _ => true, // somebody else's
    };
    let there = view.backup.metadata.finalizers.clone().unwrap_or_default();
    let mut new: Vec<String> = there.iter().filter(|finalizer| wanted(finalizer)).cloned().collect();
    for ours in [names::FINALIZER_PERIODIC_BACKUP, names::FINALIZER_BACKUP_FILES] {
        if wanted(ours) && !new.iter().any(|finalizer| finalizer == ours) {
            new.push(ours.to_owned());
        }
    }
    if new == there {
        return Step::default();
    }
    Step::default().with([Effect::SetFinalizers(new)])
}

/// The UID of the object.
fn uid(backup: &EtcdBackup) -> Uid {
    Uid(backup.metadata.uid.clone().unwrap_or_default())
}
