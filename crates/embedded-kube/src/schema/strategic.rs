//! Strategic merge patch of built-in kinds: JSON merge patch that merges lists by key, with directives.
//!
//! Directives: `$patch: delete` and `$patch: replace` in maps and list items, `$retainKeys`, `$setElementOrder/<list>`,
//! `$deleteFromPrimitiveList/<list>`.

use serde_json::{Map, Value};

use super::gofmt;
use super::merge_keys::{Field, Type};

const PATCH: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";

/// A patch that cannot be applied; a 400 (or 422, as in Kubernetes) with this message.
#[derive(Debug, thiserror::Error, PartialEq)]
pub(crate) enum PatchError {
    #[error("unknown patch type: {0} in map: {1}")]
    UnknownDirective(String, String),
    #[error("map: {0} does not contain declared merge key: {1}")]
    NoMergeKey(String, String),
    #[error("invalid patch format of {0}: it must be a list{1}")]
    BadDirective(&'static str, &'static str),
    #[error("The order in patch list:\n{0}\n doesn't match $setElementOrder list:\n{1}\n")]
    Order(String, String),
    #[error("a strategic merge patch must be an object")]
    NotAnObject,
}

/// Applies a strategic merge patch to an object of a built-in kind.
pub(crate) fn patch(original: &mut Value, patch: &Value, kind: &str) -> Result<(), PatchError> {
    let (Value::Object(original), Value::Object(patch)) = (original, patch) else {
        return Err(PatchError::NotAnObject);
    };
    merge_map(original, patch, Type::of(kind))
}

fn merge_map(original: &mut Map<String, Value>, patch: &Map<String, Value>, kind: Type) -> Result<(), PatchError> {
    match patch.get(PATCH) {
        None => {}
        Some(directive) if directive == "replace" => {
            *original = patch.clone();
            original.remove(PATCH);
            return Ok(());
        }
        Some(directive) if directive == "delete" => {
            original.clear();
            return Ok(());
        }
        Some(other) => return Err(unknown_directive(other, patch)),
    }
    if let Some(keys) = patch.get(RETAIN) {
        let keys = keys
            .as_array()
            .ok_or(PatchError::BadDirective(RETAIN, " of the keys that stay"))?;
        let in_patch = patch.iter().filter(|(k, v)| !v.is_null() && !k.starts_with('$'));
        if in_patch
            .map(|(k, _)| k)
            .any(|k| !keys.iter().any(|key| key == k.as_str()))
        {
            return Err(PatchError::BadDirective(RETAIN, " that names every field of the patch"));
        }
        original.retain(|k, _| keys.iter().any(|key| key == k.as_str()));
    }
    let mut ordered: Vec<&str> = Vec::new();
    for (key, order) in patch {
        let Some(name) = key.strip_prefix(ORDER) else { continue };
        let order = order
            .as_array()
            .ok_or(PatchError::BadDirective("$setElementOrder", ""))?;
        set_order(original, patch, name, order, kind)?;
        ordered.push(name);
    }
    for (key, value) in patch {
        if key == RETAIN || key.starts_with(ORDER) || ordered.contains(&key.as_str()) {
            continue;
        }
        if let Some(name) = key.strip_prefix(DELETE_FROM) {
            let gone = value
                .as_array()
                .ok_or(PatchError::BadDirective("$deleteFromPrimitiveList", ""))?;
            if let Some(Value::Array(items)) = original.get_mut(name) {
                items.retain(|item| !gone.contains(item));
            }
            continue;
        }
        if value.is_null() {
            original.remove(key);
            continue;
        }
        let (field, below) = kind.field(key);
        match (original.get_mut(key), value) {
            (Some(Value::Object(old)), Value::Object(new)) if field.is_none_or(|f| !f.replace) => {
                merge_map(old, new, below)?;
            }
            (Some(Value::Array(old)), Value::Array(new)) => merge_list(old, new, field, below)?,
            _ => match plain(value) {
                Some(value) => {
                    original.insert(key.clone(), value);
                }
                None => {
                    original.remove(key);
                }
            },
        }
    }
    Ok(())
}

fn unknown_directive(directive: &Value, patch: &Map<String, Value>) -> PatchError {
    PatchError::UnknownDirective(gofmt::value(directive), Value::Object(patch.clone()).to_string())
}

/// A value of a patch without a live value: without nulls and directives. `None` if it is itself a deletion.
fn plain(value: &Value) -> Option<Value> {
    Some(match value {
        Value::Object(map) => {
            if map.get(PATCH).is_some_and(|directive| directive == "delete") {
                return None;
            }
            let kept = map
                .iter()
                .filter(|(key, value)| !key.starts_with('$') && !value.is_null());
            Value::Object(
                kept.filter_map(|(key, value)| Some((key.clone(), plain(value)?)))
                    .collect(),
            )
        }
        // An item that was only a directive disappears with it.
        Value::Array(items) => Value::Array(items.iter().filter(|i| !only_directive(i)).filter_map(plain).collect()),
        other => other.clone(),
    })
}

fn only_directive(item: &Value) -> bool {
    item.as_object()
        .is_some_and(|map| map.len() == 1 && map.contains_key(PATCH))
}

