//! Where a pod may run: node selector, affinity, tolerations and spread, checked as in Kubernetes
//! (`pkg/apis/core/validation`), which rejects a pod with invalid fields.

use serde_json::Value;

use super::text;
use crate::api::errors::FieldError;
use crate::api::meta;

/// The errors of the fields that say where a pod may run; `at` is the path of the specification.
pub(super) fn validate(spec: &Value, at: &str) -> Vec<FieldError> {
    let mut errors = meta::labels(&spec["nodeSelector"], &format!("{at}.nodeSelector"));
    affinity(&spec["affinity"], &format!("{at}.affinity"), &mut errors);
    for (toleration, at) in items(&spec["tolerations"], &format!("{at}.tolerations")) {
        tolerate(toleration, &at, &mut errors);
    }
    spread(
        &spec["topologySpreadConstraints"],
        &format!("{at}.topologySpreadConstraints"),
        &mut errors,
    );
    errors
}

/// The items of a list, each with its path.
fn items<'a>(list: &'a Value, at: &str) -> impl Iterator<Item = (&'a Value, String)> {
    let items = list.as_array().into_iter().flatten().enumerate();
    items.map(move |(i, item)| (item, format!("{at}[{i}]")))
}

fn key(key: &str, at: &str, errors: &mut Vec<FieldError>) {
    let wrong = meta::qualified_name(key).into_iter();
    errors.extend(wrong.map(|why| FieldError::invalid(format!("{at}.key"), key, why)));
}

fn values(requirement: &Value, at: &str, errors: &mut Vec<FieldError>) {
    for (value, at) in items(&requirement["values"], &format!("{at}.values")) {
        let text = value.as_str().unwrap_or_default();
        let wrong = meta::label_value(text).into_iter();
        errors.extend(wrong.map(|why| FieldError::invalid(at.clone(), text, why)));
    }
}

/// A requirement of a selector. Those of nodes also compare numbers.
fn requirement(requirement: &Value, of_nodes: bool, at: &str, errors: &mut Vec<FieldError>) {
    let count = requirement["values"].as_array().map_or(0, Vec::len);
    let field = format!("{at}.values");
    match text(requirement, "operator") {
        "In" | "NotIn" if count == 0 => errors.push(FieldError::required(
            field,
            "must be specified when `operator` is 'In' or 'NotIn'",
        )),
        "Exists" | "DoesNotExist" if count > 0 => errors.push(FieldError::forbidden(
            field,
            "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
        )),
        "Gt" | "Lt" if of_nodes && count != 1 => errors.push(FieldError::required(
            field,
            "must be specified single value when `operator` is 'Lt' or 'Gt'",
        )),
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        "Gt" | "Lt" if of_nodes => {}
        other => errors.push(FieldError::invalid(
            format!("{at}.operator"),
            other,
            "not a valid selector operator",
        )),
    }
    key(text(requirement, "key"), at, errors);
}

fn label_selector(selector: &Value, at: &str, errors: &mut Vec<FieldError>) {
    errors.extend(meta::labels(&selector["matchLabels"], &format!("{at}.matchLabels")));
    for (one, at) in items(&selector["matchExpressions"], &format!("{at}.matchExpressions")) {
        requirement(one, false, &at, errors);
        values(one, &at, errors);
    }
}

