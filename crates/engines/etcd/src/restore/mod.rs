//! EtcdRestore: finds the backup that it names and proves it while the cluster runs on, then follows EtcdCluster control,
//! which is the only one that touches the cluster (`etcd/restore.rs`).
//!
//! The status is the memory: an attempt's pod is named in it before the pod is made, and what was proven does not change.

mod fetch;
mod follow;
mod kind;
mod report;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::api::etcd_restore::{EtcdRestoreStatus, RestorePhase};
use crate::api::{EtcdBackup, EtcdCluster, EtcdRestore};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::agent::Agent;
pub use crate::backup::Effect;
use crate::cluster::facts::cannot_read;
use crate::cluster::{Note, RequestState, RestoreRequest, Uid};
use crate::reason::{Cause, Reason};
pub use kind::Restore;

/// Everything observed in one round.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// The cluster to put back.
    pub cluster: Option<Arc<EtcdCluster>>,
    /// The EtcdBackup that is named.
    pub backup: Option<Arc<EtcdBackup>>,
    /// Pods that this EtcdRestore (by UID) owns, by name.
    pub agents: BTreeMap<String, Agent>,
    /// A Secret that pods would mount and that is not there, in words that say what to do.
    pub missing: Option<String>,
    /// The image with the `stateward` program.
    pub image: String,
}

/// What a round decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The complete status. Written, when it differs, before the effects.
    pub status: EtcdRestoreStatus,
    /// What to carry out, in order.
    pub effects: Vec<Effect>,
    /// When to look again even if nothing is heard.
    pub wake: Option<Duration>,
}

struct View<'a> {
    restore: &'a EtcdRestore,
    world: &'a World,
    now: Timestamp,
}

/// One decision's answer.
#[derive(Default)]
struct Step {
    effects: Vec<Effect>,
    /// What is done or waited for, and why.
    words: Option<(Cause, String)>,
    wake: Option<Duration>,
}

impl Step {
    fn say(reason: impl Into<Cause>, message: impl Into<String>) -> Self {
        Self {
            words: Some((reason.into(), message.into())),
            ..Self::default()
        }
    }

    fn with(mut self, effects: impl IntoIterator<Item = Effect>) -> Self {
        self.effects.extend(effects);
        self
    }

    fn wake(mut self, after: Duration) -> Self {
        self.wake = Some(after);
        self
    }
}

impl<'a> View<'a> {
    fn name(&self) -> &'a str {
        self.restore.metadata.name.as_deref().unwrap_or_default()
    }

    fn uid(&self) -> &'a str {
        self.restore.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Times in a status have whole seconds.
    fn stamp(&self) -> Time {
        Time(Timestamp::from_second(self.now.as_second()).unwrap_or(self.now))
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
pub fn plan(restore: &EtcdRestore, world: &World, now: Timestamp) -> Plan {
    let old = restore.status.clone().unwrap_or_default();
    let mut status = old.clone();
    let view = View { restore, world, now };
    if is_the_old_operators(&old) || restore.metadata.deletion_timestamp.is_some() {
        return Plan {
            status,
            effects: Vec::new(),
            wake: None,
        };
    }
    let step = decide(&view, &mut status);
    report::report(&view, &old, &mut status, &step);
    Plan {
        status,
        effects: step.effects,
        wake: step.wake,
    }
}

/// Done, or given up, by the operator before this one: it must not happen a second time.
fn is_the_old_operators(status: &EtcdRestoreStatus) -> bool {
    status.observed_generation.is_none() && (status.succeeded || !status.reason.is_empty())
}

fn decide(view: &View<'_>, status: &mut EtcdRestoreStatus) -> Step {
    let edited = status.observed_generation != view.restore.metadata.generation;
    match status.phase {
        Some(RestorePhase::Complete) => return sweep(view),
        Some(RestorePhase::Failed) if !edited || status.source.is_some() => return Step::default(),
        Some(RestorePhase::Failed) => {
            // A corrected spec is tried at once.
            status.phase = None;
            status.retry_at = None;
            status.reason.clear();
        }
        _ => {}
    }
    if status.started_at.is_none() {
        status.started_at = Some(view.stamp());
    }
    if status.source.is_some() {
        return follow::follow(view, status);
    }
    if let Some(problem) = view.restore.problems().first() {
        return fail(
            status,
            Reason::InvalidSpec,
            format!("spec.{}: {}", problem.field, problem.message),
        );
    }
    fetch::fetch(view, status)
}

/// It ends here. Nothing of the cluster was touched, or the cluster says what became of it.
fn fail(status: &mut EtcdRestoreStatus, reason: impl Into<Cause>, message: String) -> Step {
    let reason = reason.into();
    status.phase = Some(RestorePhase::Failed);
    status.succeeded = false;
    status.reason.clone_from(&message);
    status.retry_at = None;
    status.agent.clear();
    let note = tell(true, Reason::RestoreFailed, format!("{reason}: {message}"));
    Step::say(reason, message).with([note])
}

/// The pods have said what they had to say.
fn sweep(view: &View<'_>) -> Step {
    let agents = view.world.agents.iter();
    Step::default().with(
        agents
            .filter(|(_, agent)| agent.terminating.is_none())
            .map(|(name, agent)| Effect::DeletePod {
                name: name.clone(),
                uid: agent.uid.clone(),
            })
            .collect::<Vec<_>>(),
    )
}

/// What EtcdCluster control sees of an EtcdRestore. `None`: it is complete, or another operator's.
pub fn request(restore: &EtcdRestore, cluster: &EtcdCluster) -> Option<RestoreRequest> {
    let status = restore.status.clone().unwrap_or_default();
    if status.phase == Some(RestorePhase::Complete) || is_the_old_operators(&status) {
        return None;
    }
    let state = match (&status.source, status.phase) {
        (_, Some(RestorePhase::Failed)) => RequestState::Failed(status.reason.clone()),
        (Some(source), _) => match too_new(&source.cluster_version, cluster) {
            Some(why) => RequestState::Failed(why),
            None => RequestState::Proven(Box::new(source.clone())),
        },
        (None, _) => RequestState::Fetching,
    };
    Some(RestoreRequest {
        uid: Uid(restore.metadata.uid.clone()?),
        name: restore.metadata.name.clone()?,
        recovery: is_recovery(restore, cluster),
        backup: restore.spec.backup_ref.as_ref().map(|reference| reference.name.clone()),
        state,
    })
}

/// Why the cluster that is wished for could not read a backup.
fn too_new(cluster_version: &str, cluster: &EtcdCluster) -> Option<String> {
    let why = cannot_read(cluster_version, &cluster.version().ok()?)?;
    Some(format!("{why}, then create the EtcdRestore again"))
}

/// EtcdCluster control made it, for a recovery from quorum loss.
fn is_recovery(restore: &EtcdRestore, cluster: &EtcdCluster) -> bool {
    let owners = restore.metadata.owner_references.iter().flatten();
    owners
        .map(|owner| Some(owner.uid.as_str()))
        .any(|uid| uid == cluster.metadata.uid.as_deref())
}
