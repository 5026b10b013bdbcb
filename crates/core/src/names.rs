//! Names that all engines share.

/// Who writes: the name for server-side apply, events and `app.kubernetes.io/managed-by`.
pub const MANAGER: &str = "stateward";
/// Who owns the labels and annotations of a running pod: a name of its own, so that an apply of these takes nothing else away.
pub const METADATA_MANAGER: &str = "stateward-metadata";
/// Prefix of labels and annotations that only Stateward sets.
pub const RESERVED_PREFIX: &str = "stateward.dev/";
/// `app.kubernetes.io/name` of the pods that take and restore backups.
pub const APP_AGENT: &str = "stateward-agent";

/// The name of a pod that works for an object: `<object>-<what>`, shortened to one DNS label where it must be, with
/// `digest` (letters and digits that stand for the whole name) in the place of what is cut off.
pub fn agent_pod(object: &str, what: &str, digest: &str) -> String {
    let object = object.replace('.', "-");
    let name = format!("{object}-{what}");
    if name.len() <= 63 {
        return name;
    }
    let room = 63_usize.saturating_sub(what.len() + digest.len() + 2);
    let kept: String = object.chars().take(room).collect();
    format!("{}-{digest}-{what}", kept.trim_end_matches('-'))
}
