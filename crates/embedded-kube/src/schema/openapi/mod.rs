//! OpenAPI documents, sufficient for `kubectl explain`, for kubectl's own validation, and for its check whether a
//! parameter is served.
//!
//! Each function builds a document and returns its bytes: call it on the first request and keep the bytes until a
//! definition changes. Nothing else stays in memory.

use k8s_openapi::api::{
    apps::v1 as apps, authentication::v1 as authentication, authorization::v1 as authorization,
    autoscaling::v1 as autoscaling, coordination::v1 as coordination, core::v1 as core, discovery::v1 as discovery,
    events::v1 as events, networking::v1 as networking, policy::v1 as policy, rbac::v1 as rbac,
    scheduling::v1 as scheduling, storage::v1 as storage,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions;
use schemars::JsonSchema;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::definitions::Definitions;
use super::merge_keys::Type;

/// A served resource.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served<'a> {
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) plural: &'a str,
    pub(crate) namespaced: bool,
    /// The `openAPIV3Schema` of a custom kind; `None` for built-in kinds.
    pub(crate) schema: Option<&'a Value>,
}

impl Served<'_> {
    fn identity(&self) -> Value {
        json!({"group": self.group, "version": self.version, "kind": self.kind})
    }

    fn base(&self) -> String {
        match self.group {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        }
    }
}

/// OpenAPI v2 (`/openapi/v2`) as JSON.
pub(crate) fn v2_json(served: &[Served<'_>], server_version: &str) -> Vec<u8> {
    v2(served, server_version).to_string().into_bytes()
}

fn v2(served: &[Served<'_>], server_version: &str) -> Value {
    let mut definitions = definitions(served, Dialect::V2);
    definitions.values_mut().for_each(|schema| adapt(schema, Dialect::V2));
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": server_version},
        "paths": paths(served, Dialect::V2),
        "definitions": definitions,
    })
}

/// The path of a group version in the index of OpenAPI v3: `api/v1`, `apis/apps/v1`.
fn index_key(served: &Served<'_>) -> String {
    served.base().trim_start_matches('/').to_owned()
}

/// The index (`/openapi/v3`). A client does not fetch a document again whose hash it knows, so the hash changes with
/// the definitions; `state` is anything that changes when they do.
pub(crate) fn v3_index(served: &[Served<'_>], state: &str) -> Value {
    let mut entries = Map::new();
    for one in served {
        let key = index_key(one);
        let hash = Sha256::digest(format!("{key} {state}").as_bytes());
        let hash: String = hash.iter().take(16).map(|byte| format!("{byte:02X}")).collect();
        let url = format!("/openapi/v3/{key}?hash={hash}");
        entries.entry(key).or_insert_with(|| json!({"serverRelativeURL": url}));
    }
    json!({ "paths": entries })
}

/// One group version of OpenAPI v3 (`/openapi/v3/apis/GROUP/VERSION`), or `None` if nothing is served there. Pass
/// everything that is served; it selects its own part.
pub(crate) fn v3(served: &[Served<'_>], group: &str, version: &str, server_version: &str) -> Option<Vec<u8>> {
    let own: Vec<Served<'_>> = served
        .iter()
        .filter(|s| s.group == group && s.version == version)
        .copied()
        .collect();
    if own.is_empty() {
        return None;
    }
    let mut schemas = definitions(&own, Dialect::V3);
    schemas.values_mut().for_each(|schema| adapt(schema, Dialect::V3));
    let document = json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": server_version},
        "paths": paths(&own, Dialect::V3),
        "components": {"schemas": schemas},
    });
    Some(document.to_string().into_bytes())
}

#[derive(Clone, Copy, PartialEq)]
enum Dialect {
    V2,
    V3,
}

/// Parameters whose support kubectl checks before it uses them.
const PATCH_PARAMETERS: [&str; 4] = ["dryRun", "fieldManager", "fieldValidation", "force"];

