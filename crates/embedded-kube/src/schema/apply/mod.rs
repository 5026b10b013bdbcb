//! Server-side apply, and the owners of fields (`metadata.managedFields`).
//!
//! [`apply`] merges a configuration into the live object; [`track`] records what a create, update or patch changed.
//! Both follow Kubernetes' structured-merge-diff. Known differences: objects of several versions are not converted, so
//! all entries are read as if they had the current version; the number of entries is not limited.

mod place;
mod set;
mod walk;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

pub(crate) use self::place::Kind;
use self::place::Place;
use self::set::Set;
use super::gofmt;

/// The writer, the endpoint and the time of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer<'a> {
    /// The field manager.
    pub(crate) manager: &'a str,
    /// The subresource written through, empty for the object itself.
    pub(crate) subresource: &'a str,
    /// The `apiVersion` of the request.
    pub(crate) api_version: &'a str,
    /// The time, RFC 3339 in UTC to the second.
    pub(crate) now: &'a str,
    /// The fields that this endpoint can write and so own.
    pub(crate) owns: Owns<'a>,
}

/// The fields that an endpoint can write. The others are reset by the server and never owned through it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owns<'a> {
    /// Everything: kinds without subresources.
    All,
    /// All but these top-level fields: `["status"]` for an object with a status subresource.
    AllBut(&'a [&'a str]),
    /// Only these: `["status"]` for the status subresource.
    Only(&'a [&'a str]),
}

impl Owns<'_> {
    fn filter(&self, set: Set) -> Set {
        match self {
            Owns::All => set,
            Owns::AllBut(fields) => set.keep(|name| !fields.contains(&name)),
            Owns::Only(fields) => set.keep(|name| fields.contains(&name)),
        }
    }
}

