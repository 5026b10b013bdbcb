//! Removes what the schema does not define: unknown fields, and nulls where null is not allowed.
//!
//! `apiVersion`, `kind` and `metadata` of the object itself and of embedded resources stay, with unknown fields of
//! `metadata` removed. The paths of what was removed are what `fieldValidation` reports.

use serde_json::Value;

use super::structural::{Additional, Schema};

const OBJECT_META: &[&str] = &[
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Removes unknown fields of a custom resource. Returns their paths, sorted: `spec.foo`, `spec.members[0].bar`.
pub(crate) fn prune(object: &mut Value, schema: &Schema) -> Vec<String> {
    let mut walk = Walk {
        path: String::new(),
        unknown: Vec::new(),
    };
    if let Value::Object(_) = object {
        walk.resource(object, schema, true);
    }
    walk.unknown.sort();
    walk.unknown
}

/// The same for a part of an object, such as a default.
pub(crate) fn prune_value(value: &mut Value, schema: &Schema) -> Vec<String> {
    let mut walk = Walk {
        path: String::new(),
        unknown: Vec::new(),
    };
    walk.descend(value, Some(schema), false);
    walk.unknown
}

/// Removes nulls of fields that are neither nullable nor have a default, so that they count as absent. Nulls that have
/// a default are left to defaulting.
pub(crate) fn prune_nulls(value: &mut Value, schema: Option<&Schema>) {
    match value {
        Value::Object(map) => {
            map.retain(|name, value| {
                let field = schema.and_then(|s| s.field(name));
                let absent = value.is_null() && field.is_some_and(|f| !f.nullable && f.default.is_none());
                if !absent {
                    prune_nulls(value, field);
                }
                !absent
            });
        }
        Value::Array(items) => {
            let schema = schema.and_then(|s| s.items.as_deref());
            items.iter_mut().for_each(|item| prune_nulls(item, schema));
        }
        _ => {}
    }
}

struct Walk {
    path: String,
    unknown: Vec<String>,
}

impl Walk {
    /// An object that has `apiVersion`, `kind` and `metadata` of its own.
    fn resource(&mut self, value: &mut Value, schema: &Schema, root: bool) {
        if let Some(Value::Object(metadata)) = value.get_mut("metadata") {
            let parent = if root {
                "metadata".to_owned()
            } else {
                format!("{}.metadata", self.path)
            };
            metadata.retain(|name, _| {
                let known = OBJECT_META.contains(&name.as_str());
                if !known {
                    self.unknown.push(format!("{parent}.{name}"));
                }
                known
            });
        }
        self.node(value, Some(schema), true, false);
    }

    fn node(&mut self, value: &mut Value, schema: Option<&Schema>, resource: bool, preserve: bool) {
        let preserve = preserve || schema.is_some_and(|s| s.preserve_unknown_fields);
        match value {
            Value::Object(map) => map.retain(|name, value| {
                if resource && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                    return true;
                }
                let field = schema.and_then(|s| s.properties.get(name));
                let additional = schema.and_then(|s| s.additional.as_ref());
                let child = match (field, additional) {
                    (Some(field), _) => Some(field),
                    (None, Some(Additional::Schema(schema))) => Some(schema.as_ref()),
                    // `additionalProperties: true` names no schema for what is below: Kubernetes prunes there.
                    (None, Some(_)) => None,
                    (None, None) => {
                        if !preserve {
                            let path = self.child(name);
                            self.unknown.push(path);
                        }
                        return preserve;
                    }
                };
                let length = self.path.len();
                self.path = self.child(name);
                self.descend(value, child, false);
                self.path.truncate(length);
                true
            }),
            Value::Array(items) => {
                let child = schema.and_then(|s| s.items.as_deref());
                if preserve && child.is_none() {
                    return;
                }
                for (index, item) in items.iter_mut().enumerate() {
                    let length = self.path.len();
                    self.path.push_str(&format!("[{index}]"));
                    // The items of a preserved list are preserved too.
                    self.descend(item, child, preserve);
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }

    fn descend(&mut self, value: &mut Value, schema: Option<&Schema>, preserve: bool) {
        match schema {
            Some(schema) if schema.embedded_resource => self.resource(value, schema, false),
            schema => self.node(value, schema, false, preserve),
        }
    }

    fn child(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }
}