fn paths(served: &[Served<'_>], dialect: Dialect) -> Value {
    let mut paths = Map::new();
    for one in served {
        let base = one.base();
        let scope = if one.namespaced { "/namespaces/{namespace}" } else { "" };
        let list = format!("{base}{scope}/{}", one.plural);
        let get = |action: &str| operation(one, action, &[], dialect);
        let write = |action: &str| operation(one, action, &PATCH_PARAMETERS, dialect);
        paths.insert(
            format!("{list}/{{name}}"),
            json!({"get": get("get"), "patch": write("patch")}),
        );
        paths.insert(list, json!({"get": get("list"), "post": write("post")}));
    }
    Value::Object(paths)
}

fn operation(served: &Served<'_>, action: &str, parameters: &[&str], dialect: Dialect) -> Value {
    let parameters: Vec<Value> = parameters
        .iter()
        .map(|name| match dialect {
            Dialect::V2 => json!({"name": name, "in": "query", "type": "string"}),
            Dialect::V3 => json!({"name": name, "in": "query", "schema": {"type": "string"}}),
        })
        .collect();
    json!({
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": served.identity(),
    })
}

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

fn definitions(served: &[Served<'_>], dialect: Dialect) -> Map<String, Value> {
    let mut all = Definitions::new();
    let mut named: Vec<(String, Value)> = Vec::new();
    for one in served {
        match one.schema {
            None => {
                if let Some(name) = add_built_in(&mut all, one) {
                    named.push((name, one.identity()));
                }
            }
            Some(_) => all.add::<k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>(),
        }
    }
    let mut definitions = all.into_map();
    for (name, schema) in &mut definitions {
        mark(schema, name);
    }
    for (name, identity) in named {
        if let Some(Value::Object(schema)) = definitions.get_mut(&name) {
            let list = schema
                .entry("x-kubernetes-group-version-kind")
                .or_insert_with(|| json!([]));
            if let Value::Array(list) = list {
                list.push(identity);
            }
        }
    }
    for one in served {
        if let Some(schema) = one.schema {
            definitions.insert(custom_name(one), custom(one, schema, dialect));
        }
    }
    definitions
}

/// `com.example.shop.v1.Order`: the group's parts in reverse.
fn custom_name(served: &Served<'_>) -> String {
    let mut parts: Vec<&str> = served.group.split('.').collect();
    parts.reverse();
    format!("{}.{}.{}", parts.join("."), served.version, served.kind)
}

fn custom(served: &Served<'_>, schema: &Value, dialect: Dialect) -> Value {
    let mut schema = schema.clone();
    if dialect == Dialect::V2 {
        simplify(&mut schema);
    }
    let Value::Object(map) = &mut schema else {
        return json!({"type": "object"});
    };
    map.insert("x-kubernetes-group-version-kind".to_owned(), json!([served.identity()]));
    let properties = map.entry("properties").or_insert_with(|| json!({}));
    if let Value::Object(properties) = properties {
        let text = |description: &str| json!({"type": "string", "description": description});
        properties.insert("apiVersion".to_owned(), text("APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources"));
        properties.insert("kind".to_owned(), text("Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds"));
        let metadata = json!({
            "$ref": format!("#/definitions/{OBJECT_META}"),
            "description": "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata",
        });
        properties.insert("metadata".to_owned(), metadata);
        properties.sort_keys();
    }
    schema
}

/// OpenAPI v2 has no alternatives and no null, and kubectl must not reject fields that the server keeps: what v2 cannot
/// express is left out.
fn simplify(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    for key in [
        "oneOf",
        "anyOf",
        "allOf",
        "not",
        "nullable",
        "default",
        "x-kubernetes-validations",
    ] {
        map.remove(key);
    }
    if map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) {
        map.remove("properties");
        map.remove("required");
        map.remove("items");
    }
    if map.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        map.remove("type");
    }
    if map.contains_key("additionalProperties") {
        map.remove("properties");
    }
    for key in ["items", "additionalProperties"] {
        if let Some(below) = map.get_mut(key) {
            simplify(below);
        }
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(simplify);
    }
}

/// Adds to a definition of a built-in type how its lists and maps merge.
fn mark(schema: &mut Value, name: &str) {
    let short = name.rsplit('.').next().unwrap_or(name);
    // k8s-openapi requires these where Kubernetes does not.
    let optional = match short {
        "ConfigMapEnvSource"
        | "ConfigMapKeySelector"
        | "ConfigMapProjection"
        | "ConfigMapVolumeSource"
        | "LocalObjectReference"
        | "SecretEnvSource"
        | "SecretKeySelector"
        | "SecretProjection" => "name",
        _ => "metadata",
    };
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.retain(|field| field != optional);
        if required.is_empty()
            && let Value::Object(schema) = schema
        {
            schema.remove("required");
        }
    }
    let Some(Value::Object(properties)) = schema.get_mut("properties") else {
        return;
    };
    for (field, rule) in Type::exact(short).fields() {
        let Some(Value::Object(property)) = properties.get_mut(field) else {
            continue;
        };
        let mut set = |key: &str, value: Value| property.insert(format!("x-kubernetes-{key}"), value);
        let keys: Vec<&str> = rule.keys.iter().map(|(key, _)| *key).collect();
        if let Some(first) = keys.first() {
            if !rule.apply_only {
                set("patch-merge-key", json!(first));
                set(
                    "patch-strategy",
                    json!(if rule.retain_keys { "merge,retainKeys" } else { "merge" }),
                );
            }
            if !rule.patch_only {
                set("list-type", json!("map"));
                set("list-map-keys", json!(keys));
            }
        }
        if rule.set {
            set("list-type", json!("set"));
            set("patch-strategy", json!("merge"));
        }
        if rule.atomic {
            set("map-type", json!("atomic"));
        }
        if rule.replace {
            set("patch-strategy", json!("replace"));
        }
    }
}

