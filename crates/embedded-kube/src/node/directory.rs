//! Who is where: an in-memory view of Pods, Services and EndpointSlices from which names (DNS, hosts files), service
//! addresses (the proxy) and service variables are computed. Pure but for a lock; watches feed it.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use tokio::sync::watch;

/// The domain all names end in.
pub(crate) const DOMAIN: &str = "cluster.local";

#[derive(Clone, Debug, PartialEq, Eq)]
struct PodEntry {
    namespace: String,
    hostname: Option<String>,
    subdomain: Option<String>,
    address: Option<Ipv4Addr>,
    ready: bool,
    labels: BTreeMap<String, String>,
    ports: Vec<(String, u16)>,
}

/// One port of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServicePort {
    pub(crate) name: Option<String>,
    pub(crate) protocol: String,
    pub(crate) port: u16,
    pub(crate) node_port: Option<u16>,
    target: IntOrString,
}

/// A service as names and the proxy need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceEntry {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Absent for headless services.
    pub(crate) address: Option<Ipv4Addr>,
    pub(crate) ports: Vec<ServicePort>,
    external_name: Option<String>,
    selector: BTreeMap<String, String>,
    publish_not_ready: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SliceEntry {
    namespace: String,
    service: String,
    endpoints: Vec<(Ipv4Addr, bool, Option<String>)>,
    ports: Vec<(String, u16)>,
}

/// A place where a service can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) address: Ipv4Addr,
    pub(crate) ready: bool,
    pub(crate) hostname: Option<String>,
    ports: Vec<(String, u16)>,
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    Addresses(Vec<Ipv4Addr>),
    /// Port and target name.
    Services(Vec<(u16, String)>),
    Alias(String),
    Unknown,
}

#[derive(Default)]
struct State {
    pods: HashMap<String, PodEntry>,
    services: BTreeMap<(String, String), ServiceEntry>,
    slices: HashMap<String, SliceEntry>,
}

/// The view itself.
pub(crate) struct Directory {
    state: RwLock<State>,
    changed: watch::Sender<u64>,
}

fn address(text: &str) -> Option<Ipv4Addr> {
    text.parse().ok()
}

fn port(number: i32) -> u16 {
    u16::try_from(number).unwrap_or(0)
}

fn pod_entry(pod: &Pod) -> PodEntry {
    let spec = pod.spec.clone().unwrap_or_default();
    let status = pod.status.clone().unwrap_or_default();
    let condition = |kind: &str| {
        status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.type_ == kind && condition.status == "True")
    };
    let over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    PodEntry {
        namespace: pod.namespace().unwrap_or_default(),
        hostname: spec.hostname.clone(),
        subdomain: spec.subdomain.clone(),
        address: status.pod_ip.as_deref().and_then(address).filter(|_| !over),
        ready: condition("Ready") && pod.metadata.deletion_timestamp.is_none(),
        labels: pod.metadata.labels.clone().unwrap_or_default(),
        ports: containers
            .flat_map(|container| container.ports.iter().flatten())
            .filter_map(|p| Some((p.name.clone()?, port(p.container_port))))
            .collect(),
    }
}

fn service_entry(service: &Service) -> ServiceEntry {
    let spec = service.spec.clone().unwrap_or_default();
    let external = spec.type_.as_deref() == Some("ExternalName");
    ServiceEntry {
        namespace: service.namespace().unwrap_or_default(),
        name: service.name_any(),
        address: spec.cluster_ip.as_deref().and_then(address).filter(|_| !external),
        external_name: spec.external_name.filter(|_| external),
        selector: spec.selector.unwrap_or_default(),
        publish_not_ready: spec.publish_not_ready_addresses.unwrap_or(false),
        ports: spec
            .ports
            .into_iter()
            .flatten()
            .map(|p| ServicePort {
                target: p.target_port.unwrap_or(IntOrString::Int(p.port)),
                name: p.name,
                protocol: p.protocol.unwrap_or_else(|| "TCP".to_string()),
                port: port(p.port),
                node_port: p.node_port.map(port).filter(|port| *port != 0),
            })
            .collect(),
    }
}

fn slice_entry(slice: &EndpointSlice) -> SliceEntry {
    let service = slice
        .labels()
        .get("kubernetes.io/service-name")
        .cloned()
        .unwrap_or_default();
    let endpoints = slice.endpoints.iter().flatten().flat_map(|endpoint| {
        // An unknown state counts as ready, by the API's own rule.
        let ready = endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true);
        let addresses = endpoint.addresses.iter().filter_map(|text| address(text));
        addresses.map(move |address| (address, ready, endpoint.hostname.clone()))
    });
    SliceEntry {
        namespace: slice.namespace().unwrap_or_default(),
        service,
        endpoints: endpoints.collect(),
        ports: slice
            .ports
            .iter()
            .flatten()
            .filter_map(|p| Some((p.name.clone().unwrap_or_default(), port(p.port?))))
            .collect(),
    }
}

impl Directory {
    pub(crate) fn new() -> Self {
        Self {
            state: RwLock::default(),
            changed: watch::channel(0).0,
        }
    }

