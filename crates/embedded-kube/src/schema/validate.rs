//! Validation of custom resources against their schema, with the messages of Kubernetes (kube-openapi's validators).
//!
//! On update, unchanged values cause no errors (Kubernetes' ratcheting): a stored object stays editable when its schema
//! becomes stricter.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::error::{FieldError, Reason};
use super::gofmt::{self, Num};
use super::structural::{Additional, ListType, Schema};
use super::{correlate, formats};

/// All errors of the object by its schema; `old` is the stored object on update.
pub(crate) fn validate(object: &Value, old: Option<&Value>, schema: &Schema) -> Vec<FieldError> {
    let mut errors = check(object, old, schema, "").errors;
    lists(object, schema, "", &mut errors);
    errors
}

/// Errors, and how many checks passed: `anyOf` and `oneOf` report the alternative that came closest.
#[derive(Default)]
struct Outcome {
    errors: Vec<FieldError>,
    passed: usize,
}

impl Outcome {
    fn merge(&mut self, other: Outcome) {
        other.errors.into_iter().for_each(|e| self.add(e));
        self.passed += other.passed;
    }

    fn add(&mut self, error: FieldError) {
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    fn valid(&self) -> bool {
        self.errors.is_empty()
    }
}

fn check(value: &Value, old: Option<&Value>, schema: &Schema, path: &str) -> Outcome {
    let mut out = Outcome::default();
    if old == Some(value) {
        return out;
    }
    if value.is_null() {
        match type_error(value, schema, path) {
            Some(error) => out.add(error),
            None => out.passed += 1,
        }
        out.errors.extend(enum_error(value, schema, path));
        return out;
    }
    if !types(schema).is_empty() || !format(schema).is_empty() {
        match type_error(value, schema, path) {
            Some(error) => out.add(error),
            None => out.passed += 1,
        }
        out.passed += 1;
    }
    combinations(value, old, schema, path, &mut out);
    match value {
        Value::String(text) => string(text, schema, path, &mut out),
        Value::Number(number) => numeric(Num::of(number), schema, path, &mut out),
        Value::Array(items) => array(items, old, schema, path, &mut out),
        _ => {}
    }
    if let Some(error) = enum_error(value, schema, path) {
        out.add(error);
    }
    out.passed += 1;
    if let Value::Object(map) = value {
        object(map, old, schema, path, &mut out);
    }
    out.passed += 1;
    out
}

/// The field of an error: the validators' path without its leading dot.
fn field(path: &str) -> &str {
    path.strip_prefix('.').unwrap_or(path)
}

fn invalid(path: &str, value: impl Into<Value>, text: &str) -> FieldError {
    FieldError::invalid(field(path), value, format!("{path} in body {text}"))
}

/// An error that Kubernetes reports without a path.
fn pathless(text: String) -> FieldError {
    FieldError::invalid("<nil>", "", text)
}

fn types(schema: &Schema) -> Vec<&str> {
    match (schema.int_or_string, schema.kind.as_str()) {
        (true, _) => vec!["integer", "string"],
        (false, "") => vec![],
        (false, kind) => vec![kind],
    }
}

/// The format, where Kubernetes checks it.
fn format(schema: &Schema) -> &str {
    let known = match schema.kind.as_str() {
        _ if schema.int_or_string => formats::known(&schema.format),
        "" | "string" => formats::known(&schema.format),
        "integer" => matches!(schema.format.as_str(), "int32" | "int64"),
        "number" => matches!(schema.format.as_str(), "float" | "double"),
        _ => false,
    };
    if known { &schema.format } else { "" }
}

fn type_error(value: &Value, schema: &Schema, path: &str) -> Option<FieldError> {
    let types = types(schema);
    let wrong = |expected: &str, got: &str| {
        let text = format!("{path} in body must be of type {expected}: {}", gofmt::quote(got));
        Some(FieldError::new(
            Reason::TypeInvalid,
            field(path),
            Some(got.into()),
            text,
        ))
    };
    let (kind, detected) = match value {
        Value::Null if types.is_empty() || schema.nullable => return None,
        Value::Null => return wrong(&types.join(","), "null"),
        Value::Bool(_) => ("boolean", ""),
        Value::String(_) => ("string", ""),
        Value::Array(_) => ("array", ""),
        Value::Object(_) => ("object", ""),
        Value::Number(number) => match Num::of(number) {
            Num::Int(_) => ("integer", "int64"),
            Num::Float(_) => ("number", "float64"),
        },
    };
    let whole = matches!(value, Value::Number(n) if Num::of(n).as_f64().fract() == 0.0);
    let fits = types.contains(&kind)
        || (kind == "number" && whole && types.contains(&"integer"))
        || (kind == "integer" && types.contains(&"number"));
    let format = format(schema);
    let textual = matches!(value, Value::String(_) | Value::Array(_));
    if !textual && !format.is_empty() && !fits && format != detected {
        return wrong(format, detected);
    }
    // Kubernetes does not check the type of strings and lists where the field has a string format.
    if textual && !format.is_empty() && !types.contains(&"number") && !types.contains(&"integer") {
        return None;
    }
    if fits { None } else { wrong(&types.join(","), kind) }
}

fn enum_error(value: &Value, schema: &Schema, path: &str) -> Option<FieldError> {
    if schema.values.is_empty() || schema.values.iter().any(|allowed| equal(allowed, value)) {
        return None;
    }
    let supported: Vec<String> = schema
        .values
        .iter()
        .map(|v| v.as_str().map_or_else(|| gofmt::sorted(v).to_string(), str::to_owned))
        .collect();
    Some(FieldError::not_supported(field(path), value.clone(), &supported))
}

fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => Num::of(a).as_f64() == Num::of(b).as_f64(),
        _ => a == b,
    }
}

