//! Changes objects: the one path for updates, patches, scaling and deletions with finalizers.

use std::sync::Arc;

use http::Response;
use serde_json::Value;

use super::{Call, accept};
use crate::api::admission;
use crate::api::body::Body;
use crate::api::errors::{FieldError, Result, Status};
use crate::api::managed;
use crate::api::meta;
use crate::api::store::{Change, Expect, Object, Write, WriteError};

/// How often a change without a resource version is tried again when other clients change the object meanwhile.
const ATTEMPTS: usize = 32;

/// Which part of the object a request may change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Part {
    Main,
    Status,
    /// Only `spec.finalizers` of a namespace.
    Finalize,
}

impl Part {
    pub(crate) fn of(call: &Call) -> Self {
        match call.path.subresource.as_str() {
            "status" => Self::Status,
            "finalize" => Self::Finalize,
            _ => Self::Main,
        }
    }
}

pub(crate) async fn replace(call: &Call) -> Result<Response<Body>> {
    let mut sent = accept::object(call)?;
    accept::check_place(call, &mut sent, Some(&call.path.name))?;
    let part = Part::of(call);
    let has_version = sent["metadata"]["resourceVersion"]
        .as_str()
        .is_some_and(|v| !v.is_empty());
    if !has_version && call.resource.custom().is_some() {
        call.current(&call.path.name)?;
        let missing = FieldError::invalid("metadata.resourceVersion", 0, "must be specified for an update");
        return Err(Status::invalid(&call.resource, &call.path.name, &[missing]));
    }
    let changed = modify(call, &call.path.name, |current| {
        check_identity(call, current, &sent)?;
        prepare(call, &current.value, sent.clone(), part, managed::Change::Update)
    })
    .await?;
    Ok(call.answer(200, &changed))
}

/// Optimistic locking: a resource version or UID in the request must be the current one.
pub(crate) fn check_identity(call: &Call, current: &Object, sent: &Value) -> Result<()> {
    let name = meta::name(&current.value);
    if let Some(version) = sent["metadata"]["resourceVersion"]
        .as_str()
        .filter(|v| !v.is_empty() && *v != "0")
    {
        let version: u64 = version.parse().map_err(|_| {
            let wrong = FieldError::invalid("metadata.resourceVersion", version, "must be a number");
            Status::invalid(&call.resource, name, &[wrong])
        })?;
        if version != current.revision {
            return Err(Status::stale(&call.resource, name));
        }
    }
    let uid = meta::uid(sent);
    if !uid.is_empty() && uid != meta::uid(&current.value) {
        let why = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            meta::uid(&current.value)
        );
        return Err(Status::conflict(&call.resource, name, why));
    }
    Ok(())
}

/// Converts the requested object to the one that will be stored: keeps what this part of the API must not change, sets
/// defaults, validates.
pub(crate) fn prepare(call: &Call, old: &Value, mut new: Value, part: Part, change: managed::Change) -> Result<Value> {
    let custom = call.resource.custom().is_some();
    match part {
        Part::Main => {
            if call.resource.has_status() {
                carry(old, &mut new, "status");
            }
        }
        Part::Status => {
            let status = new.get("status").cloned();
            let metadata = new["metadata"].take();
            new = old.clone();
            match (status, new.as_object_mut()) {
                (Some(status), Some(object)) => drop(object.insert("status".into(), status)),
                (None, Some(object)) => drop(object.shift_remove("status")),
                _ => {}
            }
            // Built-in kinds let a status update touch labels and annotations too; custom kinds do not.
            if !custom {
                new["metadata"] = metadata;
                meta::keep(old, &mut new, "ownerReferences");
                meta::keep(old, &mut new, "finalizers");
            } else {
                let fields = metadata.get("managedFields").cloned();
                match fields {
                    Some(fields) => drop(meta::metadata_mut(&mut new).insert("managedFields".into(), fields)),
                    None => drop(meta::metadata_mut(&mut new).shift_remove("managedFields")),
                }
            }
        }
        Part::Finalize => {
            let finalizers = new["spec"]["finalizers"].take();
            new = old.clone();
            new["spec"] = match finalizers {
                Value::Null => serde_json::json!({}),
                list => serde_json::json!({"finalizers": list}),
            };
        }
    }
    for field in [
        "name",
        "generateName",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "resourceVersion",
        "selfLink",
    ] {
        meta::keep(old, &mut new, field);
    }
    if meta::is_deleting(old) {
        reject_new_finalizers(call, old, &new)?;
    }
    admission::on_update(call, old, &mut new, part)?;
    let name = meta::name(&new).to_owned();
    call.reject(&name, &meta::validate(&call.resource, &new))?;
    if part != Part::Finalize {
        call.reject(&name, &admission::validate(call, Some(old), &new, part)?)?;
    }
    if (call.resource.generation || custom) && specification_changed(call, old, &new) {
        meta::bump_generation(&mut new);
    }
    managed::track(call, Some(old), &mut new, change);
    Ok(new)
}

