//! Probes and lifecycle hooks of a container, checked as in Kubernetes (`pkg/apis/core/validation`).

use serde_json::Value;

use super::text;
use crate::api::errors::FieldError;
use crate::api::meta;

const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

/// The errors of the probes and hooks of a container at `at`, in a pod with this grace period. An init container has them only if it
/// keeps running beside the others (`restartPolicy: Always`).
pub(super) fn validate(container: &Value, at: &str, is_init: bool, grace: Option<i64>, errors: &mut Vec<FieldError>) {
    const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];
    if is_init && container["restartPolicy"] != "Always" {
        for field in ["lifecycle"].into_iter().chain(PROBES) {
            if container[field].is_object() {
                let text = "may not be set for init containers without restartPolicy=Always";
                errors.push(FieldError::forbidden(format!("{at}.{field}"), text));
            }
        }
        return;
    }
    for hook in ["postStart", "preStop"] {
        if container["lifecycle"][hook].is_object() {
            let at = format!("{at}.lifecycle.{hook}");
            handler(&container["lifecycle"][hook], &at, &["sleep"], grace, errors);
        }
    }
    for kind in PROBES {
        if container[kind].is_object() {
            probe(kind, &container[kind], &format!("{at}.{kind}"), errors);
        }
    }
}

fn probe(kind: &str, probe: &Value, at: &str, errors: &mut Vec<FieldError>) {
    handler(probe, at, &["grpc"], None, errors);
    for field in [
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ] {
        not_negative(probe, field, at, errors);
    }
    let grace = &probe["terminationGracePeriodSeconds"];
    let field = format!("{at}.terminationGracePeriodSeconds");
    if grace.as_i64().is_some_and(|grace| grace <= 0) {
        errors.push(FieldError::invalid(&field, grace.clone(), "must be greater than 0"));
    }
    if kind == "readinessProbe" {
        if !grace.is_null() {
            let text = "must not be set for readinessProbes";
            errors.push(FieldError::invalid(field, grace.clone(), text));
        }
    } else if probe["successThreshold"] != 1 {
        let found = probe["successThreshold"].clone();
        errors.push(FieldError::invalid(
            format!("{at}.successThreshold"),
            found,
            "must be 1",
        ));
    }
}

/// An error if a number is negative.
pub(super) fn not_negative(object: &Value, field: &str, at: &str, errors: &mut Vec<FieldError>) {
    if object[field].as_i64().is_some_and(|number| number < 0) {
        let found = object[field].clone();
        errors.push(FieldError::invalid(format!("{at}.{field}"), found, NOT_NEGATIVE));
    }
}

/// What a probe or a hook does: exactly one of the kinds that both have, or of its own `more`.
fn handler(handler: &Value, at: &str, more: &[&str], grace: Option<i64>, errors: &mut Vec<FieldError>) {
    let kinds = ["exec", "httpGet", "tcpSocket"].iter().chain(more);
    let given: Vec<&str> = kinds.copied().filter(|kind| handler[*kind].is_object()).collect();
    let Some((first, others)) = given.split_first() else {
        errors.push(FieldError::required(at, "must specify a handler type"));
        return;
    };
    let action = &handler[*first];
    match *first {
        "exec" if action["command"].as_array().is_none_or(Vec::is_empty) => {
            errors.push(FieldError::required(format!("{at}.exec.command"), ""));
        }
        "httpGet" => {
            port(&action["port"], &format!("{at}.httpGet.port"), errors);
            let scheme = text(action, "scheme");
            if !["HTTP", "HTTPS"].contains(&scheme) {
                let supported = ["HTTP", "HTTPS"].map(str::to_owned);
                let field = format!("{at}.httpGet.scheme");
                errors.push(FieldError::not_supported(field, scheme, &supported));
            }
        }
        "tcpSocket" | "grpc" => port(&action["port"], &format!("{at}.{first}.port"), errors),
        "sleep" => {
            let seconds = action["seconds"].as_i64().unwrap_or(0);
            if let Some(grace) = grace.filter(|grace| !(0..=*grace).contains(&seconds)) {
                let text = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                errors.push(FieldError::invalid(format!("{at}.sleep"), seconds, text));
            }
        }
        _ => {}
    }
    for other in others {
        let text = "may not specify more than 1 handler type";
        errors.push(FieldError::forbidden(format!("{at}.{other}"), text));
    }
}

/// A port by its number or its name.
fn port(port: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let wrong = match port {
        Value::String(name) => meta::port_name(name),
        number if (1..=65535).contains(&number.as_i64().unwrap_or(0)) => Vec::new(),
        _ => vec!["must be between 1 and 65535, inclusive".to_owned()],
    };
    let found = if port.is_null() { Value::from(0) } else { port.clone() };
    errors.extend(wrong.into_iter().map(|why| FieldError::invalid(at, found.clone(), why)));
}
