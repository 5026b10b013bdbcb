//! The columns and cells of built-in kinds.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::pod;
use super::read::{age, items, number, or, or_none, show, text};

/// The columns of built-in kinds; `+` marks those that only `-o wide` prints; then `#` integers, `?` booleans, `@`
/// dates.
pub(super) fn headers(kind: &str) -> &'static [&'static str] {
    match kind {
        "Pod" => &[
            "Name",
            "Ready",
            "Status",
            "Restarts",
            "Age",
            "+IP",
            "+Node",
            "+Nominated Node",
            "+Readiness Gates",
        ],
        "Service" => &[
            "Name",
            "Type",
            "Cluster-IP",
            "External-IP",
            "Port(s)",
            "Age",
            "+Selector",
        ],
        "EndpointSlice" => &["Name", "AddressType", "Ports", "Endpoints", "Age"],
        "ConfigMap" => &["Name", "Data", "Age"],
        "Secret" => &["Name", "Type", "Data", "Age"],
        "PersistentVolumeClaim" => &[
            "Name",
            "Status",
            "Volume",
            "Capacity",
            "Access Modes",
            "StorageClass",
            "VolumeAttributesClass",
            "Age",
            "+VolumeMode",
        ],
        "PersistentVolume" => &[
            "Name",
            "Capacity",
            "Access Modes",
            "Reclaim Policy",
            "Status",
            "Claim",
            "StorageClass",
            "VolumeAttributesClass",
            "Reason",
            "Age",
            "+VolumeMode",
        ],
        "StorageClass" => &[
            "Name",
            "Provisioner",
            "ReclaimPolicy",
            "VolumeBindingMode",
            "AllowVolumeExpansion",
            "Age",
        ],
        "Node" => &[
            "Name",
            "Status",
            "Roles",
            "Age",
            "Version",
            "+Internal-IP",
            "+External-IP",
            "+OS-Image",
            "+Kernel-Version",
            "+Container-Runtime",
        ],
        "Lease" => &["Name", "Holder", "Age"],
        "Event" => &[
            "Last Seen",
            "Type",
            "Reason",
            "Object",
            "+Subobject",
            "+Source",
            "Message",
            "+First Seen",
            "+Count",
            "+Name",
        ],
        "Namespace" => &["Name", "Status", "Age"],
        "ResourceQuota" | "ServiceAccount" => &["Name", "Age"],
        "RoleBinding" | "ClusterRoleBinding" => &["Name", "Role", "Age", "+Users", "+Groups", "+ServiceAccounts"],
        "StatefulSet" => &["Name", "Ready", "Age", "+Containers", "+Images"],
        "ControllerRevision" => &["Name", "Controller", "Revision", "Age"],
        "NetworkPolicy" => &["Name", "Pod-Selector", "Age"],
        "PodDisruptionBudget" => &[
            "Name",
            "Min Available",
            "Max Unavailable",
            "#Allowed Disruptions",
            "Age",
        ],
        "PriorityClass" => &["Name", "#Value", "?Global-Default", "Age", "PreemptionPolicy"],
        "Endpoints" => &["Name", "Endpoints", "Age"],
        "CustomResourceDefinition" => &[
            "Name",
            "Scope",
            "Versions",
            "@Created At",
            "+Group",
            "+Kind",
            "+ShortNames",
            "+?Established",
        ],
        // Roles and everything without columns of its own.
        _ => &["Name", "@Created At"],
    }
}