fn affinity(affinity: &Value, at: &str, errors: &mut Vec<FieldError>) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let node = &affinity["nodeAffinity"];
    if node[REQUIRED].is_object() {
        let at = format!("{at}.nodeAffinity.{REQUIRED}.nodeSelectorTerms");
        let terms = &node[REQUIRED]["nodeSelectorTerms"];
        if terms.as_array().is_none_or(Vec::is_empty) {
            let why = "must have at least one node selector term";
            errors.push(FieldError::required(at.clone(), why));
        }
        for (term, at) in items(terms, &at) {
            for (one, at) in items(&term["matchExpressions"], &format!("{at}.matchExpressions")) {
                requirement(one, true, &at, errors);
                values(one, &at, errors);
            }
        }
    }
    for (preferred, at) in items(&node[PREFERRED], &format!("{at}.nodeAffinity.{PREFERRED}")) {
        weight(preferred, &at, errors);
        // Kubernetes accepts any value here: a preference that nothing matches has no effect.
        let expressions = &preferred["preference"]["matchExpressions"];
        for (one, at) in items(expressions, &format!("{at}.preference.matchExpressions")) {
            requirement(one, true, &at, errors);
        }
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        for (term, at) in items(&affinity[kind][REQUIRED], &format!("{at}.{kind}.{REQUIRED}")) {
            pod_term(term, &at, errors);
        }
        for (preferred, at) in items(&affinity[kind][PREFERRED], &format!("{at}.{kind}.{PREFERRED}")) {
            weight(preferred, &at, errors);
            pod_term(&preferred["podAffinityTerm"], &format!("{at}.podAffinityTerm"), errors);
        }
    }
}

fn weight(preferred: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let weight = preferred["weight"].as_i64().unwrap_or(0);
    if !(1..=100).contains(&weight) {
        let field = format!("{at}.weight");
        errors.push(FieldError::invalid(field, weight, "must be in the range 1-100"));
    }
}

fn pod_term(term: &Value, at: &str, errors: &mut Vec<FieldError>) {
    for selector in ["labelSelector", "namespaceSelector"] {
        label_selector(&term[selector], &format!("{at}.{selector}"), errors);
    }
    let (field, topology) = (format!("{at}.topologyKey"), text(term, "topologyKey"));
    if topology.is_empty() {
        errors.push(FieldError::required(field.clone(), "can not be empty"));
    }
    let wrong = meta::qualified_name(topology).into_iter();
    errors.extend(wrong.map(|why| FieldError::invalid(field.clone(), topology, why)));
}

fn tolerate(toleration: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let (operator, value, effect) = (
        text(toleration, "operator"),
        text(toleration, "value"),
        text(toleration, "effect"),
    );
    let named = text(toleration, "key");
    let of_operator = format!("{at}.operator");
    if !named.is_empty() {
        key(named, at, errors);
    } else if operator != "Exists" {
        let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        errors.push(FieldError::invalid(of_operator.clone(), operator, why));
    }
    if !toleration["tolerationSeconds"].is_null() && effect != "NoExecute" {
        let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errors.push(FieldError::invalid(format!("{at}.effect"), effect, why));
    }
    match operator {
        "Equal" | "" => {
            let wrong = meta::label_value(value);
            if !wrong.is_empty() {
                errors.push(FieldError::invalid(of_operator, value, wrong.join(";")));
            }
        }
        "Exists" if !value.is_empty() => {
            let why = "value must be empty when `operator` is 'Exists'";
            errors.push(FieldError::invalid(of_operator, value, why));
        }
        // Comparisons of numbers are not enabled in every Kubernetes; nothing here uses them.
        "Exists" | "Lt" | "Gt" => {}
        other => {
            let supported = ["Equal".to_owned(), "Exists".to_owned()];
            errors.push(FieldError::not_supported(of_operator, other, &supported));
        }
    }
    let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    if !effect.is_empty() && !effects.contains(&effect) {
        let field = format!("{at}.effect");
        errors.push(FieldError::not_supported(field, effect, &effects.map(str::to_owned)));
    }
}

