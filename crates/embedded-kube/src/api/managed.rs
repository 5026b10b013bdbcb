//! Field ownership: server-side apply, and the entries of ordinary updates in `metadata.managedFields`. The rules are
//! in `schema::apply`; this connects them to requests.

use serde_json::{Value, json};

use super::errors::{Result, Status};
use super::meta;
use super::rest::Call;
use crate::schema::apply::{self, ApplyError, Kind, Owns, Writer};
use crate::schema::strategic;

/// How an object is being changed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    /// By an update or a patch.
    Update,
    /// By server-side apply, which has made its own record.
    Apply,
}

fn with_writer<T>(call: &Call, act: impl FnOnce(Kind<'_>, Writer<'_>) -> T) -> T {
    let (manager, api_version, now) = (call.field_manager(), call.resource.api_version(), meta::now());
    let subresource = match call.path.subresource.as_str() {
        sub @ ("status" | "scale") => sub,
        _ => "",
    };
    let owns = match subresource {
        "status" => Owns::Only(&["status"]),
        _ if call.resource.has_status() => Owns::AllBut(&["status"]),
        _ => Owns::All,
    };
    let kind = match call
        .resource
        .custom()
        .and_then(|custom| custom.versions.get(&call.resource.version))
    {
        Some(version) => Kind::Custom(&version.schema.schema),
        None => Kind::BuiltIn(&call.resource.kind),
    };
    act(
        kind,
        Writer {
            manager: &manager,
            subresource,
            api_version: &api_version,
            now: &now,
            owns,
        },
    )
}

/// Records the change in `metadata.managedFields`.
pub(crate) fn track(call: &Call, old: Option<&Value>, new: &mut Value, change: Change) {
    match change {
        Change::Update => with_writer(call, |kind, writer| apply::track(old, new, kind, writer)),
        Change::Apply => {}
    }
}

/// Whether two states of an object are equal except for the times in `managedFields`.
pub(crate) fn same(old: &Value, new: &Value) -> bool {
    fn entries(value: &Value) -> Vec<Value> {
        let mut entries = value["metadata"]["managedFields"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        entries
            .iter_mut()
            .filter_map(Value::as_object_mut)
            .for_each(|entry| drop(entry.shift_remove("time")));
        entries
    }
    if old == new {
        return true;
    }
    let (Some(old_fields), Some(new_fields)) = (old.as_object(), new.as_object()) else {
        return false;
    };
    let metadata = |value: &Value| {
        let mut metadata = value["metadata"].clone();
        metadata.as_object_mut().map(|m| m.shift_remove("managedFields"));
        metadata
    };
    old_fields.len() == new_fields.len()
        && old_fields
            .iter()
            .all(|(name, value)| name == "metadata" || new_fields.get(name) == Some(value))
        && metadata(old) == metadata(new)
        && entries(old) == entries(new)
}

/// The object after server-side apply.
pub(crate) fn apply(call: &Call, shown: Option<&Value>, applied: &Value) -> Result<Value> {
    let force = call.query.flag("force");
    let result = with_writer(call, |kind, writer| apply::apply(shown, applied, kind, writer, force));
    result.map_err(|e| match e {
        ApplyError::Conflict { message, causes } => {
            let mut status = Status::new(409, "Conflict", message);
            status.details = Some(json!({"causes": causes}));
            status
        }
        ApplyError::Invalid(text) => Status::new(500, "InternalError", text),
    })
}

/// The object after a strategic merge patch.
pub(crate) fn strategic_merge(call: &Call, shown: &Value, patch: &Value) -> Result<Value> {
    let mut value = shown.clone();
    strategic::patch(&mut value, patch, &call.resource.kind).map_err(|e| Status::bad_request(e.to_string()))?;
    Ok(value)
}