/// Converts the schemas of k8s-openapi to each version of OpenAPI.
fn adapt(schema: &mut Value, dialect: Dialect) {
    match schema {
        Value::Object(map) => {
            // Quantities and ports of built-in types; in custom kinds the mark stays, as in Kubernetes.
            let built_in = map.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true))
                && map.get("description").and_then(Value::as_str).is_some_and(|text| {
                    text.starts_with("Quantity is a fixed-point") || text.starts_with("IntOrString is a type")
                });
            if built_in {
                let quantity = map["description"]
                    .as_str()
                    .is_some_and(|text| text.starts_with("Quantity"));
                map.remove("x-kubernetes-int-or-string");
                if !quantity {
                    map.insert("format".to_owned(), json!("int-or-string"));
                }
                let other = if quantity { "number" } else { "integer" };
                match dialect {
                    Dialect::V2 => map.insert("type".to_owned(), json!("string")),
                    Dialect::V3 => map.insert("oneOf".to_owned(), json!([{"type": "string"}, {"type": other}])),
                };
            }
            map.values_mut().for_each(|value| adapt(value, dialect));
            if dialect == Dialect::V3
                && let Some(Value::String(reference)) = map.get("$ref")
            {
                let name = reference.trim_start_matches("#/definitions/");
                let reference = json!({"$ref": format!("#/components/schemas/{name}")});
                map.remove("$ref");
                // A reference may not have siblings in v3, so it is wrapped when it has.
                match map.is_empty() {
                    true => *schema = reference,
                    false => {
                        map.insert("allOf".to_owned(), json!([reference]));
                    }
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| adapt(item, dialect)),
        _ => {}
    }
}

