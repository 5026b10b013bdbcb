//! Whether a schema is structural: every node has a type, alternatives only restrict values, defaults fit.

use serde_json::{Map, Value};

use crate::schema::error::FieldError;
use crate::schema::structural::Schema;
use crate::schema::{prune, validate};

/// The errors of one `openAPIV3Schema`.
pub(crate) fn check_schema(schema: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if schema["nullable"] == true {
        errors.push(FieldError::forbidden(
            format!("{path}.nullable"),
            "nullable cannot be true at the root",
        ));
    }
    general(schema, path, &mut errors);
    let mut structure = Vec::new();
    structural(schema, path, Level::Root, &mut structure);
    completeness(schema, schema, path, path, &mut structure);
    structure.sort_by_key(ToString::to_string);
    let sound = structure.is_empty();
    errors.extend(structure);
    if sound {
        defaults(schema, path, &mut errors);
    }
    errors
}

fn fields(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// The schemas directly below, with their paths; `values` marks those under a logical junctor.
fn children<'a>(schema: &'a Map<String, Value>, path: &str) -> Vec<(String, &'a Value, bool)> {
    let mut all = Vec::new();
    if let Some(properties) = schema.get("properties") {
        all.extend(fields(properties).map(|(name, s)| (format!("{path}.properties[{name}]"), s, false)));
    }
    for key in ["items", "additionalProperties"] {
        all.extend(
            schema
                .get(key)
                .filter(|s| s.is_object())
                .map(|s| (format!("{path}.{key}"), s, false)),
        );
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        let parts = schema
            .get(key)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .enumerate();
        all.extend(parts.map(|(i, s)| (format!("{path}.{key}[{i}]"), s, true)));
    }
    all.extend(
        schema
            .get("not")
            .filter(|s| s.is_object())
            .map(|s| (format!("{path}.not"), s, true)),
    );
    all
}

/// Checks that apply to every node, also below junctors.
fn general(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(map) = schema.as_object() else { return };
    let kind = map.get("type").and_then(Value::as_str).unwrap_or_default();
    if !matches!(
        kind,
        "" | "array" | "boolean" | "integer" | "number" | "object" | "string"
    ) {
        let supported = ["array", "boolean", "integer", "number", "object", "string"].map(str::to_owned);
        errors.push(FieldError::not_supported(format!("{path}.type"), kind, &supported));
    }
    if map.get("uniqueItems") == Some(&Value::Bool(true)) {
        let text = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.push(FieldError::forbidden(format!("{path}.uniqueItems"), text));
    }
    let has_properties = map
        .get("properties")
        .and_then(Value::as_object)
        .is_some_and(|p| !p.is_empty());
    if has_properties
        && matches!(
            map.get("additionalProperties"),
            Some(Value::Object(_) | Value::Bool(false))
        )
    {
        let text = "additionalProperties and properties are mutual exclusive";
        errors.push(FieldError::forbidden(format!("{path}.additionalProperties"), text));
    }
    if map.contains_key("$ref") {
        errors.push(FieldError::forbidden(format!("{path}.$ref"), "$ref is not supported"));
    }
    let preserve = "x-kubernetes-preserve-unknown-fields";
    if map.get(preserve) == Some(&Value::Bool(false)) {
        errors.push(FieldError::invalid(
            format!("{path}.{preserve}"),
            false,
            "must be true or undefined",
        ));
    }
    list_extensions(map, kind, path, errors);
    rules(map, path, errors);
    for (path, child, _) in children(map, path) {
        general(child, &path, errors);
    }
}

