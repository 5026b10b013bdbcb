//! A container's variables, command and arguments, by Kubernetes' rules. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use k8s_openapi::api::core::v1::{Container, EnvVarSource, Pod, ResourceFieldSelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;

use super::directory::ServiceEntry;
use super::sources::Sources;

/// What the node knows of a pod besides the object.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) pod_ip: Ipv4Addr,
    pub(crate) host_ip: IpAddr,
    pub(crate) hostname: String,
    /// Where programs in pods find the API server.
    pub(crate) api: Option<SocketAddr>,
    /// What limits that are not set stand for: the node's own.
    pub(crate) allocatable: BTreeMap<String, Quantity>,
}

/// Why a container cannot be configured. The texts are those kubelet shows with `CreateContainerConfigError`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum EnvironmentError {
    #[error("{kind} \"{name}\" not found")]
    Missing { kind: &'static str, name: String },
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    MissingKey {
        kind: &'static str,
        namespace: String,
        name: String,
        key: String,
    },
    #[error("unsupported fieldPath: {0}")]
    Field(String),
    #[error("unsupported resource: {0}")]
    Resource(String),
}

/// The variables of one container, later ones winning over earlier ones of the same name.
pub(crate) fn variables(
    pod: &Pod,
    container: &Container,
    facts: &Facts,
    sources: &Sources,
    services: &[ServiceEntry],
) -> Result<Vec<(String, String)>, EnvironmentError> {
    let links = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.enable_service_links)
        .unwrap_or(true);
    let mut known: BTreeMap<String, String> = service_variables(services, links, facts.api);
    known.insert("HOSTNAME".to_string(), facts.hostname.clone());
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let mut values: BTreeMap<String, String> = BTreeMap::new();
        if let Some(reference) = &from.config_map_ref {
            match sources.config_maps.get(&reference.name) {
                Some(map) => values.extend(map.data.clone().unwrap_or_default()),
                None if reference.optional == Some(true) => {}
                None => {
                    return Err(EnvironmentError::Missing {
                        kind: "configmap",
                        name: reference.name.clone(),
                    });
                }
            }
        }
        if let Some(reference) = &from.secret_ref {
            match sources.secrets.get(&reference.name) {
                Some(secret) => values.extend(
                    secret
                        .data
                        .iter()
                        .flatten()
                        .map(|(key, value)| (key.clone(), String::from_utf8_lossy(&value.0).into_owned())),
                ),
                None if reference.optional == Some(true) => {}
                None => {
                    return Err(EnvironmentError::Missing {
                        kind: "secret",
                        name: reference.name.clone(),
                    });
                }
            }
        }
        known.extend(values.into_iter().map(|(key, value)| (format!("{prefix}{key}"), value)));
    }
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (_, Some(from)) => match from_source(pod, container, from, facts, sources)? {
                Some(value) => value,
                None => continue,
            },
            (Some(value), None) => expand(value, &known),
            (None, None) => String::new(),
        };
        known.insert(variable.name.clone(), value);
    }
    Ok(known.into_iter().collect())
}

fn from_source(
    pod: &Pod,
    container: &Container,
    from: &EnvVarSource,
    facts: &Facts,
    sources: &Sources,
) -> Result<Option<String>, EnvironmentError> {
    let namespace = pod.namespace().unwrap_or_default();
    if let Some(selector) = &from.field_ref {
        return field(pod, &selector.field_path, facts).map(Some);
    }
    if let Some(selector) = &from.resource_field_ref {
        return resource(pod, Some(container), selector, facts).map(Some);
    }
    let (kind, name, key, optional, object_exists, value) = if let Some(selector) = &from.config_map_key_ref {
        let map = sources.config_maps.get(&selector.name);
        let value = map.and_then(|map| map.data.as_ref()?.get(&selector.key).cloned());
        (
            "ConfigMap",
            &selector.name,
            &selector.key,
            selector.optional,
            map.is_some(),
            value,
        )
    } else if let Some(selector) = &from.secret_key_ref {
        let secret = sources.secrets.get(&selector.name);
        let value = secret.and_then(|secret| secret.data.as_ref()?.get(&selector.key));
        let value = value.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned());
        (
            "Secret",
            &selector.name,
            &selector.key,
            selector.optional,
            secret.is_some(),
            value,
        )
    } else {
        return Ok(None);
    };
    if value.is_some() || optional == Some(true) {
        return Ok(value);
    }
    if !object_exists {
        let kind = if kind == "Secret" { "secret" } else { "configmap" };
        return Err(EnvironmentError::Missing {
            kind,
            name: name.clone(),
        });
    }
    Err(EnvironmentError::MissingKey {
        kind,
        namespace,
        name: name.clone(),
        key: key.clone(),
    })
}