fn spread(constraints: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let kind = |constraint: &Value| {
        let (topology, when) = (text(constraint, "topologyKey"), text(constraint, "whenUnsatisfiable"));
        format!("{{{topology}, {when}}}")
    };
    for (i, (constraint, at)) in items(constraints, at).enumerate() {
        let skew = constraint["maxSkew"].as_i64().unwrap_or(0);
        if skew <= 0 {
            let field = format!("{at}.maxSkew");
            errors.push(FieldError::invalid(field, skew, "must be greater than zero"));
        }
        if text(constraint, "topologyKey").is_empty() {
            errors.push(FieldError::required(format!("{at}.topologyKey"), "can not be empty"));
        }
        let (when, supported) = (
            text(constraint, "whenUnsatisfiable"),
            ["DoNotSchedule", "ScheduleAnyway"],
        );
        if !supported.contains(&when) {
            let field = format!("{at}.whenUnsatisfiable");
            errors.push(FieldError::not_supported(field, when, &supported.map(str::to_owned)));
        }
        let mut later = constraints.as_array().into_iter().flatten().skip(i + 1);
        if later.any(|other| kind(other) == kind(constraint)) {
            let field = format!("{at}.{{topologyKey, whenUnsatisfiable}}");
            errors.push(FieldError::duplicate(field, kind(constraint).into()));
        }
        label_selector(&constraint["labelSelector"], &format!("{at}.labelSelector"), errors);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(spec: Value) -> Vec<String> {
        let errors = validate(&spec, "spec").into_iter();
        errors
            .map(|error| format!("{}: {}", error.field, error.body()))
            .collect()
    }

    #[test]
    fn what_kubernetes_accepts_is_accepted() {
        let spec = json!({
            "nodeSelector": {"kubernetes.io/hostname": "a-1", "empty": ""},
            "tolerations": [
                {"operator": "Exists"},
                {"key": "a", "value": "b", "effect": "NoSchedule"},
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            ],
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"a": "b"}}},
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
            ],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}, {"key": "c", "operator": "Gt", "values": ["1"]}]},
                    ]},
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b c"]}]}},
                    ],
                },
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}},
                ]},
            },
        });
        assert_eq!(found(spec), Vec::<String>::new());
        assert_eq!(found(json!({})), Vec::<String>::new());
    }

    #[test]
    fn what_kubernetes_rejects_is_rejected_with_its_path() {
        for (spec, field, why) in [
            (
                json!({"nodeSelector": {"a": "b c"}}),
                "spec.nodeSelector",
                "a valid label must be",
            ),
            (
                json!({"nodeSelector": {"-a": "b"}}),
                "spec.nodeSelector",
                "name part must consist",
            ),
            (
                json!({"tolerations": [{"key": "a", "value": "b c"}]}),
                "spec.tolerations[0].operator",
                "a valid label must be",
            ),
            (
                json!({"tolerations": [{"value": "b"}]}),
                "spec.tolerations[0].operator",
                "must be Exists when `key` is empty",
            ),
            (
                json!({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}),
                "spec.tolerations[0].operator",
                "value must be empty",
            ),
            (
                json!({"tolerations": [{"key": "a", "operator": "In"}]}),
                "spec.tolerations[0].operator",
                "supported values",
            ),
            (
                json!({"tolerations": [{"key": "a", "effect": "Never"}]}),
                "spec.tolerations[0].effect",
                "supported values",
            ),
            (
                json!({"tolerations": [{"key": "a", "tolerationSeconds": 1}]}),
                "spec.tolerations[0].effect",
                "NoExecute",
            ),
            (
                json!({"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]}),
                "spec.topologySpreadConstraints[0].topologyKey",
                "can not be empty",
            ),
            (
                json!({"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}]}),
                "spec.topologySpreadConstraints[0].maxSkew",
                "greater than zero",
            ),
            (
                json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "Never"}]}),
                "spec.topologySpreadConstraints[0].whenUnsatisfiable",
                "supported values",
            ),
            (
                json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}}),
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
                "at least one",
            ),
            (
                json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {"matchLabels": {"a": "b c"}}, "topologyKey": "k"}]}}}),
                "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector.matchLabels",
                "a valid label must be",
            ),
            (
                json!({"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 101, "podAffinityTerm": {"topologyKey": "k"}}]}}}),
                "spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight",
                "1-100",
            ),
        ] {
            let errors = found(spec.clone());
            assert_eq!(errors.len(), 1, "{spec}: {errors:?}");
            assert!(
                errors[0].starts_with(&format!("{field}: ")) && errors[0].contains(why),
                "{spec}: {errors:?}"
            );
        }
    }
}
