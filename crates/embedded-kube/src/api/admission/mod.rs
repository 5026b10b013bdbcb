//! Admission between the request and the store: defaults, and the rules of each kind.
//!
//! One file per kind or family of kinds: what it sets, what it rejects, and which fields are immutable, as in
//! Kubernetes. Custom kinds follow their schema (see `crd`).

mod claim;
mod config;
mod handlers;
mod placement;
mod pod;
mod pod_security;
mod pod_spec;
mod quota;
mod rbac;
mod service;
mod statefulset;

use serde_json::{Value, json};

use super::crd;
use super::errors::{FieldError, Result, Status};
use super::meta;
use super::rest::Call;
use super::rest::update::Part;

/// Sets a field that is missing.
fn default(object: &mut Value, field: &str, value: impl Into<Value>) {
    if object.get(field).is_none_or(Value::is_null) {
        object[field] = value.into();
    }
}

/// Calls `f` for each item of a list, if there is one.
fn each(list: &mut Value, mut f: impl FnMut(&mut Value)) {
    list.as_array_mut().into_iter().flatten().for_each(&mut f);
}

/// The text of a field, empty if it is missing.
fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_default()
}

/// Sets the defaults of every write of the kind.
fn defaults(call: &Call, value: &mut Value) {
    match (call.resource.group.as_str(), call.resource.plural.as_str()) {
        ("", "pods") => pod_spec::defaults(&mut value["spec"]),
        ("", "services") => service::defaults(value),
        ("", "persistentvolumeclaims") => claim::defaults(value),
        ("", "persistentvolumes") => claim::volume_defaults(value),
        ("", "secrets") => config::secret_defaults(value),
        ("apps", "statefulsets") => statefulset::defaults(value),
        ("storage.k8s.io", "storageclasses") => claim::class_defaults(value),
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => rbac::defaults(value),
        ("discovery.k8s.io", "endpointslices") => each(&mut value["ports"], |port| {
            default(port, "protocol", "TCP");
            default(port, "name", "");
        }),
        ("scheduling.k8s.io", "priorityclasses") => default(value, "preemptionPolicy", "PreemptLowerPriority"),
        _ => {}
    }
}

/// Sets the defaults of a new object.
pub(crate) async fn on_create(call: &Call, value: &mut Value) -> Result<()> {
    let resource = &call.resource;
    defaults(call, value);
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => pod::on_create(call, value)?,
        ("", "services") => service::on_create(call, value)?,
        ("", "persistentvolumeclaims") => claim::on_create(call, value),
        ("", "persistentvolumes") => value["status"] = json!({"phase": "Pending"}),
        ("", "namespaces") => {
            value["spec"] = json!({"finalizers": ["kubernetes"]});
            value["status"] = json!({"phase": "Active"});
            let name = value["metadata"]["name"].clone();
            let metadata = meta::metadata_mut(value);
            let labels = metadata.entry("labels").or_insert_with(|| json!({}));
            labels["kubernetes.io/metadata.name"] = name;
        }
        ("apps", "statefulsets") => value["status"] = json!({"replicas": 0, "availableReplicas": 0}),
        ("policy", "poddisruptionbudgets") => {
            value["status"] =
                json!({"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0});
        }
        ("rbac.authorization.k8s.io", _) => rbac::deny_escalation(call, value)?,
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            crd::complete(value, None);
            let mut finalizers = meta::finalizers(value);
            if !finalizers.iter().any(|f| f == crd::FINALIZER) {
                finalizers.push(crd::FINALIZER.into());
            }
            meta::set_finalizers(value, finalizers);
        }
        _ => {}
    }
    if resource.custom().is_some() {
        crd::reject_while_terminating(call)?;
    }
    Ok(())
}

/// Sets the defaults of a changed object.
pub(crate) fn on_update(call: &Call, old: &Value, new: &mut Value, part: Part) -> Result<()> {
    if part != Part::Main {
        return Ok(());
    }
    match (call.resource.group.as_str(), call.resource.plural.as_str()) {
        ("", "services") => service::on_update(call, old, new)?,
        ("", "pods") => {
            // A patch that removes a defaulted field does not change it.
            defaults(call, new);
        }
        ("", "namespaces") => {
            new["spec"] = old["spec"].clone();
            defaults(call, new);
        }
        ("apiextensions.k8s.io", "customresourcedefinitions") => crd::complete(new, Some(old)),
        ("rbac.authorization.k8s.io", _) => {
            defaults(call, new);
            rbac::deny_escalation(call, new)?;
        }
        _ => defaults(call, new),
    }
    Ok(())
}

/// Rejects deletions that are not allowed.
pub(crate) fn on_delete(call: &Call, value: &Value) -> Result<()> {
    let name = meta::name(value);
    if call.resource.is("", "namespaces") && ["default", "kube-system", "kube-public"].contains(&name) {
        return Err(Status::forbidden(
            &call.resource,
            name,
            "this namespace may not be deleted",
        ));
    }
    Ok(())
}

/// The rules of each kind.
pub(crate) fn validate(call: &Call, old: Option<&Value>, new: &Value, part: Part) -> Result<Vec<FieldError>> {
    let resource = &call.resource;
    if let Some(custom) = resource.custom() {
        return Ok(custom.validate(&resource.version, old, new, part));
    }
    if part == Part::Status {
        return Ok(Vec::new());
    }
    Ok(match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => pod::validate(call, old, new)?,
        ("", "services") => service::validate(call, old, new),
        ("", "persistentvolumeclaims") => claim::validate(call, old, new)?,
        ("", "configmaps" | "secrets") => config::validate(resource, old, new),
        ("apps", "statefulsets") => statefulset::validate(old, new),
        ("rbac.authorization.k8s.io", _) => rbac::validate(old, new),
        ("storage.k8s.io", "storageclasses") => claim::validate_class(old, new),
        ("apiextensions.k8s.io", "customresourcedefinitions") => crd::validate(new),
        _ => Vec::new(),
    })
}
