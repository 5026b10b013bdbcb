//! Metrics about the operator itself, for Prometheus.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// How a reconcile ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum End {
    /// Nothing was to be done.
    Quiet,
    /// Something was done.
    Done,
    /// The engine or Kubernetes said: not now.
    Refused,
    /// Something failed.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabel {
    end: End,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EffectLabel {
    effect: &'static str,
}

/// What the workers of all kinds count.
pub struct Metrics {
    reconciles: Family<EndLabel, Counter>,
    pub(crate) reconcile_seconds: Histogram,
    effects: Family<EffectLabel, Counter>,
    pub(crate) status_writes: Counter,
    leads: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            reconciles: Family::default(),
            reconcile_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 15)),
            effects: Family::default(),
            status_writes: Counter::default(),
            leads: Gauge::default(),
        }
    }
}

impl Metrics {
    pub(crate) fn ended(&self, end: End) {
        self.reconciles.get_or_create(&EndLabel { end }).inc();
    }

    pub(crate) fn executed(&self, effect: &'static str) {
        self.effects.get_or_create(&EffectLabel { effect }).inc();
    }

    /// Whether this operator leads.
    pub fn leads(&self, it_does: bool) {
        self.leads.set(it_does.into());
    }

    /// Adds them to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Rounds of all clusters by how they ended";
        registry.register("rounds", help, self.reconciles.clone());
        registry.register("round_seconds", "How long rounds take", self.reconcile_seconds.clone());
        registry.register("effects", "Effects that were executed", self.effects.clone());
        registry.register("status_writes", "Writes of statuses", self.status_writes.clone());
        registry.register("leads", "1 while this operator acts", self.leads.clone());
    }
}

/// In Prometheus' text format.
pub fn text(registry: &Registry) -> String {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, registry) {
        Ok(()) => text,
        Err(_) => String::new(),
    }
}
