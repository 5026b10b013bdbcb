//! Who may connect to members.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::intent::Intent;
use crate::names::{ADMIN_PORT, AGENT_PORT, PORT};

/// The label of Stateward's own pods, whatever the chart's release is called.
const OPERATOR: (&str, &str) = ("app.kubernetes.io/part-of", "stateward");

/// Clients and members reach MySQL's port; the ports of the operator are for the operator. Kubelets reach everything, as
/// Kubernetes prescribes it. What members connect to is not restricted.
pub fn network_policy(intent: &Intent) -> NetworkPolicy {
    let operator = NetworkPolicyPeer {
        namespace_selector: Some(LabelSelector::default()),
        pod_selector: Some(LabelSelector {
            match_labels: Some(BTreeMap::from([(OPERATOR.0.to_owned(), OPERATOR.1.to_owned())])),
            ..LabelSelector::default()
        }),
        ip_block: None,
    };
    NetworkPolicy {
        metadata: super::metadata(intent, intent.name.clone()),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(super::selector(intent)),
            policy_types: Some(vec!["Ingress".into()]),
            ingress: Some(vec![
                NetworkPolicyIngressRule {
                    from: None,
                    ports: Some(vec![port(PORT)]),
                },
                NetworkPolicyIngressRule {
                    from: Some(vec![operator]),
                    ports: Some(vec![port(ADMIN_PORT), port(AGENT_PORT)]),
                },
            ]),
            egress: None,
        }),
    }
}

fn port(number: i32) -> NetworkPolicyPort {
    NetworkPolicyPort {
        port: Some(IntOrString::Int(number)),
        protocol: Some("TCP".into()),
        end_port: None,
    }
}
