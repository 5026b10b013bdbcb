//! One version of a custom kind: the parts of its definition about objects, parsed and compiled once.

use serde_json::Value;

use super::error::{FieldError, Reason};
use super::structural::Schema;
use super::table::jsonpath::Path;
use super::{cel, default, prune, validate};

/// The schema and the compiled rules of one version of a custom kind. Create it once when the definition is stored.
#[derive(Debug, Default)]
pub(crate) struct CustomKind {
    /// The schema, which server-side apply and OpenAPI also need.
    pub(crate) schema: Schema,
    rules: cel::Rules,
    scale: Option<Scale>,
}

/// The paths of the scale subresource, as written (for messages) and read.
#[derive(Debug)]
struct Scale {
    spec: (String, Option<Path>),
    status: (String, Option<Path>),
}

impl CustomKind {
    /// From an `openAPIV3Schema`; `path` is its place in the definition for error messages. The errors are those of CEL
    /// rules only: [`super::crd_check::check`] has the others.
    pub(crate) fn new(open_api_schema: &Value, path: &str) -> Result<CustomKind, Vec<FieldError>> {
        let schema = Schema::parse(open_api_schema);
        let rules = cel::compile(&schema, path)?;
        Ok(CustomKind {
            schema,
            rules,
            scale: None,
        })
    }

    /// Adds the version's `subresources`: the values that a scale subresource refers to are checked on every write too.
    pub(crate) fn with_subresources(mut self, subresources: Option<&Value>) -> CustomKind {
        self.scale = subresources
            .and_then(|s| s.get("scale"))
            .filter(|s| s.is_object())
            .map(|scale| {
                let path = |key: &str| {
                    let text = scale.get(key).and_then(Value::as_str).unwrap_or_default();
                    (text.to_owned(), Path::parse(text))
                };
                Scale {
                    spec: path("specReplicasPath"),
                    status: path("statusReplicasPath"),
                }
            });
        self
    }

    /// Admits an object: drops unknown fields and stray nulls, and sets defaults. Returns the paths of the unknown
    /// fields, for `fieldValidation`: `unknown field "spec.foo"`.
    pub(crate) fn admit(&self, object: &mut Value) -> Vec<String> {
        let unknown = prune::prune(object, &self.schema);
        prune::prune_nulls(object, Some(&self.schema));
        default::apply_defaults(object, &self.schema);
        unknown
    }

    /// The errors of an object; `old` is the stored one on update.
    pub(crate) fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = validate::validate(object, old, &self.schema);
        if let Some(scale) = &self.scale {
            errors.extend(
                [&scale.spec, &scale.status]
                    .into_iter()
                    .filter_map(|path| replicas(path, object)),
            );
        }
        self.with_rules(errors, object, old)
    }

    /// The same for a write to the status subresource: only the status is validated.
    pub(crate) fn validate_status(&self, object: &Value, old: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if let (Some(status), Some(schema)) = (object.get("status"), self.schema.properties.get("status")) {
            for mut error in validate::validate(status, old.get("status"), schema) {
                error.field = match error.field.as_str() {
                    "" | "<nil>" => "status".to_owned(),
                    field => format!("status.{field}"),
                };
                errors.push(error);
            }
        }
        if let Some(scale) = &self.scale {
            errors.extend(replicas(&scale.status, object));
        }
        self.with_rules(errors, object, Some(old))
    }

    /// Adds the errors of the rules. Rules rely on types, so they do not run on objects with type errors.
    fn with_rules(&self, mut errors: Vec<FieldError>, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        if self.rules.is_empty() {
            return errors;
        }
        let blocking = |e: &FieldError| !matches!(e.reason, Reason::Invalid | Reason::Forbidden | Reason::Duplicate);
        if errors.iter().any(blocking) {
            let text = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
            errors.push(FieldError::invalid("<nil>", Value::Null, text));
        } else {
            errors.extend(self.rules.validate(object, old, &self.schema));
        }
        errors
    }
}

