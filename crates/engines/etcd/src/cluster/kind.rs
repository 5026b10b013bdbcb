//! EtcdCluster as a [`Kind`]: what the worker needs to drive it.

use crate::api::EtcdCluster;
use crate::api::etcd_cluster::{EtcdClusterStatus, TlsStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stateward_core::conditions::{self, types};
use stateward_core::kind::{Action, Kind, Plan, Trouble};

use super::{Effect, Intent, LATER, Order, Reason, Record, Report, World, status};

/// EtcdCluster.
pub struct Cluster;

/// What an operator decides where an EtcdCluster says nothing.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The image with the `stateward` program.
    pub agent_image: String,
    /// Clusters that say nothing of storage keep their data only as long as their pods live, as with the old operator.
    pub ephemeral_by_default: bool,
}

impl Kind for Cluster {
    const NAME: &'static str = "EtcdCluster";

    type Object = EtcdCluster;
    type Status = EtcdClusterStatus;
    type Intent = Intent;
    type Memory = Record;
    type World = World;
    type Report = Report;
    type Action = Order;
    type Settings = Settings;

    fn memory(status: &EtcdClusterStatus) -> Record {
        status::record(status)
    }

    fn intent(cluster: &EtcdCluster, record: &Record, settings: &Settings) -> Result<Intent, String> {
        match Intent::of(cluster, settings.ephemeral_by_default) {
            Ok(intent) => Ok(Intent {
                agent_image: settings.agent_image.clone(),
                ..intent.at(record)
            }),
            Err(problem) => Err(problem.to_string()),
        }
    }

