//! The disruption budget: as many members may go at once as leave a quorum.

use crate::api::{EtcdCluster, names};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// The budget of a cluster. One or two members have no quorum to keep, and a drain must not wait for ever: one may go.
pub fn budget(cluster: &EtcdCluster) -> PodDisruptionBudget {
    let may_go = ((cluster.spec.size - 1) / 2).max(1);
    let mut metadata = super::metadata(cluster, names::disruption_budget(cluster.name()));
    metadata.annotations = Some(
        [(
            super::ANNOTATION_METADATA.to_owned(),
            stateward_core::manifests::hash(&may_go),
        )]
        .into(),
    );
    PodDisruptionBudget {
        metadata,
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(may_go)),
            selector: Some(LabelSelector {
                match_labels: Some(names::selector(cluster.name())),
                ..LabelSelector::default()
            }),
            // A pod that does not work protects nothing: it must not hold a drain up.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".into()),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}
