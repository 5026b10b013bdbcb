//! The schema of a custom resource: `openAPIV3Schema` parsed once into a tree for pruning, defaulting, validation, CEL
//! and server-side apply.
//!
//! Parsing skips what it does not understand; [`super::crd_check`] decides whether the definition itself is valid.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Map, Value};

/// One node of a structural schema.
#[derive(Clone, Debug, Default)]
pub(crate) struct Schema {
    /// `type`, empty when there is none.
    pub(crate) kind: String,
    pub(crate) format: String,
    pub(crate) nullable: bool,
    pub(crate) default: Option<Value>,
    pub(crate) properties: BTreeMap<String, Schema>,
    pub(crate) additional: Option<Additional>,
    pub(crate) items: Option<Box<Schema>>,
    pub(crate) required: Vec<String>,
    pub(crate) values: Vec<Value>,
    pub(crate) minimum: Option<f64>,
    pub(crate) maximum: Option<f64>,
    pub(crate) exclusive_minimum: bool,
    pub(crate) exclusive_maximum: bool,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) min_length: Option<i64>,
    pub(crate) max_length: Option<i64>,
    pub(crate) min_items: Option<i64>,
    pub(crate) max_items: Option<i64>,
    pub(crate) min_properties: Option<i64>,
    pub(crate) max_properties: Option<i64>,
    pub(crate) unique_items: bool,
    pub(crate) pattern: Option<Pattern>,
    pub(crate) all_of: Vec<Schema>,
    pub(crate) any_of: Vec<Schema>,
    pub(crate) one_of: Vec<Schema>,
    pub(crate) not: Option<Box<Schema>>,
    pub(crate) preserve_unknown_fields: bool,
    pub(crate) embedded_resource: bool,
    pub(crate) int_or_string: bool,
    pub(crate) list_type: ListType,
    pub(crate) list_map_keys: Vec<String>,
    /// `x-kubernetes-map-type: atomic`
    pub(crate) atomic_map: bool,
    pub(crate) rules: Vec<Rule>,
}

/// `additionalProperties`.
#[derive(Clone, Debug)]
pub(crate) enum Additional {
    Any,
    Nothing,
    Schema(Box<Schema>),
}

/// `x-kubernetes-list-type`; a list without one is atomic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ListType {
    #[default]
    Atomic,
    Set,
    Map,
}

/// A regular expression and what it compiled to. Kubernetes' expressions are RE2, the same family as the regex crate's.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    pub(crate) source: String,
    pub(crate) regex: Result<Regex, String>,
}

/// One entry of `x-kubernetes-validations`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rule {
    pub(crate) rule: String,
    pub(crate) message: String,
    pub(crate) message_expression: String,
    pub(crate) reason: Option<String>,
    pub(crate) field_path: String,
    pub(crate) optional_old_self: bool,
    /// The entry as written, for error messages.
    pub(crate) source: Value,
}

