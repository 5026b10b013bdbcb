//! Matches items of a new list with items of the old one: by key in lists of type `map`; other lists have no matches.

use serde_json::{Map, Value};

use super::structural::{ListType, Schema};

/// The key fields of an item of a list of type `map`.
pub(crate) fn key(item: &Value, names: &[String]) -> Value {
    let fields: Map<String, Value> = names
        .iter()
        .filter_map(|name| Some((name.clone(), item.get(name)?.clone())))
        .collect();
    Value::Object(fields)
}

/// The item of the old list with the same key.
pub(crate) fn item<'a>(old: Option<&'a Value>, item: &Value, schema: &Schema) -> Option<&'a Value> {
    if schema.list_type != ListType::Map {
        return None;
    }
    let wanted = key(item, &schema.list_map_keys);
    old?.as_array()?
        .iter()
        .find(|candidate| key(candidate, &schema.list_map_keys) == wanted)
}
