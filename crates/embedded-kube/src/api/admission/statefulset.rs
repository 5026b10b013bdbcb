//! StatefulSets.

use serde_json::{Value, json};

use super::{claim, default, each, handlers, pod_spec, text};
use crate::api::errors::FieldError;
use crate::api::meta;
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
        default(&mut strategy["rollingUpdate"], "maxUnavailable", 1);
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

/// How many pods an update may stop at once: a number or a percentage.
fn max_unavailable(found: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let mut invalid = |text: &str| errors.push(FieldError::invalid(at, found.clone(), text));
    let number = match found {
        Value::String(text) => match text.strip_suffix('%').map(|digits| (digits, digits.parse::<u32>())) {
            Some((digits, Ok(percent))) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                if percent > 100 {
                    invalid("must not be greater than 100%");
                }
                i64::from(percent)
            }
            _ => {
                invalid(
                    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')",
                );
                // A text that is no number is zero.
                0
            }
        },
        Value::Null => return,
        number => number.as_i64().unwrap_or(0),
    };
    if number < 0 {
        invalid("must be greater than or equal to 0");
    } else if number == 0 {
        invalid("cannot be 0");
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
    for field in ["whenDeleted", "whenScaled"] {
        let policy = text(&spec["persistentVolumeClaimRetentionPolicy"], field);
        if !["Retain", "Delete"].contains(&policy) {
            let supported = ["Retain", "Delete"].map(str::to_owned);
            let field = format!("spec.persistentVolumeClaimRetentionPolicy.{field}");
            errors.push(FieldError::not_supported(field, policy, &supported));
        }
    }
    for field in ["replicas", "minReadySeconds"] {
        handlers::not_negative(spec, field, "spec", &mut errors);
    }
    handlers::not_negative(&spec["ordinals"], "start", "spec.ordinals", &mut errors);
    let service = text(spec, "serviceName");
    if !service.is_empty() && old.is_none() {
        let wrong = meta::dns_label(service).into_iter();
        errors.extend(wrong.map(|why| FieldError::invalid("spec.serviceName", service, why)));
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
    if strategy["rollingUpdate"].is_object() {
        let rolling = &strategy["rollingUpdate"];
        let at = "spec.updateStrategy.rollingUpdate";
        if strategy["type"] == "OnDelete" {
            let shown = json!({"Partition": rolling["partition"], "MaxUnavailable": rolling["maxUnavailable"]});
            let text = "only allowed for updateStrategy 'RollingUpdate'";
            errors.push(FieldError::invalid(at, shown, text));
        } else {
            handlers::not_negative(rolling, "partition", at, &mut errors);
            max_unavailable(&rolling["maxUnavailable"], &format!("{at}.maxUnavailable"), &mut errors);
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