/// The cells of an object of a built-in kind, one for each of its headers.
pub(super) fn cells(kind: &str, object: &Value, now: Timestamp) -> Vec<Value> {
    let at = |pointer: &str| text(object, pointer);
    let name = at("/metadata/name");
    let age = || age(object.pointer("/metadata/creationTimestamp"), now);
    let size = |pointer: &str| object.pointer(pointer).and_then(Value::as_object).map_or(0, Map::len);
    let terminating = object
        .pointer("/metadata/deletionTimestamp")
        .is_some_and(|t| !t.is_null());
    let phase = || {
        if terminating {
            "Terminating"
        } else {
            at("/status/phase")
        }
    };
    let or_unset = |pointer: &str| match at(pointer) {
        "" => "<unset>".to_owned(),
        text => text.to_owned(),
    };
    match kind {
        "Pod" => pod::cells(object, now),
        "Service" => vec![
            name.into(),
            at("/spec/type").into(),
            or_none(match at("/spec/clusterIPs/0") {
                "" => at("/spec/clusterIP"),
                ip => ip,
            })
            .into(),
            external_ip(object).into(),
            or_none(&ports(object)).into(),
            age().into(),
            labels(object.pointer("/spec/selector")).into(),
        ],
        "EndpointSlice" => vec![
            name.into(),
            at("/addressType").into(),
            some_of(items(object, "/ports").iter().map(port_of_endpoint)).into(),
            some_of(
                items(object, "/endpoints")
                    .iter()
                    .flat_map(|e| items(e, "/addresses"))
                    .map(|a| show(Some(a))),
            )
            .into(),
            age().into(),
        ],
        "ConfigMap" => vec![name.into(), (size("/data") + size("/binaryData")).into(), age().into()],
        "Secret" => vec![name.into(), at("/type").into(), size("/data").into(), age().into()],
        "PersistentVolumeClaim" => {
            let bound = !at("/spec/volumeName").is_empty();
            vec![
                name.into(),
                phase().into(),
                at("/spec/volumeName").into(),
                if bound {
                    at("/status/capacity/storage").into()
                } else {
                    "".into()
                },
                if bound {
                    access_modes(object, "/status/accessModes").into()
                } else {
                    "".into()
                },
                at("/spec/storageClassName").into(),
                or_unset("/spec/volumeAttributesClassName").into(),
                age().into(),
                or_unset("/spec/volumeMode").into(),
            ]
        }
        "PersistentVolume" => {
            let claim = match at("/spec/claimRef/name") {
                "" => String::new(),
                claim => format!("{}/{claim}", at("/spec/claimRef/namespace")),
            };
            vec![
                name.into(),
                at("/spec/capacity/storage").into(),
                access_modes(object, "/spec/accessModes").into(),
                at("/spec/persistentVolumeReclaimPolicy").into(),
                phase().into(),
                claim.into(),
                at("/spec/storageClassName").into(),
                or_unset("/spec/volumeAttributesClassName").into(),
                at("/status/reason").into(),
                age().into(),
                or_unset("/spec/volumeMode").into(),
            ]
        }
        "StorageClass" => {
            let default = at("/metadata/annotations/storageclass.kubernetes.io~1is-default-class") == "true";
            vec![
                if default {
                    format!("{name} (default)").into()
                } else {
                    name.into()
                },
                at("/provisioner").into(),
                or(at("/reclaimPolicy"), "Delete").into(),
                or(at("/volumeBindingMode"), "Immediate").into(),
                object
                    .get("allowVolumeExpansion")
                    .and_then(Value::as_bool)
                    .unwrap_or_default()
                    .into(),
                age().into(),
            ]
        }
        "Node" => node(object, name, age()),
        "Lease" => vec![name.into(), at("/spec/holderIdentity").into(), age().into()],
        "Event" => event(object, name, now),
        "Namespace" => vec![name.into(), at("/status/phase").into(), age().into()],
        "ResourceQuota" | "ServiceAccount" => vec![name.into(), age().into()],
        "RoleBinding" | "ClusterRoleBinding" => {
            let subjects = |wanted: &str| {
                let of_kind = items(object, "/subjects").iter().filter(|s| text(s, "/kind") == wanted);
                let names: Vec<String> = of_kind
                    .map(|s| match wanted {
                        "ServiceAccount" => format!("{}/{}", text(s, "/namespace"), text(s, "/name")),
                        _ => text(s, "/name").to_owned(),
                    })
                    .collect();
                names.join(", ")
            };
            vec![
                name.into(),
                format!("{}/{}", at("/roleRef/kind"), at("/roleRef/name")).into(),
                age().into(),
                subjects("User").into(),
                subjects("Group").into(),
                subjects("ServiceAccount").into(),
            ]
        }
        "StatefulSet" => {
            let containers = items(object, "/spec/template/spec/containers");
            let all = |field: &str| containers.iter().map(|c| text(c, field)).collect::<Vec<_>>().join(",");
            let wanted = object.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
            vec![
                name.into(),
                format!("{}/{wanted}", number(object, "/status/readyReplicas")).into(),
                age().into(),
                all("/name").into(),
                all("/image").into(),
            ]
        }
        "ControllerRevision" => {
            let owner = items(object, "/metadata/ownerReferences")
                .iter()
                .find(|o| o["controller"] == true);
            let controller = owner.map_or("<none>".to_owned(), |owner| {
                let group = text(owner, "/apiVersion")
                    .split_once('/')
                    .map_or("", |(group, _)| group);
                let dot = if group.is_empty() { "" } else { "." };
                format!(
                    "{}{dot}{group}/{}",
                    text(owner, "/kind").to_lowercase(),
                    text(owner, "/name")
                )
            });
            vec![
                name.into(),
                controller.into(),
                number(object, "/revision").into(),
                age().into(),
            ]
        }
        "NetworkPolicy" => vec![
            name.into(),
            labels(object.pointer("/spec/podSelector/matchLabels")).into(),
            age().into(),
        ],
        "PodDisruptionBudget" => {
            let or_na = |pointer: &str| match object.pointer(pointer) {
                None | Some(Value::Null) => "N/A".to_owned(),
                value => show(value),
            };
            vec![
                name.into(),
                or_na("/spec/minAvailable").into(),
                or_na("/spec/maxUnavailable").into(),
                number(object, "/status/disruptionsAllowed").into(),
                age().into(),
            ]
        }
        "PriorityClass" => vec![
            name.into(),
            number(object, "/value").into(),
            object
                .get("globalDefault")
                .and_then(Value::as_bool)
                .unwrap_or_default()
                .into(),
            age().into(),
            at("/preemptionPolicy").into(),
        ],
        "Endpoints" => {
            let addresses = items(object, "/subsets").iter().flat_map(endpoints_of);
            let shown = some_of(addresses);
            let none = shown == "<unset>";
            vec![
                name.into(),
                if none { "<none>".into() } else { shown.into() },
                age().into(),
            ]
        }
        "CustomResourceDefinition" => {
            let version = |v: &Value| {
                let mark = if v["storage"] == true { "(storage)" } else { "" };
                format!("{}{mark}", text(v, "/name"))
            };
            let served = items(object, "/spec/versions").iter().filter(|v| v["served"] == true);
            let established = items(object, "/status/conditions")
                .iter()
                .any(|c| text(c, "/type") == "Established" && text(c, "/status") == "True");
            let short = items(object, "/spec/names/shortNames").iter().map(|n| show(Some(n)));
            vec![
                name.into(),
                at("/spec/scope").into(),
                served.map(version).collect::<Vec<_>>().join(",").into(),
                at("/metadata/creationTimestamp").into(),
                at("/spec/group").into(),
                at("/spec/names/kind").into(),
                short.collect::<Vec<_>>().join(",").into(),
                established.into(),
            ]
        }
        _ => vec![name.into(), at("/metadata/creationTimestamp").into()],
    }
}

