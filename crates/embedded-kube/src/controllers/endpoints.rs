//! Endpoints of Services: EndpointSlices, and the older Endpoints beside them.
//!
//! The endpoints of services without a selector belong to the client that wrote them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort as OldPort, EndpointSubset, Endpoints, Node, ObjectReference, Pod, Service,
};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::{Api, Resource, ResourceExt};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Error;
use super::world::{World, passes, unless_moved_on};

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslice-controller.k8s.io";
const HEADLESS: &str = "service.kubernetes.io/headless";
const ZONE: &str = "topology.kubernetes.io/zone";

pub(crate) async fn run(world: Arc<World>, stop: CancellationToken) {
    let wake = Arc::new(Notify::new());
    world.services.wakes(&wake);
    world.pods.wakes(&wake);
    world.slices.wakes(&wake);
    world.endpoints.wakes(&wake);
    world.nodes.wakes(&wake);
    passes("endpoints", wake, stop, || pass(&world)).await;
}

async fn pass(world: &World) -> Result<Option<Duration>, Error> {
    let pods = world.pods.all();
    let slices = world.slices.all();
    let mut failed = None;
    for service in world.services.all() {
        let spec = service.spec.clone().unwrap_or_default();
        let selector = spec.selector.unwrap_or_default();
        let external = spec.type_.as_deref() == Some("ExternalName");
        if selector.is_empty() || external || service.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let mut members: Vec<&Pod> = pods
            .iter()
            .map(AsRef::as_ref)
            .filter(|pod| pod.namespace() == service.namespace() && has_labels(pod, &selector) && is_reachable(pod))
            .collect();
        members.sort_by_key(|pod| pod.name_any());
        let groups = group(&service, &members, |node| world.nodes.named(node));
        let outcome = async {
            write_slices(world, &service, &groups, &slices).await?;
            write_endpoints(world, &service, &groups).await
        };
        if let Err(error) = outcome.await {
            failed = Some(error);
        }
    }
    failed.map_or(Ok(None), Err)
}

fn has_labels(pod: &Pod, selector: &BTreeMap<String, String>) -> bool {
    selector
        .iter()
        .all(|(key, value)| pod.labels().get(key).is_some_and(|found| found == value))
}

/// Has an address and has not ended.
fn is_reachable(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    !over && status.pod_ip.as_deref().is_some_and(|address| !address.is_empty())
}

/// Endpoints that listen on the same ports. Named target ports can differ from pod to pod.
#[derive(Clone, Debug, PartialEq)]
struct Group {
    ports: Vec<EndpointPort>,
    endpoints: Vec<Endpoint>,
}

/// PURE. The endpoints that a service should have. There is always one group, which may be empty, so that a service
/// without pods differs from one that was not processed.
fn group(service: &Service, members: &[&Pod], node: impl Fn(&str) -> Option<Arc<Node>>) -> Vec<Group> {
    let publish_unready = service.spec.as_ref().and_then(|spec| spec.publish_not_ready_addresses) == Some(true);
    let mut groups: Vec<Group> = Vec::new();
    for pod in members {
        let Some(address) = pod.status.as_ref().and_then(|status| status.pod_ip.clone()) else {
            continue;
        };
        let spec = pod.spec.clone().unwrap_or_default();
        let serving = is_ready(pod);
        let terminating = pod.metadata.deletion_timestamp.is_some();
        let zone = spec
            .node_name
            .as_deref()
            .and_then(&node)
            .and_then(|node| node.labels().get(ZONE).cloned());
        let endpoint = Endpoint {
            addresses: vec![address],
            conditions: Some(EndpointConditions {
                ready: Some(publish_unready || serving && !terminating),
                serving: Some(serving),
                terminating: Some(terminating),
            }),
            hostname: spec
                .hostname
                .filter(|name| !name.is_empty() && spec.subdomain.as_ref() == service.metadata.name.as_ref()),
            node_name: spec.node_name,
            target_ref: Some(ObjectReference {
                kind: Some("Pod".to_owned()),
                namespace: pod.namespace(),
                name: pod.metadata.name.clone(),
                uid: pod.uid(),
                ..ObjectReference::default()
            }),
            zone,
            ..Endpoint::default()
        };
        let ports = ports_on(service, pod);
        // A pod without any of a service's ports is no endpoint of it; a headless service may have no ports at all.
        if ports.is_empty()
            && service
                .spec
                .as_ref()
                .is_some_and(|spec| spec.ports.iter().flatten().next().is_some())
        {
            continue;
        }
        match groups.iter_mut().find(|group| group.ports == ports) {
            Some(group) => group.endpoints.push(endpoint),
            None => groups.push(Group {
                ports,
                endpoints: vec![endpoint],
            }),
        }
    }
    if groups.is_empty() {
        groups.push(Group {
            ports: ports_on(service, &Pod::default()),
            endpoints: Vec::new(),
        });
    }
    groups
}

