//! Figures about the operator itself, for Prometheus.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum End {
    /// Nothing was to be done.
    Quiet,
    /// Something was done.
    Done,
    /// etcd or Kubernetes said: not now.
    Refused,
    /// Something failed.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct EndLabel {
    pub(crate) end: End,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct EffectLabel {
    pub(crate) effect: &'static str,
}

/// All figures.
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) rounds: Family<EndLabel, Counter>,
    pub(crate) round_seconds: Histogram,
    pub(crate) effects: Family<EffectLabel, Counter>,
    pub(crate) status_writes: Counter,
    pub(crate) clusters: Gauge,
    pub(crate) leads: Gauge,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("stateward");
        let rounds = Family::<EndLabel, Counter>::default();
        registry.register("rounds", "Rounds of all clusters by how they ended", rounds.clone());
        let round_seconds = Histogram::new(exponential_buckets(0.001, 2.0, 15));
        registry.register("round_seconds", "How long rounds take", round_seconds.clone());
        let effects = Family::<EffectLabel, Counter>::default();
        registry.register("effects", "Effects that were carried out", effects.clone());
        let status_writes = Counter::default();
        registry.register("status_writes", "Writes of statuses", status_writes.clone());
        let clusters = Gauge::default();
        registry.register("clusters", "EtcdClusters that are looked after", clusters.clone());
        let leads = Gauge::default();
        registry.register("leads", "1 while this operator acts", leads.clone());
        Self {
            registry,
            rounds,
            round_seconds,
            effects,
            status_writes,
            clusters,
            leads,
        }
    }

    /// In Prometheus' text format.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        match prometheus_client::encoding::text::encode(&mut text, &self.registry) {
            Ok(()) => text,
            Err(_) => String::new(),
        }
    }
}
