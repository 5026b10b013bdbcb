//! Tables: the columns that `kubectl get` prints, as Kubernetes makes them on the server.

pub(crate) mod jsonpath;
mod pod;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use self::jsonpath::Path;
use super::gofmt;

/// The columns of a kind.
#[derive(Clone, Debug)]
pub(crate) enum Columns {
    /// A built-in kind, by its name (`Pod`).
    BuiltIn(String),
    /// A custom kind; make it once per version with [`Columns::custom`].
    Custom(Vec<Custom>),
}

/// One of `additionalPrinterColumns`.
#[derive(Clone, Debug)]
pub(crate) struct Custom {
    path: Option<Path>,
    kind: String,
    definition: Value,
}

/// What the rows carry of their objects (`includeObject`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Include {
    /// Nothing.
    None,
    /// The metadata: the default.
    Metadata,
    /// The whole object.
    Object,
}

const NAME: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";

impl Columns {
    /// From a version's `additionalPrinterColumns`; without any, there is the age.
    pub(crate) fn custom(columns: Option<&Value>) -> Columns {
        let age = json!([{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]);
        let columns = columns
            .filter(|c| c.as_array().is_some_and(|c| !c.is_empty()))
            .unwrap_or(&age);
        let one = |column: &Value| {
            let path = text(column, "/jsonPath");
            let description = match text(column, "/description") {
                "" => format!("Custom resource definition column (in JSONPath format): {path}"),
                text => text.to_owned(),
            };
            Custom {
                path: Path::parse(path),
                kind: text(column, "/type").to_owned(),
                definition: json!({
                    "name": text(column, "/name"),
                    "type": text(column, "/type"),
                    "format": text(column, "/format"),
                    "description": description,
                    "priority": number(column, "/priority"),
                }),
            }
        };
        Columns::Custom(columns.as_array().into_iter().flatten().map(one).collect())
    }

    fn definitions(&self) -> Vec<Value> {
        match self {
            Columns::Custom(columns) => {
                let name =
                    json!({"name": "Name", "type": "string", "format": "name", "description": NAME, "priority": 0});
                std::iter::once(name)
                    .chain(columns.iter().map(|c| c.definition.clone()))
                    .collect()
            }
            Columns::BuiltIn(kind) => headers(kind).iter().map(definition).collect(),
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        match self {
            Columns::Custom(columns) => {
                let name: Value = text(object, "/metadata/name").into();
                std::iter::once(name)
                    .chain(columns.iter().map(|c| c.cell(object, now)))
                    .collect()
            }
            Columns::BuiltIn(kind) => cells(kind, object, now),
        }
    }
}

impl Custom {
    fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let Some(value) = self.path.as_ref().and_then(|path| path.find(object).into_iter().next()) else {
            return Value::Null;
        };
        match (self.kind.as_str(), value) {
            ("string", Value::String(text)) => text.as_str().into(),
            ("string", Value::Number(number)) => gofmt::number(number).into(),
            ("string", Value::Null) => Value::Null,
            ("string", other) => gofmt::sorted(other).to_string().into(),
            ("integer", Value::Number(number)) => gofmt::Num::of(number)
                .as_f64()
                .trunc()
                .to_string()
                .parse::<i64>()
                .ok()
                .into(),
            ("number", Value::Number(number)) => gofmt::Num::of(number).as_f64().into(),
            ("boolean", Value::Bool(flag)) => (*flag).into(),
            ("date", Value::String(text)) => match text.parse::<Timestamp>() {
                Ok(time) => since(time, now).into(),
                Err(_) => "<invalid>".into(),
            },
            _ => Value::Null,
        }
    }
}

/// A `Table`. `list` is the metadata of the list (`resourceVersion`, `continue`); `headers` is false for all but the
/// first event of a watch.
pub(crate) fn table(
    columns: &Columns,
    objects: &[&Value],
    list: Value,
    include: Include,
    headers: bool,
    now: Timestamp,
) -> Value {
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let mut row = json!({"cells": columns.cells(object, now)});
            let done = match (columns, text(object, "/status/phase")) {
                (Columns::BuiltIn(kind), phase @ ("Succeeded" | "Failed")) if kind == "Pod" => Some(phase),
                _ => None,
            };
            if let Some(phase) = done {
                let message = match phase {
                    "Succeeded" => "The pod has completed successfully.",
                    _ => "The pod failed.",
                };
                row["conditions"] =
                    json!([{"type": "Completed", "status": "True", "reason": phase, "message": message}]);
            }
            row["object"] = match include {
                Include::None => Value::Null,
                Include::Object => (*object).clone(),
                Include::Metadata => json!({
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
                }),
            };
            row
        })
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list,
        "columnDefinitions": if headers { Value::from(columns.definitions()) } else { Value::Null },
        "rows": rows,
    })
}

