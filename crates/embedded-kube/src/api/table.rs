//! Tables: what `kubectl get` prints.

use serde_json::{Value, json};

use super::meta;
use super::rest::Call;

/// A `Table` of objects; `list` is the metadata of the list they are from.
pub(crate) fn table(call: &Call, objects: &[Value], list: Option<&Value>) -> Value {
    let include = call.query.get("includeObject").unwrap_or("Metadata");
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let mut row = json!({"cells": [meta::name(object), object["metadata"]["creationTimestamp"]]});
            row["object"] = match include {
                "None" => Value::Null,
                "Object" => object.clone(),
                _ => json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]}),
            };
            row
        })
        .collect();
    let metadata = match (list, objects) {
        (Some(list), _) => list.clone(),
        (None, [one]) => json!({"resourceVersion": one["metadata"]["resourceVersion"]}),
        _ => json!({}),
    };
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": [
            {"name": "Name", "type": "string", "format": "name", "description": "Name", "priority": 0},
            {"name": "Created At", "type": "date", "format": "", "description": "Creation time", "priority": 0},
        ],
        "rows": rows,
    })
}