impl Schema {
    /// Reads an `openAPIV3Schema`.
    pub(crate) fn parse(source: &Value) -> Schema {
        let Value::Object(map) = source else {
            return Schema::default();
        };
        Schema {
            kind: text(map, "type"),
            format: text(map, "format"),
            nullable: flag(map, "nullable"),
            default: map.get("default").filter(|v| !v.is_null()).cloned(),
            properties: match map.get("properties") {
                Some(Value::Object(properties)) => properties
                    .iter()
                    .map(|(name, schema)| (name.clone(), Schema::parse(schema)))
                    .collect(),
                _ => BTreeMap::new(),
            },
            additional: match map.get("additionalProperties") {
                Some(Value::Bool(true)) => Some(Additional::Any),
                Some(Value::Bool(false)) => Some(Additional::Nothing),
                Some(schema @ Value::Object(_)) => Some(Additional::Schema(Box::new(Schema::parse(schema)))),
                _ => None,
            },
            items: nested(map, "items"),
            required: texts(map, "required"),
            values: map.get("enum").and_then(Value::as_array).cloned().unwrap_or_default(),
            minimum: map.get("minimum").and_then(Value::as_f64),
            maximum: map.get("maximum").and_then(Value::as_f64),
            exclusive_minimum: flag(map, "exclusiveMinimum"),
            exclusive_maximum: flag(map, "exclusiveMaximum"),
            multiple_of: map.get("multipleOf").and_then(Value::as_f64),
            min_length: int(map, "minLength"),
            max_length: int(map, "maxLength"),
            min_items: int(map, "minItems"),
            max_items: int(map, "maxItems"),
            min_properties: int(map, "minProperties"),
            max_properties: int(map, "maxProperties"),
            unique_items: flag(map, "uniqueItems"),
            pattern: map
                .get("pattern")
                .and_then(Value::as_str)
                .filter(|p| !p.is_empty())
                .map(Pattern::new),
            all_of: several(map, "allOf"),
            any_of: several(map, "anyOf"),
            one_of: several(map, "oneOf"),
            not: nested(map, "not"),
            preserve_unknown_fields: flag(map, "x-kubernetes-preserve-unknown-fields"),
            embedded_resource: flag(map, "x-kubernetes-embedded-resource"),
            int_or_string: flag(map, "x-kubernetes-int-or-string"),
            list_type: match map.get("x-kubernetes-list-type").and_then(Value::as_str) {
                Some("map") => ListType::Map,
                Some("set") => ListType::Set,
                _ => ListType::Atomic,
            },
            list_map_keys: texts(map, "x-kubernetes-list-map-keys"),
            atomic_map: text(map, "x-kubernetes-map-type") == "atomic",
            rules: map
                .get("x-kubernetes-validations")
                .and_then(Value::as_array)
                .map(|rules| rules.iter().map(Rule::parse).collect())
                .unwrap_or_default(),
        }
    }

    /// The schema of a field: its property, else what `additionalProperties` says.
    pub(crate) fn field(&self, name: &str) -> Option<&Schema> {
        self.properties.get(name).or(match &self.additional {
            Some(Additional::Schema(schema)) => Some(schema),
            _ => None,
        })
    }
}

impl Pattern {
    pub(crate) fn new(source: &str) -> Pattern {
        Pattern {
            source: source.to_owned(),
            regex: Regex::new(source).map_err(|e| e.to_string()),
        }
    }
}

impl Rule {
    fn parse(source: &Value) -> Rule {
        let Value::Object(map) = source else {
            return Rule::default();
        };
        Rule {
            rule: text(map, "rule"),
            message: text(map, "message"),
            message_expression: text(map, "messageExpression"),
            reason: map.get("reason").and_then(Value::as_str).map(str::to_owned),
            field_path: text(map, "fieldPath"),
            optional_old_self: flag(map, "optionalOldSelf"),
            source: source.clone(),
        }
    }
}

fn text(map: &Map<String, Value>, key: &str) -> String {
    map.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn texts(map: &Map<String, Value>, key: &str) -> Vec<String> {
    let items = map.get(key).and_then(Value::as_array);
    items
        .map(|items| items.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        .unwrap_or_default()
}

fn flag(map: &Map<String, Value>, key: &str) -> bool {
    map.get(key).and_then(Value::as_bool).unwrap_or_default()
}

fn int(map: &Map<String, Value>, key: &str) -> Option<i64> {
    map.get(key).and_then(Value::as_i64)
}

fn nested(map: &Map<String, Value>, key: &str) -> Option<Box<Schema>> {
    map.get(key)
        .filter(|v| v.is_object())
        .map(|v| Box::new(Schema::parse(v)))
}

fn several(map: &Map<String, Value>, key: &str) -> Vec<Schema> {
    let items = map.get(key).and_then(Value::as_array);
    items
        .map(|items| items.iter().map(Schema::parse).collect())
        .unwrap_or_default()
}
