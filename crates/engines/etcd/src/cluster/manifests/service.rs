//! The two services: by the headless one members find each other before they are ready; the other leads clients to ready
//! members.

use std::collections::BTreeMap;

use crate::api::{EtcdCluster, names};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// `<cluster>`: headless, publishes members that are not ready, since they must find each other to become ready.
pub fn peer_service(cluster: &EtcdCluster) -> Service {
    let spec = ServiceSpec {
        cluster_ip: Some("None".into()),
        publish_not_ready_addresses: Some(true),
        selector: Some(names::selector(cluster.name())),
        ports: Some(vec![port("client", names::CLIENT_PORT), port("peer", names::PEER_PORT)]),
        ..ServiceSpec::default()
    };
    finished(
        cluster,
        names::peer_service(cluster.name()),
        spec,
        BTreeMap::new(),
        BTreeMap::new(),
    )
}

/// `<cluster>-client`: for clients.
pub fn client_service(cluster: &EtcdCluster) -> Service {
    let policy = cluster.spec.service.clone().unwrap_or_default();
    let type_ = policy.type_.unwrap_or_default();
    let mut client = port("client", names::CLIENT_PORT);
    client.node_port = policy.node_port;
    let spec = ServiceSpec {
        type_: Some(type_.as_str().into()),
        selector: Some(names::selector(cluster.name())),
        ports: Some(vec![client]),
        load_balancer_class: policy.load_balancer_class,
        load_balancer_source_ranges: (!policy.load_balancer_source_ranges.is_empty())
            .then_some(policy.load_balancer_source_ranges),
        ..ServiceSpec::default()
    };
    finished(
        cluster,
        names::client_service(cluster.name()),
        spec,
        policy.labels,
        policy.annotations,
    )
}

fn port(name: &str, number: i32) -> ServicePort {
    ServicePort {
        name: Some(name.into()),
        port: number,
        target_port: Some(IntOrString::Int(number)),
        protocol: Some("TCP".into()),
        ..ServicePort::default()
    }
}

fn finished(
    cluster: &EtcdCluster,
    name: String,
    spec: ServiceSpec,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
) -> Service {
    let mut metadata = super::metadata(cluster, name);
    let own = metadata.labels.take().unwrap_or_default();
    metadata.labels = Some(labels.into_iter().chain(own).collect());
    let hash = stateward_core::manifests::hash(&(&spec, &metadata.labels, &annotations));
    metadata.annotations = Some(
        annotations
            .into_iter()
            .chain([(super::ANNOTATION_METADATA.to_owned(), hash)])
            .collect(),
    );
    Service {
        metadata,
        spec: Some(spec),
        status: None,
    }
}
