//! Sets defaults of custom resources.

use serde_json::Value;

use super::structural::{Additional, Schema};

/// Sets every absent field that has a default, and every null that has one where null is not allowed; then does the
/// same inside what it set.
pub(crate) fn apply_defaults(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(map) => {
            for (name, field) in &schema.properties {
                let Some(default) = &field.default else { continue };
                match map.get(name) {
                    None => {
                        map.insert(name.clone(), default.clone());
                    }
                    Some(Value::Null) if !field.nullable => {
                        map.insert(name.clone(), default.clone());
                    }
                    Some(_) => {}
                }
            }
            for (name, value) in map.iter_mut() {
                if let Some(field) = schema.properties.get(name) {
                    apply_defaults(value, field);
                } else if let Some(Additional::Schema(field)) = &schema.additional {
                    replace_null(value, field);
                    apply_defaults(value, field);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.items.as_deref() {
                for item in items {
                    replace_null(item, schema);
                    apply_defaults(item, schema);
                }
            }
        }
        _ => {}
    }
}

fn replace_null(value: &mut Value, schema: &Schema) {
    if let (Value::Null, false, Some(default)) = (&*value, schema.nullable, &schema.default) {
        *value = default.clone();
    }
}