    fn plan(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan<Self> {
        let plan = super::plan(intent, record, world, now);
        let effects = plan.effects.into_iter();
        Plan {
            memory: plan.record,
            report: plan.report,
            actions: effects.map(|effect| Order::of(effect, intent, world)).collect(),
            // The driver is told by itself when a silent member speaks.
            wake: plan
                .wake
                .map(|wake| if plan.awaits_word { wake.max(LATER) } else { wake }),
        }
    }

    fn status(
        cluster: &EtcdCluster,
        intent: &Intent,
        world: &World,
        plan: &Plan<Self>,
        now: Timestamp,
    ) -> EtcdClusterStatus {
        let old = Self::stored(cluster);
        let mut new = status::status(&old, intent, &plan.memory, &plan.report, now);
        if let Some(end) = world.certificates_end {
            let tls = new.tls.get_or_insert_with(|| TlsStatus {
                clients: intent.client_tls,
                ..TlsStatus::default()
            });
            tls.not_after = Some(Time(end));
        }
        // What of the spec should not be there, where nothing worse is to be said.
        if let Some(problem) = cluster.tolerated().first()
            && !conditions::is_true(&new.conditions, types::DEGRADED)
        {
            let trouble = Trouble {
                reason: Reason::InvalidSpec.as_str(),
                message: problem.to_string(),
            };
            degrade(&mut new, &old, &trouble, now);
        }
        new
    }

    fn refused(cluster: &EtcdCluster, why: &str, now: Timestamp) -> EtcdClusterStatus {
        let generation = cluster.metadata.generation.unwrap_or(0);
        status::refused(&Self::stored(cluster), generation, why, now)
    }

    fn say(new: &mut EtcdClusterStatus, old: &EtcdClusterStatus, trouble: &Trouble, now: Timestamp) {
        degrade(new, old, trouble, now);
        new.waiting.clone_from(&trouble.message);
    }

    /// Mere text can wait, and who is ready while members come and go.
    fn can_wait(old: &EtcdClusterStatus, new: &EtcdClusterStatus) -> bool {
        let turns = |status: &EtcdClusterStatus| -> Vec<_> {
            let conditions = status.conditions.iter();
            conditions
                .map(|condition| (condition.type_.clone(), condition.status))
                .collect()
        };
        old.phase == new.phase
            && (old.members == new.members || conditions::is_true(&new.conditions, types::PROGRESSING))
            && old.observed_generation == new.observed_generation
            && turns(old) == turns(new)
    }
}

/// Degraded, whatever the plan alone would say.
fn degrade(new: &mut EtcdClusterStatus, old: &EtcdClusterStatus, trouble: &Trouble, now: Timestamp) {
    let condition = trouble.condition().observed(new.observed_generation);
    conditions::turn(&mut new.conditions, &old.conditions, condition, &Time(now));
}

/// Actions of the same group go together.
#[derive(PartialEq, Eq)]
enum Group {
    Objects,
    Pods,
    Stops,
    Alone,
}

fn group(effect: &Effect) -> Group {
    match effect {
        Effect::ApplyPeerService
        | Effect::ApplyClientService
        | Effect::ApplyBudget
        | Effect::CreateClaim { .. }
        | Effect::SealPod { .. } => Group::Objects,
        Effect::CreatePod { .. } => Group::Pods,
        Effect::DeletePod { .. } => Group::Stops,
        Effect::TryPod { .. }
        | Effect::CheckNodesEnded { .. }
        | Effect::RelabelPod { .. }
        | Effect::DeleteClaim { .. }
        | Effect::DeleteUnstartedClaim { .. }
        | Effect::GrowClaim { .. }
        | Effect::AddMember { .. }
        | Effect::Promote { .. }
        | Effect::RemoveMember { .. }
        | Effect::ReleaseMember { .. }
        | Effect::UpdatePeerUrl { .. }
        | Effect::MoveLeader { .. }
        | Effect::Compact { .. }
        | Effect::Defragment { .. }
        | Effect::CompareAgain { .. }
        | Effect::Disarm { .. }
        | Effect::EnableDowngrade { .. }
        | Effect::CancelDowngrade { .. }
        | Effect::IssueCertificates { .. }
        | Effect::RequestCertificates
        | Effect::RenewCa
        | Effect::TrustCas { .. }
        | Effect::TakeBackup { .. }
        | Effect::ApplyBackup
        | Effect::DropBackup { .. }
        | Effect::RequestRestore { .. }
        | Effect::Tell(_) => Group::Alone,
    }
}

impl Action for Order {
    fn name(&self) -> &'static str {
        match self.effect {
            Effect::ApplyPeerService | Effect::ApplyClientService => "apply_service",
            Effect::ApplyBudget => "apply_budget",
            Effect::CreateClaim { .. } => "create_claim",
            Effect::CreatePod { .. } => "create_pod",
            Effect::TryPod { .. } => "try_pod",
            Effect::CheckNodesEnded { .. } => "check_nodes",
            Effect::SealPod { .. } => "seal_pod",
            Effect::RelabelPod { .. } => "relabel_pod",
            Effect::DeletePod { .. } => "delete_pod",
            Effect::DeleteClaim { .. } | Effect::DeleteUnstartedClaim { .. } => "delete_claim",
            Effect::GrowClaim { .. } => "grow_claim",
            Effect::AddMember { .. } => "add_member",
            Effect::Promote { .. } => "promote",
            Effect::RemoveMember { .. } => "remove_member",
            Effect::ReleaseMember { .. } => "release_member",
            Effect::UpdatePeerUrl { .. } => "update_peer_url",
            Effect::MoveLeader { .. } => "move_leader",
            Effect::Compact { .. } => "compact",
            Effect::Defragment { .. } => "defragment",
            Effect::CompareAgain { .. } => "compare_again",
            Effect::Disarm { .. } => "disarm",
            Effect::EnableDowngrade { .. } => "enable_downgrade",
            Effect::CancelDowngrade { .. } => "cancel_downgrade",
            Effect::IssueCertificates { .. } => "issue_certificates",
            Effect::RequestCertificates => "request_certificates",
            Effect::RenewCa => "renew_authority",
            Effect::TrustCas { .. } => "trust_authorities",
            Effect::TakeBackup { .. } => "take_backup",
            Effect::ApplyBackup => "apply_backup",
            Effect::DropBackup { .. } => "drop_backup",
            Effect::RequestRestore { .. } => "request_restore",
            Effect::Tell(_) => "tell",
        }
    }

    fn is_note(&self) -> bool {
        matches!(self.effect, Effect::Tell(_))
    }

    fn goes_with(&self, next: &Self) -> bool {
        let group = group(&self.effect);
        group != Group::Alone && group == self::group(&next.effect)
    }
}

#[cfg(test)]
mod tests {
    use stateward_core::conditions::{Condition, ConditionStatus};

    use super::*;

    #[test]
    fn a_trouble_that_stays_changes_nothing_in_the_status() {
        let healthy = |now: Timestamp, old: &EtcdClusterStatus| {
            let mut new = old.clone();
            let condition = Condition::new(types::DEGRADED, ConditionStatus::False, "AsExpected", "");
            conditions::set(&mut new.conditions, condition, &Time(now));
            new.waiting = String::new();
            new
        };
        let at = |second: i64| Timestamp::from_second(second).unwrap_or_default();
        // given a status that tells of a trouble
        let trouble = Trouble {
            reason: stateward_core::reason::shared::POD_REFUSED,
            message: "no".into(),
        };
        let first = healthy(at(1), &EtcdClusterStatus::default());
        let mut told = healthy(at(2), &first);
        Cluster::say(&mut told, &first, &trouble, at(2));
        assert!(conditions::is_true(&told.conditions, types::DEGRADED));
        // when a later reconcile says the same
        let mut again = healthy(at(3), &told);
        Cluster::say(&mut again, &told, &trouble, at(3));
        // then nothing is to be written
        assert_eq!(again, told);
    }
}