fn combinations(value: &Value, old: Option<&Value>, schema: &Schema, path: &str, out: &mut Outcome) {
    let quoted = gofmt::quote(path);
    if !schema.any_of.is_empty() {
        let mut best: Option<Outcome> = None;
        for alternative in &schema.any_of {
            let result = check(value, old, alternative, path);
            let closer = best
                .as_ref()
                .is_none_or(|best| result.valid() || result.passed > best.passed);
            let done = result.valid();
            if closer {
                best = Some(result);
            }
            if done {
                break;
            }
        }
        if let Some(best) = best {
            if !best.valid() {
                out.add(pathless(format!("{quoted} must validate at least one schema (anyOf)")));
            }
            out.merge(best);
        }
    }
    if !schema.one_of.is_empty() {
        let results: Vec<Outcome> = schema.one_of.iter().map(|s| check(value, old, s, path)).collect();
        let valid = results.iter().filter(|r| r.valid()).count();
        if valid != 1 {
            let found = if valid == 0 {
                "Found none valid".to_owned()
            } else {
                format!("Found {valid} valid alternatives")
            };
            out.add(pathless(format!(
                "{quoted} must validate one and only one schema (oneOf). {found}"
            )));
        }
        let chosen = match valid {
            0 => results
                .into_iter()
                .reduce(|best, next| if next.passed > best.passed { next } else { best }),
            1 => results.into_iter().find(Outcome::valid),
            _ => None,
        };
        if let Some(chosen) = chosen {
            out.merge(chosen);
        }
    }
    if !schema.all_of.is_empty() {
        let mut valid = 0;
        for part in &schema.all_of {
            let result = check(value, old, part, path);
            valid += usize::from(result.valid());
            out.merge(result);
        }
        if valid != schema.all_of.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            out.add(pathless(format!(
                "{quoted} must validate all the schemas (allOf){none}"
            )));
        }
    }
    if let Some(not) = &schema.not
        && check(value, None, not, path).valid()
    {
        out.add(pathless(format!("{quoted} must not validate the schema (not)")));
    }
    out.passed += 2;
}

