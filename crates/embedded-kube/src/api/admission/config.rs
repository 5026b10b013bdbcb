//! ConfigMaps and Secrets.

use base64::Engine;
use serde_json::{Value, json};

use super::{default, text};
use crate::api::errors::FieldError;
use crate::api::resources::Resource;
use crate::schema::error::Reason;

const MAX_BYTES: usize = 1024 * 1024;

/// `stringData` is a way to write `data`, and is never stored.
pub(super) fn secret_defaults(secret: &mut Value) {
    default(secret, "type", "Opaque");
    let Some(object) = secret.as_object_mut() else { return };
    if let Some(Value::Object(plain)) = object.shift_remove("stringData") {
        let data = object.entry("data").or_insert_with(|| json!({}));
        for (key, value) in plain {
            let encoded = base64::engine::general_purpose::STANDARD.encode(value.as_str().unwrap_or_default());
            data[key] = encoded.into();
        }
    }
}

pub(super) fn validate(resource: &Resource, old: Option<&Value>, new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut size = 0;
    for field in ["data", "binaryData"] {
        for (key, value) in new[field].as_object().into_iter().flatten() {
            size += value.as_str().unwrap_or_default().len();
            let valid = key.len() <= 253
                && !key.is_empty()
                && key != "."
                && !key.starts_with("..")
                && key.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
            if !valid {
                let text = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. \
                            'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
                errors.push(FieldError::invalid(format!("{field}[{key}]"), key.as_str(), text));
            }
        }
    }
    // Secrets are base64, a third longer than their content.
    let limit = if resource.plural == "secrets" {
        MAX_BYTES / 3 * 4
    } else {
        MAX_BYTES
    };
    if size > limit {
        let field = if resource.plural == "secrets" { "data" } else { "" };
        errors.push(FieldError::new(
            Reason::TooLong,
            field,
            None,
            "may not be more than 1048576 bytes",
        ));
    }
    let Some(old) = old else { return errors };
    if resource.plural == "secrets" && text(old, "type") != text(new, "type") {
        errors.push(FieldError::invalid("type", new["type"].clone(), "field is immutable"));
    }
    if old["immutable"] == true {
        if new["immutable"] != true {
            errors.push(FieldError::forbidden(
                "immutable",
                "field is immutable when `immutable` is set",
            ));
        }
        for field in ["data", "binaryData"] {
            if old[field] != new[field] {
                errors.push(FieldError::forbidden(
                    field,
                    "field is immutable when `immutable` is set",
                ));
            }
        }
    }
    errors
}