/// Why an apply failed.
#[derive(Debug, thiserror::Error, PartialEq)]
pub(crate) enum ApplyError {
    /// 409 Conflict: other managers own fields with different values. `causes` belong in `details.causes`.
    #[error("{message}")]
    Conflict { message: String, causes: Vec<Value> },
    /// The configuration is invalid: 400 for `managedFields`, 500 otherwise, as in Kubernetes.
    #[error("{0}")]
    Invalid(String),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Owner {
    manager: String,
    applied: bool,
    /// Empty for appliers: an applier is the same at any version.
    api_version: String,
    subresource: String,
}

#[derive(Clone, Debug)]
struct Owned {
    set: Set,
    api_version: String,
    time: Option<String>,
}

type Managed = BTreeMap<Owner, Owned>;

/// Merges an applied configuration into the live object (`None` if there is none yet). The result has its
/// `managedFields`; the caller checks whether it differs from the live object.
pub(crate) fn apply(
    live: Option<&Value>,
    config: &Value,
    kind: Kind<'_>,
    writer: Writer<'_>,
    force: bool,
) -> Result<Value, ApplyError> {
    if config.pointer("/metadata/managedFields").is_some_and(|m| !m.is_null()) {
        return Err(ApplyError::Invalid("metadata.managedFields must be nil".to_owned()));
    }
    let place = Place::root(kind);
    let invalid = |text: String| {
        let at = |pointer: &str| config.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (namespace, name) = (at("/metadata/namespace"), at("/metadata/name"));
        // The core group has an empty name.
        let slash = if at("/apiVersion").contains('/') { "" } else { "/" };
        let of = format!("{namespace}/{name}; {slash}{}, Kind={}", at("/apiVersion"), at("/kind"));
        ApplyError::Invalid(format!("failed to create typed patch object ({of}): {text}"))
    };
    if let Some(text) = walk::undeclared(config, &place, &mut Vec::new()) {
        return Err(invalid(text));
    }
    let before = live.cloned().unwrap_or_else(|| json!({}));
    let mut managed = decode(&before);
    let mut bare = before.clone();
    strip_managed(&mut bare);
    if live.is_some() && managed.is_empty() {
        adopt(&mut managed, &bare, &place, writer);
    }
    let owner = Owner {
        manager: writer.manager.to_owned(),
        applied: true,
        api_version: String::new(),
        subresource: writer.subresource.to_owned(),
    };
    let last = managed.get(&owner).map(|owned| owned.set.clone()).unwrap_or_default();
    let set = writer
        .owns
        .filter(walk::fields_of_config(config, &place).map_err(invalid)?);
    let merged = walk::merge(&bare, config, &place).map_err(invalid)?;
    let previous_time = managed.get(&owner).and_then(|owned| owned.time.clone());
    let applied = Owned {
        set,
        api_version: writer.api_version.to_owned(),
        time: previous_time,
    };
    managed.insert(owner.clone(), applied);
    let result = prune(&merged, &last, &managed, &place);
    let (conflicts, difference) = settle(&mut managed, &owner, &bare, &result, &place, writer);
    if !conflicts.is_empty() && !force {
        let allowed = match writer.manager {
            "kubectl" => client_side_applied(&bare, &place),
            _ => Set::default(),
        };
        let conflicts: Vec<(Owner, Set)> = conflicts
            .into_iter()
            .map(|(owner, set)| (owner, set.difference(&allowed)))
            .filter(|(_, set)| !set.is_empty())
            .collect();
        if !conflicts.is_empty() {
            return Err(conflict(&conflicts));
        }
    }
    let changed = !(difference.added.is_empty() && difference.modified.is_empty() && difference.removed.is_empty());
    strip(&mut managed, &owner);
    if let Some(owned) = managed.get_mut(&owner)
        && changed
    {
        owned.time = Some(writer.now.to_owned());
    }
    let mut result = result;
    if writer.manager == "kubectl" {
        refresh_last_applied(&mut result, config);
    }
    encode(&mut result, &managed);
    Ok(result)
}

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Client-side `kubectl apply` continues where a server-side one stopped: the server keeps its annotation up to date.
fn refresh_last_applied(object: &mut Value, config: &Value) {
    if let Some(Value::Object(annotations)) = object.pointer_mut("/metadata/annotations")
        && annotations.contains_key(LAST_APPLIED)
    {
        let mut config = gofmt::sorted(config);
        if let Some(Value::Object(annotations)) = config.pointer_mut("/metadata/annotations") {
            annotations.remove(LAST_APPLIED);
        }
        annotations.insert(LAST_APPLIED.to_owned(), Value::from(format!("{config}\n")));
    }
}

/// Records the owners of fields in `new` after a create (`live` is `None`), an update or a patch.
pub(crate) fn track(live: Option<&Value>, new: &mut Value, kind: Kind<'_>, writer: Writer<'_>) {
    let place = Place::root(kind);
    let before = live.cloned().unwrap_or_else(|| json!({}));
    // A client may edit managedFields; what it sends is used unless it is empty.
    let sent = new.pointer("/metadata/managedFields").and_then(Value::as_array);
    let reset = sent.is_some_and(|entries| entries.len() == 1 && entries[0].as_object().is_some_and(Map::is_empty));
    let mut managed = match sent {
        Some(_) if reset => Managed::new(),
        Some(entries) if !entries.is_empty() && writer.subresource.is_empty() => decode(new),
        _ => decode(&before),
    };
    let mut old = before;
    strip_managed(&mut old);
    strip_managed(new);
    if managed.is_empty() && live.is_some() {
        // Kubernetes does not start tracking an object that was not tracked, and reset ends it until the next apply.
        return;
    }
    let operation = Owner {
        manager: String::new(),
        applied: false,
        api_version: writer.api_version.to_owned(),
        subresource: "\u{0}current operation".to_owned(),
    };
    let (_, difference) = settle(&mut managed, &operation, &old, new, &place, writer);
    let set = writer.owns.filter(difference.modified.union(&difference.added));
    managed.insert(
        operation.clone(),
        Owned {
            set,
            api_version: writer.api_version.to_owned(),
            time: None,
        },
    );
    strip(&mut managed, &operation);
    if let Some(mut owned) = managed.remove(&operation) {
        let owner = Owner {
            manager: writer.manager.to_owned(),
            applied: false,
            api_version: writer.api_version.to_owned(),
            subresource: writer.subresource.to_owned(),
        };
        if let Some(previous) = managed.remove(&owner) {
            owned.set = owned.set.union(&previous.set);
        }
        owned.time = Some(writer.now.to_owned());
        managed.insert(owner, owned);
    }
    encode(new, &managed);
}

/// Removes what the write changed or removed from the other owners. Returns that as conflicts, and the difference.
fn settle(
    managed: &mut Managed,
    writer: &Owner,
    old: &Value,
    new: &Value,
    place: &Place<'_>,
    scope: Writer<'_>,
) -> (Vec<(Owner, Set)>, walk::Difference) {
    let mut difference = walk::compare(old, new, place);
    for set in [&mut difference.added, &mut difference.modified, &mut difference.removed] {
        *set = scope.owns.filter(std::mem::take(set));
    }
    let changed = difference.modified.clone().union(&difference.added);
    let mut conflicts = Vec::new();
    for (owner, owned) in managed.iter_mut().filter(|(owner, _)| *owner != writer) {
        let taken = owned.set.intersection(&changed);
        if !taken.is_empty() {
            owned.set = std::mem::take(&mut owned.set).difference(&taken);
            conflicts.push((owner.clone(), taken));
        }
        owned.set = std::mem::take(&mut owned.set).difference(&difference.removed);
    }
    managed.retain(|owner, owned| owner == writer || !owned.set.is_empty());
    (conflicts, difference)
}

/// Removes what the applier applied last time but not now, unless another manager owns it.
fn prune(merged: &Value, last: &Set, managed: &Managed, place: &Place<'_>) -> Value {
    if last.is_empty() {
        return merged.clone();
    }
    let with_parents = |set: &Set| set.with_parents(place.clone());
    let of = |value: &Value| {
        walk::fields(value, place)
            .map(|set| with_parents(&set))
            .unwrap_or_default()
    };
    let without = |gone: &Set| walk::remove(merged, gone, place).unwrap_or_else(|| json!({}));
    let last = with_parents(last);
    let pruned = without(&last);
    let all = of(merged);
    let owned = managed
        .values()
        .fold(Set::default(), |all, owned| all.union(&with_parents(&owned.set)));
    let pruned = without(&all.clone().difference(&of(&pruned).union(&owned)));
    without(&all.difference(&of(&pruned)).intersection(&last))
}

/// An object that was never tracked belongs, as it is, to "before-first-apply".
fn adopt(managed: &mut Managed, live: &Value, place: &Place<'_>, writer: Writer<'_>) {
    let owner = Owner {
        manager: "before-first-apply".to_owned(),
        applied: false,
        api_version: writer.api_version.to_owned(),
        subresource: String::new(),
    };
    let set = walk::compare(&json!({}), live, place).added;
    let time = Some(writer.now.to_owned());
    managed.insert(
        owner.clone(),
        Owned {
            set,
            api_version: writer.api_version.to_owned(),
            time,
        },
    );
    strip(managed, &owner);
}

/// The fields that client-side `kubectl apply` owned by its annotation: `kubectl apply --server-side` may take
/// ownership of them.
fn client_side_applied(live: &Value, place: &Place<'_>) -> Set {
    let annotation = live.pointer("/metadata/annotations").and_then(|a| a.get(LAST_APPLIED));
    let applied = annotation
        .and_then(Value::as_str)
        .and_then(|text| serde_json::from_str::<Value>(text).ok());
    let Some(applied) = applied else { return Set::default() };
    let Ok(set) = walk::fields(&applied, place) else {
        return Set::default();
    };
    // Only where the live value is still what was applied.
    let difference = walk::compare(&applied, live, place);
    set.difference(&difference.modified).difference(&difference.removed)
}

fn conflict(conflicts: &[(Owner, Set)]) -> ApplyError {
    let mut named: Vec<(String, Vec<String>)> = conflicts
        .iter()
        .map(|(owner, set)| (owner.show(), set.paths()))
        .collect();
    named.sort();
    let causes: Vec<Value> = named
        .iter()
        .flat_map(|(owner, paths)| {
            paths.iter().map(move |path| {
                json!({"reason": "FieldManagerConflict", "message": format!("conflict with {owner}"), "field": path})
            })
        })
        .collect();
    let message = match (causes.len(), named.as_slice()) {
        (1, [(owner, paths)]) => format!(
            "Apply failed with 1 conflict: conflict with {owner}: {}",
            paths.concat()
        ),
        (count, named) => {
            let lines: Vec<String> = named
                .iter()
                .flat_map(|(owner, paths)| {
                    let head = format!("conflicts with {owner}:");
                    std::iter::once(head).chain(paths.iter().map(|path| format!("- {path}")))
                })
                .collect();
            format!("Apply failed with {count} conflicts: {}", lines.join("\n"))
        }
    };
    ApplyError::Conflict { message, causes }
}

impl Owner {
    fn show(&self) -> String {
        let mut text = gofmt::quote(&self.manager);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource {}", gofmt::quote(&self.subresource)));
        }
        if !self.applied {
            text.push_str(&format!(" using {}", self.api_version));
        }
        text
    }
}