fn list_extensions(map: &Map<String, Value>, kind: &str, path: &str, errors: &mut Vec<FieldError>) {
    let list_type = map.get("x-kubernetes-list-type").and_then(Value::as_str);
    let keys = map
        .get("x-kubernetes-list-map-keys")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    let items = map.get("items").unwrap_or(&Value::Null);
    if let Some(list_type) = list_type {
        let text = "must be array if x-kubernetes-list-type is specified";
        match kind {
            "array" => {}
            "" => errors.push(FieldError::required(format!("{path}.type"), text)),
            other => errors.push(FieldError::invalid(format!("{path}.type"), other, text)),
        }
        if !matches!(list_type, "atomic" | "set" | "map") {
            let supported = ["atomic", "set", "map"].map(str::to_owned);
            errors.push(FieldError::not_supported(
                format!("{path}.x-kubernetes-list-type"),
                list_type,
                &supported,
            ));
        }
        if matches!(list_type, "set" | "map") && items["nullable"] == true {
            let text = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
            errors.push(FieldError::forbidden(format!("{path}.items.nullable"), text));
        }
    }
    if !keys.is_empty() && list_type != Some("map") {
        let text = "must be map if x-kubernetes-list-map-keys is non-empty";
        let path = format!("{path}.x-kubernetes-list-type");
        errors.push(match list_type {
            None => FieldError::required(path, text),
            Some(other) => FieldError::invalid(path, other, text),
        });
    }
    if list_type == Some("map") {
        if keys.is_empty() {
            let text = "must not be empty if x-kubernetes-list-type is map";
            errors.push(FieldError::required(format!("{path}.x-kubernetes-list-map-keys"), text));
        }
        if items.is_null() {
            let text = "must have a schema if x-kubernetes-list-type is map";
            errors.push(FieldError::required(format!("{path}.items"), text));
        }
        for key in keys.iter().filter_map(Value::as_str) {
            let Some(property) = items.pointer(&format!("/properties/{}", key.replace('~', "~0").replace('/', "~1")))
            else {
                let text = "entries must all be names of item properties";
                let all = Value::Array(keys.to_vec());
                errors.push(FieldError::invalid(
                    format!("{path}.x-kubernetes-list-map-keys"),
                    all,
                    text,
                ));
                continue;
            };
            let required = items["required"]
                .as_array()
                .is_some_and(|r| r.iter().any(|name| name == key));
            if !required && property.get("default").is_none() {
                let text = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
                errors.push(FieldError::required(
                    format!("{path}.items.properties[{key}].default"),
                    text,
                ));
            }
            if property["nullable"] == true {
                let text = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
                errors.push(FieldError::forbidden(
                    format!("{path}.items.properties[{key}].nullable"),
                    text,
                ));
            }
        }
    }
    if let Some(map_type) = map.get("x-kubernetes-map-type").and_then(Value::as_str) {
        let text = "must be object if x-kubernetes-map-type is specified";
        match kind {
            "object" => {}
            "" => errors.push(FieldError::required(format!("{path}.type"), text)),
            other => errors.push(FieldError::invalid(format!("{path}.type"), other, text)),
        }
        if !matches!(map_type, "atomic" | "granular") {
            let supported = ["atomic", "granular"].map(str::to_owned);
            errors.push(FieldError::not_supported(
                format!("{path}.x-kubernetes-map-type"),
                map_type,
                &supported,
            ));
        }
    }
}

