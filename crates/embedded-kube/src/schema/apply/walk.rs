//! The four walks of server-side apply: which fields a value has, how two values differ, merging, and removing.

use serde_json::{Map, Value};

use super::place::Place;
use super::set::{Set, Step};

/// The fields of a configuration: its leaves, and its list items with their own. A configuration may not name an item
/// twice.
pub(super) fn fields_of_config(value: &Value, place: &Place<'_>) -> Result<Set, String> {
    let mut set = Set::default();
    collect(value, place, &mut Vec::new(), &mut set, true)?;
    Ok(set)
}

/// The fields of an object of any shape.
pub(super) fn fields(value: &Value, place: &Place<'_>) -> Result<Set, String> {
    let mut set = Set::default();
    collect(value, place, &mut Vec::new(), &mut set, false)?;
    Ok(set)
}

/// A field of a configuration that its type does not have, as a message: applying it would own a field that cannot be
/// stored.
pub(super) fn undeclared(value: &Value, place: &Place<'_>, path: &mut Vec<Step>) -> Option<String> {
    let mut below = |step: Step, value: &Value, place: &Place<'_>, declared: bool| {
        path.push(step);
        let found = match declared {
            true => undeclared(value, place, path),
            false => Some(format!("{}: field not declared in schema", show(path))),
        };
        path.pop();
        found
    };
    match value {
        Value::Object(map) => {
            let mut names: Vec<&String> = map.keys().collect();
            names.sort();
            names.into_iter().find_map(|name| {
                below(
                    Step::Field(name.clone()),
                    &map[name],
                    &place.field(name),
                    place.declares(name),
                )
            })
        }
        Value::Array(items) => items.iter().enumerate().find_map(|(index, item)| {
            let step = match place.has_parts(value) {
                true => place.step(item).unwrap_or(Step::Index(index)),
                false => Step::Index(index),
            };
            below(step, item, &place.item(), true)
        }),
        _ => None,
    }
}

fn show(path: &[Step]) -> String {
    let mut set = Set::default();
    set.insert(path);
    set.paths().concat()
}

fn collect(value: &Value, place: &Place<'_>, path: &mut Vec<Step>, set: &mut Set, strict: bool) -> Result<(), String> {
    if !place.has_parts(value) {
        set.insert(path);
        return Ok(());
    }
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let below = place.field(name);
                path.push(Step::Field(name.clone()));
                collect(value, &below, path, set, strict)?;
                let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                if empty || !below.named {
                    set.insert(path);
                }
                path.pop();
            }
        }
        Value::Array(items) => {
            let below = place.item();
            let mut seen = Vec::with_capacity(items.len());
            for (index, item) in items.iter().enumerate() {
                let step = place
                    .step(item)
                    .map_err(|e| format!("{}: element {index}: {e}", show(path)))?;
                if strict && seen.contains(&step) {
                    return Err(format!("{}: duplicate entries for key {}", show(path), show(&[step])));
                }
                path.push(step.clone());
                seen.push(step);
                collect(item, &below, path, set, strict)?;
                set.insert(path);
                path.pop();
            }
        }
        _ => {}
    }
    Ok(())
}

/// How a new value differs from an old one.
#[derive(Debug, Default)]
pub(super) struct Difference {
    pub(super) added: Set,
    pub(super) modified: Set,
    pub(super) removed: Set,
}

/// Compares two objects.
pub(super) fn compare(old: &Value, new: &Value, place: &Place<'_>) -> Difference {
    let mut out = Difference::default();
    walk(Some(old), Some(new), place, &mut Vec::new(), &mut out);
    out
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}

fn walk(old: Option<&Value>, new: Option<&Value>, place: &Place<'_>, path: &mut Vec<Step>, out: &mut Difference) {
    let maps = |v: Option<&Value>| v.is_none_or(|v| v.is_object() || v.is_null());
    let lists = |v: Option<&Value>| v.is_none_or(|v| v.is_array() || v.is_null());
    let parts = |v: Option<&Value>| v.is_some_and(|v| place.has_parts(v));
    let leaf = is_empty(old) && is_empty(new);
    if !leaf && (parts(old) || parts(new)) && maps(old) && maps(new) {
        let (old, new) = (old.and_then(Value::as_object), new.and_then(Value::as_object));
        let names = old.into_iter().flatten().map(|(name, _)| name);
        let fresh = new
            .into_iter()
            .flatten()
            .map(|(name, _)| name)
            .filter(|n| old.is_none_or(|o| !o.contains_key(*n)));
        for name in names.chain(fresh) {
            path.push(Step::Field(name.clone()));
            walk(
                old.and_then(|o| o.get(name)),
                new.and_then(|n| n.get(name)),
                &place.field(name),
                path,
                out,
            );
            path.pop();
        }
    } else if !leaf && (parts(old) || parts(new)) && lists(old) && lists(new) {
        let index = |list: Option<&Value>| -> Vec<(Step, Value)> {
            let items = list.and_then(Value::as_array).into_iter().flatten();
            items
                .filter_map(|item| Some((place.step(item).ok()?, item.clone())))
                .collect()
        };
        let (before, after) = (index(old), index(new));
        let below = place.item();
        let find = |list: &[(Step, Value)], step: &Step| list.iter().find(|(s, _)| s == step).map(|(_, v)| v.clone());
        let fresh = after.iter().filter(|(step, _)| !before.iter().any(|(s, _)| s == step));
        for (step, _) in before.iter().chain(fresh) {
            path.push(step.clone());
            walk(
                find(&before, step).as_ref(),
                find(&after, step).as_ref(),
                &below,
                path,
                out,
            );
            path.pop();
        }
    } else {
        match (old, new) {
            (Some(old), Some(new)) if old != new => out.modified.insert(path),
            _ => {}
        }
    }
    match (old, new) {
        (None, Some(_)) => out.added.insert(path),
        (Some(_), None) => out.removed.insert(path),
        _ => {}
    }
}

