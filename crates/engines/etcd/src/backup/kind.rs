//! EtcdBackup as a [`Kind`]: what the worker needs to drive it.

use std::time::Duration;

use crate::api::EtcdBackup;
use crate::api::etcd_backup::EtcdBackupStatus;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stateward_core::conditions;
use stateward_core::kind::{Action, Kind, Plan, Trouble};

use super::{Effect, World};

/// EtcdBackup. Its whole status is its memory: what was planned is read from there, and written before it is done.
pub struct Backup;

impl Kind for Backup {
    const NAME: &'static str = "EtcdBackup";

    type Object = EtcdBackup;
    type Status = EtcdBackupStatus;
    type Intent = EtcdBackup;
    type Memory = EtcdBackupStatus;
    type World = World;
    type Report = ();
    type Action = Effect;
    type Settings = ();

    fn memory(status: &EtcdBackupStatus) -> EtcdBackupStatus {
        status.clone()
    }

    /// What is wrong with a spec is found by the plan: an object that is being deleted must be followed all the same.
    fn intent(backup: &EtcdBackup, _: &EtcdBackupStatus, (): &()) -> Result<EtcdBackup, String> {
        Ok(backup.clone())
    }

    fn plan(backup: &EtcdBackup, _: &EtcdBackupStatus, world: &World, now: Timestamp) -> Plan<Self> {
        let plan = super::plan(backup, world, now);
        let again = next_look(plan.wake, &plan.effects);
        Plan {
            memory: plan.status,
            report: (),
            actions: plan.effects,
            wake: again,
        }
    }

    fn status(_: &EtcdBackup, _: &EtcdBackup, _: &World, plan: &Plan<Self>, _: Timestamp) -> EtcdBackupStatus {
        plan.memory.clone()
    }

    fn refused(backup: &EtcdBackup, _: &str, _: Timestamp) -> EtcdBackupStatus {
        Self::stored(backup)
    }

    fn say(new: &mut EtcdBackupStatus, old: &EtcdBackupStatus, trouble: &Trouble, now: Timestamp) {
        let condition = trouble.condition().observed(new.observed_generation);
        conditions::turn(&mut new.conditions, &old.conditions, condition, &Time(now));
        new.waiting.clone_from(&trouble.message);
        if !new.succeeded {
            new.reason.clone_from(&trouble.message);
        }
    }
}

/// What was done is looked at at once.
pub(crate) fn next_look(wake: Option<Duration>, effects: &[Effect]) -> Option<Duration> {
    let did = effects.iter().any(|effect| !effect.is_note());
    wake.into_iter().chain(did.then_some(Duration::ZERO)).min()
}

impl Action for Effect {
    fn name(&self) -> &'static str {
        match self {
            Self::SetFinalizers(_) => "set_finalizers",
            Self::CreatePod(_) => "create_agent",
            Self::DeletePod { .. } => "delete_agent",
            Self::ForgetPod { .. } => "forget_agent",
            Self::Tell(_) => "tell",
        }
    }

    fn is_note(&self) -> bool {
        matches!(self, Self::Tell(_))
    }
}