fn rules(map: &Map<String, Value>, path: &str, errors: &mut Vec<FieldError>) {
    let rules = map
        .get("x-kubernetes-validations")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    for (i, rule) in rules.enumerate() {
        let path = format!("{path}.x-kubernetes-validations[{i}]");
        let get = |key: &str| rule.get(key).and_then(Value::as_str);
        let text = get("rule").unwrap_or_default();
        let lines = |text: &str| text.contains(['\n', '\r']);
        let message = get("message");
        if text.trim().is_empty() {
            errors.push(FieldError::required(format!("{path}.rule"), "rule is not specified"));
        } else if message.is_some_and(|m| !m.is_empty() && m.trim().is_empty()) {
            let text = "must be non-empty if specified";
            errors.push(FieldError::invalid(
                format!("{path}.message"),
                message.unwrap_or_default(),
                text,
            ));
        } else if message.is_some_and(|m| lines(m.trim())) {
            let text = "must not contain line breaks";
            errors.push(FieldError::invalid(
                format!("{path}.message"),
                message.unwrap_or_default(),
                text,
            ));
        } else if lines(text.trim()) && message.is_none_or(str::is_empty) {
            let text = "message must be specified if rule contains line breaks";
            errors.push(FieldError::required(format!("{path}.message"), text));
        }
        if get("messageExpression").is_some_and(|m| !m.is_empty() && m.trim().is_empty()) {
            let text = "messageExpression must be non-empty if specified";
            errors.push(FieldError::required(format!("{path}.messageExpression"), text));
        }
        let reasons = [
            "FieldValueDuplicate",
            "FieldValueForbidden",
            "FieldValueInvalid",
            "FieldValueRequired",
        ];
        if let Some(reason) = get("reason").filter(|r| !reasons.contains(r)) {
            errors.push(FieldError::not_supported(
                format!("{path}.reason"),
                reason,
                &reasons.map(str::to_owned),
            ));
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

/// The invariants of a structural schema: every node outside junctors has a type, junctors only restrict values.
fn structural(schema: &Value, path: &str, level: Level, errors: &mut Vec<FieldError>) {
    let Some(map) = schema.as_object() else { return };
    let flag = |key: &str| map.get(key) == Some(&Value::Bool(true));
    let kind = map.get("type").and_then(Value::as_str).unwrap_or_default();
    let (int_or_string, preserve, embedded) = (
        flag("x-kubernetes-int-or-string"),
        flag("x-kubernetes-preserve-unknown-fields"),
        flag("x-kubernetes-embedded-resource"),
    );
    if kind == "array" && !map.contains_key("items") {
        errors.push(FieldError::required(format!("{path}.items"), "must be specified"));
    }
    if map.contains_key("additionalProperties") {
        let at = format!("{path}.additionalProperties");
        if level == Level::Root {
            errors.push(FieldError::forbidden(at.clone(), "must not be used at the root"));
        }
        if embedded {
            errors.push(FieldError::forbidden(
                at,
                "must not be used if x-kubernetes-embedded-resource is set",
            ));
        }
    }
    if int_or_string && preserve {
        let at = format!("{path}.x-kubernetes-preserve-unknown-fields");
        errors.push(FieldError::invalid(
            at,
            true,
            "must be false if x-kubernetes-int-or-string is true",
        ));
    }
    if int_or_string && embedded {
        let at = format!("{path}.x-kubernetes-embedded-resource");
        errors.push(FieldError::invalid(
            at,
            true,
            "must be false if x-kubernetes-int-or-string is true",
        ));
    }
    if embedded && kind != "object" {
        let text = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(match kind {
            "" => FieldError::required(format!("{path}.type"), text),
            other => FieldError::invalid(format!("{path}.type"), other, text),
        });
    } else if kind.is_empty() && !int_or_string && !preserve {
        let text = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(format!("{path}.type"), text));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.push(FieldError::invalid(
            format!("{path}.type"),
            kind,
            "must be object at the root",
        ));
    }
    if let Some(Err(error)) = map.get("pattern").and_then(Value::as_str).map(regex::Regex::new) {
        let text = format!("must be a valid regular expression, but isn't: {error}");
        errors.push(FieldError::invalid(
            format!("{path}.pattern"),
            map["pattern"].clone(),
            text,
        ));
    }
    let properties = map.get("properties").and_then(Value::as_object);
    if embedded && !preserve && properties.is_none_or(Map::is_empty) {
        let text =
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(FieldError::required(format!("{path}.properties"), text));
    }
    if level == Level::Root
        && let Some(metadata) = properties.and_then(|p| p.get("metadata"))
    {
        let inner = metadata["properties"].as_object();
        let only_names = inner.is_none_or(|p| p.keys().all(|k| k == "name" || k == "generateName"));
        let plain = fields(metadata).all(|(key, _)| matches!(key.as_str(), "type" | "properties" | "description"));
        if metadata["type"] != "object" {
            let kind = metadata["type"].as_str().unwrap_or_default();
            errors.push(FieldError::invalid(
                format!("{path}.properties[metadata].type"),
                kind,
                "must be object",
            ));
        }
        if !only_names || !plain {
            let text =
                "must not specify anything other than name and generateName, but metadata is implicitly specified";
            errors.push(FieldError::forbidden(format!("{path}.properties[metadata]"), text));
        }
    }
    for (at, child, junctor) in children(map, path) {
        if junctor {
            let skip = int_or_string
                && ((at.starts_with(&format!("{path}.anyOf[")) && is_int_or_string(map.get("anyOf")))
                    || (at == format!("{path}.allOf[0]") && is_int_or_string(child.get("anyOf"))));
            if !skip {
                values_only(child, &at, errors);
            }
        } else {
            let level = if at.ends_with(".items") {
                Level::Item
            } else {
                Level::Field
            };
            structural(child, &at, level, errors);
        }
    }
}

fn is_int_or_string(any_of: Option<&Value>) -> bool {
    let Some(Value::Array(parts)) = any_of else {
        return false;
    };
    let is = |part: &Value, kind: &str| part.as_object().is_some_and(|p| p.len() == 1) && part["type"] == kind;
    parts.len() == 2 && is(&parts[0], "integer") && is(&parts[1], "string")
}

/// Below a junctor only restrictions on values are allowed, nothing that defines the structure.
fn values_only(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(map) = schema.as_object() else { return };
    let forbidden = [
        ("type", "must be empty to be structural"),
        ("additionalProperties", "must be undefined to be structural"),
        ("default", "must be undefined to be structural"),
        ("title", "must be empty to be structural"),
        ("description", "must be empty to be structural"),
        ("nullable", "must be false to be structural"),
        ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
        ("x-kubernetes-embedded-resource", "must be false to be structural"),
        ("x-kubernetes-int-or-string", "must be false to be structural"),
        ("x-kubernetes-list-map-keys", "must be empty to be structural"),
        ("x-kubernetes-list-type", "must be undefined to be structural"),
        ("x-kubernetes-map-type", "must be undefined to be structural"),
        ("x-kubernetes-validations", "must be empty to be structural"),
    ];
    for (key, text) in forbidden {
        let set = map
            .get(key)
            .is_some_and(|v| *v != Value::Bool(false) && *v != "" && *v != Value::Array(vec![]));
        if set {
            errors.push(FieldError::forbidden(format!("{path}.{key}"), text));
        }
    }
    if map.get("properties").and_then(|p| p.get("metadata")).is_some() {
        let text = "must not be specified in a nested context";
        errors.push(FieldError::forbidden(format!("{path}.properties[metadata]"), text));
    }
    for (at, child, _) in children(map, path) {
        values_only(child, &at, errors);
    }
}

/// Every field that a junctor at the root restricts must be defined outside it. (Kubernetes checks the root only.)
fn completeness(node: &Value, restricted: &Value, node_path: &str, path: &str, errors: &mut Vec<FieldError>) {
    let Some(map) = restricted.as_object() else { return };
    for (at, part, junctor) in children(map, path) {
        if junctor {
            completeness(node, part, node_path, &at, errors);
            restrictions(node, part, node_path, &at, errors);
        }
    }
}

fn restrictions(node: &Value, part: &Value, node_path: &str, path: &str, errors: &mut Vec<FieldError>) {
    for (name, restricted) in part.get("properties").into_iter().flat_map(fields) {
        let (node_path, path) = (
            format!("{node_path}.properties[{name}]"),
            format!("{path}.properties[{name}]"),
        );
        match node.get("properties").and_then(|p| p.get(name)) {
            None => errors.push(FieldError::required(
                node_path,
                format!("because it is defined in {path}"),
            )),
            Some(node) => {
                completeness(node, restricted, &node_path, &path, errors);
                restrictions(node, restricted, &node_path, &path, errors);
            }
        }
    }
    if let Some(items) = part.get("items") {
        let (node_path, path) = (format!("{node_path}.items"), format!("{path}.items"));
        match node.get("items") {
            None => errors.push(FieldError::required(
                node_path,
                format!("because it is defined in {path}"),
            )),
            Some(node) => restrictions(node, items, &node_path, &path, errors),
        }
    }
}

/// A default must be a value that the schema accepts, without fields that pruning would drop.
fn defaults(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(map) = schema.as_object() else { return };
    if let Some(default) = map.get("default").filter(|d| !d.is_null()) {
        let parsed = Schema::parse(schema);
        let at = format!("{path}.default");
        let mut pruned = default.clone();
        if !prune::prune_value(&mut pruned, &parsed).is_empty() {
            errors.push(FieldError::invalid(
                at.clone(),
                default.clone(),
                "must not have unknown fields",
            ));
        }
        for mut error in validate::validate(default, None, &parsed) {
            error.field = match error.field.as_str() {
                "" | "<nil>" => at.clone(),
                field => format!("{at}.{field}"),
            };
            errors.push(error);
        }
    }
    for (at, child, junctor) in children(map, path) {
        if !junctor {
            defaults(child, &at, errors);
        }
    }
}
