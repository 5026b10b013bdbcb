//! Decodes objects of built-in kinds, with Kubernetes' messages, and finds unknown fields.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::definitions::Definitions;
use super::formats;
use super::quantity::Quantity;

/// A decoded object, as it will be stored, and the paths of fields that its type does not have (in the order in which
/// they were written): `fieldValidation=Strict` rejects them, `Warn` warns about them.
#[derive(Debug, PartialEq)]
pub(crate) struct Decoded {
    pub(crate) object: Value,
    pub(crate) unknown: Vec<String>,
}

/// Decodes an object of a built-in kind. The error is the message of a 400 BadRequest.
pub(crate) fn decode<T>(value: &Value) -> Result<Decoded, String>
where
    T: Serialize + DeserializeOwned + JsonSchema,
{
    let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default();
    let api_version = value.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    let version = api_version.rsplit('/').next().unwrap_or_default();
    let bad_request = |text: String| format!("{kind} in version \"{version}\" cannot be handled as a {kind}: {text}");
    if let Err(text) = quantities(value) {
        return Err(bad_request(text));
    }
    let typed = serde_json::from_value::<T>(value.clone()).and_then(serde_json::to_value);
    match typed {
        Ok(object) => {
            let mut unknown = Vec::new();
            lost(value, &object, "", &mut unknown);
            Ok(Decoded { object, unknown })
        }
        Err(error) => Err(bad_request(explain::<T>(value).unwrap_or_else(|| error.to_string()))),
    }
}

/// Checks the metadata of a custom resource, whose types are not in its schema. The error is the message of a 400.
pub(crate) fn check_metadata(object: &Value) -> Result<(), String> {
    let Some(metadata) = object.get("metadata").filter(|m| !m.is_null()) else {
        return Ok(());
    };
    let Err(error) = ObjectMeta::deserialize(metadata) else {
        return Ok(());
    };
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    let api_version = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    let version = api_version.rsplit('/').next().unwrap_or_default();
    let text = match metadata {
        Value::Object(_) => explain::<ObjectMeta>(metadata).unwrap_or_else(|| error.to_string()),
        other => format!(
            "json: cannot unmarshal {} into Go value of type v1.ObjectMeta",
            kind_of(other)
        ),
    };
    Err(format!(
        "{kind} in version \"{version}\" cannot be handled as a {kind}: {text}"
    ))
}

/// The message of a 400 for unknown fields under `fieldValidation=Strict`.
pub(crate) fn strict_error(kind: &str, version: &str, unknown: &[String]) -> String {
    let fields: Vec<String> = unknown.iter().map(|path| format!("unknown field \"{path}\"")).collect();
    let fields = fields.join(", ");
    format!("{kind} in version \"{version}\" cannot be handled as a {kind}: strict decoding error: {fields}")
}

/// A field that is lost in decoding is not a field of the type.
fn lost(before: &Value, after: &Value, path: &str, unknown: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for (name, value) in before.iter().filter(|(_, value)| !value.is_null()) {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                match after.get(name) {
                    Some(after) => lost(value, after, &path, unknown),
                    None => unknown.push(path),
                }
            }
        }
        (Value::Array(before), Value::Array(after)) => {
            for (index, (before, after)) in before.iter().zip(after).enumerate() {
                lost(before, after, &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

/// Maps of quantities have the same names in every built-in type.
fn quantities(value: &Value) -> Result<(), String> {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                if matches!(
                    name.as_str(),
                    "requests" | "limits" | "capacity" | "allocatable" | "allocatedResources"
                ) {
                    for quantity in value.as_object().into_iter().flatten().filter_map(|(_, q)| q.as_str()) {
                        if Quantity::parse(quantity).is_none() {
                            return Err(
                                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                                    .to_owned(),
                            );
                        }
                    }
                }
                // Data of users and schemas, where fields may be named anything.
                if !matches!(name.as_str(), "metadata" | "data" | "stringData" | "openAPIV3Schema") {
                    quantities(value)?;
                }
            }
            Ok(())
        }
        Value::Array(items) => items.iter().try_for_each(quantities),
        _ => Ok(()),
    }
}

/// Finds the value with the wrong type and describes it as Go's decoder does.
fn explain<T: JsonSchema>(value: &Value) -> Option<String> {
    let mut definitions = Definitions::new();
    definitions.add::<T>();
    let definitions = definitions.into_map();
    let name = T::schema_name();
    mismatch(value, definitions.get(name.as_ref())?, short(&name), &[], &definitions)
}

/// `PodSpec` of `io.k8s.api.core.v1.PodSpec`.
fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

