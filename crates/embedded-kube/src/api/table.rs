//! Tables for `kubectl get`. The columns are in `schema::table`; this connects them to requests.

use serde_json::{Value, json};

use super::resources::Resource;
use super::rest::Call;
use crate::schema::table::{self, Columns, Include};

/// A `Table` of objects; `list` is the metadata of the list they are from, `headers` is false for all but the first
/// event of a watch.
pub(crate) fn table(call: &Call, objects: &[Value], list: Option<&Value>, headers: bool) -> Value {
    let include = match call.query.get("includeObject") {
        Some("None") => Include::None,
        Some("Object") => Include::Object,
        _ => Include::Metadata,
    };
    let metadata = match (list, objects) {
        (Some(list), _) => list.clone(),
        (None, [one]) => json!({"resourceVersion": one["metadata"]["resourceVersion"]}),
        _ => json!({}),
    };
    let objects: Vec<&Value> = objects.iter().collect();
    let make = |columns: &Columns| {
        table::table(
            columns,
            &objects,
            metadata.clone(),
            include,
            headers,
            jiff::Timestamp::now(),
        )
    };
    match custom_columns(&call.resource) {
        Some(columns) => make(columns),
        None => make(&Columns::BuiltIn(call.resource.kind.clone())),
    }
}

fn custom_columns(resource: &Resource) -> Option<&Columns> {
    Some(&resource.custom()?.versions.get(&resource.version)?.columns)
}