/// A field of the pod, as variables and downward API volumes name it.
pub(crate) fn field(pod: &Pod, path: &str, facts: &Facts) -> Result<String, EnvironmentError> {
    let spec = pod.spec.as_ref();
    let in_brackets = |prefix: &str| path.strip_prefix(prefix)?.strip_suffix("']");
    if let Some(key) = in_brackets("metadata.labels['") {
        return Ok(pod.labels().get(key).cloned().unwrap_or_default());
    }
    if let Some(key) = in_brackets("metadata.annotations['") {
        return Ok(pod.annotations().get(key).cloned().unwrap_or_default());
    }
    let lines = |map: &BTreeMap<String, String>| {
        map.iter()
            .map(|(key, value)| format!("{key}={value:?}"))
            .collect::<Vec<_>>()
            .join("\n")
    };
    Ok(match path {
        "metadata.name" => pod.name_any(),
        "metadata.namespace" => pod.namespace().unwrap_or_default(),
        "metadata.uid" => pod.uid().unwrap_or_default(),
        "metadata.labels" => lines(pod.labels()),
        "metadata.annotations" => lines(pod.annotations()),
        "spec.nodeName" => spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
        "spec.serviceAccountName" => spec
            .and_then(|spec| spec.service_account_name.clone())
            .unwrap_or_default(),
        "status.podIP" | "status.podIPs" => facts.pod_ip.to_string(),
        "status.hostIP" | "status.hostIPs" => facts.host_ip.to_string(),
        _ => return Err(EnvironmentError::Field(path.to_string())),
    })
}

/// A resource of a container in units of the divisor, rounded up.
pub(crate) fn resource(
    pod: &Pod,
    container: Option<&Container>,
    selector: &ResourceFieldSelector,
    facts: &Facts,
) -> Result<String, EnvironmentError> {
    let unknown = || EnvironmentError::Resource(selector.resource.clone());
    let named = selector.container_name.as_deref().and_then(|name| {
        let spec = pod.spec.as_ref()?;
        spec.containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
            .find(|container| container.name == name)
    });
    let container = named.or(container).ok_or_else(unknown)?;
    let (list, name) = selector.resource.split_once('.').ok_or_else(unknown)?;
    let resources = container.resources.clone().unwrap_or_default();
    let own = match list {
        "limits" => resources.limits,
        "requests" => resources.requests,
        _ => return Err(unknown()),
    };
    let own = own.and_then(|own| own.get(name).cloned());
    let own = own.or_else(|| facts.allocatable.get(name).filter(|_| list == "limits").cloned());
    let amount = own.map_or(Some(0.0), |own| amount(&own.0)).ok_or_else(unknown)?;
    let divisor = selector
        .divisor
        .as_ref()
        .and_then(|divisor| self::amount(&divisor.0))
        .filter(|d| *d > 0.0);
    Ok(format!(
        "{:.0}",
        (amount / divisor.unwrap_or(1.0) - 1e-9).ceil().max(0.0)
    ))
}

/// The number that a Kubernetes quantity stands for.
pub(crate) fn amount(quantity: &str) -> Option<f64> {
    let split = quantity
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-')))
        .unwrap_or(quantity.len());
    let (number, suffix) = quantity.split_at(split);
    let factor = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024.0_f64.powi(2),
        "Gi" => 1024.0_f64.powi(3),
        "Ti" => 1024.0_f64.powi(4),
        "Pi" => 1024.0_f64.powi(5),
        "Ei" => 1024.0_f64.powi(6),
        exponent => return quantity.parse().ok().filter(|_| exponent.starts_with(['e', 'E'])),
    };
    Some(number.parse::<f64>().ok()? * factor)
}

/// `$(NAME)` replaced by the variable's value; `$$` is a dollar sign; an unknown name stays as it is written.
pub(crate) fn expand(text: &str, known: &BTreeMap<String, String>) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        result.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(after) = after.strip_prefix('$') {
            result.push('$');
            rest = after;
            continue;
        }
        match after.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            Some((name, after)) => {
                match known.get(name) {
                    Some(value) => result.push_str(value),
                    None => result.push_str(&format!("$({name})")),
                }
                rest = after;
            }
            None => {
                result.push('$');
                rest = after;
            }
        }
    }
    result.push_str(rest);
    result
}

/// What runs: the container's command and arguments over the image's, expanded.
pub(crate) fn command_line(
    container: &Container,
    entrypoint: &[String],
    cmd: &[String],
    variables: &[(String, String)],
) -> Vec<String> {
    let command = container.command.clone().filter(|command| !command.is_empty());
    let args = container.args.clone().filter(|args| !args.is_empty());
    // A command without arguments drops the image's arguments too.
    let args = args.unwrap_or_else(|| if command.is_some() { Vec::new() } else { cmd.to_vec() });
    let known: BTreeMap<String, String> = variables.iter().cloned().collect();
    let words = command.unwrap_or_else(|| entrypoint.to_vec()).into_iter().chain(args);
    words.map(|word| expand(&word, &known)).collect()
}

