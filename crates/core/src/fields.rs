//! Who owns which labels and annotations, by `metadata.managedFields`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value};

/// A merge patch that removes the labels and annotations that updates of this manager set and that are not desired any more;
/// `None`: there are none. What others set since then belongs to them and stays, and so do annotations that `keeps` says.
///
/// Server-side apply removes by itself what an apply set before. What a request that created the object set, it does not.
pub fn removal(live: &ObjectMeta, desired: &ObjectMeta, manager: &str, keeps: impl Fn(&str) -> bool) -> Option<Value> {
    let labels = updated(live, manager, "f:labels", desired.labels.as_ref(), |_| false);
    let annotations = updated(live, manager, "f:annotations", desired.annotations.as_ref(), keeps);
    let some = !labels.is_empty() || !annotations.is_empty();
    some.then(|| serde_json::json!({ "metadata": { "labels": labels, "annotations": annotations } }))
}

fn updated(
    live: &ObjectMeta,
    manager: &str,
    fields: &str,
    desired: Option<&BTreeMap<String, String>>,
    keeps: impl Fn(&str) -> bool,
) -> Map<String, Value> {
    let entries = live.managed_fields.iter().flatten();
    let own = entries
        .filter(|entry| entry.manager.as_deref() == Some(manager) && entry.operation.as_deref() == Some("Update"));
    let set = own.filter_map(|entry| entry.fields_v1.as_ref()?.0["f:metadata"][fields].as_object());
    let keys = set.flat_map(Map::keys).filter_map(|key| key.strip_prefix("f:"));
    let is_desired = |key: &str| desired.is_some_and(|desired| desired.contains_key(key));
    keys.filter(|key| !is_desired(key) && !keeps(key))
        .map(|key| (key.to_owned(), Value::Null))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_our_updates_set_and_nobody_desires_is_removed() {
        let entry = |manager: &str, operation: &str, labels: Value, annotations: Value| {
            json!({
                "manager": manager, "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:metadata": {"f:labels": labels, "f:annotations": annotations}},
            })
        };
        // given an object that we created, that we applied since then, and that others changed
        let live = json!({"managedFields": [
            entry("us", "Update", json!({".": {}, "f:old": {}, "f:team": {}}), json!({"f:ours/launch": {}, "f:note": {}})),
            entry("us", "Apply", json!({"f:applied": {}}), json!({})),
            entry("kubectl", "Update", json!({"f:theirs": {}}), json!({})),
        ]});
        let live: ObjectMeta = serde_json::from_value(live).expect("metadata");
        let desired = ObjectMeta {
            labels: Some([("team".to_owned(), "b".to_owned())].into()),
            ..ObjectMeta::default()
        };
        let keeps = |key: &str| key.starts_with("ours/");
        // when the label `team` alone is desired, then what we set at its creation goes
        let patch = removal(&live, &desired, "us", keeps);
        let expected = json!({"metadata": {"labels": {"old": null}, "annotations": {"note": null}}});
        assert_eq!(patch, Some(expected));
        // and where all of it is desired, nothing
        let all = ObjectMeta {
            labels: Some(["old", "team"].map(|key| (key.to_owned(), String::new())).into()),
            annotations: Some([("note".to_owned(), String::new())].into()),
            ..ObjectMeta::default()
        };
        assert_eq!(removal(&live, &all, "us", keeps), None);
    }
}
