//! Which addresses the operator connects to because an annotation of a user says so.
//!
//! Whoever may write an EtcdCluster chooses `stateward.dev/adopt-endpoints`, and the operator often reaches more than that person
//! does. So a cluster is adopted from its own namespace, unless whoever runs the operator allows more. A name proves nothing by
//! itself, since a Service can lead anywhere (`ExternalName`): the address that is connected to must be that of a pod or
//! Service of the namespace.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, Service};

/// Where clusters may be adopted from besides their own namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdoptAllow {
    networks: Vec<(IpAddr, u8)>,
    /// Lower case, without dots at the ends.
    suffixes: Vec<String>,
}

impl AdoptAllow {
    /// Reads networks (`10.0.0.0/8`), addresses and ends of host names (`shop.svc`).
    pub fn parse(entries: &[String]) -> Result<Self, String> {
        let mut allow = Self::default();
        for entry in entries
            .iter()
            .map(|entry| entry.trim())
            .filter(|entry| !entry.is_empty())
        {
            let wrong =
                || format!("\"{entry}\" is neither a network as 10.0.0.0/8 nor the end of a host name as shop.svc");
            if let Ok(address) = entry.parse::<IpAddr>() {
                allow.networks.push((address, width(address)));
            } else if let Some((address, bits)) = entry.split_once('/') {
                let (address, bits) = (
                    address.parse().map_err(|_| wrong())?,
                    bits.parse().map_err(|_| wrong())?,
                );
                if bits > width(address) {
                    return Err(wrong());
                }
                allow.networks.push((address, bits));
            } else {
                let suffix = entry.trim_matches('.').to_ascii_lowercase();
                let of_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
                if suffix.is_empty() || !suffix.bytes().all(of_name) {
                    return Err(wrong());
                }
                allow.suffixes.push(suffix);
            }
        }
        Ok(allow)
    }