fn string(text: &str, schema: &Schema, path: &str, out: &mut Outcome) {
    let length = text.chars().count() as i64;
    let error = if let Some(max) = schema.max_length.filter(|max| length > *max) {
        let bytes = if max == 1 { "byte" } else { "bytes" };
        Some(FieldError::new(
            Reason::TooLong,
            field(path),
            None,
            format!("may not be more than {max} {bytes}"),
        ))
    } else if let Some(min) = schema.min_length.filter(|min| length < *min) {
        Some(invalid(path, text, &format!("should be at least {min} chars long")))
    } else if let Some(pattern) = &schema.pattern {
        match &pattern.regex {
            Ok(regex) if regex.is_match(text) => None,
            Ok(_) => Some(invalid(path, text, &format!("should match '{}'", pattern.source))),
            Err(e) => Some(invalid(
                path,
                text,
                &format!("should match '{}, but pattern is invalid: {e}'", pattern.source),
            )),
        }
    } else {
        None
    };
    out.errors.extend(error);
    out.passed += 1;
    let format = format(schema);
    if !format.is_empty() && formats::known(format) {
        if !formats::accepts(format, text) {
            let detail = format!("{path} in body must be of type {format}: {}", gofmt::quote(text));
            out.add(FieldError::new(
                Reason::TypeInvalid,
                field(path),
                Some(text.into()),
                detail,
            ));
        }
        out.passed += 1;
    }
}

fn numeric(value: Num, schema: &Schema, path: &str, out: &mut Outcome) {
    let json: Value = match value {
        Num::Int(int) => int.into(),
        Num::Float(float) => float.into(),
    };
    let bound = |limit: f64| match value {
        Num::Int(_) => (limit as i64).to_string(),
        Num::Float(_) => gofmt::float(limit),
    };
    let compare = |limit: f64| match value {
        // Kubernetes compares integers as integers, with the bound truncated.
        Num::Int(int) => int.cmp(&(limit as i64)),
        Num::Float(float) => float.partial_cmp(&limit).unwrap_or(std::cmp::Ordering::Equal),
    };
    if !schema.int_or_string {
        let format = format(schema);
        let in_range = match (schema.kind.as_str(), format, value) {
            ("integer", "int32", Num::Int(int)) => i32::try_from(int).is_ok(),
            ("integer", "int32", Num::Float(float)) => float.fract() == 0.0 && float.abs() <= f64::from(i32::MAX),
            ("integer", _, Num::Float(float)) => float.fract() == 0.0 && float.abs() < i64::MAX as f64,
            ("number", "float", number) => number.as_f64().abs() <= f64::from(f32::MAX),
            _ => true,
        };
        if !in_range {
            let of = if format.is_empty() {
                "(default format)".to_owned()
            } else {
                format!("with format {format}")
            };
            out.add(pathless(format!(
                "Checked value must be of type {} {of} in {path}",
                schema.kind
            )));
        }
    }
    if let Some(factor) = schema.multiple_of {
        let multiple = match value {
            _ if factor <= 0.0 => None,
            Num::Int(int) if factor.fract() == 0.0 => Some(int % (factor as i64) == 0),
            number => Some((number.as_f64() / factor).fract().abs() < 1e-9),
        };
        match multiple {
            None => out.add(FieldError::invalid(
                field(path),
                factor,
                format!(
                    "factor MultipleOf declared for {path} must be positive: {}",
                    gofmt::float(factor)
                ),
            )),
            Some(false) => out.add(invalid(
                path,
                json.clone(),
                &format!("should be a multiple of {}", gofmt::float(factor)),
            )),
            Some(true) => {}
        }
    }
    if let Some(min) = schema.minimum {
        let order = compare(min);
        if order.is_lt() || (schema.exclusive_minimum && order.is_eq()) {
            let or_equal = if schema.exclusive_minimum { "" } else { " or equal to" };
            out.add(invalid(
                path,
                json.clone(),
                &format!("should be greater than{or_equal} {}", bound(min)),
            ));
        }
    }
    if let Some(max) = schema.maximum {
        let order = compare(max);
        if order.is_gt() || (schema.exclusive_maximum && order.is_eq()) {
            let or_equal = if schema.exclusive_maximum { "" } else { " or equal to" };
            out.add(invalid(
                path,
                json,
                &format!("should be less than{or_equal} {}", bound(max)),
            ));
        }
    }
    out.passed += 2;
}

fn too_many(path: &str, actual: usize, max: i64) -> FieldError {
    let items = if max == 1 { "item" } else { "items" };
    FieldError::new(
        Reason::TooMany,
        field(path),
        Some(actual.into()),
        format!("must have at most {max} {items}"),
    )
}

