//! Converts the bytes of a request to an object: content type, syntax, kind, unknown fields.

use serde_json::Value;

use super::{Call, FieldValidation};
use crate::api::errors::{Result, Status};
use crate::api::protobuf::{self, ProtobufError};
use crate::api::resources::{Resource, Rules};
use crate::api::{events, meta};
use crate::schema::builtin::{self, strict_error};

/// Parses a request body: JSON, or YAML by its content type.
pub(crate) fn parse(content_type: &str, body: &[u8]) -> Result<Value> {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    match kind {
        "" | "application/json" | "*/*" => serde_json::from_slice(body)
            .map_err(|e| Status::bad_request(format!("couldn't get version/kind; json parse error: {e}"))),
        "application/yaml" => {
            let text = std::str::from_utf8(body).map_err(|e| Status::bad_request(format!("not UTF-8: {e}")))?;
            serde_yaml_ng::from_str(text).map_err(|e| Status::bad_request(format!("yaml parse error: {e}")))
        }
        protobuf::CONTENT_TYPE => protobuf::decode(body).map_err(|e| match e {
            ProtobufError::UnknownKind(..) => Status::new(415, "UnsupportedMediaType", e.to_string()),
            e => Status::bad_request(format!("the body cannot be read as protobuf: {e}")),
        }),
        _ => Err(Status::new(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: application/json, \
             application/yaml, application/vnd.kubernetes.protobuf",
        )),
    }
}

/// Parses the body as an object of the call's kind, in the stored shape.
pub(crate) fn object(call: &Call) -> Result<Value> {
    let value = parse(&call.content_type, &call.body)?;
    check_kind(&call.resource, &value)?;
    shape(call, value)
}

/// Rejects a body of another kind.
pub(crate) fn check_kind(resource: &Resource, value: &Value) -> Result<()> {
    let Some(map) = value.as_object() else {
        return Err(Status::bad_request(format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type struct",
            json_type(value)
        )));
    };
    let (kind, version) = (map.get("kind"), map.get("apiVersion"));
    if resource.custom().is_some() {
        for (field, found) in [("Kind", kind), ("apiVersion", version)] {
            if found.and_then(Value::as_str).unwrap_or_default().is_empty() {
                return Err(Status::bad_request(format!("Object '{field}' is missing in '{value}'")));
            }
        }
    }
    let text = |v: Option<&Value>| v.and_then(Value::as_str).unwrap_or_default().to_owned();
    let (kind, version) = (text(kind), text(version));
    let api_version = resource.api_version();
    if (!kind.is_empty() && kind != resource.kind) || (!version.is_empty() && version != api_version) {
        return Err(Status::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {}: no kind {kind:?} is registered for version \
             {version:?} on this path; expected apiVersion {api_version:?}, kind {:?}",
            resource.kind, resource.kind
        )));
    }
    Ok(())
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Converts an object to the stored shape, and reports unknown fields as the client requested.
pub(crate) fn shape(call: &Call, mut value: Value) -> Result<Value> {
    let resource = &call.resource;
    let strictness = call.field_validation()?;
    let wrong = |e: serde_json::Error| {
        Status::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: {e}",
            resource.kind, resource.version, resource.kind
        ))
    };
    value["apiVersion"] = resource.api_version().into();
    value["kind"] = resource.kind.clone().into();
    if events::is_new_face(resource) {
        value = events::to_core(value);
    }
    let mut unknown = Vec::new();
    let shaped = match &resource.rules {
        Rules::BuiltIn(normalize) => {
            let decoded = normalize(&value).map_err(Status::bad_request)?;
            unknown = decoded.unknown;
            decoded.object
        }
        Rules::Custom(custom) => {
            builtin::check_metadata(&value).map_err(Status::bad_request)?;
            let metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta =
                serde_json::from_value(value["metadata"].take()).map_err(wrong)?;
            value["metadata"] = serde_json::to_value(metadata).map_err(wrong)?;
            custom.shape(&resource.version, &mut value, &mut unknown);
            value["apiVersion"] = custom.storage_api_version().into();
            value
        }
        Rules::Ephemeral => value,
    };
    if !unknown.is_empty() {
        match strictness {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => unknown
                .iter()
                .for_each(|path| call.warn(format!("unknown field \"{path}\""))),
            FieldValidation::Strict => {
                return Err(Status::bad_request(strict_error(
                    &resource.kind,
                    &resource.version,
                    &unknown,
                )));
            }
        }
    }
    Ok(shaped)
}

/// Checks that name and namespace in the body are those of the path, and fills them in.
pub(crate) fn check_place(call: &Call, value: &mut Value, wanted_name: Option<&str>) -> Result<()> {
    let namespace = call.namespace().to_owned();
    let found = meta::namespace(value);
    if !found.is_empty() && found != namespace {
        if namespace.is_empty() && !call.resource.namespaced {
            return Err(Status::bad_request(
                "the namespace of a cluster-wide object must be empty",
            ));
        }
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let metadata = meta::metadata_mut(value);
    if call.resource.namespaced {
        metadata.insert("namespace".into(), namespace.into());
    } else {
        metadata.shift_remove("namespace");
    }
    if let Some(wanted) = wanted_name {
        let found = metadata
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        if found.is_empty() {
            metadata.insert("name".into(), wanted.into());
        } else if found != wanted {
            return Err(Status::bad_request(format!(
                "the name of the object ({found}) does not match the name on the URL ({wanted})"
            )));
        }
    }
    Ok(())
}