    /// Told after every change that could matter to a name or an address.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State) -> bool) {
        let changed = change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner));
        if changed {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    /// Takes in a pod. An address that is not in the object yet but was given to this pod here is kept.
    pub(crate) fn pod(&self, pod: &Pod) {
        let uid = pod.uid().unwrap_or_default();
        let mut entry = pod_entry(pod);
        let over = matches!(
            pod.status.as_ref().and_then(|s| s.phase.as_deref()),
            Some("Succeeded" | "Failed")
        );
        self.change(|state| {
            let former = state.pods.get(&uid);
            if entry.address.is_none() && !over {
                entry.address = former.and_then(|former| former.address);
            }
            let changed = former != Some(&entry);
            state.pods.insert(uid, entry);
            changed
        });
    }

    /// A pod has got its address: its name works from now on, before the API server has heard of it.
    pub(crate) fn pod_address(&self, uid: &str, address: Ipv4Addr) {
        self.change(|state| match state.pods.get_mut(uid) {
            Some(entry) if entry.address != Some(address) => {
                entry.address = Some(address);
                true
            }
            _ => false,
        });
    }

    pub(crate) fn pod_gone(&self, uid: &str) {
        self.change(|state| state.pods.remove(uid).is_some());
    }

    pub(crate) fn service(&self, service: &Service) {
        let entry = service_entry(service);
        let key = (entry.namespace.clone(), entry.name.clone());
        self.change(|state| state.services.insert(key, entry.clone()).as_ref() != Some(&entry));
    }

    pub(crate) fn service_gone(&self, namespace: &str, name: &str) {
        self.change(|state| {
            state
                .services
                .remove(&(namespace.to_string(), name.to_string()))
                .is_some()
        });
    }

    pub(crate) fn slice(&self, slice: &EndpointSlice) {
        let entry = slice_entry(slice);
        self.change(|state| {
            state
                .slices
                .insert(slice.uid().unwrap_or_default(), entry.clone())
                .as_ref()
                != Some(&entry)
        });
    }

    pub(crate) fn slice_gone(&self, uid: &str) {
        self.change(|state| state.slices.remove(uid).is_some());
    }

    /// Forgets what is not in a fresh list.
    pub(crate) fn retain_pods(&self, uids: &std::collections::HashSet<String>) {
        self.change(|state| retain(&mut state.pods, |uid| uids.contains(uid)));
    }

    pub(crate) fn retain_services(&self, names: &std::collections::HashSet<(String, String)>) {
        self.change(|state| {
            let before = state.services.len();
            state.services.retain(|name, _| names.contains(name));
            state.services.len() != before
        });
    }

    pub(crate) fn retain_slices(&self, uids: &std::collections::HashSet<String>) {
        self.change(|state| retain(&mut state.slices, |uid| uids.contains(uid)));
    }

    /// All services, of one namespace where given.
    pub(crate) fn services(&self, namespace: Option<&str>) -> Vec<ServiceEntry> {
        let state = self.state();
        let wanted = state
            .services
            .values()
            .filter(|service| namespace.is_none_or(|n| n == service.namespace));
        wanted.cloned().collect()
    }

    /// The endpoints of one port of a service that take connections.
    pub(crate) fn backends(&self, service: &ServiceEntry, port: &ServicePort) -> Vec<(Ipv4Addr, u16)> {
        let endpoints = endpoints(&self.state(), service);
        let ready = endpoints
            .iter()
            .filter(|endpoint| endpoint.ready || service.publish_not_ready);
        ready
            .filter_map(|endpoint| Some((endpoint.address, endpoint_port(service, endpoint, port)?)))
            .collect()
    }

    /// What a name (without the dot at its end, in lower case) means.
    pub(crate) fn lookup(&self, name: &str) -> Meaning {
        if name == "localhost" {
            return Meaning::Addresses(vec![Ipv4Addr::LOCALHOST]);
        }
        let Some(name) = name.strip_suffix(DOMAIN).and_then(|name| name.strip_suffix('.')) else {
            return Meaning::Unknown;
        };
        let labels: Vec<&str> = name.split('.').collect();
        let state = self.state();
        let service = |name: &str, namespace: &str| state.services.get(&(namespace.to_string(), name.to_string()));
        match labels[..] {
            [dashed, namespace, "pod"] => {
                let known = address(&dashed.replace('-', ".")).filter(|ip| {
                    state
                        .pods
                        .values()
                        .any(|pod| pod.address == Some(*ip) && pod.namespace == namespace)
                });
                known.map_or(Meaning::Unknown, |ip| Meaning::Addresses(vec![ip]))
            }
            [name, namespace, "svc"] => match service(name, namespace) {
                None => Meaning::Unknown,
                Some(ServiceEntry {
                    external_name: Some(name),
                    ..
                }) => Meaning::Alias(name.clone()),
                Some(ServiceEntry {
                    address: Some(address), ..
                }) => Meaning::Addresses(vec![*address]),
                Some(headless) => Meaning::Addresses(
                    published(&state, headless)
                        .into_iter()
                        .map(|endpoint| endpoint.address)
                        .collect(),
                ),
            },
            [port, protocol, name, namespace, "svc"] if port.starts_with('_') && protocol.starts_with('_') => {
                service(name, namespace).map_or(Meaning::Unknown, |service| {
                    srv(&state, service, &port[1..], &protocol[1..])
                })
            }
            [host, name, namespace, "svc"] => {
                let found: Vec<Ipv4Addr> = service(name, namespace)
                    .map(|service| published(&state, service))
                    .unwrap_or_default()
                    .into_iter()
                    .filter(|endpoint| endpoint.label() == host)
                    .map(|endpoint| endpoint.address)
                    .collect();
                if found.is_empty() {
                    Meaning::Unknown
                } else {
                    Meaning::Addresses(found)
                }
            }
            _ => Meaning::Unknown,
        }
    }

    /// The names of an address.
    pub(crate) fn reverse(&self, address: Ipv4Addr) -> Vec<String> {
        let state = self.state();
        let mut names = Vec::new();
        for service in state.services.values() {
            if service.address == Some(address) {
                names.push(format!("{}.{}.svc.{DOMAIN}", service.name, service.namespace));
            }
        }
        for pod in state.pods.values() {
            if let (Some(ip), Some(host), Some(subdomain)) = (pod.address, &pod.hostname, &pod.subdomain)
                && ip == address
            {
                names.push(format!("{host}.{subdomain}.{}.svc.{DOMAIN}", pod.namespace));
            }
        }
        names.sort();
        if address == Ipv4Addr::LOCALHOST {
            names.push("localhost".to_string());
        }
        names
    }
}

