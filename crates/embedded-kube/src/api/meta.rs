//! Names, labels and the metadata that the server itself keeps.

use std::sync::LazyLock;

use rand::Rng;
use regex::Regex;
use serde_json::{Map, Value};

use super::errors::FieldError;
use super::resources::Resource;
use crate::schema::error::Reason;

/// The current time as Kubernetes stores it: whole seconds, UTC.
pub(crate) fn now() -> String {
    format_time(jiff::Timestamp::now())
}

pub(crate) fn format_time(at: jiff::Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub(crate) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

pub(crate) fn namespace(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

pub(crate) fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

pub(crate) fn finalizers(object: &Value) -> Vec<String> {
    let list = object["metadata"]["finalizers"].as_array();
    list.into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

pub(crate) fn set_finalizers(object: &mut Value, finalizers: Vec<String>) {
    match (finalizers.is_empty(), metadata_mut(object)) {
        (true, metadata) => drop(metadata.shift_remove("finalizers")),
        (false, metadata) => drop(metadata.insert("finalizers".into(), finalizers.into())),
    }
}

pub(crate) fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// The metadata as a map; created if it is missing.
pub(crate) fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let metadata = &mut object["metadata"];
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    match metadata {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

/// Copies `field` of the old metadata over the new one's.
pub(crate) fn keep(old: &Value, new: &mut Value, field: &str) {
    let kept = old["metadata"].get(field).filter(|v| !v.is_null()).cloned();
    let metadata = metadata_mut(new);
    match kept {
        Some(value) => drop(metadata.insert(field.to_owned(), value)),
        None => drop(metadata.shift_remove(field)),
    }
}

pub(crate) fn bump_generation(object: &mut Value) {
    let next = object["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
    metadata_mut(object).insert("generation".into(), next.into());
}

/// Letters and digits that form no words and are not easily confused, as Kubernetes uses for generated names.
const SAFE: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

pub(crate) fn random_suffix(length: usize) -> String {
    let mut rng = rand::rng();
    (0..length)
        .map(|_| SAFE[rng.random_range(0..SAFE.len())] as char)
        .collect()
}

pub(crate) fn generate_name(base: &str) -> String {
    // 63 characters at most, five of them random.
    let base: String = base.chars().take(58).collect();
    format!("{base}{}", random_suffix(5))
}

static LABEL: LazyLock<Regex> = LazyLock::new(|| regex(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"));
static SUBDOMAIN: LazyLock<Regex> =
    LazyLock::new(|| regex(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"));
static QUALIFIED: LazyLock<Regex> = LazyLock::new(|| regex(r"^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$"));
static LABEL_VALUE: LazyLock<Regex> = LazyLock::new(|| regex(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"));

#[allow(clippy::expect_used)] // the patterns are constants, and every one of them is used by a test
fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a constant pattern")
}

fn length(text: &str, max: usize) -> Option<String> {
    (text.len() > max).then(|| format!("must be no more than {max} characters"))
}

/// The error of a DNS label (RFC 1123).
pub(crate) fn dns_label(text: &str) -> Vec<String> {
    let form = (!LABEL.is_match(text)).then(|| {
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end \
         with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
         '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            .to_owned()
    });
    length(text, 63).into_iter().chain(form).collect()
}

/// The names of namespaces are labels too, with a special message about dots.
fn namespace_name(text: &str) -> Vec<String> {
    if text.contains('.') {
        vec!["must not contain dots".into()]
    } else {
        dns_label(text)
    }
}

/// The error of a DNS subdomain (RFC 1123).
pub(crate) fn dns_subdomain(text: &str) -> Vec<String> {
    let form = (!SUBDOMAIN.is_match(text)).then(|| {
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start \
         and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
         '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            .to_owned()
    });
    length(text, 253).into_iter().chain(form).collect()
}

/// The error of a port's name (RFC 6335).
pub(crate) fn port_name(text: &str) -> Vec<String> {
    let is_allowed = |c: char| c == '-' || c.is_ascii_lowercase() || c.is_ascii_digit();
    let wrong = [
        (
            text.is_empty() || !text.chars().all(is_allowed),
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
        ),
        (
            !text.contains(|c: char| c.is_ascii_lowercase()),
            "must contain at least one letter (a-z)",
        ),
        (text.contains("--"), "must not contain consecutive hyphens"),
        (
            text.starts_with('-') || text.ends_with('-'),
            "must not begin or end with a hyphen",
        ),
    ];
    let wrong = wrong.into_iter().filter(|(is_wrong, _)| *is_wrong);
    length(text, 15)
        .into_iter()
        .chain(wrong.map(|(_, why)| why.to_owned()))
        .collect()
}

fn path_segment(text: &str) -> Vec<String> {
    if text == "." || text == ".." {
        return vec![format!("may not be '{text}'")];
    }
    ['/', '%']
        .iter()
        .filter(|c| text.contains(**c))
        .map(|c| format!("may not contain '{c}'"))
        .collect()
}

/// The error of the key of a label or annotation.
pub(crate) fn qualified_name(key: &str) -> Vec<String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let mut wrong = Vec::new();
    match prefix {
        Some("") => wrong.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => wrong.extend(dns_subdomain(prefix).into_iter().map(|e| format!("prefix part {e}"))),
        None => {}
    }
    if name.is_empty() {
        wrong.push("name part must be non-empty".into());
    } else if name.len() > 63 {
        wrong.push("name part must be no more than 63 characters".into());
    }
    if !QUALIFIED.is_match(name) {
        wrong.push(
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
             alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
             '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
                .into(),
        );
    }
    wrong
}

/// The error of the value of a label.
pub(crate) fn label_value(text: &str) -> Vec<String> {
    let form = (!LABEL_VALUE.is_match(text)).then(|| {
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
         must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', \
         regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            .to_owned()
    });
    length(text, 63).into_iter().chain(form).collect()
}

/// The errors of a map of labels, or of a selector's map.
pub(crate) fn labels(map: &Value, at: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (key, value) in map.as_object().into_iter().flatten() {
        let invalid = |value: &Value, why| FieldError::invalid(at, value.clone(), why);
        errors.extend(
            qualified_name(key)
                .into_iter()
                .map(|why| invalid(&key.as_str().into(), why)),
        );
        let text = value.as_str().unwrap_or_default();
        errors.extend(label_value(text).into_iter().map(|why| invalid(value, why)));
    }
    errors
}

/// Checks names, labels, annotations and finalizers of an object about to be stored.
pub(crate) fn validate(resource: &Resource, object: &Value) -> Vec<FieldError> {
    let metadata = &object["metadata"];
    let mut errors = Vec::new();
    let name = metadata["name"].as_str().unwrap_or_default();
    let rule: fn(&str) -> Vec<String> = match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "services") => dns_label,
        ("", "namespaces") => namespace_name,
        ("rbac.authorization.k8s.io", _) => path_segment,
        _ => dns_subdomain,
    };
    if name.is_empty() {
        errors.push(FieldError::required(
            "metadata.name",
            "name or generateName is required",
        ));
    } else {
        let wrong = rule(name);
        errors.extend(
            wrong
                .into_iter()
                .map(|e| FieldError::invalid("metadata.name", metadata["name"].clone(), e)),
        );
    }
    errors.extend(labels(&metadata["labels"], "metadata.labels"));
    let mut size = 0;
    for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
        let wrong = qualified_name(&key.to_lowercase());
        errors.extend(
            wrong
                .into_iter()
                .map(|e| FieldError::invalid("metadata.annotations", key.as_str(), e)),
        );
        size += key.len() + value.as_str().unwrap_or_default().len();
    }
    if size > 256 * 1024 {
        errors.push(FieldError::new(
            Reason::TooLong,
            "metadata.annotations",
            None,
            "may not be more than 262144 bytes",
        ));
    }
    for (i, owner) in metadata["ownerReferences"].as_array().into_iter().flatten().enumerate() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().unwrap_or_default().is_empty() {
                let path = format!("metadata.ownerReferences[{i}].{field}");
                errors.push(FieldError::required(path, "must not be empty"));
            }
        }
    }
    let definition = resource.group == "apiextensions.k8s.io";
    for (i, finalizer) in finalizers(object).iter().enumerate() {
        let standard = ["kubernetes", "orphan", "foregroundDeletion"].contains(&finalizer.as_str());
        if !standard && !finalizer.contains('/') && resource.custom().is_none() && !definition {
            let text = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(
                format!("metadata.finalizers[{i}]"),
                finalizer.as_str(),
                text,
            ));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_and_labels_are_checked_with_kubernetes_messages() {
        let pods = super::super::resources::built_in()
            .into_iter()
            .find(|r| r.plural == "pods")
            .unwrap();
        let good = json!({"metadata": {"name": "a-1.b", "labels": {"app.io/x": "Y_1", "e": ""}, "annotations": {"A/b": "anything at all"}}});
        assert_eq!(validate(&pods, &good), []);
        let bad = json!({"metadata": {"name": "A_b", "labels": {"-x": "a b", "/y": "z"}}});
        let messages: Vec<String> = validate(&pods, &bad).into_iter().map(|e| e.body()).collect();
        assert!(
            messages[0].starts_with(r#"Invalid value: "A_b": a lowercase RFC 1123 subdomain must"#),
            "{messages:?}"
        );
        assert!(messages.len() >= 4, "{messages:?}");
        assert!(!dns_label("a.b").is_empty() && dns_label("a-b").is_empty());
        assert_eq!(generate_name(&"x".repeat(80)).len(), 63);
        assert!(!path_segment("a/b").is_empty() && path_segment("system:x").is_empty());
    }
}
