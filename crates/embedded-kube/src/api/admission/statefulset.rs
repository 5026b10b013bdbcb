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
        let labels = spec["template"]["metadata"]
            .get("labels")
            .cloned()
            .unwrap_or_else(|| json!({}));
        let text = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid("spec.template.metadata.labels", labels, text));
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
    let policy = text(spec, "podManagementPolicy");
    if !["OrderedReady", "Parallel"].contains(&policy) {
        let text = "must be 'OrderedReady' or 'Parallel'";
        errors.push(FieldError::invalid("spec.podManagementPolicy", policy, text));
    }
    let strategy = &spec["updateStrategy"];
    if !["RollingUpdate", "OnDelete"].contains(&text(strategy, "type")) {
        // Kubernetes prints its internal form of the field.
        let shown = json!({"Type": strategy["type"], "RollingUpdate": strategy["rollingUpdate"]});
        errors.push(FieldError::invalid(
            "spec.updateStrategy",
            shown,
            "must be 'RollingUpdate' or 'OnDelete'",
        ));
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
    if let Some(old) = old {
        for field in ["serviceName", "podManagementPolicy", "selector", "volumeClaimTemplates"] {
            if old["spec"][field] != spec[field] {
                let shown = spec[field].clone();
                errors.push(FieldError::invalid(
                    format!("spec.{field}"),
                    shown,
                    "field is immutable",
                ));
            }
        }
    }
    errors
}