fn retain<V>(map: &mut HashMap<String, V>, keep: impl Fn(&String) -> bool) -> bool {
    let before = map.len();
    map.retain(|key, _| keep(key));
    map.len() != before
}

impl Endpoint {
    /// The first label of its name: its hostname, else its address with dashes.
    fn label(&self) -> String {
        self.hostname
            .clone()
            .unwrap_or_else(|| self.address.to_string().replace('.', "-"))
    }
}

/// All endpoints of a service: for one with a selector straight from its pods, so that no controller's delay shows in
/// names; else from its EndpointSlices.
fn endpoints(state: &State, service: &ServiceEntry) -> Vec<Endpoint> {
    if service.selector.is_empty() {
        let slices = state.slices.values();
        let own = slices.filter(|slice| slice.namespace == service.namespace && slice.service == service.name);
        return own
            .flat_map(|slice| {
                slice.endpoints.iter().map(|(address, ready, hostname)| Endpoint {
                    address: *address,
                    ready: *ready,
                    hostname: hostname.clone(),
                    ports: slice.ports.clone(),
                })
            })
            .collect();
    }
    let selected = |pod: &&PodEntry| {
        pod.namespace == service.namespace && service.selector.iter().all(|(k, v)| pod.labels.get(k) == Some(v))
    };
    let mut found: Vec<Endpoint> = state
        .pods
        .values()
        .filter(selected)
        .filter_map(|pod| {
            Some(Endpoint {
                address: pod.address?,
                ready: pod.ready,
                hostname: pod
                    .hostname
                    .clone()
                    .filter(|_| pod.subdomain.as_deref() == Some(&service.name)),
                ports: pod.ports.clone(),
            })
        })
        .collect();
    found.sort_by_key(|endpoint| endpoint.address);
    found
}

/// The endpoints that names show.
fn published(state: &State, service: &ServiceEntry) -> Vec<Endpoint> {
    endpoints(state, service)
        .into_iter()
        .filter(|endpoint| endpoint.ready || service.publish_not_ready)
        .collect()
}

fn endpoint_port(service: &ServiceEntry, endpoint: &Endpoint, port: &ServicePort) -> Option<u16> {
    let named = |name: &str| {
        endpoint
            .ports
            .iter()
            .find(|(have, _)| have == name)
            .map(|(_, number)| *number)
    };
    if service.selector.is_empty() {
        return named(port.name.as_deref().unwrap_or_default()).or_else(|| endpoint.ports.first().map(|(_, n)| *n));
    }
    match &port.target {
        IntOrString::Int(number) => u16::try_from(*number).ok(),
        IntOrString::String(name) => named(name),
    }
}

fn srv(state: &State, service: &ServiceEntry, port_name: &str, protocol: &str) -> Meaning {
    let wanted =
        |port: &&ServicePort| port.name.as_deref() == Some(port_name) && port.protocol.eq_ignore_ascii_case(protocol);
    let Some(port) = service.ports.iter().find(wanted) else {
        return Meaning::Unknown;
    };
    let name = format!("{}.{}.svc.{DOMAIN}", service.name, service.namespace);
    if service.address.is_some() {
        return Meaning::Services(vec![(port.port, name)]);
    }
    let targets = published(state, service);
    Meaning::Services(
        targets
            .iter()
            .filter_map(|endpoint| {
                Some((
                    endpoint_port(service, endpoint, port)?,
                    format!("{}.{name}", endpoint.label()),
                ))
            })
            .collect(),
    )
}

#[cfg(test)]
pub(crate) mod tests;
