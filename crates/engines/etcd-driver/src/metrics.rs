//! Figures about the operator itself, for Prometheus.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use stateward_core::conditions::is_true;
use stateward_etcd::api::{EtcdBackup, EtcdCluster};

use crate::caches::Caches;

/// An EtcdCluster or an EtcdBackup.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ObjectLabel {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl ObjectLabel {
    fn of(object: &ObjectMeta) -> Self {
        Self {
            namespace: object.namespace.clone().unwrap_or_default(),
            name: object.name.clone().unwrap_or_default(),
        }
    }
}

type Whole = Family<ObjectLabel, Gauge>;
type Fraction = Family<ObjectLabel, Gauge<f64, AtomicU64>>;

/// A condition of an EtcdCluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ConditionLabel {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) condition: String,
}

/// Figures about EtcdClusters, taken from their statuses when somebody asks.
#[derive(Clone, Default)]
pub(crate) struct ClusterMetrics {
    wanted: Whole,
    ready: Whole,
    certificates_end: Whole,
    conditions: Family<ConditionLabel, Gauge>,
}

impl ClusterMetrics {
    fn register(&self, registry: &mut Registry) {
        for (name, help, figure) in [
            ("members_wanted", "spec.size of an EtcdCluster", &self.wanted),
            ("members_ready", "Members of an EtcdCluster that serve", &self.ready),
            (
                "certificates_end_seconds",
                "When the first of the certificates of an EtcdCluster ends, in seconds since 1970",
                &self.certificates_end,
            ),
        ] {
            registry.register(format!("cluster_{name}"), help, figure.clone());
        }
        registry.register(
            "cluster_condition",
            "1 while this condition of an EtcdCluster is true",
            self.conditions.clone(),
        );
    }

    /// Takes them from the objects.
    fn set(&self, clusters: &[Arc<EtcdCluster>]) {
        self.wanted.clear();
        self.ready.clear();
        self.certificates_end.clear();
        self.conditions.clear();
        for cluster in clusters {
            let label = ObjectLabel::of(&cluster.metadata);
            let status = cluster.status.clone().unwrap_or_default();
            self.wanted.get_or_create(&label).set(cluster.spec.size.into());
            let ready = i64::try_from(status.members.ready.len()).unwrap_or(i64::MAX);
            self.ready.get_or_create(&label).set(ready);
            if let Some(end) = status.tls.and_then(|tls| tls.not_after) {
                self.certificates_end.get_or_create(&label).set(end.0.as_second());
            }
            for condition in &status.conditions {
                let label = ConditionLabel {
                    namespace: label.namespace.clone(),
                    name: label.name.clone(),
                    condition: condition.type_.clone(),
                };
                let holds = is_true(&status.conditions, &condition.type_);
                self.conditions.get_or_create(&label).set(holds.into());
            }
        }
    }
}

/// Figures about EtcdBackups, taken from their statuses when somebody asks.
#[derive(Clone, Default)]
pub(crate) struct BackupMetrics {
    age: Fraction,
    failures: Whole,
    size: Whole,
    seconds: Fraction,
    restorable: Fraction,
}

impl BackupMetrics {
    fn register(&self, registry: &mut Registry) {
        for (name, help, figure) in [
            ("age_seconds", "Time since the last good backup was complete", &self.age),
            ("duration_seconds", "How long the last good backup took", &self.seconds),
            (
                "restorable_age_seconds",
                "With continuous: time since the latest point that can be restored",
                &self.restorable,
            ),
        ] {
            registry.register(format!("backup_{name}"), help, figure.clone());
        }
        for (name, help, figure) in [
            ("failures", "Failed attempts since the last good backup", &self.failures),
            ("size_bytes", "Size of the last good backup", &self.size),
        ] {
            registry.register(format!("backup_{name}"), help, figure.clone());
        }
    }

    /// Takes them from the objects.
    fn set(&self, backups: &[Arc<EtcdBackup>], now: Timestamp) {
        self.age.clear();
        self.failures.clear();
        self.size.clear();
        self.seconds.clear();
        self.restorable.clear();
        for backup in backups {
            let label = ObjectLabel::of(&backup.metadata);
            let status = backup.status.clone().unwrap_or_default();
            self.failures.get_or_create(&label).set(status.consecutive_failures);
            let since = |time: Timestamp| now.duration_since(time).as_secs_f64().max(0.0);
            if let Some(done) = status.last_success_date {
                self.age.get_or_create(&label).set(since(done.0));
            }
            if let Some(time) = status.latest_restorable.and_then(|point| point.time) {
                self.restorable.get_or_create(&label).set(since(time.0));
            }
            if let Some(record) = status.backups.first() {
                self.size.get_or_create(&label).set(record.size_bytes);
                let seconds = record.duration_millis as f64 / 1000.0;
                self.seconds.get_or_create(&label).set(seconds);
            }
        }
    }
}

/// Metrics about the objects, beside those of the runtime.
pub(crate) struct ObjectMetrics {
    registry: Registry,
    each_cluster: ClusterMetrics,
    backups: BackupMetrics,
    clusters: Gauge,
}

impl ObjectMetrics {
    pub(crate) fn new(runtime: &stateward_runtime::Metrics) -> Self {
        let mut registry = Registry::with_prefix("stateward");
        runtime.register(&mut registry);
        let clusters = Gauge::default();
        registry.register("clusters", "EtcdClusters that are looked after", clusters.clone());
        let each_cluster = ClusterMetrics::default();
        each_cluster.register(&mut registry);
        let backups = BackupMetrics::default();
        backups.register(&mut registry);
        Self {
            registry,
            each_cluster,
            backups,
            clusters,
        }
    }

    /// Taken from the objects as they are now, in Prometheus' text format.
    pub(crate) fn text(&self, caches: &Caches) -> String {
        let clusters = i64::try_from(caches.clusters.count()).unwrap_or(i64::MAX);
        self.clusters.set(clusters);
        self.each_cluster.set(&caches.clusters.all());
        self.backups.set(&caches.backups.all(), Timestamp::now());
        stateward_runtime::metrics::text(&self.registry)
    }
}