/// The columns of built-in kinds; `+` marks those that only `-o wide` shows; then `#` whole numbers,
/// `?` truths, `@` dates.
fn headers(kind: &str) -> &'static [&'static str] {
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
        "ServiceAccount" => &["Name", "Age"],
        "RoleBinding" | "ClusterRoleBinding" => &["Name", "Role", "Age", "+Users", "+Groups", "+ServiceAccounts"],
        "StatefulSet" => &["Name", "Ready", "Age", "+Containers", "+Images"],
        "ControllerRevision" => &["Name", "Controller", "Revision", "Age"],
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

fn definition(header: &&str) -> Value {
    let name = header.trim_start_matches(['+', '#', '?', '@']);
    let kind = match header.trim_start_matches('+').chars().next() {
        Some('#') => "integer",
        Some('?') => "boolean",
        Some('@') => "date",
        _ => "string",
    };
    json!({
        "name": name,
        "type": kind,
        "format": if name == "Name" { "name" } else { "" },
        "description": if name == "Name" { NAME } else { "" },
        "priority": i32::from(header.starts_with('+')),
    })
}

fn cells(kind: &str, object: &Value, now: Timestamp) -> Vec<Value> {
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
        "ServiceAccount" => vec![name.into(), age().into()],
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

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn number(value: &Value, pointer: &str) -> i64 {
    value.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

fn items<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value
        .pointer(pointer)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

fn show(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

fn or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}

fn or_none(text: &str) -> &str {
    or(text, "<none>")
}

fn age(time: Option<&Value>, now: Timestamp) -> String {
    match time
        .and_then(Value::as_str)
        .and_then(|text| text.parse::<Timestamp>().ok())
    {
        Some(time) => since(time, now),
        None => "<unknown>".to_owned(),
    }
}

/// How long ago, to two or three figures.
pub(crate) fn since(time: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second() - time.as_second();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let two = |a: i64, unit: &str, b: i64, small: &str| match b {
        0 => format!("{a}{unit}"),
        b => format!("{a}{unit}{b}{small}"),
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 192 => two(days, "d", hours % 24, "h"),
        _ if days < 730 => format!("{days}d"),
        _ if days < 2920 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Case {
        name: String,
        kind: Option<String>,
        columns: Option<Value>,
        object: Value,
        cells: Vec<Value>,
    }

    #[test]
    fn rows_read_as_in_kubernetes() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        let cases: Vec<Case> = serde_yaml_ng::from_str(include_str!("../fixtures/tables.yaml")).unwrap();
        for case in cases {
            let columns = match &case.kind {
                Some(kind) => Columns::BuiltIn(kind.clone()),
                None => Columns::custom(case.columns.as_ref()),
            };
            assert_eq!(columns.cells(&case.object, now), case.cells, "{}", case.name);
            assert_eq!(columns.definitions().len(), case.cells.len(), "{}", case.name);
        }
    }

    #[test]
    fn ages() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        for (seconds, text) in [
            (0, "0s"),
            (-1, "0s"),
            (-5, "<invalid>"),
            (119, "119s"),
            (120, "2m"),
            (150, "2m30s"),
            (600, "10m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 60, "3h1m"),
            (9 * 3600 + 60, "9h"),
            (50 * 3600, "2d2h"),
            (48 * 3600, "2d"),
            (10 * 86400, "10d"),
            (800 * 86400, "2y70d"),
            (4000 * 86400, "10y"),
        ] {
            let time = Timestamp::from_second(now.as_second() - seconds).unwrap();
            assert_eq!(since(time, now), text);
        }
    }

    #[test]
    fn a_table_carries_metadata_of_its_objects() {
        let object = json!({"metadata": {"name": "x", "creationTimestamp": "2026-11-15T11:59:00Z"}, "spec": {}});
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        let columns = Columns::custom(None);
        let table = table(
            &columns,
            &[&object],
            json!({"resourceVersion": "5"}),
            Include::Metadata,
            true,
            now,
        );
        assert_eq!(table["columnDefinitions"][1]["name"], "Age");
        assert_eq!(table["rows"][0]["cells"], json!(["x", "60s"]));
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
        assert_eq!(table["metadata"]["resourceVersion"], "5");
    }
}
