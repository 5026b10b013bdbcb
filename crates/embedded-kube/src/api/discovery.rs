//! Discovery: health, version, and the lists of groups, versions and resources in both of their forms.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use serde_json::{Value, json};

use super::body::{Body, full};
use super::errors::{Result, Status};
use super::request::RequestInfo;
use super::resources::{Registry, Resource};
use super::server::{Server, json_response};

/// The Kubernetes version whose behaviour it follows.
pub(crate) const MINOR: &str = "37";

/// Health and version: served to anyone.
pub(crate) fn open_path(path: &str) -> Option<Response<Body>> {
    match path {
        "/healthz" | "/livez" | "/readyz" | "/healthz/ping" | "/livez/ping" | "/readyz/ping" => {
            let mut response = Response::new(full("ok"));
            response.headers_mut().insert(
                header::CONTENT_TYPE,
                HeaderValue::from_static("text/plain; charset=utf-8"),
            );
            Some(response)
        }
        "/version" | "/version/" => Some(json_response(
            200,
            Bytes::from(
                json!({
                    "major": "1", "minor": MINOR, "gitVersion": format!("v1.{MINOR}.0-embedded"), "gitCommit": "",
                    "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none",
                    "compiler": "rustc", "platform": format!("{}/{}", std::env::consts::OS, goarch()),
                })
                .to_string(),
            ),
        )),
        _ => None,
    }
}

fn goarch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Serves the paths that are no resources.
pub(crate) fn serve(server: &Arc<Server>, info: &RequestInfo, accept: &str) -> Result<Response<Body>> {
    if info.verb != "get" {
        return Err(Status::method_not_allowed());
    }
    let registry = server.registry();
    let parts: Vec<&str> = info.path.split('/').filter(|p| !p.is_empty()).collect();
    if let ["openapi", rest @ ..] = parts.as_slice() {
        return super::openapi::serve(&registry, rest);
    }
    if let Some(form) = aggregated_form(accept)
        && let [root @ ("api" | "apis")] = parts.as_slice()
    {
        let list = aggregated(&registry, form, *root == "api");
        let mut response = json_response(200, Bytes::from(list.to_string()));
        let kind = format!("application/json;g=apidiscovery.k8s.io;v={form};as=APIGroupDiscoveryList");
        if let Ok(kind) = HeaderValue::from_str(&kind) {
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
        }
        return Ok(response);
    }
    let found = match parts.as_slice() {
        [] => Some(json!({"paths": paths(&registry)})),
        ["api"] => Some(json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server.network.api_address()}],
        })),
        ["apis"] => {
            let groups: Vec<Value> = registry
                .groups()
                .filter(|(name, _)| !name.is_empty())
                .filter_map(|(name, _)| group(&registry, name, false))
                .collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["api", version] => resource_list(&registry, "", version),
        ["apis", name] => group(&registry, name, true),
        ["apis", name, version] => resource_list(&registry, name, version),
        _ => None,
    };
    match found {
        Some(value) => Ok(json_response(200, Bytes::from(value.to_string()))),
        None => Err(Status::not_served()),
    }
}

fn paths(registry: &Registry) -> Vec<String> {
    let mut paths = vec![
        "/api".to_owned(),
        "/api/v1".into(),
        "/apis".into(),
        "/healthz".into(),
        "/version".into(),
    ];
    for (name, versions) in registry.groups().filter(|(name, _)| !name.is_empty()) {
        paths.push(format!("/apis/{name}"));
        paths.extend(versions.iter().map(|(version, _)| format!("/apis/{name}/{version}")));
    }
    paths.sort();
    paths
}

fn group(registry: &Registry, name: &str, alone: bool) -> Option<Value> {
    let (name, versions) = registry
        .groups()
        .find(|(found, _)| *found == name && !name.is_empty())?;
    let versions: Vec<Value> = versions
        .iter()
        .map(|(version, _)| json!({"groupVersion": format!("{name}/{version}"), "version": version}))
        .collect();
    let mut group = json!({"name": name, "versions": versions, "preferredVersion": versions.first()});
    if alone {
        group["kind"] = "APIGroup".into();
        group["apiVersion"] = "v1".into();
    }
    Some(group)
}

fn resource_list(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let served = registry.version(group, version)?;
    let mut resources = Vec::new();
    for resource in served.values() {
        let mut entry = json!({
            "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": resource.verbs(),
        });
        if !resource.short_names.is_empty() {
            entry["shortNames"] = resource.short_names.clone().into();
        }
        if !resource.categories.is_empty() {
            entry["categories"] = resource.categories.clone().into();
        }
        if resource.verbs().contains(&"watch") {
            entry["storageVersionHash"] = hash(resource).into();
        }
        resources.push(entry);
        for sub in &resource.subresources {
            let mut entry = json!({
                "name": format!("{}/{}", resource.plural, sub.name), "singularName": "",
                "namespaced": resource.namespaced,
                "kind": if sub.kind.is_empty() { resource.kind.as_str() } else { sub.kind }, "verbs": sub.verbs,
            });
            if let Some((group, version)) = sub.group_version {
                entry["group"] = group.into();
                entry["version"] = version.into();
            }
            resources.push(entry);
        }
    }
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources,
    }))
}

fn hash(resource: &Resource) -> String {
    use base64::Engine;
    use sha2::Digest;
    let digest = sha2::Sha256::digest(format!("{}/{}/{}", resource.group, resource.version, resource.kind));
    base64::engine::general_purpose::STANDARD.encode(&digest[..8])
}

/// `v2` or `v2beta1` if the client asks for all groups in one answer and prefers it to the plain form.
fn aggregated_form(accept: &str) -> Option<&'static str> {
    for choice in accept.split(',') {
        let wants = |text: &str| choice.split(';').any(|p| p.trim() == text);
        if wants("as=APIGroupDiscoveryList") && wants("g=apidiscovery.k8s.io") {
            if wants("v=v2") {
                return Some("v2");
            }
            if wants("v=v2beta1") {
                return Some("v2beta1");
            }
        } else if choice.trim().starts_with("application/json") {
            return None;
        }
    }
    None
}

fn aggregated(registry: &Registry, form: &str, core: bool) -> Value {
    let mut items = Vec::new();
    for (name, versions) in registry.groups().filter(|(name, _)| name.is_empty() == core) {
        let versions: Vec<Value> = versions
            .iter()
            .map(|(version, served)| {
                let resources: Vec<Value> = served.values().map(|r| aggregated_resource(r)).collect();
                json!({"version": version, "freshness": "Current", "resources": resources})
            })
            .collect();
        let metadata = if name.is_empty() {
            json!({})
        } else {
            json!({"name": name})
        };
        items.push(json!({"metadata": metadata, "versions": versions}));
    }
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{form}"), "metadata": {},
        "items": items,
    })
}

fn aggregated_resource(resource: &Resource) -> Value {
    let kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": kind(&resource.group, &resource.version, &resource.kind),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": resource.verbs(),
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = resource.short_names.clone().into();
    }
    if !resource.categories.is_empty() {
        entry["categories"] = resource.categories.clone().into();
    }
    let subresources: Vec<Value> = resource
        .subresources
        .iter()
        .map(|sub| {
            let (group, version) = sub.group_version.unwrap_or((&resource.group, &resource.version));
            let name = if sub.kind.is_empty() {
                resource.kind.as_str()
            } else {
                sub.kind
            };
            json!({"subresource": sub.name, "responseKind": kind(group, version, name), "verbs": sub.verbs})
        })
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = subresources.into();
    }
    entry
}