/// The key by which patches merge a list; `None` when they replace it.
fn merge_key(field: Option<&'static Field>) -> Option<&'static str> {
    let field = field.filter(|f| !f.apply_only)?;
    field.keys.first().map(|(key, _)| *key)
}

fn merge_list(
    original: &mut Vec<Value>,
    patch: &[Value],
    field: Option<&'static Field>,
    kind: Type,
) -> Result<(), PatchError> {
    let server_order = original.clone();
    let key = merge_key(field);
    match key {
        None if field.is_some_and(|f| f.set) => {
            for item in patch.iter().filter(|item| !item.is_null()) {
                if !original.contains(item) {
                    original.push(item.clone());
                }
            }
            *original = in_order(std::mem::take(original), patch, &server_order, None);
        }
        None => {
            *original = patch.iter().filter(|i| !only_directive(i)).filter_map(plain).collect();
        }
        Some(key) => {
            let mut fresh: Vec<&Map<String, Value>> = Vec::new();
            let mut replace = false;
            for item in patch {
                let Value::Object(map) = item else {
                    return Err(PatchError::NoMergeKey(item.to_string(), key.to_owned()));
                };
                match map.get(PATCH) {
                    None => fresh.push(map),
                    Some(directive) if directive == "delete" => {
                        let gone = map.get(key);
                        let gone = gone.ok_or_else(|| PatchError::NoMergeKey(item.to_string(), key.to_owned()))?;
                        original.retain(|item| item.get(key) != Some(gone));
                    }
                    Some(directive) if directive == "replace" => replace = true,
                    Some(other) => return Err(unknown_directive(other, map)),
                }
            }
            if replace {
                *original = fresh
                    .iter()
                    .filter_map(|map| plain(&Value::Object((*map).clone())))
                    .collect();
                return Ok(());
            }
            let mut named = Vec::with_capacity(fresh.len());
            for map in fresh {
                let value = map.get(key);
                let value = value
                    .ok_or_else(|| PatchError::NoMergeKey(Value::Object(map.clone()).to_string(), key.to_owned()))?;
                match original.iter_mut().find(|item| item.get(key) == Some(value)) {
                    Some(Value::Object(old)) => merge_map(old, map, kind)?,
                    _ => original.extend(plain(&Value::Object(map.clone()))),
                }
                named.push(Value::Object(map.clone()));
            }
            *original = in_order(std::mem::take(original), &named, &server_order, Some(key));
        }
    }
    Ok(())
}

/// Merges a list and then sorts it as the patch requires.
fn set_order(
    original: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    name: &str,
    order: &[Value],
    kind: Type,
) -> Result<(), PatchError> {
    let (field, below) = kind.field(name);
    let key = merge_key(field);
    let patched = patch.get(name).and_then(Value::as_array);
    if let Some(patched) = patched {
        let mut rest = order.iter();
        let known = patched.iter().filter(|item| item.get(PATCH).is_none());
        for item in known {
            if !order.is_empty() && !rest.any(|other| same(item, other, key)) {
                return Err(PatchError::Order(
                    Value::from(patched.clone()).to_string(),
                    Value::from(order).to_string(),
                ));
            }
        }
    }
    let server_order = original
        .get(name)
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let merged = match (original.get_mut(name), patched) {
        (None, None) => return Ok(()),
        (Some(Value::Array(old)), None) => std::mem::take(old),
        (Some(Value::Array(old)), Some(new)) => {
            merge_list(old, new, field, below)?;
            std::mem::take(old)
        }
        (_, Some(new)) => new.iter().filter(|i| !only_directive(i)).filter_map(plain).collect(),
        (Some(_), None) => return Err(PatchError::BadDirective("$setElementOrder", "")),
    };
    original.insert(
        name.to_owned(),
        Value::Array(in_order(merged, order, &server_order, key)),
    );
    Ok(())
}

fn same(a: &Value, b: &Value, key: Option<&str>) -> bool {
    match key {
        Some(key) => a.get(key).is_some() && a.get(key) == b.get(key),
        None => a == b,
    }
}

/// Items that the patch names come in the patch's order; the others keep their order and their place among them.
fn in_order(items: Vec<Value>, patch_order: &[Value], server_order: &[Value], key: Option<&str>) -> Vec<Value> {
    let index = |order: &[Value], item: &Value| order.iter().position(|other| same(item, other, key));
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        items.into_iter().partition(|item| index(patch_order, item).is_some());
    named.sort_by_key(|item| index(patch_order, item));
    others.sort_by_key(|item| index(server_order, item).unwrap_or(usize::MAX));
    let mut out = Vec::with_capacity(named.len() + others.len());
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    while let (Some(name), Some(other)) = (named.peek(), others.peek()) {
        let first = match (index(server_order, other), index(server_order, name)) {
            (Some(other), Some(name)) => other < name,
            _ => false,
        };
        out.extend(if first { others.next() } else { named.next() });
    }
    out.extend(named);
    out.extend(others);
    out
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Case {
        name: String,
        kind: String,
        object: Value,
        patch: Value,
        result: Option<Value>,
        error: Option<String>,
    }

    #[test]
    fn patches() {
        let cases: Vec<Case> = serde_yaml_ng::from_str(include_str!("fixtures/strategic.yaml")).unwrap();
        for mut case in cases {
            let outcome = patch(&mut case.object, &case.patch, &case.kind);
            match case.error {
                Some(error) => {
                    let text = outcome.unwrap_err().to_string();
                    assert!(text.contains(&error), "{}: {text}", case.name);
                }
                None => {
                    outcome.unwrap();
                    assert_eq!(Some(case.object), case.result, "{}", case.name);
                }
            }
        }
    }
}