/// Every address of a subset with every port.
fn endpoints_of(subset: &Value) -> Vec<String> {
    let addresses = || items(subset, "/addresses").iter().map(|a| text(a, "/ip"));
    let ports = items(subset, "/ports");
    if ports.is_empty() {
        return addresses().map(str::to_owned).collect();
    }
    let host = |ip: &str| {
        if ip.contains(':') {
            format!("[{ip}]")
        } else {
            ip.to_owned()
        }
    };
    ports
        .iter()
        .flat_map(|p| addresses().map(move |ip| format!("{}:{}", host(ip), number(p, "/port"))))
        .collect()
}

fn port_of_endpoint(port: &Value) -> String {
    match (port.get("port").filter(|p| !p.is_null()), text(port, "/name")) {
        (Some(port), _) => show(Some(port)),
        (None, "") => "*".to_owned(),
        (None, name) => name.to_owned(),
    }
}

fn node(object: &Value, name: &str, age: String) -> Vec<Value> {
    let at = |pointer: &str| text(object, pointer);
    let ready = items(object, "/status/conditions")
        .iter()
        .find(|c| text(c, "/type") == "Ready");
    let mut status = match ready.map(|c| text(c, "/status")) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if object.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) {
        status.push_str(",SchedulingDisabled");
    }
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
    let mut roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    let address = |kind: &str| {
        let found = items(object, "/status/addresses")
            .iter()
            .find(|a| text(a, "/type") == kind);
        or_none(found.map_or("", |a| text(a, "/address"))).to_owned()
    };
    let architecture = match at("/status/nodeInfo/architecture") {
        "" => String::new(),
        architecture => format!(" ({architecture})"),
    };
    vec![
        name.into(),
        status.into(),
        or_none(&roles.join(",")).into(),
        age.into(),
        at("/status/nodeInfo/kubeletVersion").into(),
        address("InternalIP").into(),
        address("ExternalIP").into(),
        or(at("/status/nodeInfo/osImage"), "<unknown>").into(),
        format!(
            "{}{architecture}",
            or(at("/status/nodeInfo/kernelVersion"), "<unknown>")
        )
        .into(),
        or(at("/status/nodeInfo/containerRuntimeVersion"), "<unknown>").into(),
    ]
}

