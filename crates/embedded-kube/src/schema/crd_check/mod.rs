//! Validation of a CustomResourceDefinition: its names and versions, and whether its schemas are structural, so that
//! pruning, defaulting and apply can rely on them.
//!
//! The subset of Kubernetes' checks that catches common mistakes, with Kubernetes' messages. Not checked: conversion
//! webhooks, selectable fields, cost estimates of CEL rules.

mod schema;

use serde_json::{Map, Value};

pub(crate) use self::schema::check_schema;

use super::error::{FieldError, Reason};
use super::formats;
use super::table::jsonpath::Path;

const LABEL: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];

/// The errors of the definition, without CEL rules. Names that Kubernetes sets (`singular`, `listKind`) must be set
/// already.
pub(crate) fn check(crd: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &crd["spec"];
    let at = |pointer: &str| spec.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (group, plural) = (at("/group"), at("/names/plural"));

    let name = crd
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if name != format!("{plural}.{group}") {
        errors.push(FieldError::invalid(
            "metadata.name",
            name,
            "must be spec.names.plural+\".\"+spec.group",
        ));
    }
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else if !formats::accepts("k8s-long-name", group) {
        errors.push(FieldError::invalid("spec.group", group, SUBDOMAIN));
    } else if !group.contains('.') {
        errors.push(FieldError::invalid(
            "spec.group",
            group,
            "should be a domain with at least one dot",
        ));
    }
    match at("/scope") {
        "" => errors.push(FieldError::required("spec.scope", "")),
        "Cluster" | "Namespaced" => {}
        other => errors.push(FieldError::not_supported(
            "spec.scope",
            other,
            &["Cluster".into(), "Namespaced".into()],
        )),
    }
    versions(spec, &mut errors);
    names(spec, &mut errors);
    for (path, schema) in schemas(spec) {
        errors.extend(check_schema(schema, &path));
    }
    errors
}

/// The schemas of all versions with the paths that Kubernetes names them by: a schema that all versions share (or the
/// only one) is `spec.validation`, a relic of its older form.
pub(crate) fn schemas(spec: &Value) -> Vec<(String, &Value)> {
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let all: Vec<Option<&Value>> = versions.iter().map(|v| v.pointer("/schema/openAPIV3Schema")).collect();
    match all.as_slice() {
        [Some(first), rest @ ..] if rest.iter().all(|other| *other == Some(first)) => {
            vec![("spec.validation.openAPIV3Schema".to_owned(), first)]
        }
        all => all
            .iter()
            .enumerate()
            .filter_map(|(i, schema)| Some((format!("spec.versions[{i}].schema.openAPIV3Schema"), (*schema)?)))
            .collect(),
    }
}

