//! MySQLCluster as a [`Kind`]: what the worker needs to drive it.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stateward_core::conditions;
use stateward_core::kind::{Kind, Plan, Trouble};

use crate::action::Action;
use crate::api::{MySQLCluster, MySQLClusterStatus};
use crate::intent::Intent;
use crate::memory::Memory;
use crate::plan::report::Report;
use crate::status;
use crate::world::World;

/// MySQLCluster.
pub struct MySQLClusters;

/// Settings of the operator that decide what a spec means: none yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings;

impl Kind for MySQLClusters {
    const NAME: &'static str = "MySQLCluster";

    type Object = MySQLCluster;
    type Status = MySQLClusterStatus;
    type Intent = Intent;
    type Memory = Memory;
    type World = World;
    type Report = Report;
    type Action = Action;
    type Settings = Settings;

    fn memory(status: &MySQLClusterStatus) -> Memory {
        status::memory(status)
    }

    fn intent(cluster: &MySQLCluster, memory: &Memory, _: &Settings) -> Result<Intent, String> {
        Intent::of(cluster, memory).map_err(|problem| problem.to_string())
    }

    fn plan(intent: &Intent, memory: &Memory, world: &World, now: Timestamp) -> Plan<Self> {
        crate::plan::plan(intent, memory, world, now)
    }

    fn status(
        cluster: &MySQLCluster,
        intent: &Intent,
        world: &World,
        plan: &Plan<Self>,
        now: Timestamp,
    ) -> MySQLClusterStatus {
        let old = Self::stored(cluster);
        status::status(&old, intent, world, &plan.memory, &plan.report, now)
    }

    fn refused(cluster: &MySQLCluster, why: &str, now: Timestamp) -> MySQLClusterStatus {
        let generation = cluster.metadata.generation.unwrap_or(0);
        status::refused(&Self::stored(cluster), generation, why, now)
    }

    fn say(new: &mut MySQLClusterStatus, old: &MySQLClusterStatus, trouble: &Trouble, now: Timestamp) {
        let condition = trouble.condition().observed(new.observed_generation);
        conditions::turn(&mut new.conditions, &old.conditions, condition, &Time(now));
        new.waiting.clone_from(&trouble.message);
    }

    /// Text can wait, and how far a replica is behind.
    fn can_wait(old: &MySQLClusterStatus, new: &MySQLClusterStatus) -> bool {
        let turns = |status: &MySQLClusterStatus| -> Vec<_> {
            let conditions = status.conditions.iter();
            conditions
                .map(|condition| (condition.type_.clone(), condition.status))
                .collect()
        };
        old.phase == new.phase
            && old.primary == new.primary
            && old.ready_members == new.ready_members
            && old.observed_generation == new.observed_generation
            && turns(old) == turns(new)
    }
}
