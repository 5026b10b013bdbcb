//! Metrics about MySQLClusters, taken from their statuses when somebody asks.

use std::sync::Arc;

use kube::ResourceExt;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use stateward_core::conditions::is_true;
use stateward_mysql::MySQLCluster;

/// A MySQLCluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClusterLabel {
    namespace: String,
    name: String,
}

/// A condition of a MySQLCluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConditionLabel {
    namespace: String,
    name: String,
    condition: String,
}

/// A member of a MySQLCluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MemberLabel {
    namespace: String,
    name: String,
    member: String,
}

/// Metrics about MySQLClusters.
#[derive(Clone, Default)]
pub struct Metrics {
    wanted: Family<ClusterLabel, Gauge>,
    ready: Family<ClusterLabel, Gauge>,
    epoch: Family<ClusterLabel, Gauge>,
    acks: Family<ClusterLabel, Gauge>,
    lag: Family<MemberLabel, Gauge>,
    conditions: Family<ConditionLabel, Gauge>,
}

impl Metrics {
    /// Adds them to a registry.
    pub fn register(&self, registry: &mut Registry) {
        for (name, help, family) in [
            ("members_wanted", "spec.size of a MySQLCluster", &self.wanted),
            ("members_ready", "Members of a MySQLCluster that serve", &self.ready),
            (
                "epoch",
                "How often the primary of a MySQLCluster has changed",
                &self.epoch,
            ),
            (
                "acks",
                "Replicas that acknowledge each write of a MySQLCluster",
                &self.acks,
            ),
        ] {
            registry.register(format!("mysql_{name}"), help, family.clone());
        }
        let help = "How far a replica of a MySQLCluster is behind its primary";
        registry.register("mysql_lag_seconds", help, self.lag.clone());
        let help = "1 while this condition of a MySQLCluster is true";
        registry.register("mysql_condition", help, self.conditions.clone());
    }

    /// Takes them from the objects.
    pub(crate) fn set(&self, clusters: &[Arc<MySQLCluster>]) {
        for family in [&self.wanted, &self.ready, &self.epoch, &self.acks] {
            family.clear();
        }
        self.lag.clear();
        self.conditions.clear();
        for cluster in clusters {
            let (namespace, name) = (cluster.namespace().to_owned(), cluster.name_any());
            let label = ClusterLabel {
                namespace: namespace.clone(),
                name: name.clone(),
            };
            let status = cluster.status.clone().unwrap_or_default();
            self.wanted.get_or_create(&label).set(cluster.spec.size.into());
            self.ready.get_or_create(&label).set(status.ready_members.into());
            self.epoch.get_or_create(&label).set(status.epoch);
            self.acks.get_or_create(&label).set(status.acks.into());
            for member in &status.members {
                let label = MemberLabel {
                    namespace: namespace.clone(),
                    name: name.clone(),
                    member: member.name.clone(),
                };
                if let Some(lag) = member.lag_seconds {
                    self.lag.get_or_create(&label).set(lag);
                }
            }
            for condition in &status.conditions {
                let label = ConditionLabel {
                    namespace: namespace.clone(),
                    name: name.clone(),
                    condition: condition.type_.clone(),
                };
                let holds = is_true(&status.conditions, &condition.type_);
                self.conditions.get_or_create(&label).set(holds.into());
            }
        }
    }
}