/// The configuration merged over the live value.
pub(super) fn merge(live: &Value, config: &Value, place: &Place<'_>) -> Result<Value, String> {
    if !place.has_parts(config) {
        return Ok(config.clone());
    }
    match (live, config) {
        (Value::Object(live), Value::Object(config)) => {
            let mut out = live.clone();
            for (name, value) in config {
                let merged = match live.get(name) {
                    Some(old) => merge(old, value, &place.field(name))?,
                    None => merge(&Value::Null, value, &place.field(name))?,
                };
                out.insert(name.clone(), merged);
            }
            Ok(Value::Object(out))
        }
        (Value::Array(live), Value::Array(config)) => merge_list(live, config, place),
        (_, Value::Object(config)) => {
            let fields = config
                .iter()
                .map(|(k, v)| Ok((k.clone(), merge(&Value::Null, v, &place.field(k))?)));
            Ok(Value::Object(fields.collect::<Result<_, String>>()?))
        }
        (_, Value::Array(config)) => merge_list(&[], config, place),
        (_, config) => Ok(config.clone()),
    }
}

/// Items in both come in the configuration's order; items only in the live list keep their place before what follows
/// them there.
fn merge_list(live: &[Value], config: &[Value], place: &Place<'_>) -> Result<Value, String> {
    let below = place.item();
    let mut wanted: Vec<(Step, &Value)> = Vec::with_capacity(config.len());
    for (index, item) in config.iter().enumerate() {
        let step = place.step(item).map_err(|e| format!("element {index}: {e}"))?;
        wanted.push((step, item));
    }
    // A live item whose key is unknown is kept unchanged.
    let existing: Vec<(Option<Step>, &Value)> = live.iter().map(|item| (place.step(item).ok(), item)).collect();
    let find = |step: &Step| existing.iter().find(|(s, _)| s.as_ref() == Some(step)).map(|(_, v)| *v);
    let mut shared: std::collections::VecDeque<&Step> =
        wanted.iter().map(|(s, _)| s).filter(|s| find(s).is_some()).collect();
    let mut out = Vec::new();
    let (mut l, mut r) = (0, 0);
    while l < existing.len() || r < wanted.len() {
        if let Some((step, item)) = existing.get(l) {
            let in_config = step.as_ref().is_some_and(|step| wanted.iter().any(|(s, _)| s == step));
            if !in_config {
                out.push((*item).clone());
                l += 1;
                continue;
            }
            let next = wanted.get(r).map(|(s, _)| s);
            // An item that is already merged or comes later is skipped.
            if step.as_ref() != next && step.as_ref() != shared.front().copied() {
                l += 1;
                continue;
            }
        }
        if let Some((step, value)) = wanted.get(r) {
            out.push(merge(find(step).unwrap_or(&Value::Null), value, &below)?);
            r += 1;
            if existing.get(l).is_some_and(|(s, _)| s.as_ref() == Some(step)) {
                l += 1;
            }
            if shared.front() == Some(&step) {
                shared.pop_front();
            }
        } else {
            l += 1;
        }
    }
    Ok(Value::Array(out))
}

/// The value without the fields of the set; `None` if nothing remains.
pub(super) fn remove(value: &Value, gone: &Set, place: &Place<'_>) -> Option<Value> {
    if !place.has_parts(value) {
        return match value {
            Value::Object(_) | Value::Array(_) => None,
            scalar => Some(scalar.clone()),
        };
    }
    match value {
        Value::Object(map) => {
            let mut out = Map::new();
            for (name, value) in map {
                let step = Step::Field(name.clone());
                if gone.has(&step) {
                    continue;
                }
                match gone.under(&step) {
                    Some(below) => {
                        out.insert(
                            name.clone(),
                            remove(value, below, &place.field(name)).unwrap_or(Value::Null),
                        );
                    }
                    None => {
                        out.insert(name.clone(), value.clone());
                    }
                }
            }
            (!out.is_empty()).then_some(Value::Object(out))
        }
        Value::Array(items) => {
            let mut out = Vec::new();
            for item in items {
                let Ok(step) = place.step(item) else {
                    out.push(item.clone());
                    continue;
                };
                if gone.has(&step) {
                    continue;
                }
                match gone.under(&step) {
                    Some(below) => out.push(remove(item, below, &place.item()).unwrap_or(Value::Null)),
                    None => out.push(item.clone()),
                }
            }
            (!out.is_empty()).then_some(Value::Array(out))
        }
        other => Some(other.clone()),
    }
}