/// The variables that tell of services: host and port of each, and the older link form.
fn service_variables(services: &[ServiceEntry], links: bool, api: Option<SocketAddr>) -> BTreeMap<String, String> {
    let mut known = BTreeMap::new();
    for service in services {
        let is_api = service.namespace == "default" && service.name == "kubernetes";
        let Some(address) = service.address.filter(|_| links && !is_api) else {
            continue;
        };
        let Some(first) = service.ports.first() else { continue };
        let prefix = service.name.to_ascii_uppercase().replace('-', "_");
        known.insert(format!("{prefix}_SERVICE_HOST"), address.to_string());
        known.insert(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
        let url = |protocol: &str, port: u16| format!("{}://{address}:{port}", protocol.to_ascii_lowercase());
        known.insert(format!("{prefix}_PORT"), url(&first.protocol, first.port));
        for port in &service.ports {
            if let Some(name) = &port.name {
                let name = name.to_ascii_uppercase().replace('-', "_");
                known.insert(format!("{prefix}_SERVICE_PORT_{name}"), port.port.to_string());
            }
            let link = format!("{prefix}_PORT_{}_{}", port.port, port.protocol.to_ascii_uppercase());
            known.insert(format!("{link}_PROTO"), port.protocol.to_ascii_lowercase());
            known.insert(format!("{link}_PORT"), port.port.to_string());
            known.insert(format!("{link}_ADDR"), address.to_string());
            known.insert(link, url(&port.protocol, port.port));
        }
    }
    if let Some(api) = api {
        known.insert("KUBERNETES_SERVICE_HOST".to_string(), api.ip().to_string());
        known.insert("KUBERNETES_SERVICE_PORT".to_string(), api.port().to_string());
        known.insert("KUBERNETES_SERVICE_PORT_HTTPS".to_string(), api.port().to_string());
        known.insert("KUBERNETES_PORT".to_string(), format!("tcp://{api}"));
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::directory::tests::sample;

    fn facts() -> Facts {
        Facts {
            pod_ip: Ipv4Addr::new(10, 7, 128, 1),
            host_ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
            hostname: "web-0".into(),
            api: Some("10.7.0.2:6443".parse().unwrap()),
            allocatable: BTreeMap::from([("cpu".to_string(), Quantity("4".into()))]),
        }
    }

    #[test]
    fn expansion_follows_kubernetes() {
        let known = BTreeMap::from([("A".to_string(), "x".to_string())]);
        for (text, expected) in [
            ("$(A)$(A)", "xx"),
            ("$$(A)", "$(A)"),
            ("$(B) $(A", "$(B) $(A"),
            ("$A $$ $", "$A $ $"),
            ("$$$(A)", "$x"),
        ] {
            assert_eq!(expand(text, &known), expected, "{text}");
        }
    }

    #[test]
    fn quantities_are_understood() {
        for (text, expected) in [
            ("500m", 0.5),
            ("2Gi", 2147483648.0),
            ("1e3", 1000.0),
            ("3", 3.0),
            ("1.5k", 1500.0),
        ] {
            assert_eq!(amount(text), Some(expected), "{text}");
        }
        assert_eq!(amount("x"), None);
    }

    #[test]
    fn variables_come_from_everywhere() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "web-0", "namespace": "db", "labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c",
                "args": ["--peers=$(ADDRESS)", "--listen=0.0.0.0:1"],
                "resources": {"requests": {"memory": "1Mi"}},
                "envFrom": [{"prefix": "P_", "configMapRef": {"name": "m"}}, {"secretRef": {"name": "none", "optional": true}}],
                "env": [
                    {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}},
                    {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                    {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Ki"}}},
                    {"name": "ADDRESS", "value": "http://$(IP):2380"},
                    {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                    {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "n", "optional": true}}},
                ]}]},
        }))
        .unwrap();
        let mut sources = Sources::default();
        sources
            .config_maps
            .insert("m".into(), serde_json::from_str(r#"{"data":{"x":"1"}}"#).unwrap());
        sources
            .secrets
            .insert("s".into(), serde_json::from_str(r#"{"data":{"k":"aGk="}}"#).unwrap());
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let known = variables(&pod, container, &facts(), &sources, &sample().services(Some("db"))).unwrap();
        let get = |name: &str| known.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
        for (name, value) in [
            ("P_x", "1"),
            ("IP", "10.7.128.1"),
            ("LABEL", "b"),
            ("CPU", "4"),
            ("MEM", "1024"),
            ("ADDRESS", "http://10.7.128.1:2380"),
            ("KEY", "hi"),
            ("HOSTNAME", "web-0"),
            ("KUBERNETES_SERVICE_PORT", "6443"),
            ("ETCD_CLIENT_SERVICE_HOST", "10.7.128.20"),
            ("ETCD_CLIENT_PORT_2379_TCP", "tcp://10.7.128.20:2379"),
        ] {
            assert_eq!(get(name), Some(value), "{name}");
        }
        assert_eq!(get("NONE"), None);
        let line = command_line(container, &["run".into()], &["unused".into()], &known);
        assert_eq!(line, ["run", "--peers=http://10.7.128.1:2380", "--listen=0.0.0.0:1"]);

        sources.secrets.clear();
        let error = variables(&pod, container, &facts(), &sources, &[]).unwrap_err();
        assert_eq!(error.to_string(), "secret \"s\" not found");
    }
}