/// Adds the type of a built-in kind and returns its name. Kinds that are missing here are served without a description.
fn add_built_in(definitions: &mut Definitions, served: &Served<'_>) -> Option<String> {
    fn add<T: JsonSchema>(definitions: &mut Definitions) -> Option<String> {
        definitions.add::<T>();
        Some(T::schema_name().into_owned())
    }
    let d = definitions;
    match (served.group, served.kind) {
        ("", "Binding") => add::<core::Binding>(d),
        ("", "ConfigMap") => add::<core::ConfigMap>(d),
        ("", "Endpoints") => add::<core::Endpoints>(d),
        ("", "Event") => add::<core::Event>(d),
        ("", "Namespace") => add::<core::Namespace>(d),
        ("", "Node") => add::<core::Node>(d),
        ("", "PersistentVolume") => add::<core::PersistentVolume>(d),
        ("", "PersistentVolumeClaim") => add::<core::PersistentVolumeClaim>(d),
        ("", "Pod") => add::<core::Pod>(d),
        ("", "Secret") => add::<core::Secret>(d),
        ("", "Service") => add::<core::Service>(d),
        ("", "ResourceQuota") => add::<core::ResourceQuota>(d),
        ("", "ServiceAccount") => add::<core::ServiceAccount>(d),
        ("apps", "ControllerRevision") => add::<apps::ControllerRevision>(d),
        ("apps", "StatefulSet") => add::<apps::StatefulSet>(d),
        ("authentication.k8s.io", "SelfSubjectReview") => add::<authentication::SelfSubjectReview>(d),
        ("authentication.k8s.io", "TokenReview") => add::<authentication::TokenReview>(d),
        ("authorization.k8s.io", "LocalSubjectAccessReview") => add::<authorization::LocalSubjectAccessReview>(d),
        ("authorization.k8s.io", "SelfSubjectAccessReview") => add::<authorization::SelfSubjectAccessReview>(d),
        ("authorization.k8s.io", "SelfSubjectRulesReview") => add::<authorization::SelfSubjectRulesReview>(d),
        ("authorization.k8s.io", "SubjectAccessReview") => add::<authorization::SubjectAccessReview>(d),
        ("autoscaling", "Scale") => add::<autoscaling::Scale>(d),
        ("coordination.k8s.io", "Lease") => add::<coordination::Lease>(d),
        ("discovery.k8s.io", "EndpointSlice") => add::<discovery::EndpointSlice>(d),
        ("events.k8s.io", "Event") => add::<events::Event>(d),
        ("networking.k8s.io", "NetworkPolicy") => add::<networking::NetworkPolicy>(d),
        ("policy", "PodDisruptionBudget") => add::<policy::PodDisruptionBudget>(d),
        ("rbac.authorization.k8s.io", "ClusterRole") => add::<rbac::ClusterRole>(d),
        ("rbac.authorization.k8s.io", "ClusterRoleBinding") => add::<rbac::ClusterRoleBinding>(d),
        ("rbac.authorization.k8s.io", "Role") => add::<rbac::Role>(d),
        ("rbac.authorization.k8s.io", "RoleBinding") => add::<rbac::RoleBinding>(d),
        ("scheduling.k8s.io", "PriorityClass") => add::<scheduling::PriorityClass>(d),
        ("storage.k8s.io", "StorageClass") => add::<storage::StorageClass>(d),
        ("storage.k8s.io", "VolumeAttachment") => add::<storage::VolumeAttachment>(d),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => add::<extensions::CustomResourceDefinition>(d),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built_in<'a>(group: &'a str, kind: &'a str, plural: &'a str) -> Served<'a> {
        Served {
            group,
            version: "v1",
            kind,
            plural,
            namespaced: true,
            schema: None,
        }
    }

    fn custom_schema() -> Value {
        json!({"type": "object", "description": "A thing.", "properties": {"spec": {
            "type": "object",
            "properties": {
                "size": {"type": "integer", "description": "How large.", "default": 3},
                "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}},
            },
        }}})
    }

    #[test]
    fn v2_says_what_clients_need() {
        let schema = custom_schema();
        let thing = Served {
            group: "b.a",
            version: "v1",
            kind: "Thing",
            plural: "things",
            namespaced: true,
            schema: Some(&schema),
        };
        let served = [
            built_in("", "Pod", "pods"),
            built_in("apps", "StatefulSet", "statefulsets"),
            thing,
        ];
        let document: Value = serde_json::from_slice(&v2_json(&served, "v1.37.0")).unwrap();
        let definition = |name: &str| &document["definitions"][name];
        assert_eq!(
            definition("io.k8s.api.core.v1.Pod")["x-kubernetes-group-version-kind"],
            json!([{"group": "", "version": "v1", "kind": "Pod"}])
        );
        let containers = &definition("io.k8s.api.core.v1.PodSpec")["properties"]["containers"];
        assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
        assert_eq!(
            containers["items"]["$ref"],
            "#/definitions/io.k8s.api.core.v1.Container"
        );
        let quantity = definition("io.k8s.apimachinery.pkg.api.resource.Quantity");
        assert_eq!((&quantity["type"], quantity.get("format")), (&json!("string"), None));
        let port = definition("io.k8s.apimachinery.pkg.util.intstr.IntOrString");
        assert_eq!(
            (&port["type"], &port["format"]),
            (&json!("string"), &json!("int-or-string"))
        );
        assert_eq!(
            definition("io.k8s.apimachinery.pkg.apis.meta.v1.Time")["type"],
            "string"
        );
        let spec = &definition("a.b.v1.Thing")["properties"]["spec"]["properties"];
        assert_eq!(spec["size"]["type"], "integer");
        assert!(spec["free"].get("properties").is_none() && spec["port"].get("anyOf").is_none());
        let patch = &document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
        assert_eq!(patch["parameters"][0]["name"], "dryRun");
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let served = [
            built_in("", "Pod", "pods"),
            built_in("apps", "StatefulSet", "statefulsets"),
        ];
        let document = v3(&served, "apps", "v1", "v1.37.0").unwrap();
        let document: Value = serde_json::from_slice(&document).unwrap();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        fn references<'a>(value: &'a Value, out: &mut Vec<&'a str>) {
            match value {
                Value::Object(map) => {
                    out.extend(map.get("$ref").and_then(Value::as_str));
                    map.values().for_each(|v| references(v, out));
                }
                Value::Array(items) => items.iter().for_each(|v| references(v, out)),
                _ => {}
            }
        }
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 100);
        for reference in found {
            let name = reference.strip_prefix("#/components/schemas/").unwrap();
            assert!(schemas.contains_key(name), "{reference}");
        }
        // Only what the group needs.
        assert!(!schemas.contains_key("io.k8s.api.core.v1.Pod"));
        assert!(v3(&served, "batch", "v1", "v1.37.0").is_none());
    }

    #[test]
    fn the_index_changes_with_the_definitions() {
        let served = [
            built_in("", "Pod", "pods"),
            built_in("apps", "StatefulSet", "statefulsets"),
        ];
        let (a, b) = (v3_index(&served, "1"), v3_index(&served, "2"));
        assert!(
            a["paths"]["api/v1"]["serverRelativeURL"]
                .as_str()
                .unwrap()
                .starts_with("/openapi/v3/api/v1?hash=")
        );
        assert_ne!(a["paths"]["apis/apps/v1"], b["paths"]["apis/apps/v1"]);
    }
}