    fn has_address(&self, address: IpAddr) -> bool {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
            IpAddr::V6(address) => u128::from(address),
        };
        self.networks.iter().any(|(network, length)| {
            let mask = u128::MAX.checked_shl(128 - u32::from(*length)).unwrap_or(0);
            network.is_ipv4() == address.is_ipv4() && (bits(*network) ^ bits(address)) & mask == 0
        })
    }

    fn has_host(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        self.suffixes.iter().any(|suffix| {
            host.strip_suffix(suffix.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        })
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The pods and Services that a cluster may be adopted from.
pub(crate) struct Scope<'a> {
    allow: &'a AdoptAllow,
    namespace: &'a str,
    /// Name and subdomain, which make the host name of a pod.
    pods: BTreeSet<(String, String)>,
    addresses: BTreeSet<IpAddr>,
}

impl<'a> Scope<'a> {
    /// `pods` and `services` are those of the namespace.
    pub(crate) fn new(
        allow: &'a AdoptAllow,
        namespace: &'a str,
        pods: impl IntoIterator<Item = Pod>,
        services: impl IntoIterator<Item = Service>,
    ) -> Self {
        let mut scope = Self {
            allow,
            namespace,
            pods: BTreeSet::new(),
            addresses: BTreeSet::new(),
        };
        for pod in pods {
            let spec = pod.spec.unwrap_or_default();
            let name = spec.hostname.or(pod.metadata.name).unwrap_or_default();
            scope.pods.insert((name, spec.subdomain.unwrap_or_default()));
            // The address of a pod in its node's network is that of everything else that runs there.
            if spec.host_network != Some(true) {
                let status = pod.status.unwrap_or_default();
                let addresses = status.pod_ips.unwrap_or_default().into_iter().map(|one| one.ip);
                scope.take(addresses.chain(status.pod_ip));
            }
        }
        for service in services {
            let spec = service.spec.unwrap_or_default();
            // Without a selector its endpoints are whatever somebody wrote down.
            if spec.selector.is_some_and(|selector| !selector.is_empty()) {
                scope.take(spec.cluster_ips.unwrap_or_default().into_iter().chain(spec.cluster_ip));
            }
        }
        scope
    }

    fn take(&mut self, addresses: impl Iterator<Item = String>) {
        self.addresses
            .extend(addresses.filter_map(|address| address.parse::<IpAddr>().ok()));
    }

    /// Whether this host's address may be looked up at all.
    pub(crate) fn may_resolve(&self, host: &str) -> bool {
        host.parse::<IpAddr>().is_ok()
            || is_of_namespace(host, self.namespace)
            || self.allow.has_host(host)
            || !self.allow.networks.is_empty()
    }

    /// Whether the operator may connect to a host that has this address.
    pub(crate) fn may_connect(&self, host: &str, address: IpAddr) -> bool {
        let ours = host.parse::<IpAddr>().is_ok() || is_of_namespace(host, self.namespace);
        ours && self.addresses.contains(&address) || self.allow.has_host(host) || self.allow.has_address(address)
    }

    /// Whether a cluster whose members call each other by this URL may be joined. Names are resolved by the cluster's own pods,
    /// in the namespace: a host name of a pod may be a short one.
    pub(crate) fn may_join(&self, peer_url: &str) -> bool {
        let Some((host, _, _)) = crate::adopted::parse(peer_url) else {
            return false;
        };
        if let Ok(address) = host.parse::<IpAddr>() {
            return self.addresses.contains(&address) || self.allow.has_address(address);
        }
        let is_pod = |(name, subdomain): (&str, &str)| self.pods.contains(&(name.to_owned(), subdomain.to_owned()));
        is_of_namespace(host, self.namespace) || host.split_once('.').is_some_and(is_pod) || self.allow.has_host(host)
    }
}

/// `SERVICE.NAMESPACE.svc` or `POD.SERVICE.NAMESPACE.svc`, with the cluster's domain or without.
fn is_of_namespace(host: &str, namespace: &str) -> bool {
    let labels: Vec<&str> = host.trim_end_matches('.').split('.').collect();
    let named = |at: usize| labels.get(at) == Some(&namespace) && labels.get(at + 1) == Some(&"svc");
    labels.iter().all(|label| !label.is_empty()) && (named(1) || named(2))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scope(allow: &AdoptAllow) -> Scope<'_> {
        let pods = [
            json!({"metadata": {"name": "old-0"}, "spec": {"subdomain": "old", "containers": []}, "status": {"podIP": "10.1.0.5", "podIPs": [{"ip": "10.1.0.5"}]}}),
            json!({"metadata": {"name": "on-the-node"}, "spec": {"hostNetwork": true, "containers": []}, "status": {"podIP": "192.168.0.1"}}),
        ];
        let services = [
            json!({"metadata": {"name": "old-client"}, "spec": {"selector": {"run": "old"}, "clusterIP": "10.96.0.7"}}),
            json!({"metadata": {"name": "by-hand"}, "spec": {"clusterIP": "10.96.0.8"}}),
            json!({"metadata": {"name": "away"}, "spec": {"type": "ExternalName", "externalName": "etcd.kube-system.svc"}}),
        ];
        let pods = pods.map(|pod| serde_json::from_value(pod).unwrap());
        let services = services.map(|service| serde_json::from_value(service).unwrap());
        Scope::new(allow, "shop", pods, services)
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn pods_and_services_of_the_namespace_may_be_connected_to_and_nothing_else() {
        let allow = AdoptAllow::default();
        let scope = scope(&allow);
        for (host, address, expected) in [
            ("old-0.old.shop.svc", "10.1.0.5", true),
            ("old-0.old.shop.svc.cluster.local", "10.1.0.5", true),
            ("old-client.shop.svc", "10.96.0.7", true),
            ("10.1.0.5", "10.1.0.5", true),
            ("10.96.0.7", "10.96.0.7", true),
            // another namespace, the cloud's metadata, a node, and names of the namespace that lead elsewhere
            ("etcd-0.etcd.bank.svc", "10.1.0.9", false),
            ("10.1.0.9", "10.1.0.9", false),
            ("169.254.169.254", "169.254.169.254", false),
            ("192.168.0.1", "192.168.0.1", false),
            ("away.shop.svc", "10.1.0.9", false),
            ("by-hand.shop.svc", "10.96.0.8", false),
            ("old-0.old.shop.svc", "10.1.0.9", false),
            ("example.com", "10.1.0.5", false),
        ] {
            assert_eq!(scope.may_connect(host, ip(address)), expected, "{host} at {address}");
        }
        for (host, expected) in [
            ("a.shop.svc", true),
            ("a.b.shop.svc.cluster.local", true),
            ("a.b.c.shop.svc", false),
            ("shop.svc", false),
            ("a.shop.svc.evil.example.com", true), // resolved, and then judged by its address
            ("a.bank.svc", false),
            ("metadata.google.internal", false),
            ("10.0.0.1", true),
        ] {
            assert_eq!(scope.may_resolve(host), expected, "{host}");
        }
    }

    #[test]
    fn peers_must_be_of_the_namespace_too() {
        let allow = AdoptAllow::default();
        let scope = scope(&allow);
        for (url, expected) in [
            ("http://old-0.old.shop.svc:2380", true),
            ("https://old-0.old.shop.svc.cluster.local:2380", true),
            ("http://old-0.old:2380", true),
            ("http://10.1.0.5:2380", true),
            ("http://old-1.old:2380", false),
            ("http://etcd-0.etcd.bank.svc:2380", false),
            ("http://10.1.0.9:2380", false),
            ("unix://etcd", false),
        ] {
            assert_eq!(scope.may_join(url), expected, "{url}");
        }
    }

    #[test]
    fn who_runs_the_operator_may_allow_more() {
        let entries = ["10.2.0.0/16", "bank.svc", "192.168.0.1", "2001:db8::/32"].map(str::to_owned);
        let allow = AdoptAllow::parse(&entries).unwrap();
        let scope = scope(&allow);
        assert!(scope.may_connect("10.2.3.4", ip("10.2.3.4")));
        assert!(scope.may_connect("etcd-0.etcd.bank.svc", ip("10.1.0.9")));
        assert!(scope.may_connect("192.168.0.1", ip("192.168.0.1")));
        assert!(scope.may_connect("2001:db8::1", ip("2001:db8::1")));
        assert!(scope.may_join("http://10.2.3.4:2380") && scope.may_join("http://etcd-0.etcd.bank.svc:2380"));
        assert!(!scope.may_connect("10.3.0.1", ip("10.3.0.1")));
        assert!(!scope.may_connect("etcd.riverbank.svc", ip("10.1.0.9")));
        for wrong in ["10.0.0.0/33", "a/8", "http://bank.svc", "*"] {
            assert!(AdoptAllow::parse(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
        assert!(
            AdoptAllow::parse(&["0.0.0.0/0".to_owned()])
                .unwrap()
                .has_address(ip("1.2.3.4"))
        );
    }
}
