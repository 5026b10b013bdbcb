//! StatefulSets.

use serde_json::{Value, json};

use super::{claim, default, each, pod_spec, text};
use crate::api::errors::FieldError;
use crate::api::selector::label_selector_matches;

pub(super) fn defaults(set: &mut Value) {
    let spec = &mut set["spec"];
    if !spec.is_object() {
        return;
    }
    default(spec, "replicas", 1);
    default(spec, "podManagementPolicy", "OrderedReady");
    default(spec, "revisionHistoryLimit", 10);
    default(spec, "persistentVolumeClaimRetentionPolicy", json!({}));
    for field in ["whenDeleted", "whenScaled"] {
        default(&mut spec["persistentVolumeClaimRetentionPolicy"], field, "Retain");
    }
    default(spec, "updateStrategy", json!({}));
    let strategy = &mut spec["updateStrategy"];
    default(strategy, "type", "RollingUpdate");
    if strategy["type"] == "RollingUpdate" {
        default(strategy, "rollingUpdate", json!({}));
        default(&mut strategy["rollingUpdate"], "partition", 0);
    }
    pod_spec::defaults(&mut spec["template"]["spec"]);
    if let Some(templates) = spec.get_mut("volumeClaimTemplates") {
        each(templates, |template| {
            template["apiVersion"] = "v1".into();
            template["kind"] = "PersistentVolumeClaim".into();
            claim::defaults(template);
            default(template, "status", json!({"phase": "Pending"}));
        });
    }
}

pub(super) fn validate(old: Option<&Value>, new: &Value) -> Vec<FieldError> {
    let spec = &new["spec"];
    let mut errors = Vec::new();
    let selector = &spec["selector"];
    let empty = |field: &str| {
        selector[field].as_object().is_none_or(|m| m.is_empty())
            && selector[field].as_array().is_none_or(|l| l.is_empty())
    };
    if !selector.is_object() {
        errors.push(FieldError::required("spec.selector", ""));
    } else if empty("matchLabels") && empty("matchExpressions") {
        let text = "empty selector is invalid for statefulset";
        errors.push(FieldError::invalid("spec.selector", selector.clone(), text));
    } else if !label_selector_matches(selector, &spec["template"]["metadata"]["labels"]) {
        let labels = spec["template"]["metadata"]
            .get("labels")
            .cloned()
            .unwrap_or_else(|| json!({}));
        let text = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid("spec.template.metadata.labels", labels, text));
    }
    if spec["replicas"].as_i64().is_some_and(|n| n < 0) {
        let text = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("spec.replicas", spec["replicas"].clone(), text));
    }
    for (at, field, supported) in [
        ("spec", "podManagementPolicy", ["OrderedReady", "Parallel"]),
        ("spec.updateStrategy", "type", ["OnDelete", "RollingUpdate"]),
    ] {
        let object = if at == "spec" { spec } else { &spec["updateStrategy"] };
        let found = text(object, field);
        if !supported.contains(&found) {
            let supported = supported.map(str::to_owned);
            errors.push(FieldError::not_supported(format!("{at}.{field}"), found, &supported));
        }
    }
    let template = &spec["template"]["spec"];
    // Claim templates become volumes of the same name, and may be mounted as such.
    let mut with_claims = template.clone();
    let claims: Vec<Value> = spec["volumeClaimTemplates"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|t| json!({"name": t["metadata"]["name"], "persistentVolumeClaim": {"claimName": "x"}}))
        .filter(|claim| {
            let taken = template["volumes"].as_array().into_iter().flatten();
            !taken.into_iter().any(|v| v["name"] == claim["name"])
        })
        .collect();
    if !claims.is_empty() {
        let mut volumes = with_claims["volumes"].as_array().cloned().unwrap_or_default();
        volumes.extend(claims);
        with_claims["volumes"] = volumes.into();
    }
    errors.extend(pod_spec::validate(&with_claims, "spec.template.spec"));
    if template["restartPolicy"] != "Always" {
        let found = template["restartPolicy"].clone();
        errors.push(FieldError::not_supported(
            "spec.template.spec.restartPolicy",
            found,
            &["Always".to_owned()],
        ));
    }
    let frozen = |set: &Value| {
        let mut spec = set["spec"].clone();
        for field in [
            "replicas",
            "ordinals",
            "template",
            "updateStrategy",
            "revisionHistoryLimit",
            "persistentVolumeClaimRetentionPolicy",
            "minReadySeconds",
        ] {
            spec.as_object_mut().map(|spec| spec.shift_remove(field));
        }
        spec
    };
    if old.is_some_and(|old| frozen(old) != frozen(new)) {
        errors.push(FieldError::forbidden(
            "spec",
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', \
             'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        ));
    }
    errors
}