/// The errors of a number of replicas.
fn replicas((text, path): &(String, Option<Path>), object: &Value) -> Option<FieldError> {
    let value = path.as_ref()?.find(object).into_iter().next()?;
    let kind = match value {
        Value::Null => return None,
        Value::Number(number) => match number.as_i64() {
            Some(..0) => {
                return Some(FieldError::invalid(
                    text,
                    value.clone(),
                    "should be a non-negative integer",
                ));
            }
            Some(count) if count > i64::from(i32::MAX) => {
                let detail = format!("should be less than or equal to {}", i32::MAX);
                return Some(FieldError::invalid(text, count, detail));
            }
            Some(_) => return None,
            None => "float64",
        },
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    };
    let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let detail = format!("{text} accessor error: {shown} is of the type {kind}, expected int64");
    Some(FieldError::invalid(text, 0, detail))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::schema::{crd_check, error};

    #[derive(Deserialize)]
    struct Case {
        name: String,
        spec: Value,
        object: Value,
        old: Option<Value>,
        stored: Option<Value>,
        #[serde(default)]
        unknown: Vec<String>,
        #[serde(default)]
        errors: Vec<String>,
        /// The definition itself is rejected.
        refused: Option<Vec<String>>,
    }

    fn run(cases: &str) {
        let cases: Vec<Case> = serde_yaml_ng::from_str(cases).unwrap();
        for mut case in cases {
            let schema = json!({"type": "object", "properties": {"spec": case.spec}});
            let path = "spec.validation.openAPIV3Schema";
            let mut refused: Vec<String> = crd_check::check_schema(&schema, path)
                .iter()
                .map(|e| e.to_string())
                .collect();
            let kind = match CustomKind::new(&schema, path) {
                Ok(kind) => kind,
                Err(errors) => {
                    refused.extend(errors.iter().map(|e| e.to_string()));
                    CustomKind::default()
                }
            };
            refused.sort();
            assert_eq!(refused, case.refused.clone().unwrap_or_default(), "{}", case.name);
            if case.refused.is_some() {
                continue;
            }
            assert_eq!(kind.admit(&mut case.object), case.unknown, "{}", case.name);
            if let Some(stored) = case.stored {
                assert_eq!(case.object, stored, "{}", case.name);
            }
            let errors = kind.validate(&case.object, case.old.as_ref());
            let mut errors: Vec<String> = errors.iter().map(|e| e.to_string()).collect();
            errors.sort();
            assert_eq!(errors, case.errors, "{}", case.name);
        }
    }

    #[test]
    fn custom_resources() {
        run(include_str!("fixtures/custom_resources.yaml"));
    }

    #[test]
    fn rules() {
        run(include_str!("fixtures/rules.yaml"));
    }

    #[test]
    fn definitions() {
        run(include_str!("fixtures/definitions.yaml"));
    }

    #[test]
    fn a_stored_object_stays_editable_when_the_schema_got_stricter() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "size": {"type": "integer", "maximum": 3}, "name": {"type": "string", "maxLength": 2}}}}});
        let kind = CustomKind::new(&schema, "x").unwrap();
        let old = json!({"spec": {"size": 9, "name": "long"}});
        let new = json!({"spec": {"size": 9, "name": "longer"}});
        let errors = kind.validate(&new, Some(&old));
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].field, "spec.name");
    }

    #[test]
    fn replicas_of_the_scale_subresource_are_numbers() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "size": {"x-kubernetes-preserve-unknown-fields": true}}}}});
        let subresources = json!({"scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}});
        let kind = CustomKind::new(&schema, "x")
            .unwrap()
            .with_subresources(Some(&subresources));
        for (size, text) in [
            (
                json!(-1),
                ".spec.size: Invalid value: -1: should be a non-negative integer",
            ),
            (
                json!("three"),
                ".spec.size: Invalid value: 0: .spec.size accessor error: three is of the type string, expected int64",
            ),
        ] {
            let errors = kind.validate(&json!({"spec": {"size": size}}), None);
            assert_eq!(error::aggregate(&errors), text);
        }
        assert_eq!(kind.validate(&json!({"spec": {"size": 3}}), None), []);
    }

    #[test]
    fn status_is_validated_alone() {
        let schema = json!({"type": "object", "properties": {
            "spec": {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}},
            "status": {"type": "object", "properties": {"phase": {"type": "string"}}}}});
        let kind = CustomKind::new(&schema, "x").unwrap();
        let errors = kind.validate_status(&json!({"spec": {}, "status": {"phase": 1}}), &json!({"spec": {}}));
        let texts: Vec<String> = errors.iter().map(|e| e.to_string()).collect();
        assert_eq!(
            texts,
            ["status.phase: Invalid value: \"integer\": phase in body must be of type string: \"integer\""]
        );
    }
}