fn ports_on(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
            let number = match &port.target_port {
                None | Some(IntOrString::Int(0)) => port.port,
                Some(IntOrString::Int(number)) => *number,
                Some(IntOrString::String(name)) => named_port(pod, name, &protocol)?,
            };
            Some(EndpointPort {
                name: Some(port.name.clone().unwrap_or_default()),
                port: Some(number),
                protocol: Some(protocol),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect()
}

fn named_port(pod: &Pod, name: &str, protocol: &str) -> Option<i32> {
    let spec = pod.spec.as_ref()?;
    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|init| init.restart_policy.as_deref() == Some("Always"));
    let mut ports = spec
        .containers
        .iter()
        .chain(sidecars)
        .flat_map(|container| container.ports.iter().flatten());
    ports
        .find(|port| port.name.as_deref() == Some(name) && port.protocol.as_deref().unwrap_or("TCP") == protocol)
        .map(|port| port.container_port)
}

/// The pod's Ready condition.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

async fn write_slices(
    world: &World,
    service: &Service,
    groups: &[Group],
    slices: &[Arc<EndpointSlice>],
) -> Result<(), Error> {
    let namespace = service.namespace().unwrap_or_default();
    let api: Api<EndpointSlice> = Api::namespaced(world.client.clone(), &namespace);
    let mut existing: Vec<&Arc<EndpointSlice>> = slices
        .iter()
        .filter(|slice| {
            let owned = slice
                .owner_references()
                .iter()
                .any(|owner| Some(&owner.uid) == service.uid().as_ref());
            let label = |key: &str| slice.labels().get(key).map(String::as_str);
            slice.namespace().as_deref() == Some(&namespace)
                && label(MANAGED_BY) == Some(MANAGER)
                && label(SERVICE_NAME) == service.metadata.name.as_deref()
                && owned
        })
        .collect();
    existing.sort_by_key(|slice| slice.name_any());
    for group in groups {
        let wanted = slice(service, group);
        let position = existing
            .iter()
            .position(|slice| slice.ports.as_deref().unwrap_or_default() == group.ports);
        match position.map(|position| existing.remove(position)) {
            None => {
                unless_moved_on(api.create(&PostParams::default(), &wanted).await)?;
            }
            Some(old) if same_slice(old, &wanted) => {}
            Some(old) => {
                let mut new = wanted;
                new.metadata.name = old.metadata.name.clone();
                new.metadata.resource_version = old.metadata.resource_version.clone();
                unless_moved_on(api.replace(&old.name_any(), &PostParams::default(), &new).await)?;
            }
        }
    }
    for old in existing {
        unless_moved_on(api.delete(&old.name_any(), &DeleteParams::default()).await)?;
    }
    Ok(())
}

fn slice(service: &Service, group: &Group) -> EndpointSlice {
    let name = service.name_any();
    let mut labels = service.labels().clone();
    labels.insert(SERVICE_NAME.to_owned(), name.clone());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    if is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    let owner = OwnerReference {
        controller: Some(true),
        block_owner_deletion: Some(true),
        ..service.owner_ref(&()).unwrap_or_default()
    };
    EndpointSlice {
        metadata: ObjectMeta {
            name: Some(format!("{name}-{}", suffix(service, &group.ports))),
            labels: Some(labels),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        address_type: "IPv4".to_owned(),
        endpoints: Some(group.endpoints.clone()),
        ports: Some(group.ports.clone()),
    }
}

/// The same service and ports give the same name, so that a slice that a pass with a stale cache creates again is
/// rejected.
fn suffix(service: &Service, ports: &[EndpointPort]) -> String {
    let text = format!(
        "{}/{}",
        service.uid().unwrap_or_default(),
        serde_json::to_string(ports).unwrap_or_default()
    );
    Sha256::digest(text)
        .iter()
        .take(5)
        .map(|byte| char::from(b"bcdfghjklmnpqrstvwxz2456789"[usize::from(byte % 27)]))
        .collect()
}

fn same_slice(old: &EndpointSlice, new: &EndpointSlice) -> bool {
    old.endpoints.as_deref().unwrap_or_default() == new.endpoints.as_deref().unwrap_or_default()
        && old.ports.as_deref().unwrap_or_default() == new.ports.as_deref().unwrap_or_default()
        && old.labels() == new.labels()
}

fn is_headless(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None")
}

async fn write_endpoints(world: &World, service: &Service, groups: &[Group]) -> Result<(), Error> {
    let namespace = service.namespace().unwrap_or_default();
    let name = service.name_any();
    let api: Api<Endpoints> = Api::namespaced(world.client.clone(), &namespace);
    let mut labels = service.labels().clone();
    labels.insert(
        "endpoints.kubernetes.io/managed-by".to_owned(),
        "endpoint-controller".to_owned(),
    );
    if is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    let wanted = Endpoints {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        subsets: Some(groups.iter().filter_map(subset).collect()),
    };
    match world.endpoints.get(&namespace, &name) {
        None => {
            unless_moved_on(api.create(&PostParams::default(), &wanted).await)?;
        }
        Some(old)
            if old.subsets.as_deref().unwrap_or_default() == wanted.subsets.as_deref().unwrap_or_default()
                && old.labels() == wanted.labels() => {}
        Some(old) => {
            let mut new = wanted;
            new.metadata.resource_version = old.metadata.resource_version.clone();
            unless_moved_on(api.replace(&name, &PostParams::default(), &new).await)?;
        }
    }
    Ok(())
}

fn subset(group: &Group) -> Option<EndpointSubset> {
    let address = |endpoint: &Endpoint| EndpointAddress {
        ip: endpoint.addresses.first().cloned().unwrap_or_default(),
        hostname: endpoint.hostname.clone(),
        node_name: endpoint.node_name.clone(),
        target_ref: endpoint.target_ref.clone(),
    };
    let condition = |endpoint: &Endpoint, ready: bool| {
        endpoint
            .conditions
            .as_ref()
            .is_some_and(|conditions| conditions.ready == Some(ready))
    };
    // A terminating pod that is not published is in neither list (Kubernetes' rule).
    let gone = |endpoint: &Endpoint| {
        endpoint
            .conditions
            .as_ref()
            .is_some_and(|c| c.terminating == Some(true) && c.ready != Some(true))
    };
    let pick = |ready: bool| -> Option<Vec<EndpointAddress>> {
        let picked: Vec<_> = group
            .endpoints
            .iter()
            .filter(|e| condition(e, ready) && !gone(e))
            .map(address)
            .collect();
        (!picked.is_empty()).then_some(picked)
    };
    let (addresses, not_ready_addresses) = (pick(true), pick(false));
    (addresses.is_some() || not_ready_addresses.is_some()).then(|| EndpointSubset {
        addresses,
        not_ready_addresses,
        ports: (!group.ports.is_empty()).then(|| group.ports.iter().map(old_port).collect()),
    })
}

fn old_port(port: &EndpointPort) -> OldPort {
    OldPort {
        name: port.name.clone().filter(|name| !name.is_empty()),
        port: port.port.unwrap_or_default(),
        protocol: port.protocol.clone(),
        app_protocol: port.app_protocol.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(spec: Value) -> Service {
        serde_json::from_value(json!({"metadata": {"name": "db", "namespace": "default"}, "spec": spec})).unwrap()
    }

    fn pod(name: &str, ready: &str, spec: Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [{"name": "c", "ports": [{"name": "client", "containerPort": 2379}]}]},
            "status": {"podIP": "127.9.0.5", "conditions": [{"type": "Ready", "status": ready}]},
        });
        json_patch::merge(&mut pod["spec"], &spec);
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_named_target_port_is_looked_up_in_each_pod() {
        let service = service(json!({"ports": [{"name": "client", "port": 80, "targetPort": "client"}]}));
        let other = json!({"containers": [{"name": "c", "ports": [{"name": "client", "containerPort": 1000}]}]});
        let (a, b) = (pod("a", "True", json!({})), pod("b", "True", other));
        let groups = group(&service, &[&a, &b], |_| None);
        let ports: Vec<_> = groups.iter().map(|group| group.ports[0].port).collect();
        assert_eq!(ports, [Some(2379), Some(1000)]);
    }

    #[test]
    fn unready_pods_are_published_only_on_request() {
        let unready = pod("a", "False", json!({}));
        let ready_of = |spec: Value| {
            let groups = group(&service(spec), &[&unready], |_| None);
            groups[0].endpoints[0].conditions.clone().unwrap()
        };
        let plain = ready_of(json!({"ports": [{"port": 80}]}));
        assert_eq!((plain.ready, plain.serving), (Some(false), Some(false)));
        let published = ready_of(json!({"ports": [{"port": 80}], "publishNotReadyAddresses": true}));
        assert_eq!((published.ready, published.serving), (Some(true), Some(false)));
    }

    #[test]
    fn a_hostname_counts_only_under_its_own_service() {
        let mine = pod("db-0", "True", json!({"hostname": "db-0", "subdomain": "db"}));
        let other = pod("x-0", "True", json!({"hostname": "x-0", "subdomain": "x"}));
        let groups = group(&service(json!({"clusterIP": "None"})), &[&mine, &other], |_| None);
        let names: Vec<_> = groups[0]
            .endpoints
            .iter()
            .map(|endpoint| endpoint.hostname.as_deref())
            .collect();
        assert_eq!(names, [Some("db-0"), None]);
        assert!(groups[0].ports.is_empty());
    }

    #[test]
    fn a_service_without_pods_has_one_empty_group_and_no_subset() {
        let groups = group(&service(json!({"ports": [{"port": 80}]})), &[], |_| None);
        assert_eq!(groups.len(), 1);
        assert_eq!(subset(&groups[0]), None);
    }
}