/// Events of both APIs: `events.k8s.io` names some fields differently.
fn event(object: &Value, name: &str, now: Timestamp) -> Vec<Value> {
    let either = |a: &str, b: &str| match text(object, a) {
        "" => text(object, b).to_owned(),
        text => text.to_owned(),
    };
    let time = |pointers: &[&str]| {
        let found = pointers
            .iter()
            .find_map(|p| object.pointer(p).filter(|v| v.is_string()));
        age(found, now)
    };
    let first = ["/firstTimestamp", "/deprecatedFirstTimestamp", "/eventTime"];
    let last = ["/series/lastObservedTime", "/lastTimestamp", "/deprecatedLastTimestamp"];
    let count = ["/series/count", "/count", "/deprecatedCount"].map(|p| number(object, p));
    let kind = either("/involvedObject/kind", "/regarding/kind").to_lowercase();
    let target = match either("/involvedObject/name", "/regarding/name") {
        named if named.is_empty() => kind,
        named => format!("{kind}/{named}"),
    };
    let component = match either("/source/component", "/deprecatedSource/component") {
        empty if empty.is_empty() => either("/reportingComponent", "/reportingController"),
        component => component,
    };
    let host = match either("/source/host", "/deprecatedSource/host") {
        empty if empty.is_empty() => text(object, "/reportingInstance").to_owned(),
        host => host,
    };
    let source = if host.is_empty() {
        component
    } else {
        format!("{component}, {host}")
    };
    vec![
        time(&[&last[..], &first[..]].concat()).into(),
        text(object, "/type").into(),
        text(object, "/reason").into(),
        target.into(),
        either("/involvedObject/fieldPath", "/regarding/fieldPath").into(),
        source.into(),
        either("/message", "/note").trim().into(),
        time(&first).into(),
        count.into_iter().find(|c| *c != 0).unwrap_or(1).into(),
        name.into(),
    ]
}

fn external_ip(service: &Value) -> String {
    let join = |pointer: &str| {
        items(service, pointer)
            .iter()
            .map(|v| show(Some(v)))
            .collect::<Vec<_>>()
            .join(",")
    };
    let external = join("/spec/externalIPs");
    match text(service, "/spec/type") {
        "ClusterIP" | "NodePort" => or_none(&external).to_owned(),
        "LoadBalancer" => {
            let mut all: Vec<String> = items(service, "/status/loadBalancer/ingress")
                .iter()
                .map(|i| or(text(i, "/ip"), text(i, "/hostname")).to_owned())
                .collect();
            all.sort();
            all.extend((!external.is_empty()).then_some(external));
            if all.is_empty() {
                "<pending>".to_owned()
            } else {
                all.join(",")
            }
        }
        "ExternalName" => text(service, "/spec/externalName").to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

fn ports(service: &Value) -> String {
    let one = |port: &Value| {
        let protocol = or(text(port, "/protocol"), "TCP");
        match number(port, "/nodePort") {
            0 => format!("{}/{protocol}", number(port, "/port")),
            node => format!("{}:{node}/{protocol}", number(port, "/port")),
        }
    };
    items(service, "/spec/ports")
        .iter()
        .map(one)
        .collect::<Vec<_>>()
        .join(",")
}

fn labels(map: Option<&Value>) -> String {
    let Some(Value::Object(map)) = map else {
        return "<none>".to_owned();
    };
    let mut pairs: Vec<String> = map.iter().map(|(k, v)| format!("{k}={}", show(Some(v)))).collect();
    pairs.sort();
    or_none(&pairs.join(",")).to_owned()
}

fn access_modes(object: &Value, pointer: &str) -> String {
    let modes = items(object, pointer);
    let known = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let short: Vec<&str> = known
        .iter()
        .filter(|(mode, _)| modes.iter().any(|m| m == mode))
        .map(|(_, s)| *s)
        .collect();
    short.join(",")
}

/// The first three, and how many more.
fn some_of(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    match all.len() {
        0 => "<unset>".to_owned(),
        1..=3 => all.join(","),
        count => format!("{} + {} more...", all[..3].join(","), count - 3),
    }
}