/// The server's own metadata has no owner.
fn strip(managed: &mut Managed, owner: &Owner) {
    let server: Set = Set::decode(&json!({
        "f:apiVersion": {}, "f:kind": {},
        "f:metadata": {
            ".": {}, "f:name": {}, "f:namespace": {}, "f:creationTimestamp": {}, "f:selfLink": {}, "f:uid": {},
            "f:clusterName": {}, "f:generation": {}, "f:managedFields": {}, "f:resourceVersion": {},
        },
    }));
    if let Some(owned) = managed.get_mut(owner) {
        owned.set = std::mem::take(&mut owned.set).difference(&server);
        if owned.set.is_empty() {
            managed.remove(owner);
        }
    }
}

fn strip_managed(object: &mut Value) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.remove("managedFields");
    }
}

fn decode(object: &Value) -> Managed {
    let entries = object.pointer("/metadata/managedFields").and_then(Value::as_array);
    let mut managed = Managed::new();
    for entry in entries.into_iter().flatten() {
        let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let applied = text("operation") == "Apply";
        let owner = Owner {
            manager: text("manager"),
            applied,
            api_version: if applied { String::new() } else { text("apiVersion") },
            subresource: text("subresource"),
        };
        let set = Set::decode(entry.get("fieldsV1").unwrap_or(&Value::Null));
        let time = entry.get("time").and_then(Value::as_str).map(str::to_owned);
        managed.insert(
            owner,
            Owned {
                set,
                api_version: text("apiVersion"),
                time,
            },
        );
    }
    managed
}