fn mismatch(
    value: &Value,
    schema: &Value,
    owner: &str,
    path: &[&str],
    definitions: &Map<String, Value>,
) -> Option<String> {
    if value.is_null() {
        return None;
    }
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        let name = reference.trim_start_matches("#/definitions/");
        let target = definitions.get(name)?;
        let object = target.get("properties").is_some();
        if object && !value.is_object() {
            return Some(wrong(value, owner, path, &go_type(schema)));
        }
        return mismatch(
            value,
            target,
            if object { short(name) } else { owner },
            path,
            definitions,
        );
    }
    let int_or_string = schema.get("x-kubernetes-int-or-string").is_some();
    match (schema.get("type").and_then(Value::as_str), value) {
        (_, Value::String(_) | Value::Number(_)) if int_or_string => None,
        (_, _) if int_or_string => Some(wrong(value, owner, path, "int32")),
        (Some("object"), Value::Object(map)) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            map.iter().find_map(|(name, value)| {
                if let Some(property) = properties.and_then(|p| p.get(name)) {
                    mismatch(value, property, owner, &[path, &[name]].concat(), definitions)
                } else {
                    // Keys of maps are not part of Go's path.
                    let values = schema.get("additionalProperties").filter(|s| s.is_object())?;
                    mismatch(value, values, owner, path, definitions)
                }
            })
        }
        (Some("array"), Value::Array(items)) => {
            let item_schema = schema.get("items")?;
            items
                .iter()
                .find_map(|item| mismatch(item, item_schema, owner, path, definitions))
        }
        (Some("string"), Value::String(text)) => match schema.get("format").and_then(Value::as_str) {
            Some("date-time") if !formats::accepts("datetime", text) => Some(format!(
                "parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {text:?} as \"2006\""
            )),
            Some("byte") if !text.is_empty() && !formats::accepts("byte", text) => {
                let bad = |c: char| !c.is_ascii_alphanumeric() && !matches!(c, '+' | '/' | '=');
                Some(format!(
                    "illegal base64 data at input byte {}",
                    text.find(bad).unwrap_or(text.len())
                ))
            }
            _ => None,
        },
        (Some("integer"), Value::Number(number)) if number.is_f64() => {
            Some(wrong_as(&format!("number {number}"), owner, path, &go_type(schema)))
        }
        (Some("integer" | "number"), Value::Number(_)) | (Some("boolean"), Value::Bool(_)) | (None, _) => None,
        _ => Some(wrong(value, owner, path, &go_type(schema))),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn wrong(value: &Value, owner: &str, path: &[&str], wanted: &str) -> String {
    wrong_as(kind_of(value), owner, path, wanted)
}

fn wrong_as(got: &str, owner: &str, path: &[&str], wanted: &str) -> String {
    format!(
        "json: cannot unmarshal {got} into Go struct field {owner}.{} of type {wanted}",
        path.join(".")
    )
}

fn go_type(schema: &Value) -> String {
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        let name = reference.trim_start_matches("#/definitions/");
        let mut parts = name.rsplit('.');
        let kind = parts.next().unwrap_or_default();
        return format!("{}.{kind}", parts.next().unwrap_or_default());
    }
    let below = |key: &str| schema.get(key).map(go_type).unwrap_or_default();
    let text = |key: &str| schema.get(key).and_then(Value::as_str).unwrap_or_default();
    match (text("type"), text("format")) {
        ("array", _) => format!("[]{}", below("items")),
        ("object", _) => format!("map[string]{}", below("additionalProperties")),
        ("boolean", _) => "bool".to_owned(),
        ("integer", "") | ("integer", "int32") => "int32".to_owned(),
        ("integer", format) => format.to_owned(),
        ("number", _) => "float64".to_owned(),
        ("string", "byte") => "[]uint8".to_owned(),
        ("string", _) => "string".to_owned(),
        _ => "interface {}".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Pod, Secret, Service};

    use super::*;

    #[derive(Deserialize)]
    struct Case {
        name: String,
        object: Value,
        #[serde(default)]
        unknown: Vec<String>,
        error: Option<String>,
    }

    #[test]
    fn metadata_of_custom_resources() {
        use serde_json::json;
        let check =
            |metadata: Value| check_metadata(&json!({"apiVersion": "a.b/v1", "kind": "K", "metadata": metadata}));
        let message = |text: &str| {
            Err(format!(
                "K in version \"v1\" cannot be handled as a K: json: cannot unmarshal {text}"
            ))
        };
        assert_eq!(
            check(json!({"name": "x", "labels": {"a": "b"}, "unknown": 1, "creationTimestamp": null})),
            Ok(())
        );
        let labels = json!({"name": "x", "labels": {"a": 1}});
        assert_eq!(
            check(labels),
            message("number into Go struct field ObjectMeta.labels of type string")
        );
        let finalizers = json!({"finalizers": "a"});
        assert_eq!(
            check(finalizers),
            message("string into Go struct field ObjectMeta.finalizers of type []string")
        );
        assert_eq!(check(json!("x")), message("string into Go value of type v1.ObjectMeta"));
    }

    #[test]
    fn decoding_errors_are_those_of_kubernetes() {
        let cases: Vec<Case> = serde_yaml_ng::from_str(include_str!("fixtures/builtin.yaml")).unwrap();
        for case in cases {
            let outcome = match case.object["kind"].as_str() {
                Some("Pod") => decode::<Pod>(&case.object),
                Some("Secret") => decode::<Secret>(&case.object),
                _ => decode::<Service>(&case.object),
            };
            match (outcome, case.error) {
                (Ok(decoded), None) => assert_eq!(decoded.unknown, case.unknown, "{}", case.name),
                (Err(text), Some(error)) => assert_eq!(text, error, "{}", case.name),
                (outcome, error) => panic!("{}: {outcome:?} instead of {error:?}", case.name),
            }
        }
    }
}