fn array(items: &[Value], old: Option<&Value>, schema: &Schema, path: &str, out: &mut Outcome) {
    if let Some(schema_of_items) = &schema.items {
        for (index, item) in items.iter().enumerate() {
            let old = correlate::item(old, item, schema);
            out.merge(check(item, old, schema_of_items, &format!("{path}[{index}]")));
        }
    }
    let size = items.len();
    if let Some(min) = schema.min_items.filter(|min| (size as i64) < *min) {
        out.add(invalid(path, size, &format!("should have at least {min} items")));
    }
    if let Some(max) = schema.max_items.filter(|max| size as i64 > *max) {
        out.add(too_many(path, size, max));
    }
    if schema.unique_items && items.iter().enumerate().any(|(i, item)| items[..i].contains(item)) {
        out.add(invalid(path, "", "shouldn't contain duplicates"));
    }
    out.passed += 2;
}

fn object(map: &Map<String, Value>, old: Option<&Value>, schema: &Schema, path: &str, out: &mut Outcome) {
    let size = map.len();
    if let Some(min) = schema.min_properties.filter(|min| (size as i64) < *min) {
        out.add(invalid(path, size, &format!("should have at least {min} properties")));
    }
    if let Some(max) = schema.max_properties.filter(|max| size as i64 > *max) {
        out.add(too_many(path, size, max));
    }
    for (name, value) in map.iter().filter(|(name, _)| !schema.properties.contains_key(*name)) {
        match &schema.additional {
            Some(Additional::Schema(schema)) => {
                out.merge(check(
                    value,
                    old.and_then(|o| o.get(name)),
                    schema,
                    &format!("{path}.{name}"),
                ));
            }
            Some(Additional::Nothing) => out.add(FieldError::invalid(
                field(path),
                name.as_str(),
                format!("{path}.{name} in body is a forbidden property"),
            )),
            Some(Additional::Any) | None => {}
        }
    }
    for (name, field_schema) in &schema.properties {
        if let Some(value) = map.get(name) {
            let path = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };
            out.merge(check(value, old.and_then(|o| o.get(name)), field_schema, &path));
        }
    }
    if schema.embedded_resource {
        let names = ["apiVersion", "kind"].into_iter();
        for name in names.filter(|name| map.get(*name).and_then(Value::as_str).is_none_or(str::is_empty)) {
            out.add(FieldError::required(field(&format!("{path}.{name}")), ""));
        }
    }
    for name in schema.required.iter().filter(|name| !map.contains_key(*name)) {
        out.add(FieldError::required(field(&format!("{path}.{name}")), ""));
    }
    out.passed += 1;
}

/// Lists of type `set` hold each item once, lists of type `map` each key once.
fn lists(value: &Value, schema: &Schema, path: &str, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                if let Some(field) = schema.properties.get(name) {
                    let path = if path.is_empty() {
                        name.clone()
                    } else {
                        format!("{path}.{name}")
                    };
                    lists(value, field, &path, errors);
                } else if let Some(Additional::Schema(field)) = &schema.additional {
                    lists(value, field, &format!("{path}[{name}]"), errors);
                }
            }
        }
        Value::Array(items) => {
            let keys: Option<Vec<Value>> = match schema.list_type {
                ListType::Atomic => None,
                ListType::Set => Some(items.clone()),
                ListType::Map => Some(
                    items
                        .iter()
                        .map(|item| correlate::key(item, &schema.list_map_keys))
                        .collect(),
                ),
            };
            let mut seen: HashMap<String, usize> = HashMap::new();
            for (index, key) in keys.into_iter().flatten().enumerate() {
                let times = seen.entry(gofmt::sorted(&key).to_string()).or_default();
                *times += 1;
                // Kubernetes names the first repetition only.
                if *times == 2 {
                    errors.push(FieldError::duplicate(format!("{path}[{index}]"), key));
                }
            }
            if let Some(schema) = &schema.items {
                for (index, item) in items.iter().enumerate() {
                    lists(item, schema, &format!("{path}[{index}]"), errors);
                }
            }
        }
        _ => {}
    }
}
