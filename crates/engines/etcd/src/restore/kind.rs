//! EtcdRestore as a [`Kind`]: what the worker needs to drive it.

use crate::api::EtcdRestore;
use crate::api::etcd_restore::{EtcdRestoreStatus, RestorePhase};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stateward_core::conditions;
use stateward_core::kind::{Kind, Plan, Trouble};

use super::{Effect, World};
use crate::backup::next_look;

/// EtcdRestore. Its whole status is its memory.
pub struct Restore;

impl Kind for Restore {
    const NAME: &'static str = "EtcdRestore";

    type Object = EtcdRestore;
    type Status = EtcdRestoreStatus;
    type Intent = EtcdRestore;
    type Memory = EtcdRestoreStatus;
    type World = World;
    type Report = ();
    type Action = Effect;
    type Settings = ();

    fn memory(status: &EtcdRestoreStatus) -> EtcdRestoreStatus {
        status.clone()
    }

    /// What is wrong with a spec is found by the plan: it does not matter any more once the backup is proven.
    fn intent(restore: &EtcdRestore, _: &EtcdRestoreStatus, (): &()) -> Result<EtcdRestore, String> {
        Ok(restore.clone())
    }

    fn plan(restore: &EtcdRestore, _: &EtcdRestoreStatus, world: &World, now: Timestamp) -> Plan<Self> {
        let plan = super::plan(restore, world, now);
        let again = next_look(plan.wake, &plan.effects);
        Plan {
            memory: plan.status,
            report: (),
            actions: plan.effects,
            wake: again,
        }
    }

    fn status(_: &EtcdRestore, _: &EtcdRestore, _: &World, plan: &Plan<Self>, _: Timestamp) -> EtcdRestoreStatus {
        plan.memory.clone()
    }

    fn refused(restore: &EtcdRestore, _: &str, _: Timestamp) -> EtcdRestoreStatus {
        Self::stored(restore)
    }

    fn say(new: &mut EtcdRestoreStatus, old: &EtcdRestoreStatus, trouble: &Trouble, now: Timestamp) {
        if matches!(new.phase, Some(RestorePhase::Complete | RestorePhase::Failed)) {
            return; // what is said of it is final
        }
        let condition = trouble.condition().observed(new.observed_generation);
        conditions::turn(&mut new.conditions, &old.conditions, condition, &Time(now));
        new.waiting.clone_from(&trouble.message);
    }
}