fn encode(object: &mut Value, managed: &Managed) {
    let mut entries: Vec<(&Owner, &Owned)> = managed.iter().collect();
    entries.sort_by(|(a, x), (b, y)| {
        (!a.applied, &x.time, &a.manager, &x.api_version, &a.subresource).cmp(&(
            !b.applied,
            &y.time,
            &b.manager,
            &y.api_version,
            &b.subresource,
        ))
    });
    let entries: Vec<Value> = entries
        .into_iter()
        .map(|(owner, owned)| {
            let mut entry = json!({
                "manager": owner.manager,
                "operation": if owner.applied { "Apply" } else { "Update" },
                "apiVersion": owned.api_version,
            });
            if let Some(time) = &owned.time {
                entry["time"] = json!(time);
            }
            entry["fieldsType"] = json!("FieldsV1");
            entry["fieldsV1"] = owned.set.encode();
            if !owner.subresource.is_empty() {
                entry["subresource"] = json!(owner.subresource);
            }
            entry
        })
        .collect();
    if let Value::Object(map) = object {
        let metadata = map.entry("metadata").or_insert_with(|| json!({}));
        if let Value::Object(metadata) = metadata {
            match entries.is_empty() {
                true => metadata.remove("managedFields"),
                false => metadata.insert("managedFields".to_owned(), Value::Array(entries)),
            };
        }
    }
}

#[cfg(test)]
mod tests;
