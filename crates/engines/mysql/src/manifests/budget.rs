//! The disruption budget.

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::intent::Intent;

/// One member may go at a time: with a second one, every acknowledgement of a write could be on members that are gone.
pub fn budget(intent: &Intent) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: super::metadata(intent, intent.name.clone()),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(super::selector(intent)),
            // A pod that does not work protects nothing: it must not hold a drain up.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".into()),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}