fn carry(old: &Value, new: &mut Value, field: &str) {
    let Some(object) = new.as_object_mut() else { return };
    match old.get(field) {
        Some(kept) => drop(object.insert(field.to_owned(), kept.clone())),
        None => drop(object.shift_remove(field)),
    }
}

fn specification_changed(call: &Call, old: &Value, new: &Value) -> bool {
    let relevant = |name: &str| name != "metadata" && (name != "status" || !call.resource.has_status());
    let fields = |v: &Value| -> Vec<(String, Value)> {
        let mut fields: Vec<_> = v
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| relevant(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        fields
    };
    fields(old) != fields(new)
}

fn reject_new_finalizers(call: &Call, old: &Value, new: &Value) -> Result<()> {
    let before = meta::finalizers(old);
    let added: Vec<String> = meta::finalizers(new)
        .into_iter()
        .filter(|f| !before.contains(f))
        .collect();
    if added.is_empty() {
        return Ok(());
    }
    let wrong = FieldError::forbidden(
        "metadata.finalizers",
        format!("no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"),
    );
    Err(Status::invalid(&call.resource, meta::name(old), &[wrong]))
}

/// Whether an object in this state is to be removed: it is being deleted, with nothing to wait for.
fn is_to_be_removed(call: &Call, value: &Value) -> bool {
    meta::is_deleting(value)
        && meta::finalizers(value).is_empty()
        && value["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && !(call.resource.is("", "namespaces")
            && value["spec"]["finalizers"]
                .as_array()
                .is_some_and(|list| !list.is_empty()))
}

/// Reads, edits and writes until no other change came between.
pub(crate) async fn modify(call: &Call, name: &str, edit: impl Fn(&Object) -> Result<Value>) -> Result<Arc<Object>> {
    let key = call.key(name);
    let dry_run = call.dry_run()?;
    for _ in 0..ATTEMPTS {
        let current = call.current(name)?;
        let next = edit(&current)?;
        let remove = is_to_be_removed(call, &next);
        if managed::same(&current.value, &next) && !remove {
            return Ok(current);
        }
        if dry_run {
            return Ok(Arc::new(Object::new(next, current.revision)));
        }
        let change = if remove {
            Change::Delete
        } else {
            Change::Put(next.clone())
        };
        let write = Write {
            key: key.clone(),
            expect: Expect::Revision(current.revision),
            change,
        };
        match call.server.store.write(write).await {
            Ok(written) => {
                call.server.after_write(&call.resource, &written.value).await;
                if remove {
                    let mut last = next;
                    meta::keep(&written.value, &mut last, "resourceVersion");
                    return Ok(Arc::new(Object::new(last, written.revision)));
                }
                return Ok(written);
            }
            Err(WriteError::Stale) => continue,
            Err(WriteError::Missing) => return Err(Status::not_found(&call.resource, name)),
            Err(e) => return Err(Status::internal(e)),
        }
    }
    Err(Status::stale(&call.resource, name))
}
