//! Converts stored objects to what a client reads: the requested version, and plain, table or metadata-only form.

use bytes::Bytes;
use serde_json::{Value, json};

use super::Call;
use crate::api::errors::{Result, Status};
use crate::api::events;
use crate::api::resources::Resource;
use crate::api::store::Object;

/// The form of a response, from the `Accept` header.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Form {
    Plain,
    Table,
    Metadata,
}

impl Form {
    /// The first form in the header that is served.
    pub(crate) fn from_accept(accept: &str) -> Result<Self> {
        if accept.trim().is_empty() {
            return Ok(Self::Plain);
        }
        for choice in accept.split(',') {
            let mut parts = choice.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            let parameters: Vec<(&str, &str)> = parts.filter_map(|p| p.split_once('=')).collect();
            let parameter = |name| parameters.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
            if !matches!(media, "application/json" | "application/*" | "*/*" | "application/yaml") {
                continue;
            }
            match (parameter("as"), parameter("g"), parameter("v")) {
                (None, _, _) => return Ok(Self::Plain),
                (Some("Table"), _, Some("v1" | "v1beta1")) => return Ok(Self::Table),
                (Some("PartialObjectMetadata" | "PartialObjectMetadataList"), _, Some("v1" | "v1beta1")) => {
                    return Ok(Self::Metadata);
                }
                _ => {}
            }
        }
        Err(Status::new(
            406,
            "NotAcceptable",
            "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, \
             application/json;stream=watch",
        ))
    }
}

/// The object in the version of the resource; `None` if it is stored that way.
fn converted(resource: &Resource, value: &Value) -> Option<Value> {
    if events::is_new_face(resource) {
        return Some(events::to_new_face(value.clone()));
    }
    resource.custom()?;
    if value["apiVersion"].as_str() == Some(resource.api_version().as_str()) {
        return None;
    }
    let mut value = value.clone();
    value["apiVersion"] = resource.api_version().into();
    Some(value)
}

/// An object as a value in the version of the resource.
pub(crate) fn value(resource: &Resource, value: &Value) -> Value {
    converted(resource, value).unwrap_or_else(|| value.clone())
}

fn metadata_only(value: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": value["metadata"]})
}

/// One object in the requested form.
pub(crate) fn object(call: &Call, object: &Object) -> Bytes {
    match call.form {
        Form::Plain => plain(&call.resource, object),
        Form::Metadata => Bytes::from(metadata_only(&object.value).to_string()),
        Form::Table => {
            let shown = value(&call.resource, &object.value);
            Bytes::from(crate::api::table::table(call, std::slice::from_ref(&shown), None, true).to_string())
        }
    }
}

pub(crate) fn plain(resource: &Resource, object: &Object) -> Bytes {
    match converted(resource, &object.value) {
        Some(value) => Bytes::from(value.to_string()),
        None => object.json(),
    }
}

/// A list in the requested form; `metadata` is the list's own.
pub(crate) fn list(call: &Call, metadata: &Value, objects: &[&Object]) -> Bytes {
    let head = |api_version: &str, kind: &str| {
        format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{metadata},\"items\":[")
    };
    match call.form {
        Form::Plain => {
            let mut out = head(&call.resource.api_version(), &call.resource.list_kind).into_bytes();
            for (i, object) in objects.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                out.extend_from_slice(&plain(&call.resource, object));
            }
            out.extend_from_slice(b"]}");
            Bytes::from(out)
        }
        Form::Metadata => {
            let items: Vec<Value> = objects.iter().map(|o| metadata_only(&o.value)).collect();
            let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items});
            Bytes::from(list.to_string())
        }
        Form::Table => {
            let shown: Vec<Value> = objects.iter().map(|o| value(&call.resource, &o.value)).collect();
            Bytes::from(crate::api::table::table(call, &shown, Some(metadata), true).to_string())
        }
    }
}
