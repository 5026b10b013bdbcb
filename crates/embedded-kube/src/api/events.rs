//! Events have two APIs, `v1` and `events.k8s.io/v1`, and one store. They are stored in the core shape.

use serde_json::{Map, Value, json};

use super::resources::Resource;

/// Whether this is the newer of the two event APIs.
pub(crate) fn is_new_face(resource: &Resource) -> bool {
    resource.is("events.k8s.io", "events")
}

fn rename(object: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = object.shift_remove(from) {
        object.insert(to.to_owned(), value);
    }
}

/// From the `events.k8s.io/v1` shape to the core shape.
pub(crate) fn to_core(mut value: Value) -> Value {
    if let Some(event) = value.as_object_mut() {
        event.insert("apiVersion".into(), "v1".into());
        rename(event, "regarding", "involvedObject");
        rename(event, "note", "message");
        rename(event, "reportingController", "reportingComponent");
        rename(event, "deprecatedSource", "source");
        rename(event, "deprecatedCount", "count");
        rename(event, "deprecatedFirstTimestamp", "firstTimestamp");
        rename(event, "deprecatedLastTimestamp", "lastTimestamp");
        if event.get("involvedObject").is_none() {
            event.insert("involvedObject".into(), json!({}));
        }
    }
    value
}

/// From the core shape to the `events.k8s.io/v1` shape.
pub(crate) fn to_new_face(mut value: Value) -> Value {
    if let Some(event) = value.as_object_mut() {
        event.insert("apiVersion".into(), "events.k8s.io/v1".into());
        rename(event, "involvedObject", "regarding");
        rename(event, "message", "note");
        rename(event, "reportingComponent", "reportingController");
        rename(event, "source", "deprecatedSource");
        rename(event, "count", "deprecatedCount");
        rename(event, "firstTimestamp", "deprecatedFirstTimestamp");
        rename(event, "lastTimestamp", "deprecatedLastTimestamp");
        if event.get("eventTime").is_none() {
            event.insert("eventTime".into(), Value::Null);
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_faces_show_the_same_event() {
        let new = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "regarding": {"name": "p"}, "note": "hi",
            "reportingController": "c", "reason": "R", "eventTime": "2026-01-01T00:00:00.000000Z"});
        let core = to_core(new.clone());
        assert_eq!(core["involvedObject"]["name"], "p");
        assert_eq!(
            (&core["message"], &core["reportingComponent"]),
            (&json!("hi"), &json!("c"))
        );
        assert_eq!(to_new_face(core), new);
    }
}
