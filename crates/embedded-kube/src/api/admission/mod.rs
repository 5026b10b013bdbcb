//! What happens to an object between the request and the store: defaults, and the rules of each kind.

use serde_json::{Value, json};

use super::crd;
use super::errors::{FieldError, Result, Status};
use super::rest::Call;
use super::rest::update::Part;

/// Fills in what a new object leaves open.
pub(crate) async fn on_create(call: &Call, value: &mut Value) -> Result<()> {
    let resource = &call.resource;
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => value["status"] = json!({"phase": "Pending"}),
        ("", "namespaces") => {
            value["spec"] = json!({"finalizers": ["kubernetes"]});
            value["status"] = json!({"phase": "Active"});
            value["metadata"]["labels"]["kubernetes.io/metadata.name"] = value["metadata"]["name"].clone();
        }
        ("apiextensions.k8s.io", "customresourcedefinitions") => crd::complete(value, None),
        _ => {}
    }
    Ok(())
}

/// Fills in what a changed object leaves open.
pub(crate) fn on_update(call: &Call, old: &Value, new: &mut Value, part: Part) -> Result<()> {
    if part == Part::Main && call.resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
        crd::complete(new, Some(old));
    }
    Ok(())
}

/// Refuses deletions that must not be.
pub(crate) fn on_delete(call: &Call, value: &Value) -> Result<()> {
    let name = value["metadata"]["name"].as_str().unwrap_or_default();
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
pub(crate) fn validate(_call: &Call, _old: Option<&Value>, _new: &Value) -> Result<Vec<FieldError>> {
    Ok(Vec::new())
}