fn versions(spec: &Value, errors: &mut Vec<FieldError>) {
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let all: Value = versions.iter().map(printed).collect();
    let path_of = |i: usize, key: &str| match versions.len() {
        1 => format!("spec.{key}"),
        _ => format!("spec.versions[{i}].{key}"),
    };
    for (i, version) in versions.iter().enumerate() {
        let name = version["name"].as_str().unwrap_or_default();
        if !is_label(name) {
            errors.push(FieldError::invalid(format!("spec.versions[{i}].name"), name, LABEL));
            if i == 0 {
                errors.push(FieldError::invalid("spec.version", name, LABEL));
            }
        }
        if version.pointer("/schema/openAPIV3Schema").is_none() {
            errors.push(FieldError::required(
                format!("spec.versions[{i}].schema.openAPIV3Schema"),
                "",
            ));
        }
        let columns = version["additionalPrinterColumns"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        for (c, column) in columns.iter().enumerate() {
            let path = path_of(i, &format!("additionalPrinterColumns[{c}]"));
            check_column(column, &path, errors);
        }
        let scale = version.pointer("/subresources/scale").filter(|s| s.is_object());
        for (key, root) in [("specReplicasPath", ".spec"), ("statusReplicasPath", ".status")] {
            let Some(scale) = scale else { break };
            let at = path_of(i, &format!("subresources.scale.{key}"));
            match scale.get(key).and_then(Value::as_str).unwrap_or_default() {
                "" => errors.push(FieldError::required(at, "")),
                path if !is_path(path) => errors.push(FieldError::invalid(at, path, SIMPLE_PATH)),
                path if !path.starts_with(&format!("{root}.")) => {
                    errors.push(FieldError::invalid(
                        at,
                        path,
                        format!("should be a json path under {root}"),
                    ));
                }
                _ => {}
            }
        }
    }
    let mut seen: Vec<&str> = versions.iter().filter_map(|v| v["name"].as_str()).collect();
    seen.sort_unstable();
    if seen.windows(2).any(|pair| pair[0] == pair[1]) {
        errors.push(FieldError::invalid(
            "spec.versions",
            all.clone(),
            "must contain unique version names",
        ));
    }
    if versions.iter().filter(|v| v["storage"] == true).count() != 1 {
        let text = "must have exactly one version marked as storage version";
        errors.push(FieldError::new(Reason::Invalid, "spec.versions", Some(all), text));
        if !versions.iter().any(|v| v["storage"] == true) {
            let text = "must have at least one stored version";
            errors.push(FieldError::invalid("status.storedVersions", Value::Null, text));
        }
    }
}

/// A version as Kubernetes prints it in an error: its Go struct, with the parts that all versions share moved
/// elsewhere.
fn printed(version: &Value) -> Value {
    let mut out = Map::new();
    let flag = |key: &str| Value::Bool(version[key] == true);
    out.insert("Name".into(), version["name"].clone());
    out.insert("Served".into(), flag("served"));
    out.insert("Storage".into(), flag("storage"));
    out.insert("Deprecated".into(), flag("deprecated"));
    out.insert("DeprecationWarning".into(), version["deprecationWarning"].clone());
    for key in ["Schema", "Subresources", "AdditionalPrinterColumns", "SelectableFields"] {
        out.insert(key.into(), Value::Null);
    }
    Value::Object(out)
}

const SIMPLE_PATH: &str = "must be a simple json path starting with .";

fn is_path(path: &str) -> bool {
    path.starts_with('.') && Path::parse(path).is_some()
}

fn check_column(column: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let types = COLUMN_TYPES.join(",");
    if column["name"].as_str().is_none_or(str::is_empty) {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    }
    match column["type"].as_str() {
        None | Some("") => errors.push(FieldError::required(
            format!("{path}.type"),
            format!("must be one of {types}"),
        )),
        Some(kind) if !COLUMN_TYPES.contains(&kind) => {
            errors.push(FieldError::invalid(
                format!("{path}.type"),
                kind,
                format!("must be one of {types}"),
            ));
        }
        Some(_) => {}
    }
    match column["jsonPath"].as_str().unwrap_or_default() {
        "" => errors.push(FieldError::required(format!("{path}.JSONPath"), "")),
        text if !is_path(text) => errors.push(FieldError::invalid(format!("{path}.JSONPath"), text, SIMPLE_PATH)),
        _ => {}
    }
}

fn names(spec: &Value, errors: &mut Vec<FieldError>) {
    let names = &spec["names"];
    for key in ["plural", "singular", "kind", "listKind"] {
        let name = names[key].as_str().unwrap_or_default();
        let path = format!("spec.names.{key}");
        if name.is_empty() {
            errors.push(FieldError::required(path, ""));
        } else if key.to_lowercase().contains("kind") {
            if !is_label(&name.to_lowercase()) {
                let text = format!("may have mixed case, but should otherwise match: {LABEL}");
                errors.push(FieldError::invalid(path, name, text));
            }
        } else if !is_label(name) {
            errors.push(FieldError::invalid(path, name, LABEL));
        }
    }
    for key in ["shortNames", "categories"] {
        for (i, name) in names[key].as_array().into_iter().flatten().enumerate() {
            let name = name.as_str().unwrap_or_default();
            if !is_label(name) {
                errors.push(FieldError::invalid(format!("spec.names.{key}[{i}]"), name, LABEL));
            }
        }
    }
    if names["kind"]
        .as_str()
        .is_some_and(|kind| !kind.is_empty() && names["listKind"] == kind)
    {
        let text = "kind and listKind may not be the same";
        errors.push(FieldError::invalid(
            "spec.names.listKind",
            names["listKind"].clone(),
            text,
        ));
    }
}

fn is_label(name: &str) -> bool {
    formats::accepts("k8s-short-name", name) && name.starts_with(|c: char| c.is_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Deserialize)]
    struct Case {
        name: String,
        /// A JSON merge patch for a valid definition.
        change: Value,
        errors: Vec<String>,
    }

    #[test]
    fn whole_definitions() {
        let good = json!({
            "metadata": {"name": "things.a.b"},
            "spec": {
                "group": "a.b", "scope": "Namespaced",
                "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
            },
        });
        assert_eq!(check(&good), []);
        let cases: Vec<Case> = serde_yaml_ng::from_str(include_str!("../fixtures/whole_definitions.yaml")).unwrap();
        for case in cases {
            let mut crd = good.clone();
            json_patch::merge(&mut crd, &case.change);
            let mut errors: Vec<String> = check(&crd).iter().map(ToString::to_string).collect();
            errors.sort();
            assert_eq!(errors, case.errors, "{}", case.name);
        }
    }
}
